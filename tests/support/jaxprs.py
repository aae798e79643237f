"""What a traced function is made of."""

from collections.abc import Iterator
from typing import Any

import jax


def equations(jaxpr: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Those of a jaxpr, closed or not, each followed by those of the jaxprs among its parameters.

    seen: if given, a function that several equations call is looked at once; takes the ids of their jaxprs.
    """
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            own = id(getattr(inner, "jaxpr", inner))
            if not _is_jaxpr(inner) or (seen is not None and own in seen):
                continue
            if seen is not None:
                seen.add(own)
            yield from equations(inner, seen)


def _is_jaxpr(x: object) -> bool:
    return hasattr(x, "jaxpr") or hasattr(x, "eqns")
