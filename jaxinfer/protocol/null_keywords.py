"""Null among a schema's keywords, which clients of typed languages write for what they leave out."""

import json

import msgspec

from jaxinfer.text.grammar.parts import placeless

_VALUES = frozenset({"const", "default", "example"})  # of which null is one like others


def without_nulls[Schema](schema: Schema) -> Schema:
    """The JSON of a schema without keywords that are null: the same object where there are none, else a copy."""
    written = msgspec.json.encode(schema)
    if b":null" not in written:  # most: to look at each part takes ten times as long as to write it
        return schema
    copy: Schema = json.loads(written)
    for part in placeless(copy):
        for name in [name for name, value in part.items() if value is None and name not in _VALUES]:
            del part[name]
    return copy
