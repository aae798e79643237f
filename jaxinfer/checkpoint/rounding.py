"""Matrices that were loaded as published, rounded to a format that the device's kernels read."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.models.parameters import Format, ParamSpec, Quantized, held

ROWS = 1024  # at once: what they stand for is in float32 meanwhile


def round_again(spec_tree: Any, params: Any, dtype: Any) -> Any:
    """The parameters, in the formats that their specs have.

    Params are given up: each matrix is deleted when it has been rounded. Of one matrix there are then the published and
    twice the rounded, in parts and whole; ROWS of it are in float32 before.
    """
    specs, structure = jax.tree.flatten(spec_tree)
    leaves = structure.flatten_up_to(params)
    return jax.tree.unflatten(
        structure, [_rounded(spec, leaf, dtype) for spec, leaf in zip(specs, leaves, strict=True)]
    )


def _rounded(spec: ParamSpec, leaf: Any, dtype: Any) -> Any:
    if not isinstance(leaf, Quantized) or spec.format is None:
        return leaf
    starts = range(0, len(leaf), ROWS)
    parts = [_part(leaf.rows(start, min(start + ROWS, len(leaf))), spec.format, dtype) for start in starts]
    whole = jax.block_until_ready(jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts))
    for array in jax.tree.leaves(leaf):
        array.delete()
    return whole


@functools.partial(jax.jit, static_argnames=("kind", "dtype"))
def _part(matrix: Quantized, kind: Format, dtype: Any) -> Any:
    return held(matrix.widened(jnp.float32), kind, dtype)
