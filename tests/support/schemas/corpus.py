"""All the schemas, and their values as the texts of answers."""

import json
from itertools import cycle, islice
from typing import Any

from tests.support.schemas.case import Case
from tests.support.schemas.clients import client_cases
from tests.support.schemas.leaves import leaves
from tests.support.schemas.shapes import SHAPES, others, refused

LEAST_VALID, LEAST_INVALID = 3, 2
_SPACES = [(",", ":"), (", ", ": "), (" ,\r\n ", "\t:\n")]


def corpus() -> list[Case]:
    """Every shape around every leaf but `true`, `null` and constants alone, which have too few texts."""
    built = [shape(leaf) for shape in SHAPES for leaf in leaves()]
    return [case for case in built if len(accepted(case)) >= LEAST_VALID] + others() + refused() + client_cases()


def accepted(case: Case) -> list[str]:
    """Texts of the valid values, with more or less white space."""
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
