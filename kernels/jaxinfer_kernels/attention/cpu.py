"""Decode attention by our kernel for CPUs, cpu.cc: bfloat16, summed in float32."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer_kernels.attention.paged import DecodeRows, LayerPages
from jaxinfer_kernels.cpu import Isa, target

_HEAD_DIMS, _MOST_QUERIES, _MOST_PAGE = (64, 128, 256), 16, 128


def supported(heads: int, kv_heads: int, head_dim: int, page_size: int, dtype: jnp.dtype) -> bool:
    fits = head_dim in _HEAD_DIMS and heads // kv_heads <= _MOST_QUERIES and page_size <= _MOST_PAGE
    return fits and dtype == jnp.bfloat16


def decode_attention(
    q: jax.Array,
    pages: LayerPages,
    rows: DecodeRows,
    *,
    window: int | None = None,
    isa: Isa = Isa.AMX,
) -> jax.Array:
    """Attend from each row's one query to all of the row's tokens, or to the last ones: xla_decode.decode_attention.

    isa: the most of a processor that is used; less where it has less.
    """
    call = jax.ffi.ffi_call(target("DecodeAttention"), jax.ShapeDtypeStruct(q.shape, q.dtype))
    return call(q, *pages, *rows, window=np.int64(window or 0), isa=np.int64(isa))
