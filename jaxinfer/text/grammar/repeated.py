"""Repeated names: a grammar cannot remember a name that the schema does not list, so that an object may have it twice.

Who reads the object has the last value alone. So of minProperties only the names of `required`, each of which comes
once, and one more are sure. A listed name comes twice only where a name beside it may be spelt with escapes.
"""

from collections.abc import Iterator
from typing import Any

from jaxinfer.text.grammar.parts import parts

COUNTED_AGAIN = "a repeated name counts again"


def counted_again(schema: Any) -> Iterator[str]:
    """Where an object of a schema may have fewer names than minProperties says, and why."""
    for part, place in parts(schema) if isinstance(schema, dict) else ():
        least, sure = part.get("minProperties"), _num_required(part) + 1
        if isinstance(least, int) and least > sure and _may_repeat(part):
            law = f"minProperties must be at most {sure}, one more than the names in required"
            yield f"{law}, since {COUNTED_AGAIN}; it is {least} at {ascii(place)}"


def may_be_respelt(schema: Any) -> bool:
    r"""Whether a name that the schema lists, or of a pattern, may come again with an escape, as "\u0061" for "a"."""
    named = (part for part, _ in parts(schema) if part.keys() & {"properties", "required", "patternProperties"})
    return any(part.get("additionalProperties") is not False for part in named)


def _num_required(part: dict[str, Any]) -> int:
    required = part.get("required")
    return len({name for name in required if isinstance(name, str)}) if isinstance(required, list) else 0


def _may_repeat(part: dict[str, Any]) -> bool:
    kinds = part.get("type", "object")
    is_object = "object" in (kinds if isinstance(kinds, list) else [kinds])
    is_closed = part.get("additionalProperties") is False and not part.get("patternProperties")
    return is_object and not is_closed and not part.keys() & {"const", "enum"}
