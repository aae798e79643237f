"""Counts: minProperties and maxProperties of an object with optional names, said in the ways that llguidance has.

It counts names only where all of those listed are required, or where one more must come, or may. Otherwise it asks for
names that are not listed, and says of an object that can have none that there is no such object.
"""

from typing import Any


def settle_counts(part: dict[str, Any], *, strict: bool) -> list[str]:
    """Change one part of a schema; says what it does not say any more, which with strict is nothing."""
    named, required = part.get("properties"), part.get("required", [])
    if not (isinstance(named, dict) and isinstance(required, list)):
        return []
    names = [name for name, below in named.items() if below is not False]
    needed = {name for name in required if isinstance(name, str)}
    least, most = _count(part, "minProperties"), _count(part, "maxProperties")
    if part.get("additionalProperties") is not False or part.get("patternProperties"):
        is_uncounted = not strict and least > len(needed) and not needed.issuperset(names)
        return [_left_out(part, "minProperties")] if is_uncounted else []
    if needed - set(names) or least > len(names):  # there is no such object, which is said elsewhere
        return []
    if most is not None and most >= len(names):
        del part["maxProperties"]
        most = None
    if least <= len(needed) or least == len(names):
        if least == len(names):
            part["required"] = names
        part.pop("minProperties", None)
        return []
    if strict or least == len(needed) + 1 and most in (None, least):
        return []
    return [_left_out(part, "minProperties" if least > len(needed) + 1 else "maxProperties")]


def _left_out(part: dict[str, Any], name: str) -> str:
    return f"{name} {part.pop(name)} is left out, since not all names of properties are in required"


def _count(part: dict[str, Any], name: str) -> Any:
    """0 or None, which hold of all, where it is none."""
    count = part.get(name)
    is_count = isinstance(count, int | float) and not isinstance(count, bool) and count >= 0
    return count if is_count else 0 if name == "minProperties" else None
