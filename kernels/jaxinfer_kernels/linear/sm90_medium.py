"""Linear layers of up to 256 rows for Hopper (Mosaic GPU), with what comes after them: bias, residual or gate.

A norm between two of them takes no kernel: the first stores its rows times the norm's scales as well, and of each tile
every row's sum of squares; the second multiplies its sums by one over the root mean square, which is the same for all
that a row is multiplied with.

A tile is all rows by some columns of the result, so that every weight is read once and the tiles are as many as the
multiprocessors. One warpgroup copies blocks of activations and weights through a ring, each other one multiplies 64
rows. Where the columns are few, CTAs that share a tile's inner dimension form a cluster and add up through distributed
shared memory, each some rows, in a fixed order. Where the rows are many, a tile is two CTAs, each of which has half
of the rows and fetches half of the weights for both. Gate and up of a tile have accumulators of the same layout, so
that they meet in registers.
Bound by memory: it must read `N * K * itemsize` bytes of weights; that is our bar. Each tile reads all activations
again, from the L2, but CTAs that fetched them for each other were no faster (journal, 2026-11-26).
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.linear.quantized import Quantized
from jaxinfer_kernels.linear.sm90_medium_config import (
    DEFAULT,
    ROWS,
    WIDE,
    MediumConfig,
    MediumTuning,
    plan_launch,
)
from jaxinfer_kernels.sm90 import (
    F32,
    I32,
    Ref,
    Smem,
    cluster_sync,
    compiler_params,
    griddepcontrol,
    named,
    operand,
    padded,
    row_layout,
    store,
)


class DeferredNorm(NamedTuple):
    """x with a deferred RMS norm: the scales are applied, the next product applies 1 / rms."""

    rows: jax.Array  # [T, N], x as it is
    scaled: jax.Array  # [T, N], x times the norm's scales, rounded
    squares: jax.Array  # f32[halves, warpgroups, ROWS, parts]: rows as CTAs share them, over a tile's columns each


@functools.partial(jax.jit, static_argnames=("eps", "tuning", "interpret"))
def linear_bias(
    x: jax.Array | DeferredNorm,
    w: jax.Array | Quantized,
    layer: jax.Array,
    *,
    bias: jax.Array | None = None,
    eps: float | None = None,
    tuning: MediumTuning = DEFAULT,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> jax.Array:
    """x @ w.T + bias, the product summed in f32 and rounded before the bias.

      x: [T, K].    w: [N, K].    layer: i32[], of bias.    bias: [L, N].    eps: of x's norm, if x is DeferredNorm.
    Returns [T, N].
    """
    x, begun = _parted(x)
    plan = plan_launch(x, w, None if bias is None else "bias", tuning, interpret, eps=eps if begun else None)
    added = {} if bias is None else dict(layer=layer.reshape(1), bias=bias)
    return _launch(plan, dict(x=padded(x), **_parts(w), **begun, **added))[0][: len(x)]


@functools.partial(jax.jit, static_argnames=("tuning", "interpret"))
def linear_residual(
    x: jax.Array,
    w: jax.Array | Quantized,
    residual: jax.Array,
    *,
    norm: jax.Array | None = None,
    layer: jax.Array | None = None,
    tuning: MediumTuning = DEFAULT,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> jax.Array | DeferredNorm:
    """residual + x @ w.T, the product summed in f32 and rounded before it is added.

      x: [T, K].    w: [N, K].    residual: [T, N].
      norm: [L, N], the scales of the norm to begin, where `can_defer_norm` says that it can.    layer: i32[], of norm.
    Returns [T, N], a DeferredNorm if there is a norm.
    """
    plan = plan_launch(x, w, "residual", tuning, interpret, defers_norm=norm is not None)
    begun = {} if norm is None else dict(layer=layer.reshape(1), norm=norm)
    rows, *more = _launch(plan, dict(x=padded(x), **_parts(w), residual=padded(residual), **begun))
    if not more:
        return rows[: len(x)]
    scaled, squares = more
    return DeferredNorm(rows[: len(x)], scaled[: len(x)], squares)


@functools.partial(jax.jit, static_argnames=("eps", "tuning", "interpret"))
def gate_up(
    x: jax.Array | DeferredNorm,
    w: jax.Array | Quantized,
    *,
    eps: float | None = None,
    tuning: MediumTuning = DEFAULT,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> jax.Array:
    """silu(gate) * up of x @ w.T, in f32 of the rounded products, then rounded.

      x: [T, K].    w: [2F, K], the rows of gate, then of up.    eps: of x's norm, if x is DeferredNorm.
    Returns [T, F].
    """
    x, begun = _parted(x)
    plan = plan_launch(x, w, "silu", tuning, interpret, eps=eps if begun else None)
    return _launch(plan, dict(x=padded(x), **_parts(w), **begun))[0][: len(x)]


def _parts(w: jax.Array | Quantized) -> dict[str, jax.Array]:
    return dict(w=w.values, scales=w.scales) if isinstance(w, Quantized) else dict(w=w)


def _parted(x: jax.Array | DeferredNorm) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The product's left operand, and the squares that its deferred norm needs."""
    return (x.scaled, dict(squares=x.squares)) if isinstance(x, DeferredNorm) else (x, {})


def _launch(plan: MediumConfig, operands: dict[str, jax.Array]) -> Sequence[jax.Array]:
    """The result, and if its norm is deferred the other parts of its DeferredNorm."""
    begun = operands.get("squares")
    assert (begun is None) == (plan.eps is None), "a norm that is begun is ended, with eps"
    assert begun is None or begun.shape[:2] == plan.squares[:2], "rows are shared alike by the two products of a norm"
    warpgroups, dtype = plan.warpgroups, plan.dtype
    free = dict(num_arrivals=warpgroups + plan.widens, num_barriers=plan.stages)
    weights = plan.sides, plan.columns, plan.block
    ring = dict(x=operand((plan.stages, warpgroups, ROWS, plan.block), dtype))
    if plan.shared is None:
        ring |= dict(w=operand((plan.stages, *weights), dtype))
    else:
        ring |= dict(fp8=operand((plan.stages, *weights), jnp.float8_e4m3fn), w=operand((WIDE, *weights), dtype))
    result = plgpu.SMEM((warpgroups, plan.finished, plan.columns), dtype)
    late = dict(scaled=result) if plan.defers_norm else {}
    smem = dict(
        ready=plgpu.Barrier(num_arrivals=warpgroups + plan.sides, num_barriers=plan.stages),
        free=plgpu.ClusterBarrier(collective_axes=("half",), **free) if plan.halves > 1 else plgpu.Barrier(**free),
        done=plgpu.Barrier(num_arrivals=warpgroups),
    )
    if plan.widens:
        smem |= dict(wide=plgpu.Barrier(num_barriers=WIDE))
        smem |= dict(wide_free=plgpu.Barrier(num_arrivals=warpgroups, num_barriers=WIDE))
    if plan.after == "residual":  # which is fetched to where the result will be
        smem |= dict(out=result, added=plgpu.Barrier(num_arrivals=warpgroups))
    else:
        late |= dict(out=result)
    if plan.splits > 1:
        late |= dict(partial=plgpu.SMEM((warpgroups, ROWS, plan.columns), F32))
        smem |= dict(peers=plgpu.ClusterBarrier(collective_axes=("split",), num_arrivals=warpgroups))
    smem |= dict(shared=plgpu.RefUnion(ring, late))
    out = jax.ShapeDtypeStruct((plan.rows, plan.out), dtype)
    kernel = plgpu.kernel(
        named(f"batch_linear_{plan.after}", functools.partial(_kernel, plan, tuple(operands))),
        out_type=(out, out, jax.ShapeDtypeStruct(plan.squares, F32)) if plan.defers_norm else (out,),
        scratch_types=smem,
        grid=(plan.tiles,),
        grid_names=("tile",),
        cluster=(plan.splits, plan.halves),
        cluster_names=("split", "half"),
        num_threads=warpgroups + plan.widens + 1,
        thread_name="warpgroup",
        interpret=plan.interpret,
        compiler_params=compiler_params(),
    )
    return kernel(*operands.values())


def _kernel(plan: MediumConfig, operands: Sequence[str], *refs: Ref, **smem: Ref) -> None:
    """Operands as the functions above name them, layer as i32[1], w of fp8 as its values and scales; then out
    [T, columns], and scaled and squares of a norm that is begun."""
    names = *operands, "out", *(("scaled", "new_squares") if plan.defers_norm else ())
    ref = dict(zip(names, refs, strict=True))
    ring, late = smem.pop("shared")
    smem |= ring | late
    tile, split, half, warpgroup = (lax.axis_index(name) for name in ("tile", "split", "half", "warpgroup"))
    start = jnp.minimum(tile * plan.columns, plan.out - plan.columns)  # the last tile repeats columns, and their values
    share = -(-plan.blocks // plan.splits)  # blocks of a CTA
    first = split * share
    count = jnp.minimum(share, plan.blocks - first)
    columns = pl.ds(start, plan.columns)
    first_row = half * (plan.rows - plan.tile_rows)

    @pl.when(warpgroup == plan.warpgroups + plan.widens)
    def _():
        if not plan.interpret:
            plgpu.set_max_registers(40, action="decrease")
        copy_w = functools.partial(_copy_weights, plan, smem, ref["w"], start, first)
        copy_x = functools.partial(_copy_activations, plan, smem, ref["x"], first_row, first)
        at_once = jnp.minimum(count, plan.stages)
        lax.fori_loop(0, at_once, lambda i, _: copy_w(i), None)
        if plan.pdl:
            griddepcontrol()
        if plan.after == "residual":
            for i, rows, source in _finished_rows(plan, ref["residual"].at[:, columns], first_row, split):
                plgpu.copy_gmem_to_smem(source, smem["out"].at[i, pl.ds(0, rows)], smem["added"])
        lax.fori_loop(0, at_once, lambda i, _: copy_x(i), None)

        def refill(i: jax.Array, _: None) -> None:  # once the warpgroups are done with what the stage held
            plgpu.barrier_wait(smem["free"].at[lax.rem(i, I32(plan.stages))])
            copy_w(i)
            copy_x(i)

        lax.fori_loop(at_once, count, refill, None)

    if plan.widens:

        @pl.when(warpgroup == plan.warpgroups)
        def _():
            if not plan.interpret:
                plgpu.set_max_registers(plan.registers[1], action="increase")
            _widen(plan, smem, ref["scales"], start, first, count)

    @pl.when(warpgroup < plan.warpgroups)
    def _():
        if not plan.interpret:
            plgpu.set_max_registers(plan.registers[0], action="increase")
        if plan.eps is not None:
            if plan.pdl:
                griddepcontrol()  # each thread sees what the kernel before this one wrote once it has waited itself
            # Asked for now, added up when they are needed: they come while the first products are computed.
            squares = ref["squares"].at[half, warpgroup]
            squares = plgpu.load(squares, layout=plgpu.Layout.WGMMA, optimized=False)
        sums = _products(plan, smem, warpgroup, count)
        cluster_sync(smem["done"])  # what follows is where the ring was
        if plan.eps is not None:
            scale = lax.rsqrt(squares.sum(axis=1) * F32(1 / plan.depth) + F32(plan.eps))
            sums = [total * lax.broadcast_in_dim(scale, total.shape, [0]) for total in sums]
        if plan.splits > 1:
            sums = [_sum_of_peers(plan, smem, warpgroup, split, sums[0])]
        y = _finished(plan, smem, warpgroup, [total.astype(plan.dtype) for total in sums], ref, columns)
        made = dict(out=y)
        if plan.defers_norm:
            made |= dict(scaled=y * _of_columns(plan, ref["norm"].at[ref["layer"][0], columns]))
            rows = pl.ds(plan.first_finished(warpgroup, split), plan.finished)
            _store_squares(plan, ref["new_squares"].at[half, warpgroup, rows], tile, y.astype(F32))
        for name, value in made.items():
            store(smem[name].at[warpgroup], value)
        plgpu.commit_smem()
        for name in made:
            for i, rows, place in _finished_rows(plan, ref[name].at[:, columns], first_row, split):

                @pl.when(warpgroup == i)
                def _(i=i, rows=rows, place=place, name=name):
                    plgpu.copy_smem_to_gmem(smem[name].at[i, pl.ds(0, rows)], place)

        plgpu.wait_smem_to_gmem(0)
        if plan.splits > 1:
            cluster_sync(smem["peers"])  # a CTA that ends takes its shared memory with it


def _copy_weights(plan: MediumConfig, smem: Smem, w_ref: Ref, start: jax.Array, first: jax.Array, i: jax.Array) -> None:
    """Start copying the weights of this CTA's i-th block."""
    stage, inner = lax.rem(i, I32(plan.stages)), pl.ds((first + i) * plan.block, plan.block)
    for side in range(plan.sides):
        source = w_ref.at[pl.ds(side * plan.out + start, plan.columns), inner]
        shared = dict(collective_axes="half") if plan.halves > 1 else {}
        place = smem["fp8" if plan.widens else "w"].at[stage, side]
        plgpu.copy_gmem_to_smem(source, place, smem["ready"].at[stage], **shared)


def _copy_activations(
    plan: MediumConfig, smem: Smem, x_ref: Ref, first_row: jax.Array, first: jax.Array, i: jax.Array
) -> None:
    """Start copying the activations of this CTA's i-th block."""
    stage, inner = lax.rem(i, I32(plan.stages)), pl.ds((first + i) * plan.block, plan.block)
    ready = smem["ready"].at[stage]
    for j, rows in plan.parts():
        source = x_ref.at[pl.ds(first_row + j * ROWS, rows), inner]
        plgpu.copy_gmem_to_smem(source, smem["x"].at[stage, j, pl.ds(0, rows)], ready)


def _widen(
    plan: MediumConfig, smem: Smem, scales_ref: Ref, start: jax.Array, first: jax.Array, count: jax.Array
) -> None:
    """Make weights of this CTA's blocks as they come, each times its scale, as XLA rounds them."""
    layout = row_layout(plan.block, 1)
    scales_of = functools.partial(_scales, plan, scales_ref, start)

    def widen(i: jax.Array, scales: list[jax.Array]) -> list[jax.Array]:
        stage, place = lax.rem(i, I32(plan.stages)), lax.rem(i, I32(WIDE))
        later = scales_of(first + jnp.minimum(i + 1, count - 1)) if plan.has_blocks else scales
        plgpu.barrier_wait(smem["ready"].at[stage])

        @pl.when(i >= WIDE)
        def _():
            plgpu.barrier_wait(smem["wide_free"].at[place])

        for side, scale in enumerate(scales):
            values = plgpu.load(smem["fp8"].at[stage, side], layout=layout, optimized=False)
            # This chip converts fp8 to f16 alone.
            wide = values.astype(jnp.float16).astype(F32)
            wide = wide * plgpu.layout_cast(lax.broadcast_in_dim(scale, wide.shape, [0]), layout)
            store(smem["w"].at[place, side], wide.astype(plan.dtype))
        plgpu.commit_smem()
        plgpu.barrier_arrive(smem["wide"].at[place])

        @pl.when(i + plan.stages < count)
        def _():
            plgpu.barrier_arrive(smem["free"].at[stage])

        return later

    lax.fori_loop(0, count, widen, scales_of(first))


def _scales(plan: MediumConfig, scales_ref: Ref, start: jax.Array, block: jax.Array) -> list[jax.Array]:
    """f32[columns] of each side: the scale of each row of weights in a block of the inner dimension."""
    assert plan.shared is not None
    layout = row_layout(plan.block, 1).reduce(1)
    firsts = [side * plan.out + start for side in range(plan.sides)]
    if not plan.has_blocks:
        rows = (scales_ref.at[pl.ds(row, plan.columns), 0] for row in firsts)
        return [plgpu.load(one, layout=layout, optimized=False) for one in rows]
    height = plan.shared[0]
    most = scales_ref.shape[0] - 1
    found = []
    for row in firsts:
        rows = plgpu.broadcasted_iota(I32, (plan.columns,), 0, layout=layout) + row
        scale = plgpu.layout_cast(jnp.zeros((plan.columns,), F32), layout)
        for i in range((plan.columns - 2) // height + 2):  # that a tile may reach into
            part = jnp.minimum(lax.div(row, I32(height)) + i, most)
            scale = jnp.where(rows >= part * height, scales_ref[part, block], scale)
        found.append(scale)
    return found


def _products(plan: MediumConfig, smem: Smem, warpgroup: jax.Array, count: jax.Array) -> list[jax.Array]:
    """f32[ROWS, columns] of each side, over this CTA's blocks."""

    def run(*sums: Ref) -> list[jax.Array]:
        def step(i: jax.Array, _: None) -> None:
            stage = lax.rem(i, I32(plan.stages))
            plgpu.barrier_wait(smem["ready"].at[stage])
            place = lax.rem(i, I32(WIDE)) if plan.widens else stage
            if plan.widens:
                plgpu.barrier_wait(smem["wide"].at[place])
            for side, total in enumerate(sums):
                weights = smem["w"].at[place, side].transpose((1, 0))
                plgpu.wgmma(total, smem["x"].at[stage, warpgroup], weights)
            plgpu.wgmma_wait(len(sums))  # for the products of the step before
            before = lax.rem(i + (plan.stages - 1), I32(plan.stages))

            @pl.when((i > 0) & (i - 1 + plan.stages < count))
            def _():
                plgpu.barrier_arrive(smem["free"].at[before])

            if plan.widens:

                @pl.when((i > 0) & (i - 1 + WIDE < count))
                def _():
                    plgpu.barrier_arrive(smem["wide_free"].at[lax.rem(i + (WIDE - 1), I32(WIDE))])

        lax.fori_loop(0, count, step, None)
        plgpu.wgmma_wait(0)
        return [total[...] for total in sums]

    return pl.run_scoped(run, *[plgpu.ACC((ROWS, plan.columns), F32)] * plan.sides)


def _sum_of_peers(plan: MediumConfig, smem: Smem, warpgroup: jax.Array, split: jax.Array, mine: jax.Array) -> jax.Array:
    """What this CTA finishes, f32[finished, columns], of the sum over the cluster, in the CTAs' order."""
    store(smem["partial"].at[warpgroup], mine)
    cluster_sync(smem["peers"])
    rows = pl.ds(plan.first_finished(warpgroup, split), plan.finished)

    def share(peer: int) -> jax.Array:
        ref = plgpu.cluster_ref(smem["partial"], {"split": I32(peer)})
        return plgpu.load(ref.at[warpgroup, rows], layout=plan.layout, optimized=False)

    return functools.reduce(jnp.add, [share(i) for i in range(plan.splits)])


def _finished_rows(
    plan: MediumConfig, array: Ref, first_row: jax.Array, split: jax.Array
) -> Iterator[tuple[int, int, Ref]]:
    """Each warpgroup, how many of its rows this CTA finishes, and where they are in an array [T, columns]."""
    for i, rows in plan.parts():
        rows = min(rows, plan.finished)
        yield i, rows, array.at[pl.ds(first_row + i * ROWS + plan.first_finished(I32(i), split), rows)]


def _of_columns(plan: MediumConfig, values: Ref) -> jax.Array:
    """values [columns], for every row that is finished."""
    row = plgpu.load(values, layout=plan.layout.reduce(0), optimized=False)
    rows = lax.broadcast_in_dim(row, (plan.finished, plan.columns), [1])
    return plgpu.layout_cast(rows, plan.layout)


def _store_squares(plan: MediumConfig, squares: Ref, tile: jax.Array, y: jax.Array) -> None:
    """Of y f32[finished, columns] each row's sum of squares, to its part of squares f32[finished, parts]."""
    store(squares.at[:, tile], (y * y).sum(axis=1))
    for part in range(plan.tiles, plan.squares[-1]):

        @pl.when(tile == 0)
        def _(part=part):
            store(squares.at[:, part], plgpu.layout_cast(jnp.zeros(plan.finished, F32), plan.layout.reduce(1)))


def _finished(
    plan: MediumConfig, smem: Smem, warpgroup: jax.Array, products: list[jax.Array], ref: Smem, columns: object
) -> jax.Array:
    if plan.after == "silu":
        gate, up = (product.astype(F32) for product in products)
        return (gate / (F32(1) + jnp.exp(-gate)) * up).astype(plan.dtype)
    if plan.after == "bias":
        return products[0] + _of_columns(plan, ref["bias"].at[ref["layer"][0], columns])
    if plan.after is None:
        return products[0]
    plgpu.barrier_wait(smem["added"])
    return products[0] + plgpu.load(smem["out"].at[warpgroup], layout=plan.layout, optimized=False)
