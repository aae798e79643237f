"""Schemas in a grammar's text."""

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

_BEFORE = re.compile("%json ")


def schemas_in(text: str) -> Iterator[Any]:
    """Each."""
    return (schema for schema, _, _ in placed_schemas(text))


def placed_schemas(text: str) -> Iterator[tuple[Any, int, int]]:
    """Each, with where it begins and ends."""
    decoder = json.JSONDecoder()
    for found in _BEFORE.finditer(text):
        with contextlib.suppress(ValueError):  # a literal that reads like one
            schema, end = decoder.raw_decode(text, found.end())
            yield schema, found.end(), end


def lets(schema: Any) -> bool:
    """Whether what it cannot be held to is left out."""
    guidance = schema.get("x-guidance") if isinstance(schema, dict) else None
    return isinstance(guidance, dict) and guidance.get("lenient") is True
