"""Paged decode attention for Hopper (Mosaic GPU), optionally storing the new token's keys and values on the way.

Flash decoding (Dao et al., 2023) over pages: a row's blocks of keys are dealt to the CTAs of one cluster, each of which
finishes some heads through distributed shared memory, so one launch does it all. Products are transposed (keys are the
64 rows of the wgmma, the group's queries its 8 columns): an accumulator of 8 columns costs an eighth of one padded to
64 queries.
Bound by memory: it must read `2 * sum(lengths) * K * H * itemsize` bytes; that is our bar.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.attention.paged import DecodeRows, LayerPages
from jaxinfer_kernels.attention.sm90_decode_config import DEFAULT, DecodeConfig, DecodeTuning, plan_launch
from jaxinfer_kernels.attention.sm90_new_token import fetch_new_token, prepare_queries
from jaxinfer_kernels.sm90 import (
    F32,
    I32,
    LOWEST,
    Ref,
    Smem,
    cluster_sync,
    compiler_params,
    griddepcontrol,
    named,
    operand,
    store,
)


@functools.partial(jax.jit, static_argnames=("tuning", "interpret"))
def decode_attention(
    q: jax.Array,
    pages: LayerPages,
    rows: DecodeRows,
    *,
    tuning: DecodeTuning = DEFAULT,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> jax.Array:
    """attention.api.decode_attention, same arguments and result, for bf16 and f16 and the shapes of `supported`.

    A slot may have several rows, each of a length of its own.
    """
    k, v, layer = pages
    plan = plan_launch(q.shape[0], q.shape[1], k, q.dtype, tuning, interpret)
    return _launch(plan)(layer.reshape(1), *rows, k, v, q)[0]


@functools.partial(jax.jit, static_argnames=("tuning", "interpret"))
def decode_attention_write(
    q: jax.Array,
    new_k: jax.Array,
    new_v: jax.Array,
    pages: LayerPages,
    rows: DecodeRows,
    *,
    tuning: DecodeTuning = DEFAULT,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Store each row's newest token at place `length - 1` of its pages, then attend as decode_attention does.

    new_k, new_v: [B, K, H], rotated. Rows of length 0 store nothing. The rest: see attention.api.decode_attention.
    Returns out [B, N, H], k, v; the pages are updated in place where the caller donates them.
    """
    k, v, layer = pages
    plan = plan_launch(q.shape[0], q.shape[1], k, q.dtype, tuning, interpret, write=True)
    refs = jax.new_ref(k), jax.new_ref(v)
    out, *_ = _launch(plan)(layer.reshape(1), *rows, *refs, q, new_k, new_v)
    return out, *(jax.freeze(ref) for ref in refs)


@functools.partial(jax.jit, static_argnames=("norm_eps", "tuning", "interpret"))
def decode_attention_fused(
    qkv: jax.Array,
    cos_sin: tuple[jax.Array, jax.Array],
    pages: LayerPages,
    rows: DecodeRows,
    *,
    norms: tuple[jax.Array, jax.Array] | None = None,
    norm_eps: float | None = None,
    tuning: DecodeTuning = DEFAULT,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """All that lies between the qkv product and the output product of a decode step, in one launch.

      qkv:     [B, (N + 2K) * H], the product's result: queries, keys, values. Rows beyond those of `rows`
               are padding: nothing is launched for them, and what comes out of them is anything.
      cos_sin: f32[B, H / 2] each, of the newest token's position.
      norms:   [layers, H] each, the scales of queries and keys, with norm_eps: RMS norm over each head before rotating.
    The rest: see decode_attention_write. Returns out [B, N, H], k, v.
    """
    k, v, layer = pages
    kv_heads, h = k.shape[2], k.shape[4]
    heads = qkv.shape[1] // h - 2 * kv_heads
    fused = dict(write=True, joined=True, rotated=False, padded=len(qkv), norm_eps=norm_eps if norms else None)
    plan = plan_launch(len(rows[1]), heads, k, qkv.dtype, tuning, interpret, **fused)
    extra = [qkv.reshape(len(qkv), -1, h), *cos_sin, *(norms or ())]
    refs = jax.new_ref(k), jax.new_ref(v)
    out, *_ = _launch(plan)(layer.reshape(1), *rows, *refs, *extra)
    return out, *(jax.freeze(ref) for ref in refs)


def _launch(plan: DecodeConfig) -> Callable[..., list[jax.Array]]:
    h, columns, splits = plan.head_dim, plan.columns, plan.splits
    out = [jax.ShapeDtypeStruct((plan.padded or plan.batch, plan.heads, h), plan.dtype)]
    if _spills(plan):
        out += [jax.ShapeDtypeStruct((plan.batch, plan.kv_heads, splits, columns, h), F32)] * 2
    pages = (plan.stages, plan.block, h)
    arrivals = plan.block // plan.page
    newest = (3 if plan.write else 1) + (0 if plan.rotated else 2) + (0 if plan.norm_eps is None else 2)
    smem = dict(
        queries=plgpu.SMEM((columns, h), plan.dtype),
        q=operand((columns, h), plan.dtype),
        k=operand(pages, plan.dtype),
        v=operand(pages, plan.dtype),
        weights=operand((columns, plan.block), plan.dtype),
        out=plgpu.SMEM((columns, h), plan.dtype),
        newest_ready=plgpu.Barrier(num_arrivals=newest),
        k_ready=plgpu.Barrier(num_arrivals=arrivals, num_barriers=plan.stages),
        v_ready=plgpu.Barrier(num_arrivals=arrivals, num_barriers=plan.stages),
    )
    if plan.write:
        smem |= dict(new=plgpu.SMEM((2, h), plan.dtype))
    if not plan.rotated:
        smem |= dict(angles=plgpu.SMEM((2, h // 2), F32))
    if plan.norm_eps is not None:
        smem |= dict(norms=plgpu.SMEM((2, h), plan.dtype))
    if splits > 1:
        smem |= dict(part=plgpu.SMEM((columns, h), F32), weight=plgpu.SMEM((columns, h), F32))
        smem |= dict(peers=plgpu.ClusterBarrier(collective_axes=("split",)))
    return plgpu.kernel(
        named("decode_attention", functools.partial(_kernel, plan)),
        out_type=out,
        scratch_types=smem,
        grid=(plan.kv_heads, plan.batch),
        grid_names=("kv_head", "row"),
        cluster=(splits,),
        cluster_names=("split",),
        num_threads=1,
        thread_name="warpgroup",
        interpret=plan.interpret,
        compiler_params=compiler_params(),
    )


def _spills(plan: DecodeConfig) -> bool:
    """Interpret mode has no distributed shared memory: there, and only there, peers meet in global memory."""
    return plan.interpret is not None and plan.splits > 1


def _kernel(
    plan: DecodeConfig,
    layer_ref,  # i32[1]
    table_ref,  # i32[S, M]
    slots_ref,  # i32[B]
    lengths_ref,  # i32[B]
    k_ref,  # [L, P, K, page, H]
    v_ref,  # [L, P, K, page, H]
    *refs,  # what fetch_new_token and prepare take; then out [B, N, H] and, interpreted, the peers' partial results
    **smem,
) -> None:
    num_spills = 2 if _spills(plan) else 0
    newest_refs, (out_ref, *spill_refs) = refs[: len(refs) - 1 - num_spills], refs[len(refs) - 1 - num_spills :]
    row, head, split = (lax.axis_index(name) for name in ("row", "kv_head", "split"))
    length, slot, layer = lengths_ref[row], slots_ref[row], layer_ref[0]
    block, stages, per_block = plan.block, plan.stages, plan.block // plan.page
    blocks = lax.div(length + (block - 1), I32(block))
    share = lax.div(blocks + (plan.splits - 1), I32(plan.splits))
    first = split * share
    count = jnp.maximum(jnp.minimum(share, blocks - first), 0)  # blocks of this CTA
    last_page = lax.div(length - 1, I32(plan.page))
    # From the row's end backwards: its last page, of which only what is there is read, is then none of the loop's.
    last = first + count - 1

    def pages_of(i: jax.Array | int) -> list[jax.Array]:
        """A block's page ids; some page's for a block that this CTA does not have."""
        indices = [jnp.clip((last - i) * per_block + j, 0, last_page) for j in range(per_block)]
        return [table_ref[slot, index] for index in indices]

    def fetch(name: str, ref: Ref, i: jax.Array | int, pages: Sequence[jax.Array], ends: bool = False) -> None:
        stage = lax.rem(I32(i), I32(stages))
        for j, page in enumerate(pages):

            def copy(tokens: int, page: jax.Array = page, start: int = j * plan.page) -> None:
                source, place = ref.at[layer, page, head, pl.ds(0, tokens)], smem[name].at[stage, pl.ds(start, tokens)]
                plgpu.copy_gmem_to_smem(source, place, smem[f"{name}_ready"].at[stage])

            if not ends or plan.piece == plan.page:
                copy(plan.page)
                continue
            there = length - ((last - i) * per_block + j) * plan.page
            pieces = jnp.clip(lax.div(there + (plan.piece - 1), I32(plan.piece)), 1, plan.page // plan.piece)
            for n in range(1, plan.page // plan.piece + 1):
                pl.when(pieces == n)(functools.partial(copy, n * plan.piece))

    fetch_keys, fetch_values = functools.partial(fetch, "k", k_ref), functools.partial(fetch, "v", v_ref)

    def step(i: jax.Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        # Looked up a step before they are needed: the table's memory answers after half of a step.
        *sums, of_values, of_keys = carry
        following = pages_of(i + stages + 1)
        stage, start = lax.rem(i, I32(stages)), (last - i) * block
        plgpu.barrier_wait(smem["k_ready"].at[stage])
        if plan.write:

            @pl.when(start + block >= length)
            def _():
                _patch(plan, smem["k"].at[stage], smem["new"].at[0], length - 1 - start, zeros=False)

        acc, weights, row_max, row_sum = _fold_scores(plan, smem, stage, length - start, sums)
        smem["weights"].T[...] = _transposed(plan, weights)
        # Every warp is past this step's product of keys and the one of values before: both stages can be filled again.
        plgpu.commit_smem()
        pl.when(i + stages < count)(functools.partial(fetch_keys, i + stages, of_keys))
        pl.when((i > 0) & (i - 1 + stages < count))(functools.partial(fetch_values, i - 1 + stages, of_values))
        plgpu.barrier_wait(smem["v_ready"].at[stage])

        @pl.when(start + block >= length)
        def _():
            new = smem["new"].at[1] if plan.write else None
            _patch(plan, smem["v"].at[stage], new, length - start - int(plan.write), zeros=True)

        return _add_values(plan, smem, stage, acc), row_max, row_sum, of_keys, following

    if plan.pdl and not plan.write:  # the kernel before this one stores the newest tokens
        griddepcontrol()
    for i in range(stages):
        pages = pages_of(i)
        for fetch_some in (fetch_keys, fetch_values):
            pl.when(i < count)(functools.partial(fetch_some, i, pages, ends=i == 0))
    ahead = pages_of(stages)
    if plan.pdl and plan.write:
        griddepcontrol()

    @pl.when(count > 0)
    def _():
        fetch_new_token(plan, smem, newest_refs, row, head, layer)
        prepare_queries(plan, smem)

    acc, row_max, row_sum, *_ = lax.fori_loop(0, count, step, (*_nothing(plan), ahead, ahead))

    def store_newest() -> None:
        page, place = table_ref[slot, last_page], lax.rem(length - 1, I32(plan.page))
        for i, ref in enumerate((k_ref, v_ref)):
            plgpu.copy_smem_to_gmem(smem["new"].at[i], ref.at[layer, page, head, place])

    if plan.write:  # after the loop, which read the page that this changes
        pl.when((count > 0) & (first + count == blocks))(store_newest)
    row_sum = row_sum.sum(axis=0)
    divisor = jnp.where(row_sum == 0, F32(1), row_sum)  # of a CTA without blocks
    mean = acc / lax.broadcast_in_dim(divisor, acc.shape, [1])
    first_head = head * plan.groups
    if plan.splits == 1:
        store(smem["out"].T, _transposed(plan, mean.astype(plan.dtype)))
        plgpu.commit_smem()
        heads = pl.ds(first_head, plan.groups)
        plgpu.copy_smem_to_gmem(smem["out"].at[pl.ds(0, plan.groups)], out_ref.at[row, heads])
    else:
        weight = lax.broadcast_in_dim(row_max + jnp.log2(divisor), acc.shape, [1])
        for name, value in (("part", mean), ("weight", weight)):
            store(smem[name].T, _transposed(plan, value))
        plgpu.commit_smem()
        for name, ref in zip(("part", "weight"), spill_refs, strict=False):
            plgpu.copy_smem_to_gmem(smem[name], ref.at[row, head, split])
        plgpu.wait_smem_to_gmem(0)
        cluster_sync(smem["peers"])
        _combine(plan, smem, [ref.at[row, head] for ref in spill_refs], split, out_ref.at[row], first_head)
    plgpu.wait_smem_to_gmem(0)
    if plan.splits > 1:
        cluster_sync(smem["peers"])  # a CTA that ends takes its shared memory with it


def _nothing(plan: DecodeConfig) -> tuple[jax.Array, ...]:
    """acc [H, columns], row_max [columns], row_sum [block, columns] of no keys at all."""
    layout = plgpu.Layout.WGMMA
    return (
        plgpu.layout_cast(jnp.zeros((plan.head_dim, plan.columns), F32), layout),
        plgpu.layout_cast(jnp.full((plan.columns,), LOWEST, F32), layout.reduce(0)),
        plgpu.layout_cast(jnp.zeros((plan.block, plan.columns), F32), layout),
    )


def _transposed(plan: DecodeConfig, x: jax.Array) -> jax.Array:
    """x in the registers from which its transpose is stored; interpret mode knows no layouts."""
    return x if plan.interpret else plgpu.layout_cast(x, plgpu.Layout.WGMMA_TRANSPOSED)


def _patch(plan: DecodeConfig, tile_ref: Ref, new_ref: Ref | None, place: jax.Array, *, zeros: bool) -> None:
    """Put the new token, if any, at its place in a tile [block, H]; `zeros`: and clear all from `place` on.

    Behind a row's end there may be anything, NaN included, and 0 * NaN is NaN: values need the zeros, keys do not.
    """
    layout = plgpu.Layout.WGMMA
    tile = plgpu.layout_cast(tile_ref[...], layout)
    token = plgpu.broadcasted_iota(I32, tile.shape, 0, layout=layout)
    if zeros:
        tile = jnp.where(token < place, tile, jnp.zeros((), plan.dtype))
    if new_ref is not None:
        new = plgpu.layout_cast(new_ref[...], layout.reduce(0))
        tile = jnp.where(token == place, lax.broadcast_in_dim(new, tile.shape, [1]), tile)
    tile_ref[...] = tile
    plgpu.commit_smem()


def _fold_scores(
    plan: DecodeConfig, smem: Smem, stage: jax.Array, visible: jax.Array, carry: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """Score one block's keys, of which the first `visible` count: acc rescaled, weights, row_max, row_sum."""
    acc, row_max, row_sum = carry
    shape = (plan.block, plan.columns)

    def product(scores: Ref) -> jax.Array:
        plgpu.wgmma(scores, smem["k"].at[stage], smem["q"].transpose((1, 0)))
        return scores[...]

    scores = pl.run_scoped(product, plgpu.ACC(shape, F32)) * F32(math.log2(math.e) * plan.head_dim**-0.5)
    token = plgpu.broadcasted_iota(I32, shape, 0, layout=plgpu.Layout.WGMMA)
    scores = jnp.where(token < visible, scores, F32(LOWEST))
    new_max = jnp.maximum(row_max, scores.max(axis=0))
    shrink = jnp.exp2(row_max - new_max)
    weights = jnp.exp2(scores - lax.broadcast_in_dim(new_max, shape, [1]))
    # Sums stay spread over the block's rows, one value a lane, until the end.
    row_sum = row_sum * lax.broadcast_in_dim(shrink, shape, [1]) + weights
    acc = acc * lax.broadcast_in_dim(shrink, acc.shape, [1])
    return acc, weights.astype(plan.dtype), new_max, row_sum


def _add_values(plan: DecodeConfig, smem: Smem, stage: jax.Array, acc: jax.Array) -> jax.Array:
    """acc [H, columns] plus this block's values under their weights."""

    def product(sums: Ref) -> None:
        plgpu.wgmma(sums, smem["v"].at[stage].transpose((1, 0)), smem["weights"].transpose((1, 0)))

    if not plan.interpret:
        return pl.run_state(product)(plgpu.ACC.init(acc))

    def alone(sums: Ref) -> jax.Array:  # interpret mode starts no accumulator from a value
        product(sums)
        return sums[...]

    return acc + pl.run_scoped(alone, plgpu.ACC(acc.shape, F32))


def _combine(
    plan: DecodeConfig, smem: Smem, spilled: Sequence[Ref], split: jax.Array, out_ref: Ref, first_head: jax.Array
) -> None:
    """Store the mean of all peers' parts, weighted: each CTA some heads, so that none reads all that the others have.

    out_ref: [N, H].
    """
    finishers = min(plan.splits, plan.groups)
    layout = plgpu.Layout.WG_STRIDED((plan.head_dim,), 1) if plan.head_dim % 128 == 0 else plgpu.Layout.WGMMA.reduce(1)

    def read(peer: int, index: int, name: str, column: jax.Array) -> jax.Array:
        ref = spilled[index].at[peer] if spilled else plgpu.cluster_ref(smem[name], {"split": I32(peer)})
        return plgpu.load(ref.at[column], layout=layout, optimized=False)

    def finish(column: jax.Array) -> None:
        weights = [read(i, 1, "weight", column) for i in range(plan.splits)]
        parts = [read(i, 0, "part", column) for i in range(plan.splits)]
        highest = functools.reduce(jnp.maximum, weights)
        weights = [jnp.exp2(weight - highest) for weight in weights]
        total = functools.reduce(jnp.add, [part * weight for part, weight in zip(parts, weights, strict=True)])
        store(smem["out"].at[column], (total / functools.reduce(jnp.add, weights)).astype(plan.dtype))
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem["out"].at[column], out_ref.at[first_head + column])

    for start in range(0, plan.groups, finishers):
        pl.when(split < min(finishers, plan.groups - start))(functools.partial(finish, split + start))
