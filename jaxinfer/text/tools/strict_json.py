"""JSON as RFC 8259 has it: what a model wrote may read as a value that no answer of ours can carry."""

import json
from typing import Any


def loaded(text: str) -> Any:
    """Raises ValueError, and RecursionError for what is too deep."""
    return json.loads(text, parse_constant=_refuse)


def dumped(value: Any) -> str:
    """Raises ValueError for 1e999, which was read as infinity, and for a lone surrogate, which UTF-8 has not."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
    return text


def _refuse(constant: str) -> Any:
    raise ValueError(f"JSON has no {constant}")
