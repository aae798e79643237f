"""All the schemas, and their values as the texts of answers."""

import functools
import json
from collections.abc import Iterable
from itertools import cycle, islice
from math import prod
from typing import Any

from tests.support.schemas.case import Case
from tests.support.schemas.clients import client_cases
from tests.support.schemas.leaves import leaves
from tests.support.schemas.shapes import SHAPES, others, refused

LEAST_VALID, LEAST_INVALID = 3, 2
_SPACES = [(",", ":"), (", ", ": "), (" ,\r\n ", "\t:\n")]


@functools.cache
def corpus() -> list[Case]:
    """Every shape around every leaf, and all else."""
    return [shape(leaf) for shape in SHAPES for leaf in leaves()] + others() + refused() + client_cases()


def num_different(values: Iterable[Any]) -> int:
    return len({json.dumps(value, sort_keys=True) for value in values})


def least_valid(schema: Any, root: Any = None) -> int:
    """How many different values there must be of it at least: as many as a finite schema has, or three."""
    root = root or schema
    match schema:
        case {"$ref": str(reference)}:
            _, kind, name = reference.split("/")
            return least_valid(root[kind][name], root)
        case {"const": _} | {"type": "null"}:
            return 1
        case {"enum": list(options)}:
            return min(LEAST_VALID, len(options))
        case {"type": "boolean"}:
            return 2
        case {"type": "integer", "minimum": int(low), "maximum": int(high)}:
            return min(LEAST_VALID, high - low + 1)
        case {"allOf": [only]}:
            return least_valid(only, root)
        case {"prefixItems": list(parts), "items": False, "minItems": least} if least == len(parts):
            return min(LEAST_VALID, prod(least_valid(part, root) for part in parts))
        case {"properties": dict(parts), "additionalProperties": False, "required": names} if set(names) == set(parts):
            return min(LEAST_VALID, prod(least_valid(part, root) for part in parts.values()))
    return LEAST_VALID


def accepted(case: Case) -> list[str]:
    """Texts of the valid values, with more or less white space; where there are few, of some in several ways."""
    values = islice(cycle(case.valid), max(LEAST_VALID, len(case.valid)) if case.valid else 0)
    return _texts(list(values))


def rejected(case: Case) -> list[str]:
    return _texts(list(case.invalid))


def left_through(case: Case) -> list[str]:
    return _texts(list(case.loose))


def _texts(values: list[Any]) -> list[str]:
    texts = (
        json.dumps(value, ensure_ascii=False, separators=spaces)
        for value, spaces in zip(values, cycle(_SPACES), strict=False)
    )
    return list(dict.fromkeys(texts))
