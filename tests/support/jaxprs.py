"""What a traced function is made of."""

from collections.abc import Iterator
from typing import Any

import jax


def equations(jaxpr: Any) -> Iterator[Any]:
    """Those of a jaxpr, closed or not, each followed by those of the jaxprs among its parameters."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(inner):
                yield from equations(inner)


def _is_jaxpr(x: object) -> bool:
    return hasattr(x, "jaxpr") or hasattr(x, "eqns")
