"""Cells of tables as the values that a JSON body has: in CSV all is text, and a count may be written as a fraction."""

import dataclasses
import json
import math
from decimal import Decimal
from typing import Any

from jaxinfer.errors import BatchError
from jaxinfer.offline.rows import PLAIN_COLUMNS


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """What a cell cannot be made of: bytes that are no UTF-8, a moment that Python has no name for. No field takes it,
    so it is its row's fault if a field has its column's name, and nobody's else.
    """

    kind: str


TEXT = frozenset({"prompt", "custom_id", "model", "cache_salt", "truncation_side", "user"})


def check_names(names: list[str], what: str) -> None:
    """Raise BatchError unless these columns can hold rows."""
    if not set(PLAIN_COLUMNS) & set(names):
        listed = ", ".join(map(ascii, names[:10])) or "none"
        raise BatchError(f"{what} must have a column prompt or messages, got {listed[:300]}; name one of them so")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BatchError(f"{what} must name each column once, got {ascii(twice)[:80]} twice; drop one")


def present(columns: dict[str, Any]) -> dict[str, Any]:
    """Those that a row has: in a column of fractions NaN is how many programs write a gap, and no field takes it."""
    return {name: value for name, value in columns.items() if not (isinstance(value, float) and math.isnan(value))}


def from_text(name: str, cell: str) -> Any:
    """What a CSV cell says: text where text is meant, else JSON; what is no JSON stays text, for the validator."""
    if name in TEXT or (name == "stop" and not cell.startswith("[")):
        return cell
    if cell.lower() == "nan":
        return math.nan
    try:
        return whole(json.loads(cell))
    except (ValueError, RecursionError):
        return cell


def whole(value: Any) -> Any:
    """Nulls left out of objects, and 16.0 as 16: a column of counts with a gap is one of fractions to many programs.
    Decimals, which JSON has none of, as the numbers that they are.
    """
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {name: whole(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
