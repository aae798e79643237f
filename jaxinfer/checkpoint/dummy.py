"""Random weights from parameter specs alone: load_format="dummy".

On two CPU cores jax.random takes over a minute for 0.6 B values (measured 2026-11-20); an integer hash of each value's
position takes 2 to 5 s, and gives the same values on every device and however they are spread.
"""

import dataclasses
import functools
import math
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.checkpoint.load import make_room_for
from jaxinfer.checkpoint.placement import Placement, row_dimension, row_order, shape_over, sharding_for
from jaxinfer.models.parameters import Format, Init, ParamSpec, held

BYTE_SUM_MEAN = 4 * 255 / 2
BYTE_SUM_STD = (4 * (256**2 - 1) / 12) ** 0.5  # of the sum of four independent uniform bytes
_MAX_THREADS = 8  # that compile: eight programs of 1.5B take 0.2 s, 0.9 in a start (H200's host)


@dataclasses.dataclass(frozen=True)
class _Kind:
    """What leaves of one program have in common."""

    shape: tuple[int, ...]  # of the whole leaf
    placed: tuple[int, ...]  # see placement.shape_over
    dtype: np.dtype
    init: Init
    sharding: jax.sharding.Sharding
    row_dimension: int
    order: tuple[int, ...] | None  # see placement.row_order
    format: Format | None


def dummy_params(spec_tree: Any, dtype: jax.typing.DTypeLike, seed: int, placement: Placement) -> Any:
    """A tree of spec_tree's structure of random arrays; every value depends on seed, leaf and position alone.

    Raises DeviceError when they do not fit in memory.
    """
    make_room_for(spec_tree, dtype, placement)

    leaves, structure = jax.tree.flatten_with_path(spec_tree, is_leaf=lambda node: isinstance(node, ParamSpec))
    kinds = [_kind(spec, dtype, placement) for _, spec in leaves]
    distinct = dict.fromkeys(kinds)
    with ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="random") as pool:
        programs = dict(zip(distinct, pool.map(_program, distinct), strict=True))

    def made(path: tuple[Any, ...], kind: _Kind) -> Any:
        return programs[kind](np.uint32(zlib.crc32(jax.tree_util.keystr(path).encode(), seed % 2**32)))

    return jax.tree.unflatten(structure, [made(path, kind) for (path, _), kind in zip(leaves, kinds, strict=True)])


def _kind(spec: ParamSpec, dtype: jax.typing.DTypeLike, placement: Placement) -> _Kind:
    order = row_order(spec, placement) if spec.init == "normal" else None
    return _Kind(
        spec.shape,
        shape_over(spec, placement),
        np.dtype(spec.dtype_in(dtype)),
        spec.init,
        sharding_for(spec.partition, placement),
        row_dimension(spec),
        None if order is None else tuple(order.tolist()),
        spec.format,
    )


@functools.lru_cache(maxsize=64)
def _program(kind: _Kind) -> jax.stages.Compiled:
    """One compiled program for all leaves of a kind; the key u32[] tells them apart."""

    def fill(key: jax.Array) -> Any:
        if kind.init == "normal":
            return held(_normal(key, kind), kind.format, kind.dtype)
        if kind.init == "bits":
            place = jax.lax.iota(jnp.uint32, math.prod(kind.placed)).reshape(kind.placed)
            return jax.lax.bitcast_convert_type(_mix(place ^ key).astype(f"uint{8 * kind.dtype.itemsize}"), kind.dtype)
        return jnp.full(kind.placed, {"ones": 1, "zeros": 0}.get(str(kind.init), kind.init), kind.dtype)

    return jax.jit(fill, out_shardings=kind.sharding).lower(jax.ShapeDtypeStruct((), jnp.uint32)).compile()


def _normal(key: jax.Array, kind: _Kind) -> jax.Array:
    """Nearly normal values of mean 0 and standard deviation 1/sqrt(last dimension).

    A hash of (key, row, column) is four bytes; their sum, by the central limit, is close to normal out to 3.4 sigma.
    """
    last = len(kind.shape) - 1

    def index(axis: int) -> jax.Array:
        """Where in the whole leaf each place along an axis is, with the other axes of length 1."""
        shape = [size if one == axis else 1 for one, size in enumerate(kind.placed)]
        if kind.order is None or axis != kind.row_dimension:
            return jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        return jnp.asarray(kind.order, jnp.uint32).reshape(shape)

    rows = functools.reduce(
        lambda row, axis: row * np.uint32(kind.shape[axis]) + index(axis), range(last), np.uint32(0)
    )
    bits = _mix(_mix(rows ^ key) + index(last))
    total = sum((((bits >> np.uint32(shift)) & np.uint32(255)) for shift in (8, 16, 24)), bits & np.uint32(255))
    scale = 1 / (BYTE_SUM_STD * kind.shape[last] ** 0.5)
    return ((total.astype(jnp.float32) - BYTE_SUM_MEAN) * np.float32(scale)).astype(kind.dtype)


def _mix(x: jax.Array) -> jax.Array:
    """Spread every bit of x u32[...] over all 32: the finaliser of MurmurHash3 (Appleby, public domain)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
