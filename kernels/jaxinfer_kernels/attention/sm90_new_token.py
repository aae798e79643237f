"""The newest token's part of the Mosaic decode attention: its norm and rotation, before any key is read."""

from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.attention.sm90_decode_config import DecodeConfig
from jaxinfer_kernels.sm90 import F32, Ref, Smem, row_layout


class RotatedHeads(Protocol):
    """What `turn` needs to know of a launch."""

    @property
    def head_dim(self) -> int: ...

    @property
    def dtype(self) -> jnp.dtype: ...

    @property
    def norm_eps(self) -> float | None: ...


def fetch_new_token(
    plan: DecodeConfig, smem: Smem, refs: Sequence[Ref], row: jax.Array, head: jax.Array, layer: jax.Array
):
    """Start copying this kv head's queries, the new key and value if writing, and what is to be done to them."""
    group = pl.ds(head * plan.groups, plan.groups)
    k_row = plan.heads + head
    if plan.joined:
        sources = [refs[0].at[row, i] for i in (group, k_row, k_row + plan.kv_heads)]
    else:
        sources = [ref.at[row, i] for ref, i in zip(refs, (group, head, head), strict=False)]
    targets = smem["queries"].at[pl.ds(0, plan.groups)], *(smem["new"].at[i] for i in range(2 if plan.write else 0))
    for source, target in zip(sources, targets, strict=False):
        plgpu.copy_gmem_to_smem(source, target, smem["newest_ready"])
    for i in range(0 if plan.rotated else 2):
        plgpu.copy_gmem_to_smem(refs[1 + i].at[row], smem["angles"].at[i], smem["newest_ready"])
        if plan.norm_eps is not None:
            plgpu.copy_gmem_to_smem(refs[i - 2].at[layer], smem["norms"].at[i], smem["newest_ready"])


def prepare_queries(plan: DecodeConfig, smem: Smem) -> None:
    """Wait for the newest token's rows, norm and rotate them where wanted, and lay the queries out."""
    plgpu.barrier_wait(smem["newest_ready"])
    if not plan.rotated:
        q_norm, k_norm = (smem["norms"].at[i] for i in (0, 1)) if plan.norm_eps is not None else (None, None)
        apply_rope(plan, smem["angles"], smem["queries"], q_norm)
        apply_rope(plan, smem["angles"], smem["new"].at[0], k_norm)
        plgpu.commit_smem()
    for i in range(0, plan.head_dim, 64):  # one tile of the operand at a time
        columns = pl.ds(i, 64)
        smem["q"][:, columns] = plgpu.layout_cast(smem["queries"][:, columns], row_layout(64))
    plgpu.commit_smem()


def apply_rope(plan: RotatedHeads, angles_ref: Ref, ref: Ref, norm_ref: Ref | None) -> None:
    """Norm heads [rows, H] or [H] and rotate them by half, in place. Rounds where models do."""
    half, dtype = plan.head_dim // 2, plan.dtype
    many = len(ref.shape) == 2
    layout = row_layout(half) if many else plgpu.Layout.WGMMA.reduce(0)
    shape = (ref.shape[0], half) if many else (half,)
    sides = [pl.ds(0, half), pl.ds(half, half)]

    def read(source: Ref, side: object) -> jax.Array:
        return plgpu.layout_cast(source[:, side] if many else source[side], layout)

    def along(source: Ref) -> jax.Array:  # [half], for every row
        if not many:
            return plgpu.load(source, layout=layout, optimized=False)
        row = plgpu.load(source, layout=layout.reduce(0), optimized=False)
        return plgpu.layout_cast(lax.broadcast_in_dim(row, shape, [1]), layout)

    x = [side.astype(F32) for side in [read(ref, side) for side in sides]]
    if norm_ref is not None:
        mean = sum((side * side).sum(axis=-1) for side in x) * F32(1 / plan.head_dim)
        scale = lax.rsqrt(mean + F32(plan.norm_eps))
        scale = plgpu.layout_cast(lax.broadcast_in_dim(scale, shape, [0] if many else []), layout)
        norm = [along(norm_ref.at[side]) for side in sides]
        x = [((a * scale).astype(dtype) * weight).astype(F32) for a, weight in zip(x, norm, strict=True)]
    cos, sin = (along(angles_ref.at[i]) for i in (0, 1))
    turned = x[0] * cos - x[1] * sin, x[1] * cos + x[0] * sin
    for side, a in zip(sides, turned, strict=True):
        if many:
            ref[:, side] = a.astype(dtype)
        else:
            ref[side] = a.astype(dtype)
