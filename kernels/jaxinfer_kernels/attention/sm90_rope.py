"""What lies between the product of q, k and v and the extend attention of a chain, for Hopper (Mosaic GPU): norms of
heads, rotation, and the new keys and values into their pages.

A CTA has one token. Bound by latency: 128 tokens are a megabyte.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.attention.sm90_new_token import apply_rope
from jaxinfer_kernels.sm90 import F32, Ref, compiler_params, griddepcontrol, named, round_up


@dataclasses.dataclass(frozen=True)
class RopeConfig:
    """Static facts of one launch."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: jnp.dtype
    norm_eps: float | None  # norm queries and keys
    pdl: bool


@functools.partial(jax.jit, static_argnames=("norm_eps", "pdl", "interpret"))
def rotate_write(
    qkv: jax.Array,
    cos_sin: tuple[jax.Array, jax.Array],
    k: jax.Array,
    v: jax.Array,
    layer: jax.Array,
    page_ids: jax.Array,
    offsets: jax.Array,
    *,
    norms: tuple[jax.Array, jax.Array] | None = None,
    norm_eps: float | None = None,
    pdl: bool = True,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, normed and rotated, and pages with the tokens' keys, likewise, and values.

      qkv:     [T, (N + 2K) * H], queries, keys, values.    cos_sin: f32[T, H / 2] each.
      k, v:    [L, P, K, page, H], updated in place where the caller donates them.    layer: i32[].
      page_ids, offsets: i32[T], where each token's key and value go; page P, which is not there, for padding.
      norms:   [layers, H] each, the scales of queries and keys, with norm_eps: RMS norm over each head before rotating.
      pdl:     begin while the kernel before this one still runs.
    Returns q [T, N, H], k, v.
    """
    kv_heads, h = k.shape[2], k.shape[4]
    heads = qkv.shape[1] // h - 2 * kv_heads
    eps = norm_eps if norms else None
    plan = RopeConfig(heads, kv_heads, h, qkv.dtype, eps, pdl and interpret is None)
    many, few = (plgpu.SMEM((round_up(n, 8), h), plan.dtype) for n in (heads, kv_heads))
    smem = dict(q=many, k=few, v=few, angles=plgpu.SMEM((2, h // 2), F32))
    smem |= dict(ready=plgpu.Barrier(num_arrivals=5 if eps is None else 7))
    smem |= {} if eps is None else dict(norms=plgpu.SMEM((2, h), plan.dtype))
    kernel = plgpu.kernel(
        named("rotate_write", functools.partial(_kernel, plan)),
        out_type=jax.ShapeDtypeStruct((len(qkv), heads, h), qkv.dtype),
        scratch_types=smem,
        grid=(len(qkv),),
        grid_names=("token",),
        num_threads=1,
        thread_name="warpgroup",
        interpret=interpret,
        compiler_params=compiler_params(),
    )
    pages = jax.new_ref(k), jax.new_ref(v)
    rows = qkv.reshape(len(qkv), -1, h)
    q = kernel(layer.reshape(1), page_ids, offsets, *pages, rows, *cos_sin, *(norms or ()))
    return q, *(jax.freeze(ref) for ref in pages)


def _kernel(
    plan: RopeConfig,
    layer_ref: Ref,  # i32[1]
    page_ids_ref: Ref,  # i32[T]
    offsets_ref: Ref,  # i32[T]
    k_ref: Ref,  # [L, P, K, page, H]
    v_ref: Ref,  # [L, P, K, page, H]
    qkv_ref: Ref,  # [T, N + 2K, H]
    *refs: Ref,  # cos and sin f32[T, H / 2], the norms' scales [layers, H] if any, q [T, N, H]
    **smem: Ref,
) -> None:
    *given, q_ref = refs
    token, layer, ready = lax.axis_index("token"), layer_ref[0], smem["ready"]
    page, offset = page_ids_ref[token], offsets_ref[token]
    for i, ref in enumerate(given):
        if i < 2:
            plgpu.copy_gmem_to_smem(ref.at[token], smem["angles"].at[i], ready)
        else:
            plgpu.copy_gmem_to_smem(ref.at[layer], smem["norms"].at[i - 2], ready)
    if plan.pdl:
        griddepcontrol()
    starts = dict(q=0, k=plan.heads, v=plan.heads + plan.kv_heads)
    counts = dict(q=plan.heads, k=plan.kv_heads, v=plan.kv_heads)
    for name, start in starts.items():
        rows = pl.ds(start, counts[name])
        plgpu.copy_gmem_to_smem(qkv_ref.at[token, rows], smem[name].at[pl.ds(0, counts[name])], ready)
    plgpu.barrier_wait(ready)
    for i, name in enumerate(("q", "k")):
        norm = None if plan.norm_eps is None else smem["norms"].at[i]
        apply_rope(plan, smem["angles"], smem[name], norm)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(smem["q"].at[pl.ds(0, plan.heads)], q_ref.at[token])

    @pl.when(page < k_ref.shape[1])
    def _():
        for name, ref in (("k", k_ref), ("v", v_ref)):
            for head in range(plan.kv_heads):
                plgpu.copy_smem_to_gmem(smem[name].at[head], ref.at[layer, page, head, offset])

    plgpu.wait_smem_to_gmem(0)
