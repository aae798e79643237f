"""Linear layers of a decode step for Hopper (Mosaic GPU), each with its neighbours: norm before, bias, residual or
gate after.

Products are transposed (64 rows of weights are the wgmma's M, the batch its N columns), so that a batch of 1 to 64 rows
streams the weights once, through a ring of copies. Weights in fp8 become float16 in registers, from where the wgmma
takes them, a block while the one before it is multiplied: 175 instructions for 8 KB, where the copies leave time for
440 on an H200. Up to 8 rows that they are multiplied with become float16 too, each times a power of 2 that its sums are
divided by; more rows take longer to convert than weights, which become bfloat16 then. Weights of 4 bits become x's
dtype, and each block's sums are multiplied by the rows' scales. CTAs that share a tile's inner
dimension form a cluster and add up through distributed shared memory, in a fixed order. Weights are fetched before the
wait for the kernel before this one (PDL), which a launch sequence honours; alone in XLA's CUDA graphs each kernel is a
graph of its own.
Bound by memory: it must read `N * K * itemsize` bytes of weights; that is our bar. Measured at 8 rows, where it is
faster than XLA, and at 32, where it is not (benchmarks/kernels_linear.py).

w is an array, or Quantized: fp8 with a scale per row or per block of 128 columns and rows in multiples of 64, or
packed4 with a scale per 128 columns or a multiple.
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
from jaxinfer_kernels.linear import sm90_packed4
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

type Widened = tuple[jax.Array, jax.Array | None]  # [ROWS, block], and factors of its rows


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
    Rows are scaled by the norm and rounded, their sums in f32 divided by the root mean square and rounded before the
    bias. Returns [T, N].
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
    return jax.tree.leaves((w.values, w.scales, w.zeros)) if isinstance(w, Quantized) else [w]


def _run(plan: SmallConfig, x: jax.Array, *rest: jax.Array) -> jax.Array:
    return _launch(plan)(padded(x), *rest)[0][: len(x)]


def _names(plan: SmallConfig) -> list[str]:
    """Of the kernel's arguments and results, in order."""
    names = ["x", "w", *(["scales"] if plan.is_quantized else []), *(["zeros"] if plan.weights.has_zeros else [])]
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
        x=operand((plan.blocks, columns, block), plan.operand_dtype),
        w_ready=plgpu.Barrier(num_arrivals=plan.copies, num_barriers=plan.cut.stages),
    )
    if plan.is_packed:
        smem |= sm90_packed4.scratch(plan.cut.stages, plan.parts, has_zeros=plan.weights.has_zeros)
    else:
        smem |= dict(w=operand((plan.cut.stages, ROWS, block), jnp.float8_e4m3fn if plan.is_quantized else dtype))
    if plan.norm_eps is not None:
        smem |= dict(norm=plgpu.SMEM((plan.blocks * block,), dtype), norm_ready=plgpu.Barrier(num_arrivals=plan.blocks))
        smem |= dict(squares=plgpu.SMEM((columns,), F32))
    if plan.is_quantized and plan.interpret is not None:
        # Interpret mode multiplies nothing in registers.
        smem |= dict(widened=operand((ROWS, block), plan.operand_dtype))
    if plan.scales_x:
        smem |= dict(x_scales=plgpu.SMEM((columns,), F32))
    if plan.after == "silu":
        smem |= dict(gate_up=plgpu.SMEM((columns, ROWS), dtype))
    if plan.cut.spare:
        smem |= dict(spare=plgpu.SMEM((plan.cut.spare,), jnp.int8))
    if plan.cut.splits > 1:
        smem |= dict(partial=plgpu.SMEM((ROWS, columns), F32), peers=plgpu.ClusterBarrier(collective_axes=("split",)))
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
    if even := plan.tiles % plan.cut.clusters == 0:
        tiles = plan.tiles // plan.cut.clusters
    units = tiles * plan.blocks
    fetch = functools.partial(_fetch, plan, smem, ref, cluster, split)
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

        def product_of_quantized(total: jax.Array) -> jax.Array:
            scale_of = functools.partial(_block_scale, plan, ref, tile, split)

            def widened(j: jax.Array) -> Widened:
                unit, slot = arrived(j)
                made = _widened(plan, smem, slot, _places(plan, cluster, split, unit))
                plgpu.commit_smem()  # all warps have read the block
                refill(unit)
                return made

            def multiplied(
                j: jax.Array, total: jax.Array, made: Widened, meanwhile: Callable[[], Widened]
            ) -> tuple[jax.Array, Widened]:
                """The total with block j, and what `meanwhile` makes while the product runs."""
                weights, scale = made
                if scale is not None:
                    scale = plgpu.layout_cast(lax.broadcast_in_dim(scale, total.shape, [0]), plgpu.Layout.WGMMA)
                elif plan.has_blocks:
                    scale = scale_of(j)

                def multiply(acc: Ref) -> tuple[jax.Array, Widened]:
                    left = weights
                    if plan.interpret is not None:
                        left = smem["widened"]
                        left[...] = weights
                    plgpu.wgmma(acc, left, smem["x"].at[j].transpose((1, 0)))
                    rest = meanwhile()
                    plgpu.wgmma_wait(0)
                    return acc[...], rest

                part, rest = pl.run_scoped(multiply, plgpu.ACC((ROWS, plan.columns), F32))
                return total + (part if scale is None else part * scale), rest

            def step(j: jax.Array, total: jax.Array, made: Widened) -> tuple[jax.Array, Widened]:
                """The total with block j, and the next block's weights."""
                return multiplied(j, total, made, lambda: widened(j + 1))

            def two_steps(i: jax.Array, carry: tuple[jax.Array, Widened]) -> tuple[jax.Array, Widened]:
                # Two, since the registers of a running product cannot take the weights of the next.
                return step(2 * i + 1, *step(2 * i, *carry))

            last = plan.blocks - 1
            carry = lax.fori_loop(0, last // 2, two_steps, (total, widened(I32(0))))
            if last % 2:
                carry = step(I32(last - 1), *carry)
            return multiplied(I32(last), *carry, lambda: carry[1])[0]

        if not plan.is_quantized:
            acc = pl.run_scoped(product, plgpu.ACC((ROWS, plan.columns), F32))
        else:
            acc = product_of_quantized(plgpu.layout_cast(jnp.zeros((ROWS, plan.columns), F32), plgpu.Layout.WGMMA))
        _finish(plan, smem, ref, cluster, tile, split, acc, added)

    lax.fori_loop(0, tiles, tile_step, None)


def _fetch(plan: SmallConfig, smem: Smem, ref: Smem, cluster: jax.Array, split: jax.Array, unit: jax.Array) -> None:
    """Start copying this CTA's unit-th block of weights, [ROWS, block]; half of it are up's rows if there is a gate."""
    slot = lax.rem(unit, I32(plan.cut.stages))
    ready = smem["w_ready"].at[slot]
    for at in _places(plan, cluster, split, unit):
        if plan.is_packed:
            sm90_packed4.copy(ref, smem, slot, ready, at)
            continue
        source = ref["w"].at[pl.ds(at.first, at.rows), pl.ds(at.number * plan.block, plan.block)]
        plgpu.copy_gmem_to_smem(source, smem["w"].at[slot, pl.ds(at.part * at.rows, at.rows)], ready)


def _places(plan: SmallConfig, cluster: jax.Array, split: jax.Array, unit: jax.Array) -> list[sm90_packed4.TilePart]:
    """Of the parts of this CTA's unit-th block."""
    tile = cluster + lax.div(unit, I32(plan.blocks)) * plan.cut.clusters
    number = split * plan.blocks + lax.rem(unit, I32(plan.blocks))
    shared, rows = plan.weights.shared[1], ROWS // plan.parts
    return [
        sm90_packed4.TilePart(
            tile * rows + part * (plan.out // 2), part, plan.parts, number, shared, plan.depth // shared
        )
        for part in range(plan.parts)
    ]


def _widened(plan: SmallConfig, smem: Smem, slot: jax.Array, places: list[sm90_packed4.TilePart]) -> Widened:
    """A block of weights as it is multiplied, [ROWS, block], and what packed ones' rows are multiplied by then."""
    if plan.is_packed:
        weights = sm90_packed4.widened(smem, slot, places, plan.operand_dtype, interpret=plan.interpret is not None)
        return weights, plgpu.load(smem["scales"].at[slot], layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)
    weights = plgpu.load(smem["w"].at[slot], layout=plgpu.Layout.WGMMA, optimized=False).astype(jnp.float16)
    if plan.operand_dtype != jnp.float16:
        weights = weights.astype(F32).astype(plan.operand_dtype)
    return weights, None


def _block_scale(plan: SmallConfig, ref: Smem, tile: jax.Array, split: jax.Array, j: jax.Array) -> jax.Array:
    """Of this CTA's j-th block of a tile, f32[ROWS, columns]: the rows of gate and up have one each."""
    of_rows = I32(plan.weights.shared[0])
    column = split * plan.blocks + j
    if plan.after != "silu":
        return ref["scales"][lax.div(tile * ROWS, of_rows), column]
    half = ROWS // 2
    gate, up = (ref["scales"][lax.div(first + tile * half, of_rows), column] for first in (0, plan.out // 2))
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
    """Load this CTA's columns of x, scale them by a norm's weights if there is one and lay them out. The copy engine,
    busy, would be slower.

    All that is done here waits for the kernel before this one, twice on each multiprocessor: a norm divides the sums
    by the root mean square at the end, when the sum of squares is known. In float16 each row is multiplied by a power
    of 2 that lets it fit.
    """
    width = 128 if plan.block % 128 == 0 else 64
    layout, shape = row_layout(width, 1), (plan.columns, width)
    pieces = [(i, j) for i in range(plan.blocks) for j in range(0, plan.block, width)]
    at_once = max(128 // plan.columns, 1)  # loads in flight

    def load(i: int, j: int) -> jax.Array:
        columns = pl.ds((split * plan.blocks + i) * plan.block + j, width)
        return plgpu.load(ref["x"].at[:, columns], layout=layout, optimized=False)

    def whole(row: jax.Array, axis: int) -> jax.Array:
        return plgpu.layout_cast(lax.broadcast_in_dim(row, shape, [axis]), layout)

    power = None
    if plan.scales_x:  # which loads them twice; kept in registers between, they were no faster
        largest = plgpu.layout_cast(jnp.zeros(shape, plan.dtype), layout)
        for piece in pieces:
            largest = jnp.maximum(largest, jnp.abs(load(*piece)))
        power, inverse = _powers(largest.astype(F32).max(axis=1), 14 if plan.norm_eps is None else 4)
        store(smem["x_scales"], inverse)
        power = whole(power, 0)
    if plan.norm_eps is not None:
        plgpu.barrier_wait(smem["norm_ready"])
    squares = plgpu.layout_cast(jnp.zeros(shape, F32), layout)
    for start in range(0, len(pieces), at_once):
        group = pieces[start : start + at_once]
        for (i, j), x in zip(group, [load(*piece) for piece in group], strict=True):
            if plan.norm_eps is not None:
                squares = squares + x.astype(F32) * x.astype(F32)
                weight = smem["norm"].at[pl.ds(i * plan.block + j, width)]
                weight = whole(plgpu.load(weight, layout=layout.reduce(0), optimized=False), 1)
                x = x * weight if plan.dtype == jnp.bfloat16 else x.astype(F32) * weight.astype(F32)
            if power is not None:
                x = x.astype(F32) * power
            store(smem["x"].at[i, :, pl.ds(j, width)], x.astype(plan.operand_dtype))
    if plan.norm_eps is not None:
        store(smem["squares"], squares.sum(axis=1))
        if _spills(plan):
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(smem["squares"], ref["squares"].at[cluster, split])
            plgpu.wait_smem_to_gmem(0)
    plgpu.commit_smem()


def _powers(largest: jax.Array, exponent: int) -> tuple[jax.Array, jax.Array]:
    """Powers of 2, each the other's inverse: what brings these f32 values to 2 ** exponent, or up to twice that, and
    what takes it back. The very small stay smaller; infinities and NaN stay what they are.
    """
    bits = lax.bitcast_convert_type(largest, I32) & I32(0x7F80_0000)
    inverse = jnp.clip(bits, I32((exponent + 1) << 23), I32(253 << 23)) - I32(exponent << 23)
    power = I32(254 << 23) - inverse
    return lax.bitcast_convert_type(power, F32), lax.bitcast_convert_type(inverse, F32)


def _of_rows_of_x(plan: SmallConfig, values: jax.Array) -> jax.Array:
    """values f32[columns], for sums f32[ROWS, columns]."""
    return plgpu.layout_cast(lax.broadcast_in_dim(values, (ROWS, plan.columns), [1]), plgpu.Layout.WGMMA)


def _sum_of_peers(plan: SmallConfig, mine: Ref, spilled: Ref | None, layout: object) -> jax.Array:
    """The sum over the cluster of what each CTA holds at `mine`, in the CTAs' order."""

    def share(peer: int) -> jax.Array:
        if plan.cut.splits == 1:
            return plgpu.load(mine, layout=layout, optimized=False)
        ref = plgpu.cluster_ref(mine, {"split": I32(peer)}) if spilled is None else spilled.at[peer]
        return plgpu.load(ref, layout=layout, optimized=False)

    return functools.reduce(jnp.add, [share(i) for i in range(plan.cut.splits)])


def _finish(
    plan: SmallConfig,
    smem: Smem,
    ref: Smem,
    cluster: jax.Array,
    tile: jax.Array,
    split: jax.Array,
    acc: jax.Array,
    added: jax.Array | None,
) -> None:
    """Add up the cluster's shares acc f32[ROWS, columns] of a tile, do what is to be done after, and store."""
    of_x = plgpu.Layout.WGMMA.reduce(0)
    if plan.scales_x:
        acc = acc * _of_rows_of_x(plan, plgpu.load(smem["x_scales"], layout=of_x, optimized=False))
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
        if plan.norm_eps is not None:
            spilled = ref["squares"].at[cluster] if _spills(plan) else None
            squares = _sum_of_peers(plan, smem["squares"], spilled, of_x)
            total = total * _of_rows_of_x(plan, lax.rsqrt(squares * F32(1 / plan.depth) + F32(plan.norm_eps)))
        if plan.is_quantized and not plan.is_packed and not plan.has_blocks:
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
