"""Values of the types that clients' packages declare, drawn at random. It needs nothing of ours, so that a program with
packages of its own can run it: `python sampled.py MODULE TYPE COUNT` prints a JSON list.
"""

import importlib
import json
import os
import random
import sys
import types
import typing
from typing import Any

import typing_extensions

WORDS = ("x", "Look at this.", "naïve", "{}", '{"a": 1}')
SCALARS: dict[Any, tuple[Any, ...]] = {
    str: WORDS,
    int: (0, 7),
    float: (0.5,),
    bool: (True, False),
    type(None): (None,),
    object: (1, "x", {"a": [1, "b"]}),
}


def sample(kind: Any, chance: random.Random, depth: int = 0) -> Any:
    """A value of the type; lists are short, and what may be left out often is."""
    arguments = typing.get_args(kind)
    if kind in SCALARS:
        return chance.choice(SCALARS[kind])
    if typing_extensions.is_typeddict(kind):
        return _sample_fields(kind, chance, depth)
    match typing.get_origin(kind):
        case typing.Literal:
            return chance.choice(arguments)
        case typing.Union | types.UnionType:
            return sample(chance.choice([each for each in arguments if not _is_object(each)]), chance, depth)
        case typing_extensions.Required | typing_extensions.NotRequired | typing.Annotated:
            return sample(arguments[0], chance, depth)
        case origin if origin is dict:
            return {"a": sample(arguments[1], chance, depth + 1)}
        case origin if origin is not None and hasattr(origin, "__iter__"):
            return [sample(arguments[0], chance, depth + 1) for _ in range(chance.randint(0, 2))]
    raise TypeError(f"no value is known of {kind}")


def _sample_fields(kind: Any, chance: random.Random, depth: int) -> dict[str, Any]:
    """Their annotations are texts, of which a TypedDict itself cannot tell what is required."""
    hints = typing_extensions.get_type_hints(kind, include_extras=True)
    required = {name for name, hint in hints.items() if typing.get_origin(hint) is typing_extensions.Required}
    return {
        name: sample(hint, chance, depth + 1)
        for name, hint in hints.items()
        if name in required or chance.random() < 0.3 / (1 + depth)
    }


def _is_object(kind: Any) -> bool:
    """A model, of which answers are made, with the same fields again; or a file."""
    is_file = kind is os.PathLike or typing.get_origin(kind) is typing.IO or kind in (typing.IO, typing.IO[bytes])
    return is_file or hasattr(kind, "model_fields") or typing.get_origin(kind) is typing.Annotated


if __name__ == "__main__":
    module, name, count = sys.argv[1:]
    found, source = getattr(importlib.import_module(module), name), random.Random(0)
    print(json.dumps([sample(found, source) for _ in range(int(count))]))
