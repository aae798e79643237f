"""Ragged paged attention for Hopper (Mosaic GPU): prompt chunks behind their cached prefixes.

After FlashAttention-3 (Shah et al., arXiv:2407.08608): one warpgroup copies pages, the others each hold 64 queries of
one head and take turns, one multiplying while the other weighs. Where queries are few, CTAs share a tile's keys. Causal
from the bottom right: a row's last query sees all of the row. Bound by arithmetic, `4 * N * H` operations per visible
pair of query and key; that is our bar.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.attention import sm90_decode
from jaxinfer_kernels.attention.paged import ExtendRows, LayerPages, page_size_of
from jaxinfer_kernels.attention.sm90_decode_config import DecodeTuning
from jaxinfer_kernels.sm90 import (
    F32,
    H200,
    I32,
    LOWEST,
    HopperGpu,
    Ref,
    Smem,
    compiler_params,
    griddepcontrol,
    named,
    operand,
    row_layout,
    store,
)

WEIGHT_COLUMNS = 8  # in which a query's weight is repeated: the fewest of a tile
ROWS = 64  # queries of one warpgroup
MAX_SPLITS = 8
FEW_ROWS = 8  # up to so many rows, those of one token are tiles like the others
COMBINED_ROWS = 8  # of queries and heads, in one CTA that adds up splits


@dataclasses.dataclass(frozen=True)
class ExtendTuning:
    """How the work is cut."""

    warpgroups: int = 0  # that compute, 1 or 2; a tile has 64 queries for each; 0: as many as keep all CTAs at work
    block_tokens: int = 128  # keys of one step: a multiple of the page size
    stages: int = 2  # blocks in flight
    splits: int = 0  # CTAs that share a tile's keys; 0: one, or more where each head has but one tile of queries
    pdl: bool = False  # in a chain: be there when the kernel before this one ends
    gpu: HopperGpu = H200


DEFAULT = ExtendTuning()


@functools.partial(jax.jit, static_argnames=("tuning", "interpret"))
def extend_attention(
    q: jax.Array,
    pages: LayerPages,
    rows: ExtendRows,
    *,
    tuning: ExtendTuning = DEFAULT,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> jax.Array:
    """attention.api.extend_attention, same arguments, for the shapes of `supported`.

    Tokens of no row come out undefined: their pages and hidden states are never read.
    """
    k, (page_table, slots, query_starts, counts, lengths) = pages[0], rows
    if not supported(q.shape[2], page_size_of(k), q.dtype) or q.dtype != k.dtype:
        raise ValueError(
            "the Mosaic extend attention needs bf16 or f16, head_dim 64 or 128 and pages of 8 to 128 tokens, "
            f"got q {q.aval} and k {k.aval}; use attention.api.extend_attention"
        )
    num_tokens = len(q)
    q = jnp.pad(q, ((0, max(0, ROWS - num_tokens)), (0, 0), (0, 0)))  # a tile never reaches beyond the last token
    if len(counts) <= FEW_ROWS or interpret:
        return _tiled(q, pages, rows, tuning, interpret)[:num_tokens]
    # Many rows: most are decode rows, each of which would waste a tile, so they go together through decode.
    single = counts == 1
    several = page_table, slots, query_starts, jnp.where(single, 0, counts), lengths
    out = _tiled(q, pages, several, tuning, interpret)[:num_tokens]
    ones = q.at[query_starts].get(mode="clip")
    of_one = page_table, slots, jnp.where(single, lengths, 0)
    ones = sm90_decode.decode_attention(ones, pages, of_one, tuning=DecodeTuning(gpu=tuning.gpu))
    return out.at[jnp.where(single, query_starts, num_tokens)].set(ones, mode="drop")


@functools.partial(jax.jit, static_argnames=("num_tokens", "heads", "tuning"))
def tiles_of(counts: jax.Array, num_tokens: int, heads: int, tuning: ExtendTuning = DEFAULT) -> jax.Array:
    """Tiles of the queries of a step's rows, counts i32[R], as `extend_tiles` is given them, once for all layers.

    Returns i32[tiles, 2]: each tile's row, or -1 for none, and the first of its queries in that row.
    """
    tile = ROWS * _cut(tuning, num_tokens, heads).warpgroups
    ends = jnp.cumsum((counts + (tile - 1)) // tile)  # [R]
    index = jnp.arange(num_tokens // tile + len(counts), dtype=jnp.int32)
    row = jnp.sum(ends[None] <= index[:, None], axis=-1, dtype=jnp.int32)
    first = index - jnp.where(row > 0, ends[jnp.maximum(row - 1, 0)], 0)
    return jnp.stack([jnp.where(row < len(counts), row, -1), first * tile], axis=-1)


@functools.partial(jax.jit, static_argnames=("tuning", "interpret"))
def extend_tiles(
    q: jax.Array,
    pages: LayerPages,
    tiles: jax.Array,
    rows: ExtendRows,
    *,
    tuning: ExtendTuning = DEFAULT,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> jax.Array:
    """extend_attention by kernels alone, for a chain: of at least ROWS tokens and at most FEW_ROWS rows, `tiles` from
    `tiles_of`. The rest: see extend_attention."""
    parts = _launch(q, pages, tiles, rows, tuning, interpret)
    return parts[0] if len(parts) == 1 else combine(*parts, q.dtype, pdl=tuning.pdl, interpret=interpret)


def supported(head_dim: int, page: int, dtype: jnp.dtype) -> bool:
    """Whether this kernel can run the shape; what it cannot, the XLA version can."""
    return head_dim in (64, 128) and page in (8, 16, 32, 64, 128) and dtype in (jnp.bfloat16, jnp.float16)


def _tiled(
    q: jax.Array,
    pages: LayerPages,
    rows: ExtendRows,
    tuning: ExtendTuning,
    interpret: "plgpu.InterpretGPUParams | None",
) -> jax.Array:
    """One launch over the tiles of all rows, T of at least ROWS."""
    tiles = tiles_of(rows[3], len(q), q.shape[1], tuning)
    found = _launch(q, pages, tiles, rows, tuning, interpret)
    return found[0] if len(found) == 1 else _combined(*found).astype(q.dtype)


def _cut(tuning: ExtendTuning, num_tokens: int, heads: int) -> ExtendTuning:
    """The tuning with what the shapes suggest."""
    ctas = tuning.gpu.multiprocessors
    warpgroups = tuning.warpgroups or (1 if num_tokens // (2 * ROWS) * heads < ctas else 2)
    splits = tuning.splits or (max(1, min(ctas // heads, MAX_SPLITS)) if num_tokens <= ROWS else 1)
    return dataclasses.replace(tuning, warpgroups=warpgroups, splits=splits)


def _launch(
    q: jax.Array,
    pages: LayerPages,
    tiles: jax.Array,
    rows: ExtendRows,
    tuning: ExtendTuning,
    interpret: "plgpu.InterpretGPUParams | None",
) -> list[jax.Array]:
    """The result [T, N, H] or, if keys are split, what `_combined` takes."""
    k, v, layer = pages
    (t, n, h), page = q.shape, page_size_of(k)
    if tuning.block_tokens % 64 or tuning.block_tokens % page:
        raise ValueError(
            f"block_tokens must be a multiple of 64 and of the page size {page}, got {tuning.block_tokens}"
        )
    tuning = _cut(dataclasses.replace(tuning, pdl=tuning.pdl and interpret is None), t, n)
    warpgroups, splits = tuning.warpgroups, tuning.splits
    blocks = (tuning.stages, tuning.block_tokens, h)
    per_stage = dict(num_arrivals=tuning.block_tokens // page, num_barriers=tuning.stages)
    freed = plgpu.Barrier(num_arrivals=tuning.warpgroups, num_barriers=tuning.stages)
    smem = dict(
        rows=plgpu.SMEM((tuning.warpgroups, ROWS, h), q.dtype),
        q=operand((tuning.warpgroups, ROWS, h), q.dtype),
        k=operand(blocks, q.dtype),
        v=operand(blocks, q.dtype),
        rows_ready=plgpu.Barrier(num_barriers=tuning.warpgroups),
        k_ready=plgpu.Barrier(**per_stage),
        v_ready=plgpu.Barrier(**per_stage),
        k_free=freed,
        v_free=freed,
    )
    if tuning.warpgroups == 2:
        smem |= dict(turn=plgpu.Barrier(num_arrivals=2))
    if interpret:
        smem |= dict(weights=operand((tuning.warpgroups, ROWS, tuning.block_tokens), q.dtype))
    out = [jax.ShapeDtypeStruct(q.shape, q.dtype)]
    if splits > 1:
        out = [jax.ShapeDtypeStruct((splits, t, n, width), F32) for width in (h, WEIGHT_COLUMNS)]
        smem |= dict(
            partial=plgpu.SMEM((warpgroups, ROWS, h), F32),
            weight=plgpu.SMEM((warpgroups, ROWS, WEIGHT_COLUMNS), F32),
        )
    kernel = plgpu.kernel(
        named("extend_attention", functools.partial(_kernel, tuning, interpret is not None)),
        out_type=out,
        scratch_types=smem,
        grid=(len(tiles), n, splits),
        grid_names=("tile", "head", "split"),
        num_threads=tuning.warpgroups + 1,
        thread_name="warpgroup",
        interpret=interpret,
        compiler_params=compiler_params(),
    )
    return kernel(layer.reshape(1), tiles, *rows, q, k, v)


def _combined(parts: jax.Array, weights: jax.Array) -> jax.Array:
    """f32[T, N, H] of each split's average [splits, T, N, H] and the logarithm of its weight, in the first column."""
    logs = weights[..., :1]
    shares = jnp.exp2(logs - logs.max(axis=0))
    return (parts * shares).sum(axis=0) / shares.sum(axis=0)


@functools.partial(jax.jit, static_argnames=("dtype", "pdl", "interpret"))
def combine(
    parts: jax.Array,
    weights: jax.Array,
    dtype: jnp.dtype,
    *,
    pdl: bool = False,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> jax.Array:
    """`_combined` as a kernel, rounded to dtype."""
    splits, t, n, h = parts.shape
    kernel = plgpu.kernel(
        named("combine_splits", functools.partial(_combine_kernel, splits, h, pdl and interpret is None)),
        out_type=jax.ShapeDtypeStruct((t * n, h), dtype),
        grid=(t * n // COMBINED_ROWS,),
        grid_names=("tile",),
        num_threads=1,
        thread_name="warpgroup",
        interpret=interpret,
        compiler_params=compiler_params(),
    )
    flat = kernel(parts.reshape(splits, t * n, h), weights.reshape(splits, t * n, WEIGHT_COLUMNS))
    return flat.reshape(t, n, h)


def _combine_kernel(splits: int, head_dim: int, pdl: bool, parts_ref: Ref, weights_ref: Ref, out_ref: Ref) -> None:
    """parts f32[splits, T * N, H], weights f32[splits, T * N, WEIGHT_COLUMNS], out [T * N, H]."""
    rows, layout = pl.ds(lax.axis_index("tile") * COMBINED_ROWS, COMBINED_ROWS), row_layout(64)
    if pdl:
        griddepcontrol()
    read = functools.partial(plgpu.load, layout=layout.reduce(1), optimized=False)
    logs = [read(weights_ref.at[i, rows, 0]) for i in range(splits)]
    highest = functools.reduce(jnp.maximum, logs)
    shares = [jnp.exp2(log - highest) for log in logs]
    whole = functools.reduce(jnp.add, shares)
    for start in range(0, head_dim, 64):
        columns, total = pl.ds(start, 64), None
        for i, share in enumerate(shares):
            part = plgpu.load(parts_ref.at[i, rows, columns], layout=layout, optimized=False)
            part = part * plgpu.layout_cast(lax.broadcast_in_dim(share / whole, part.shape, [0]), layout)
            total = part if total is None else total + part
        out_ref[rows, columns] = total.astype(out_ref.dtype)


def _kernel(
    tuning: ExtendTuning,
    interpreted: bool,
    layer_ref,  # i32[1]
    tiles_ref,  # i32[tiles, 2]
    table_ref,  # i32[S, M]
    slots_ref,  # i32[R]
    starts_ref,  # i32[R]
    counts_ref,  # i32[R]
    lengths_ref,  # i32[R]
    q_ref,  # [T, N, H]
    k_ref,  # [L, P, K, page, H]
    v_ref,  # [L, P, K, page, H]
    *out_refs,  # [T, N, H]; or, if keys are split, f32[splits, T, N, H] and f32[splits, T, N, WEIGHT_COLUMNS]
    **smem,
) -> None:
    tile, head, split, warpgroup = (lax.axis_index(name) for name in ("tile", "head", "split", "warpgroup"))
    tile = len(tiles_ref) - 1 - tile  # a row's last tile has the most keys: it begins first
    row, first = tiles_ref[tile, 0], tiles_ref[tile, 1]
    if tuning.pdl:  # also for the pages: the kernel before this one writes into them
        griddepcontrol()

    @pl.when(row >= 0)
    def _():
        count, length = counts_ref[row], lengths_ref[row]
        position = length - count + first  # of the tile's first query
        end = position + jnp.minimum(count - first, ROWS * tuning.warpgroups)  # keys that its last query sees
        blocks = lax.div(end + (tuning.block_tokens - 1), I32(tuning.block_tokens))
        share = lax.div(blocks + (tuning.splits - 1), I32(tuning.splits))
        begun = jnp.minimum(split * share, blocks)  # this CTA's blocks: begun .. blocks - 1
        blocks = jnp.minimum(begun + share, blocks)

        @pl.when(warpgroup == tuning.warpgroups)
        def _():
            if not interpreted:
                plgpu.set_max_registers(40, action="decrease")
            kv_head = lax.div(head, I32(q_ref.shape[1] // k_ref.shape[2]))
            where = layer_ref[0], kv_head, slots_ref[row], lax.div(end - 1, I32(k_ref.shape[3]))
            _copy_pages(tuning, smem, k_ref, v_ref, table_ref, where, begun, blocks)

        @pl.when(warpgroup < tuning.warpgroups)
        def _():
            if not interpreted:
                plgpu.set_max_registers(232, action="increase")
            # The last rows of q are read from a little earlier rather than from beyond its end.
            mine = starts_ref[row] + first + warpgroup * ROWS
            begin = jnp.minimum(mine, q_ref.shape[0] - ROWS)
            shift = mine - begin
            at = position + warpgroup * ROWS - shift  # position of this warpgroup's first query
            rows = smem["rows"].at[warpgroup]
            plgpu.copy_gmem_to_smem(q_ref.at[pl.ds(begin, ROWS), head], rows, smem["rows_ready"].at[warpgroup])
            plgpu.barrier_wait(smem["rows_ready"].at[warpgroup])
            smem["q"][warpgroup] = plgpu.load(rows, layout=plgpu.Layout.WGMMA, optimized=False)
            plgpu.commit_smem()
            acc, row_max, row_sum = _attend(tuning, interpreted, smem, warpgroup, at, end, begun, blocks)
            row_sum = jnp.where(row_sum == 0, F32(1), row_sum)  # of a CTA without blocks
            values = [acc / lax.broadcast_in_dim(row_sum, acc.shape, [0])]
            if tuning.splits == 1:
                staged = [(rows, values[0].astype(q_ref.dtype), out_refs[0])]
            else:
                values.append(lax.broadcast_in_dim(row_max + jnp.log2(row_sum), (ROWS, WEIGHT_COLUMNS), [0]))
                places = smem["partial"].at[warpgroup], smem["weight"].at[warpgroup]
                staged = list(zip(places, values, (ref.at[split] for ref in out_refs), strict=True))
            _store(staged, begin, head, shift, end - at)


def _copy_pages(
    tuning: ExtendTuning,
    smem: Smem,
    k_ref: Ref,
    v_ref: Ref,
    table_ref: Ref,
    where: tuple[jax.Array, ...],  # layer, kv head, slot, the row's last page
    begun: jax.Array,
    blocks: jax.Array,
) -> None:
    layer, head, slot, last_page = where
    page_size = k_ref.shape[3]
    per_block = tuning.block_tokens // page_size

    def step(i: jax.Array, _: None) -> None:
        stage = lax.rem(i - begun, I32(tuning.stages))
        pages = [table_ref[slot, jnp.minimum(i * per_block + j, last_page)] for j in range(per_block)]
        for ref, name in ((k_ref, "k"), (v_ref, "v")):
            pl.when(i - begun >= tuning.stages)(functools.partial(plgpu.barrier_wait, smem[f"{name}_free"].at[stage]))
            for j, page in enumerate(pages):
                place = smem[name].at[stage, pl.ds(j * page_size, page_size)]
                plgpu.copy_gmem_to_smem(ref.at[layer, page, head], place, smem[f"{name}_ready"].at[stage])

    lax.fori_loop(begun, blocks, step, None)


def _attend(
    tuning: ExtendTuning,
    interpreted: bool,
    smem: Smem,
    warpgroup: jax.Array,
    position: jax.Array,
    end: jax.Array,
    begun: jax.Array,
    blocks: jax.Array,
) -> tuple[jax.Array, ...]:
    """The queries smem["q"], at `position` and on, over the keys before `end` of blocks `begun` to `blocks`.

    Returns weighted sums f32[ROWS, H], the largest score f32[ROWS] and the sum of the weights f32[ROWS].
    """
    layout, block, head_dim = plgpu.Layout.WGMMA, tuning.block_tokens, smem["q"].shape[-1]
    shape, scale = (ROWS, block), F32(math.log2(math.e) * head_dim**-0.5)

    def step(masked: bool, i: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        acc, row_max, row_sum = carry
        stage, start = lax.rem(i - begun, I32(tuning.stages)), i * block
        plgpu.barrier_wait(smem["k_ready"].at[stage])

        def product(scores: Ref) -> jax.Array:
            plgpu.wgmma(scores, smem["q"].at[warpgroup], smem["k"].at[stage].transpose((1, 0)))
            _take_turns(smem)
            return scores[...]

        scores = pl.run_scoped(product, plgpu.ACC(shape, F32))
        pl.when(i + tuning.stages < blocks)(functools.partial(plgpu.barrier_arrive, smem["k_free"].at[stage]))
        if masked:
            query = plgpu.broadcasted_iota(I32, shape, 0, layout=layout) + position
            key = plgpu.broadcasted_iota(I32, shape, 1, layout=layout) + start
            visible = key <= query
            scores = jnp.where(visible, scores, F32(LOWEST))
        new_max = jnp.maximum(row_max, scores.max(axis=1) * scale)
        shrink = jnp.exp2(row_max - new_max)
        weights = jnp.exp2(scores * scale - lax.broadcast_in_dim(new_max, shape, [0]))
        if masked:  # a query that sees none of these keys has no maximum to weigh them against
            weights = jnp.where(visible, weights, F32(0))
        acc = acc * lax.broadcast_in_dim(shrink, acc.shape, [0])
        row_sum = row_sum * shrink + weights.sum(axis=1)
        weights = weights.astype(smem["v"].dtype)
        acc, new_max, row_sum, weights = lax.optimization_barrier((acc, new_max, row_sum, weights))
        plgpu.barrier_wait(smem["v_ready"].at[stage])
        if masked:
            pl.when(start + block > end)(functools.partial(_clear_behind, smem["v"].at[stage], end - start))
        _take_turns(smem)
        acc = _add_values(interpreted, smem, warpgroup, stage, acc, weights)
        pl.when(i + tuning.stages < blocks)(functools.partial(plgpu.barrier_arrive, smem["v_free"].at[stage]))
        return acc, new_max, row_sum

    carry = (
        plgpu.layout_cast(jnp.zeros((ROWS, head_dim), F32), layout),
        plgpu.layout_cast(jnp.full((ROWS,), LOWEST, F32), layout.reduce(1)),
        plgpu.layout_cast(jnp.zeros((ROWS,), F32), layout.reduce(1)),
    )
    # Up to here every query sees blocks to their end.
    whole = jnp.clip(lax.div(jnp.maximum(position + 1, 0), I32(block)), begun, blocks)
    pl.when(warpgroup == 1)(functools.partial(_take_turns, smem))
    carry = lax.fori_loop(begun, whole, functools.partial(step, False), carry)
    carry = lax.fori_loop(whole, blocks, functools.partial(step, True), carry)
    pl.when(warpgroup == 0)(functools.partial(_take_turns, smem))
    return carry


def _take_turns(smem: Smem) -> None:
    """Let one warpgroup's products run while the other one weighs: they are half a step apart."""
    if "turn" in smem:
        plgpu.barrier_arrive(smem["turn"])
        plgpu.barrier_wait(smem["turn"])


def _clear_behind(tile_ref: Ref, end: jax.Array) -> None:
    """Zero the values [block, H] from `end` on, lest there be NaN: 0 * NaN is NaN. All warpgroups write the same."""
    for i in range(0, tile_ref.shape[0], ROWS):
        part = tile_ref.at[pl.ds(i, ROWS)]
        values = plgpu.layout_cast(part[...], plgpu.Layout.WGMMA)
        token = plgpu.broadcasted_iota(I32, values.shape, 0, layout=plgpu.Layout.WGMMA) + i
        part[...] = jnp.where(token < end, values, jnp.zeros((), values.dtype))
    plgpu.commit_smem()


def _add_values(
    interpreted: bool, smem: Smem, warpgroup: jax.Array, stage: jax.Array, acc: jax.Array, weights: jax.Array
) -> jax.Array:
    """acc [ROWS, H] plus this block's values under their weights [ROWS, block]."""
    if not interpreted:
        return pl.run_state(lambda sums: plgpu.wgmma(sums, weights, smem["v"].at[stage]))(plgpu.ACC.init(acc))
    # Interpret mode neither multiplies from registers nor starts an accumulator from a value.
    smem["weights"][warpgroup] = weights

    def alone(sums: Ref) -> jax.Array:
        plgpu.wgmma(sums, smem["weights"].at[warpgroup], smem["v"].at[stage])
        return sums[...]

    return acc + pl.run_scoped(alone, plgpu.ACC(acc.shape, F32))


def _store(
    staged: list[tuple[Ref, jax.Array, Ref]],
    begin: jax.Array,
    head: jax.Array,
    low: jax.Array,
    high: jax.Array,
) -> None:
    """Store the queries `low` to `high` of values [ROWS, ...], one by one if not all: those around are other tiles'.

    staged: shared memory, the values, and [T, N, ...] to which they go.
    """
    for rows, values, _ in staged:
        store(rows, values)
    plgpu.commit_smem()
    whole = (low <= 0) & (high >= ROWS)

    @pl.when(whole)
    def _():
        for rows, _, out_ref in staged:
            plgpu.copy_smem_to_gmem(rows, out_ref.at[pl.ds(begin, ROWS), head])

    def step(i: jax.Array, _: None) -> None:
        for rows, _, out_ref in staged:
            plgpu.copy_smem_to_gmem(rows.at[pl.ds(i, 1)], out_ref.at[pl.ds(begin + i, 1), head])

    lax.fori_loop(low, jnp.where(whole, low, jnp.minimum(high, ROWS)), step, None)
    plgpu.wait_smem_to_gmem(0)
