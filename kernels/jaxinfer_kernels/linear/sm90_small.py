"""Linear layers of a decode step for Hopper (Mosaic GPU), each with its neighbours: norm before, bias, residual or
gate after.

Products are transposed (64 rows of weights are the wgmma's M, the batch its N columns), so that a batch of 1 to 64 rows
streams the weights once, through a ring of copies. Weights in fp8 are widened in registers, from where the wgmma takes
them, a block while the one before it is multiplied: 201 instructions for 8 KB, where the copies leave time for 440 on
an H200. CTAs that share a tile's inner dimension form a cluster and add up through distributed shared memory, in a
fixed order. Weights are fetched before the wait for the kernel before this one (PDL), which a launch sequence honours;
alone in XLA's CUDA graphs each kernel is a graph of its own.
Bound by memory: it must read `N * K * itemsize` bytes of weights; that is our bar. Measured at 8 rows, where it is
faster than XLA, and at 32, where it is not (benchmarks/kernels_linear.py).

w is an array, or Quantized fp8 with a scale per row or per block of 128 columns and rows in multiples of 64.
Rows are padded to a multiple of 8: hand over padded rows, else that costs two small kernels. What is in the padding
(NaN even) reaches only padding.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.linear.quantized import Quantized
from jaxinfer_kernels.linear.sm90_small_config import DEFAULT, ROWS, SmallConfig, SmallTuning, plan_launch
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


@functools.partial(jax.jit, static_argnames=("eps", "tuning", "interpret"))
def norm_linear(
    x: jax.Array,
    norm: jax.Array,
    w: jax.Array | Quantized,
    layer: jax.Array,
    *,
    eps: float,
    bias: jax.Array | None = None,
    tuning: SmallTuning = DEFAULT,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> jax.Array:
    """rms_norm(x) @ w.T + bias: the products of q, k and v.

      x: [T, K].    norm: [L, K].    w: [N, K].    layer: i32[], of norm and bias.    bias: [L, N].
    Normed in f32, rounded, then scaled; the product is summed in f32 and rounded before the bias. Returns [T, N].
    """
    after = None if bias is None else "bias"
    plan = plan_launch(x, w, tuning, interpret, norm_eps=eps, after=after)
    return _run(plan, x, *_parts(w), layer.reshape(1), norm, *([] if bias is None else [bias]))


@functools.partial(jax.jit, static_argnames=("tuning", "interpret"))
def linear_residual(
    x: jax.Array,
    w: jax.Array | Quantized,
    residual: jax.Array,
    *,
    tuning: SmallTuning = DEFAULT,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> jax.Array:
    """residual + x @ w.T, the product summed in f32 and rounded before it is added.

      x: [T, K].    w: [N, K].    residual: [T, N].
    Returns [T, N].
    """
    plan = plan_launch(x, w, tuning, interpret, after="residual")
    return _run(plan, x, *_parts(w), padded(residual))


@functools.partial(jax.jit, static_argnames=("eps", "tuning", "interpret"))
def norm_gate_up(
    x: jax.Array,
    norm: jax.Array,
    w: jax.Array | Quantized,
    layer: jax.Array,
    *,
    eps: float,
    tuning: SmallTuning = DEFAULT,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> jax.Array:
    """silu(gate) * up of rms_norm(x) @ w.T, in f32 of the rounded products, then rounded.

      x: [T, K].    norm: [L, K].    w: [2F, K], the rows of gate, then of up.    layer: i32[], of norm.
    Returns [T, F].
    """
    plan = plan_launch(x, w, tuning, interpret, norm_eps=eps, after="silu")
    return _run(plan, x, *_parts(w), layer.reshape(1), norm)


def _parts(w: jax.Array | Quantized) -> list[jax.Array]:
    return [w.values, w.scales] if isinstance(w, Quantized) else [w]


def _run(plan: SmallConfig, x: jax.Array, *rest: jax.Array) -> jax.Array:
    return _launch(plan)(padded(x), *rest)[0][: len(x)]


def _names(plan: SmallConfig) -> list[str]:
    """Of the kernel's arguments and results, in order."""
    names = ["x", "w"] if plan.shared is None else ["x", "w", "scales"]
    names += [] if plan.norm_eps is None else ["layer", "norm"]
    names += [plan.after] if plan.after in ("bias", "residual") else []
    return [*names, "out", *(["partials", "squares"] if _spills(plan) else [])]


def _spills(plan: SmallConfig) -> bool:
    """Interpret mode has no distributed shared memory: there, and only there, peers meet in global memory."""
    return plan.interpret is not None and plan.cut.splits > 1


def _launch(plan: SmallConfig) -> Callable[..., list[jax.Array]]:
    columns, block, dtype = plan.columns, plan.block, plan.dtype
    width = ROWS // 2 if plan.after == "silu" else ROWS  # columns of the result that a tile makes
    out = [jax.ShapeDtypeStruct((columns, plan.tiles * width), plan.dtype)]
    if _spills(plan):
        shapes = (plan.tiles, plan.cut.splits, ROWS, columns), (plan.cut.clusters, plan.cut.splits, columns)
        out += [jax.ShapeDtypeStruct(shape, F32) for shape in shapes]
    smem = dict(
        x=operand((plan.blocks, columns, block), dtype),
        w=operand((plan.cut.stages, ROWS, block), dtype if plan.shared is None else jnp.float8_e4m3fn),
        w_ready=plgpu.Barrier(num_arrivals=2 if plan.after == "silu" else 1, num_barriers=plan.cut.stages),
    )
    if plan.norm_eps is not None:
        smem |= dict(norm=plgpu.SMEM((plan.blocks * block,), dtype), norm_ready=plgpu.Barrier(num_arrivals=plan.blocks))
    if plan.shared is not None and plan.interpret is not None:
        smem |= dict(widened=operand((ROWS, block), dtype))  # interpret mode multiplies nothing in registers
    if plan.after == "silu":
        smem |= dict(gate_up=plgpu.SMEM((columns, ROWS), dtype))
    if plan.cut.splits > 1:
        smem |= dict(partial=plgpu.SMEM((ROWS, columns), F32), peers=plgpu.ClusterBarrier(collective_axes=("split",)))
        smem |= {} if plan.norm_eps is None else dict(squares=plgpu.SMEM((columns,), F32))
    return plgpu.kernel(
        named(f"linear_{plan.after}", functools.partial(_kernel, plan)),
        out_type=out,
        scratch_types=smem,
        grid=(plan.cut.clusters,),
        grid_names=("cluster",),
        cluster=(plan.cut.splits,),
        cluster_names=("split",),
        num_threads=1,
        thread_name="warpgroup",
        interpret=plan.interpret,
        compiler_params=compiler_params(),
    )


def _kernel(plan: SmallConfig, *refs: Ref, **smem: Ref) -> None:
    ref = dict(zip(_names(plan), refs, strict=True))
    cluster, split = lax.axis_index("cluster"), lax.axis_index("split")
    tiles = lax.div(plan.tiles - 1 - cluster, I32(plan.cut.clusters)) + 1  # of this cluster
    even = plan.tiles % plan.cut.clusters == 0
    if even:
        tiles = plan.tiles // plan.cut.clusters
    units = tiles * plan.blocks
    fetch = functools.partial(_fetch, plan, smem, ref["w"], cluster, split)
    for i in range(plan.cut.stages):
        if even:
            fetch(I32(i))
        else:
            pl.when(i < units)(functools.partial(fetch, I32(i)))
    if plan.norm_eps is not None:
        _copy_norm(plan, smem, ref, split)
    if plan.pdl:
        griddepcontrol()
    _bring_x(plan, smem, ref, cluster, split)

    def tile_step(i: jax.Array, _: None) -> None:
        tile = cluster + i * plan.cut.clusters
        added = _load_added(plan, ref, tile)

        def arrived(j: jax.Array) -> tuple[jax.Array, jax.Array]:
            """The j-th block's number, and where it lies once it has come."""
            unit = i * plan.blocks + j
            slot = lax.rem(unit, I32(plan.cut.stages))
            plgpu.barrier_wait(smem["w_ready"].at[slot])
            return unit, slot

        def refill(unit: jax.Array) -> None:
            @pl.when(unit + plan.cut.stages < units)
            def _():
                fetch(unit + plan.cut.stages)

        def product(acc: Ref) -> jax.Array:
            def step(j: jax.Array, _: None) -> None:
                unit, slot = arrived(j)
                plgpu.wgmma(acc, smem["w"].at[slot], smem["x"].at[j].transpose((1, 0)))
                plgpu.wgmma_wait(0)
                refill(unit)

            lax.fori_loop(0, plan.blocks, step, None)
            return acc[...]

        def product_of_fp8(total: jax.Array) -> jax.Array:
            scale_of = functools.partial(_block_scale, plan, ref, tile, split)

            def widened(j: jax.Array) -> jax.Array:
                unit, slot = arrived(j)
                weights = plgpu.load(smem["w"].at[slot], layout=plgpu.Layout.WGMMA, optimized=False)
                # This chip converts fp8 to f16 alone; all of its values are bf16's too.
                weights = weights.astype(jnp.float16).astype(F32).astype(plan.dtype)
                plgpu.commit_smem()  # all warps have read the block
                refill(unit)
                return weights

            def multiplied(
                j: jax.Array, total: jax.Array, scale: jax.Array, weights: jax.Array, meanwhile: Callable[[], jax.Array]
            ) -> tuple[jax.Array, jax.Array]:
                """The total with block j, and what `meanwhile` makes while the product runs."""

                def multiply(acc: Ref) -> tuple[jax.Array, jax.Array]:
                    left = weights
                    if plan.interpret is not None:
                        left = smem["widened"]
                        left[...] = weights
                    plgpu.wgmma(acc, left, smem["x"].at[j].transpose((1, 0)))
                    rest = meanwhile()
                    plgpu.wgmma_wait(0)
                    return acc[...], rest

                part, rest = pl.run_scoped(multiply, plgpu.ACC((ROWS, plan.columns), F32))
                return total + (part * scale if plan.has_blocks else part), rest

            def step(j: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
                total, scale, weights = carry
                later = scale_of(j + 1) if plan.has_blocks else scale
                total, weights = multiplied(j, total, scale, weights, lambda: widened(j + 1))
                return total, later, weights

            first = scale_of(I32(0)) if plan.has_blocks else F32(0)
            last = I32(plan.blocks - 1)
            total, scale, weights = lax.fori_loop(0, last, step, (total, first, widened(I32(0))))
            return multiplied(last, total, scale, weights, lambda: weights)[0]

        if plan.shared is None:
            acc = pl.run_scoped(product, plgpu.ACC((ROWS, plan.columns), F32))
        else:
            acc = product_of_fp8(plgpu.layout_cast(jnp.zeros((ROWS, plan.columns), F32), plgpu.Layout.WGMMA))
        _finish(plan, smem, ref, tile, split, acc, added)

    lax.fori_loop(0, tiles, tile_step, None)


def _fetch(plan: SmallConfig, smem: Smem, w_ref: Ref, cluster: jax.Array, split: jax.Array, unit: jax.Array) -> None:
    """Start copying this CTA's unit-th block of weights, [ROWS, block]; half of it are up's rows if there is a gate."""
    slot = lax.rem(unit, I32(plan.cut.stages))
    tile = cluster + lax.div(unit, I32(plan.blocks)) * plan.cut.clusters
    columns = pl.ds((split * plan.blocks + lax.rem(unit, I32(plan.blocks))) * plan.block, plan.block)
    firsts = (0, plan.out // 2) if plan.after == "silu" else (0,)
    rows = ROWS // len(firsts)
    for i, first in enumerate(firsts):
        source = w_ref.at[pl.ds(first + tile * rows, rows), columns]
        plgpu.copy_gmem_to_smem(source, smem["w"].at[slot, pl.ds(i * rows, rows)], smem["w_ready"].at[slot])


def _block_scale(plan: SmallConfig, ref: Smem, tile: jax.Array, split: jax.Array, j: jax.Array) -> jax.Array:
    """Of this CTA's j-th block of a tile, f32[ROWS, columns]: the rows of gate and up have one each."""
    assert plan.shared is not None
    column = split * plan.blocks + j
    if plan.after != "silu":
        return ref["scales"][lax.div(tile * ROWS, I32(plan.shared[0])), column]
    half = ROWS // 2
    gate, up = (
        ref["scales"][lax.div(first + tile * half, I32(plan.shared[0])), column] for first in (0, plan.out // 2)
    )
    return _by_half(plan, gate, up)


def _copy_norm(plan: SmallConfig, smem: Smem, ref: Smem, split: jax.Array) -> None:
    layer, block = ref["layer"][0], plan.block
    for i in range(plan.blocks):
        source = ref["norm"].at[layer, pl.ds((split * plan.blocks + i) * block, block)]
        plgpu.copy_gmem_to_smem(source, smem["norm"].at[pl.ds(i * block, block)], smem["norm_ready"])


def _load_added(plan: SmallConfig, ref: Smem, tile: jax.Array) -> jax.Array | None:
    """The bias or residual of a tile, [ROWS, columns], in the registers that will need it."""
    layout = plgpu.Layout.WGMMA if plan.interpret else plgpu.Layout.WGMMA_TRANSPOSED
    rows = pl.ds(tile * ROWS, ROWS)
    if plan.after == "bias":
        bias = plgpu.load(ref["bias"].at[ref["layer"][0], rows], layout=layout.reduce(1), optimized=False)
        return plgpu.layout_cast(lax.broadcast_in_dim(bias, (ROWS, plan.columns), [0]), layout)
    if plan.after == "residual":
        return plgpu.load(ref["residual"].T.at[rows], layout=layout, optimized=False)
    return None


def _bring_x(plan: SmallConfig, smem: Smem, ref: Smem, cluster: jax.Array, split: jax.Array) -> None:
    """Load this CTA's columns of x, norm them if wanted and lay them out. The copy engine, busy, would be slower."""
    layout, block = row_layout(64), plan.block
    shape = (plan.columns, 64)
    pieces = [(i, j) for i in range(plan.blocks) for j in range(0, block, 64)]
    at_once = max(256 // plan.columns, 1)  # loads in flight
    keep = plan.norm_eps is not None and plan.columns * len(pieces) <= 256
    kept = {}
    squares = plgpu.layout_cast(jnp.zeros(shape, F32), layout)
    for start in range(0, len(pieces), at_once):
        group = pieces[start : start + at_once]
        columns = [pl.ds((split * plan.blocks + i) * block + j, 64) for i, j in group]
        loaded = [plgpu.load(ref["x"].at[:, c], layout=layout, optimized=False) for c in columns]
        for (i, j), x in zip(group, loaded, strict=True):
            if plan.norm_eps is not None:
                squares = squares + x.astype(F32) * x.astype(F32)
            if keep:
                kept[i, j] = x
            else:
                smem["x"][i, :, pl.ds(j, 64)] = x
    if plan.norm_eps is not None:
        total = _sum_squares(plan, smem, ref, cluster, split, squares.sum(axis=1))
        scale = lax.rsqrt(total * F32(1 / plan.depth) + F32(plan.norm_eps))
        scale = plgpu.layout_cast(lax.broadcast_in_dim(scale, shape, [0]), layout)
        plgpu.barrier_wait(smem["norm_ready"])
        for i, j in pieces:
            weight = plgpu.load(smem["norm"].at[pl.ds(i * block + j, 64)], layout=layout.reduce(0), optimized=False)
            weight = plgpu.layout_cast(lax.broadcast_in_dim(weight, shape, [1]), layout)
            x = kept[i, j] if keep else plgpu.layout_cast(smem["x"][i, :, pl.ds(j, 64)], layout)
            smem["x"][i, :, pl.ds(j, 64)] = (x.astype(F32) * scale).astype(plan.dtype) * weight
    plgpu.commit_smem()


def _sum_squares(
    plan: SmallConfig, smem: Smem, ref: Smem, cluster: jax.Array, split: jax.Array, squares: jax.Array
) -> jax.Array:
    """The sum over the cluster of what each CTA has of each row, f32[columns]."""
    if plan.cut.splits == 1:
        return squares
    store(smem["squares"], squares)
    if _spills(plan):
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem["squares"], ref["squares"].at[cluster, split])
        plgpu.wait_smem_to_gmem(0)
    cluster_sync(smem["peers"])
    spilled = ref["squares"].at[cluster] if _spills(plan) else None
    return _sum_of_peers(plan, smem["squares"], spilled, row_layout(64).reduce(1))


def _sum_of_peers(plan: SmallConfig, mine: Ref, spilled: Ref | None, layout: object) -> jax.Array:
    """The sum over the cluster of what each CTA holds at `mine`, in the CTAs' order."""

    def share(peer: int) -> jax.Array:
        ref = plgpu.cluster_ref(mine, {"split": I32(peer)}) if spilled is None else spilled.at[peer]
        return plgpu.load(ref, layout=layout, optimized=False)

    return functools.reduce(jnp.add, [share(i) for i in range(plan.cut.splits)])


def _finish(
    plan: SmallConfig,
    smem: Smem,
    ref: Smem,
    tile: jax.Array,
    split: jax.Array,
    acc: jax.Array,
    added: jax.Array | None,
) -> None:
    """Add up the cluster's shares acc f32[ROWS, columns] of a tile, do what is to be done after, and store."""
    if plan.cut.splits > 1:
        store(smem["partial"], acc)
        if _spills(plan):
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(smem["partial"], ref["partials"].at[tile, split])
            plgpu.wait_smem_to_gmem(0)
        cluster_sync(smem["peers"])

    @pl.when(split == 0)
    def _():
        total = acc
        if plan.cut.splits > 1:
            spilled = ref["partials"].at[tile] if _spills(plan) else None
            total = _sum_of_peers(plan, smem["partial"], spilled, plgpu.Layout.WGMMA)
        if plan.shared is not None and not plan.has_blocks:
            total = total * _row_scales(plan, ref, tile)
        layout = plgpu.Layout.WGMMA if plan.interpret else plgpu.Layout.WGMMA_TRANSPOSED
        y = plgpu.layout_cast(total.astype(plan.dtype), layout)
        if plan.after == "silu":
            _store_gated(plan, smem, ref["out"], tile, y)
        else:
            store(ref["out"].T.at[pl.ds(tile * ROWS, ROWS)], y if added is None else y + added)

    if plan.cut.splits > 1:
        cluster_sync(smem["peers"])  # a CTA that goes on overwrites its share, one that ends takes its memory with it


def _row_scales(plan: SmallConfig, ref: Smem, tile: jax.Array) -> jax.Array:
    """Of a tile's rows, f32[ROWS, columns]."""
    layout, shape = plgpu.Layout.WGMMA, (ROWS, plan.columns)

    def load(first: jax.Array) -> jax.Array:
        scales = plgpu.load(ref["scales"].at[pl.ds(first, ROWS), 0], layout=layout.reduce(1), optimized=False)
        return plgpu.layout_cast(lax.broadcast_in_dim(scales, shape, [0]), layout)

    if plan.after != "silu":
        return load(tile * ROWS)
    # The tile's rows are half of gate's and half of up's: each half lies where 64 rows are read from an even place.
    half = ROWS // 2
    gate, up = load(tile * half), load(plan.out // 2 + tile * half - half)
    return _by_half(plan, gate, up)


def _by_half(plan: SmallConfig, gate: jax.Array, up: jax.Array) -> jax.Array:
    """f32[ROWS, columns]: gate's of the first half of a tile's rows, up's of the second."""
    rows = plgpu.broadcasted_iota(I32, (ROWS, plan.columns), 0, layout=plgpu.Layout.WGMMA)
    return jnp.where(rows < ROWS // 2, gate, up)


def _store_gated(plan: SmallConfig, smem: Smem, out_ref: Ref, tile: jax.Array, y: jax.Array) -> None:
    """Store silu(gate) * up of a tile whose first half is gate's rows, its second up's."""
    half = ROWS // 2
    store(smem["gate_up"].T, y)
    plgpu.commit_smem()
    sides = [plgpu.layout_cast(smem["gate_up"][:, pl.ds(i * half, half)], row_layout(half)) for i in range(2)]
    gate, up = (side.astype(F32) for side in sides)
    gated = (gate / (F32(1) + jnp.exp(-gate)) * up).astype(plan.dtype)
    store(out_ref.at[:, pl.ds(tile * half, half)], gated)
    if plan.cut.clusters < plan.tiles:
        plgpu.commit_smem()  # before the next tile overwrites what slower warps still read
