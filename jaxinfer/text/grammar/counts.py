"""Counts: minProperties and maxProperties of an object with optional names, said in the ways that llguidance has.

It counts names only where all of those listed are required, or where one more must come, or may. Otherwise it asks for
names that are not listed, and says of an object that can have none that there is no such object.
"""

from collections.abc import Iterable
from typing import Any


def settle_counts(part: dict[str, Any], *, strict: bool) -> list[str]:
    """Change one part of a schema; says what it does not say any more, which with strict is nothing."""
    named, required = part.get("properties"), part.get("required", [])
    if not (isinstance(named, dict) and isinstance(required, list)):
        return []
    names = [name for name, below in named.items() if below is not False]
    needed = {name for name in required if isinstance(name, str)}
    least, most = _count(part, "minProperties"), _count(part, "maxProperties")
    is_closed = part.get("additionalProperties") is False and not part.get("patternProperties")
    if is_closed and (needed - set(names) or least > len(names)):  # there is no such object, which is said elsewhere
        return []
    if is_closed and most is not None and most >= len(names):
        del part["maxProperties"]
        most = None
    if is_closed and (least <= len(needed) or least == len(names)):
        if least == len(names):
            part["required"] = names
            needed.update(names)
        part.pop("minProperties", None)
        least = 0
    if strict or needed.issuperset(names) or (most is not None and most < max(least, len(needed))):
        return []
    one_more = len(needed) + 1 if is_closed else None
    found = ["minProperties"] * (least > len(needed) and least != one_more)
    found += ["maxProperties"] * (most not in (None, one_more))
    return left_out(part, found, "not all names of properties are in required")


def left_out(part: dict[str, Any], names: Iterable[str], why: str) -> list[str]:
    """Take these counts out of a part; says so, if it has any of them."""
    counts = [f"{name} {part.pop(name)}" for name in names if name in part]
    return [f"{' and '.join(counts)} {'are' if counts[1:] else 'is'} left out, since {why}"] if counts else []


def _count(part: dict[str, Any], name: str) -> Any:
    """0 or None, which hold of all, where it is none."""
    count = part.get(name)
    is_count = isinstance(count, int | float) and not isinstance(count, bool) and count >= 0
    return count if is_count else 0 if name == "minProperties" else None
