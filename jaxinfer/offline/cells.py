"""Cells of tables as the values that a JSON body has: in CSV all is text, and a count may be written as a fraction."""

import json
from typing import Any

from jaxinfer.errors import BatchError
from jaxinfer.offline.rows import PLAIN_COLUMNS

TEXT = frozenset({"prompt", "custom_id", "model", "cache_salt", "truncation_side", "user"})


def check_names(names: list[str], what: str) -> None:
    """Raise BatchError unless these columns can hold rows."""
    if not set(PLAIN_COLUMNS) & set(names):
        listed = ", ".join(map(ascii, names[:10])) or "none"
        raise BatchError(f"{what} must have a column prompt or messages, got {listed[:300]}; name one of them so")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BatchError(f"{what} must name each column once, got {ascii(twice)[:80]} twice; drop one")


def from_text(name: str, cell: str) -> Any:
    """What a CSV cell says: text where text is meant, else JSON; what is no JSON stays text, for the validator."""
    if name in TEXT or (name == "stop" and not cell.startswith("[")):
        return cell
    try:
        return whole(json.loads(cell))
    except (ValueError, RecursionError):
        return cell


def whole(value: Any) -> Any:
    """Nulls left out of objects, and 16.0 as 16: a column of counts with a gap is one of fractions to many programs."""
    if isinstance(value, dict):
        return {name: whole(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
