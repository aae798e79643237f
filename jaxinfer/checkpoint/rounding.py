"""Matrices that were loaded as published, rounded to a format that the device's kernels read."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.models.parameters import Format, ParamSpec, Quantized, held

ROWS = 1024  # at once: what they stand for is in float32 meanwhile


def round_again(spec_tree: Any, params: Any, dtype: Any) -> Any:
    """The parameters, in the formats that their specs have.

    Each matrix takes its place before the next is rounded, so that at most one is there twice.
    """
    specs, structure = jax.tree.flatten(spec_tree)
    leaves = structure.flatten_up_to(params)
    del params
    for place, spec in enumerate(specs):
        leaf, leaves[place] = leaves[place], None
        leaves[place] = _rounded(spec, leaf, dtype)
        del leaf
    return jax.tree.unflatten(structure, leaves)


def _rounded(spec: ParamSpec, leaf: Any, dtype: Any) -> Any:
    if not isinstance(leaf, Quantized) or spec.format is None:
        return leaf
    starts = range(0, len(leaf), ROWS)
    parts = [_part(leaf.rows(start, min(start + ROWS, len(leaf))), spec.format, dtype) for start in starts]
    whole = jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)
    return jax.block_until_ready(whole)


@functools.partial(jax.jit, static_argnames=("kind", "dtype"))
def _part(matrix: Quantized, kind: Format, dtype: Any) -> Any:
    return held(matrix.widened(jnp.float32), kind, dtype)
