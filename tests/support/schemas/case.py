"""A JSON schema with what it must let through and what not, by construction."""

from typing import Any, NamedTuple

Schema = dict[str, Any]


class Case(NamedTuple):
    """valid, invalid: values as Python reads them, their properties in the schema's order, as an answer has them.

    refused: what strict says no to, as the refusal spells it; without strict that is left out with a warning.
    loose: values that are invalid for that reason alone, so that they pass where it is left out.
    client: whether clients send it so.
    """

    family: str
    schema: Schema
    valid: tuple[Any, ...]
    invalid: tuple[Any, ...]
    refused: str = ""
    loose: tuple[Any, ...] = ()
    client: bool = False


def closed(properties: Schema, *required: str, **more: Any) -> Schema:
    """An object of these properties and no others, all of them required unless said."""
    names = list(required or properties)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False} | more
