"""Linear layers of a decode step for Hopper (Mosaic GPU), each with its neighbours: norm before, bias, residual or
gate after.

Products are transposed (64 rows of weights are the wgmma's M, the batch its N columns), so that a batch of 1 to 64 rows
streams the weights once, through a ring of copies that never waits for arithmetic. CTAs that share a tile's inner
dimension form a cluster and add up through distributed shared memory, in a fixed order. Weights are fetched before the
wait for the kernel before this one (PDL), which a stream honours and a CUDA graph of XLA's does not.
Bound by memory: it must read `N * K * itemsize` bytes of weights; that is our bar.

Rows are padded to a multiple of 8: hand over padded rows, else that costs two small kernels. What is in the padding
(NaN even) reaches only padding.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import DTypeLike

from jaxinfer_kernels.mosaic_decode_plan import COMPILER_PARAMS, F32, I32, Ref, Smem, round_up, store
from jaxinfer_kernels.mosaic_linear_plan import DEFAULT, ROWS, Plan, Tuning, operand, plan_launch, row_layout


@functools.partial(jax.jit, static_argnames=("eps", "out_dtype", "tuning", "interpret"))
def norm_linear(
    x: jax.Array,
    norm: jax.Array,
    w: jax.Array,
    layer: jax.Array,
    *,
    eps: float,
    bias: jax.Array | None = None,
    out_dtype: DTypeLike | None = None,
    tuning: Tuning = DEFAULT,
    interpret: plgpu.InterpretGPUParams | None = None,
) -> jax.Array:
    """rms_norm(x) @ w.T + bias: the products of q, k and v, or without bias and in float32 the logits.

      x: [T, K].    norm: [L, K].    w: [N, K].    layer: i32[], of norm and bias.    bias: [L, N].
    Normed in f32, rounded, then scaled; the product is summed in f32 and rounded before the bias. Returns [T, N].
    """
    after = None if bias is None else "bias"
    plan = _plan(x, w, tuning, interpret, out_dtype=out_dtype, norm_eps=eps, after=after)
    return _run(plan, x, w, layer.reshape(1), norm, *([] if bias is None else [bias]))


@functools.partial(jax.jit, static_argnames=("tuning", "interpret"))
def linear_residual(
    x: jax.Array,
    w: jax.Array,
    residual: jax.Array,
    *,
    tuning: Tuning = DEFAULT,
    interpret: plgpu.InterpretGPUParams | None = None,
) -> jax.Array:
    """residual + x @ w.T, the product summed in f32 and rounded before it is added.

      x: [T, K].    w: [N, K].    residual: [T, N].
    Returns [T, N].
    """
    plan = _plan(x, w, tuning, interpret, after="residual")
    return _run(plan, x, w, _padded(residual))


@functools.partial(jax.jit, static_argnames=("eps", "tuning", "interpret"))
def norm_gate_up(
    x: jax.Array,
    norm: jax.Array,
    w: jax.Array,
    layer: jax.Array,
    *,
    eps: float,
    tuning: Tuning = DEFAULT,
    interpret: plgpu.InterpretGPUParams | None = None,
) -> jax.Array:
    """silu(gate) * up of rms_norm(x) @ w.T, in f32 of the rounded products, then rounded.

      x: [T, K].    norm: [L, K].    w: [2F, K], the rows of gate, then of up.    layer: i32[], of norm.
    Returns [T, F].
    """
    plan = _plan(x, w, tuning, interpret, norm_eps=eps, after="silu")
    return _run(plan, x, w, layer.reshape(1), norm)


def _plan(
    x: jax.Array,
    w: jax.Array,
    tuning: Tuning,
    interpret: plgpu.InterpretGPUParams | None,
    *,
    out_dtype: DTypeLike | None = None,
    **neighbours: object,
) -> Plan:
    out = jnp.dtype(out_dtype or x.dtype)
    columns = round_up(len(x), 8)
    return plan_launch(x, w, Plan(columns, w.shape[1], len(w), x.dtype, out, tuning, interpret, **neighbours))


def _padded(x: jax.Array) -> jax.Array:
    return jnp.pad(x, ((0, -len(x) % 8), (0, 0)))


def _run(plan: Plan, x: jax.Array, w: jax.Array, *rest: jax.Array) -> jax.Array:
    return _launch(plan)(_padded(x), w, *rest)[0][: len(x)]


def _names(plan: Plan) -> list[str]:
    """Of the kernel's arguments and results, in order."""
    names = ["x", "w"]
    names += [] if plan.norm_eps is None else ["layer", "norm"]
    names += [plan.after] if plan.after in ("bias", "residual") else []
    return [*names, "out", *(["partials", "squares"] if _spills(plan) else [])]


def _spills(plan: Plan) -> bool:
    """Interpret mode has no distributed shared memory: there, and only there, peers meet in global memory."""
    return plan.interpret is not None and plan.splits > 1


def _launch(plan: Plan) -> Callable[..., list[jax.Array]]:
    columns, block, dtype = plan.columns, plan.tuning.block, plan.dtype
    width = ROWS // 2 if plan.after == "silu" else ROWS  # columns of the result that a tile makes
    out = [jax.ShapeDtypeStruct((columns, plan.tiles * width), plan.out_dtype)]
    if _spills(plan):
        shapes = (plan.tiles, plan.splits, ROWS, columns), (plan.clusters, plan.splits, columns)
        out += [jax.ShapeDtypeStruct(shape, F32) for shape in shapes]
    smem = dict(
        x=operand((plan.blocks, columns, block), dtype),
        w=operand((plan.stages, ROWS, block), dtype),
        out=plgpu.SMEM((columns, ROWS), plan.out_dtype),
        x_ready=plgpu.Barrier(num_arrivals=plan.blocks),
        w_ready=plgpu.Barrier(num_arrivals=2 if plan.after == "silu" else 1, num_barriers=plan.stages),
    )
    if plan.norm_eps is not None:
        smem |= dict(norm=plgpu.SMEM((plan.blocks * block,), dtype), norm_ready=plgpu.Barrier(num_arrivals=plan.blocks))
    if plan.after == "silu":
        smem |= dict(gated=plgpu.SMEM((columns, width), dtype))
    elif plan.after:
        smem |= dict(added=plgpu.SMEM((ROWS,) if plan.after == "bias" else (columns, ROWS), dtype))
        smem |= dict(added_ready=plgpu.Barrier())
    if plan.splits > 1:
        smem |= dict(partial=plgpu.SMEM((ROWS, columns), F32), peers=plgpu.ClusterBarrier(collective_axes=("split",)))
        smem |= {} if plan.norm_eps is None else dict(squares=plgpu.SMEM((columns,), F32))
    return plgpu.kernel(
        functools.partial(_kernel, plan),
        out_type=out,
        scratch_types=smem,
        grid=(plan.clusters,),
        grid_names=("cluster",),
        cluster=(plan.splits,),
        cluster_names=("split",),
        num_threads=1,
        thread_name="warpgroup",
        interpret=plan.interpret,
        compiler_params=COMPILER_PARAMS,
    )


def _kernel(plan: Plan, *refs: Ref, **smem: Ref) -> None:
    ref = dict(zip(_names(plan), refs, strict=True))
    cluster, split = lax.axis_index("cluster"), lax.axis_index("split")
    tiles = lax.div(plan.tiles - 1 - cluster, I32(plan.clusters)) + 1  # of this cluster
    even = plan.tiles % plan.clusters == 0
    if even:
        tiles = plan.tiles // plan.clusters
    units = tiles * plan.blocks
    fetch = functools.partial(_fetch, plan, smem, ref["w"], cluster, split)
    for i in range(plan.stages):
        if even:
            fetch(I32(i))
        else:
            pl.when(i < units)(functools.partial(fetch, I32(i)))
    if plan.norm_eps is not None:
        _copy_norm(plan, smem, ref, split)
    if plan.pdl:
        plgpu.griddepcontrol_launch_dependents()
        plgpu.griddepcontrol_wait()
    block = plan.tuning.block
    for i in range(plan.blocks):
        column = (split * plan.blocks + i) * block
        plgpu.copy_gmem_to_smem(ref["x"].at[:, pl.ds(column, block)], smem["x"].at[i], smem["x_ready"])
    plgpu.barrier_wait(smem["x_ready"])
    if plan.norm_eps is not None:
        _norm(plan, smem, ref, cluster, split)

    def tile_step(i: jax.Array, _: None) -> None:
        tile = cluster + i * plan.clusters

        @pl.when(split == 0)
        def _():
            _copy_added(plan, smem, ref, tile)

        def product(acc: Ref) -> jax.Array:
            def step(j: jax.Array, _: None) -> None:
                unit = i * plan.blocks + j
                slot = lax.rem(unit, I32(plan.stages))
                plgpu.barrier_wait(smem["w_ready"].at[slot])
                plgpu.wgmma(acc, smem["w"].at[slot], smem["x"].at[j].transpose((1, 0)))
                plgpu.wgmma_wait(0)

                @pl.when(unit + plan.stages < units)
                def _():
                    fetch(unit + plan.stages)

            lax.fori_loop(0, plan.blocks, step, None)
            return acc[...]

        acc = pl.run_scoped(product, plgpu.ACC((ROWS, plan.columns), F32))
        _finish(plan, smem, ref, tile, split, acc)

    lax.fori_loop(0, tiles, tile_step, None)


def _fetch(plan: Plan, smem: Smem, w_ref: Ref, cluster: jax.Array, split: jax.Array, unit: jax.Array) -> None:
    """Start copying this CTA's unit-th block of weights, [ROWS, block]."""
    slot = lax.rem(unit, I32(plan.stages))
    tile = cluster + lax.div(unit, I32(plan.blocks)) * plan.clusters
    columns = pl.ds((split * plan.blocks + lax.rem(unit, I32(plan.blocks))) * plan.tuning.block, plan.tuning.block)
    target, ready = smem["w"].at[slot], smem["w_ready"].at[slot]
    if plan.after != "silu":
        plgpu.copy_gmem_to_smem(w_ref.at[pl.ds(tile * ROWS, ROWS), columns], target, ready)
        return
    half = ROWS // 2
    for i in range(2):  # gate, up
        rows = pl.ds(tile * half + i * (plan.out // 2), half)
        plgpu.copy_gmem_to_smem(w_ref.at[rows, columns], target.at[pl.ds(i * half, half)], ready)


def _copy_norm(plan: Plan, smem: Smem, ref: Smem, split: jax.Array) -> None:
    layer, block = ref["layer"][0], plan.tuning.block
    for i in range(plan.blocks):
        source = ref["norm"].at[layer, pl.ds((split * plan.blocks + i) * block, block)]
        plgpu.copy_gmem_to_smem(source, smem["norm"].at[pl.ds(i * block, block)], smem["norm_ready"])


def _copy_added(plan: Plan, smem: Smem, ref: Smem, tile: jax.Array) -> None:
    if plan.after in ("bias", "residual"):
        row = ref["layer"][0] if plan.after == "bias" else slice(None)
        source = ref[plan.after].at[row, pl.ds(tile * ROWS, ROWS)]
        plgpu.copy_gmem_to_smem(source, smem["added"], smem["added_ready"])


def _norm(plan: Plan, smem: Smem, ref: Smem, cluster: jax.Array, split: jax.Array) -> None:
    """Norm this CTA's columns of x in place, in the models' order of rounding."""
    layout, block = row_layout(64), plan.tuning.block
    shape = (plan.columns, 64)
    pieces = [(i, j) for i in range(plan.blocks) for j in range(0, block, 64)]

    def read(i: int, j: int) -> jax.Array:
        return plgpu.layout_cast(smem["x"][i, :, pl.ds(j, 64)], layout)

    squares = plgpu.layout_cast(jnp.zeros(shape, F32), layout)
    for piece in pieces:
        x = read(*piece).astype(F32)
        squares = squares + x * x
    total = squares.sum(axis=1)
    if plan.splits > 1:
        store(smem["squares"], total)
        plgpu.commit_smem()
        if _spills(plan):
            plgpu.copy_smem_to_gmem(smem["squares"], ref["squares"].at[cluster, split])
            plgpu.wait_smem_to_gmem(0)
        _meet(smem["peers"])
        spilled = ref["squares"].at[cluster] if _spills(plan) else None
        total = _sum_of_peers(plan, smem["squares"], spilled, layout.reduce(1))
    scale = lax.rsqrt(total * F32(1 / plan.depth) + F32(plan.norm_eps))
    scale = plgpu.layout_cast(lax.broadcast_in_dim(scale, shape, [0]), layout)
    plgpu.barrier_wait(smem["norm_ready"])
    for i, j in pieces:
        weight = plgpu.load(smem["norm"].at[pl.ds(i * block + j, 64)], layout=layout.reduce(0), optimized=False)
        weight = plgpu.layout_cast(lax.broadcast_in_dim(weight, shape, [1]), layout)
        x = (read(i, j).astype(F32) * scale).astype(plan.dtype) * weight
        smem["x"][i, :, pl.ds(j, 64)] = x
    plgpu.commit_smem()


def _meet(barrier: Ref) -> None:
    plgpu.barrier_arrive(barrier)
    plgpu.barrier_wait(barrier)


def _sum_of_peers(plan: Plan, mine: Ref, spilled: Ref | None, layout: object) -> jax.Array:
    """The sum over the cluster of what each CTA holds at `mine`, in the CTAs' order."""

    def share(peer: int) -> jax.Array:
        ref = plgpu.cluster_ref(mine, {"split": I32(peer)}) if spilled is None else spilled.at[peer]
        return plgpu.load(ref, layout=layout, optimized=False)

    return functools.reduce(jnp.add, [share(i) for i in range(plan.splits)])


def _finish(plan: Plan, smem: Smem, ref: Smem, tile: jax.Array, split: jax.Array, acc: jax.Array) -> None:
    """Add up the cluster's shares acc f32[ROWS, columns] of a tile, do what is to be done after, and store."""
    if plan.splits > 1:
        store(smem["partial"], acc)
        plgpu.commit_smem()
        if _spills(plan):
            plgpu.copy_smem_to_gmem(smem["partial"], ref["partials"].at[tile, split])
            plgpu.wait_smem_to_gmem(0)
        _meet(smem["peers"])

    @pl.when(split == 0)
    def _():
        total = acc
        if plan.splits > 1:
            spilled = ref["partials"].at[tile] if _spills(plan) else None
            total = _sum_of_peers(plan, smem["partial"], spilled, plgpu.Layout.WGMMA)
        width = ROWS // 2 if plan.after == "silu" else ROWS
        result = _apply(plan, smem, total)
        plgpu.copy_smem_to_gmem(result, ref["out"].at[:, pl.ds(tile * width, width)])
        plgpu.wait_smem_to_gmem(0)

    if plan.splits > 1:
        _meet(smem["peers"])  # a CTA that goes on overwrites its share, one that ends takes its memory with it


def _apply(plan: Plan, smem: Smem, total: jax.Array) -> Ref:
    """Where in shared memory the finished tile [columns, width] lies, of the sums f32[ROWS, columns]."""
    layout = plgpu.Layout.WGMMA if plan.interpret else plgpu.Layout.WGMMA_TRANSPOSED
    y = plgpu.layout_cast(total.astype(plan.out_dtype), layout)
    if plan.after in ("bias", "residual"):
        plgpu.barrier_wait(smem["added_ready"])
        if plan.after == "bias":
            added = plgpu.load(smem["added"], layout=layout.reduce(1), optimized=False)
            added = plgpu.layout_cast(lax.broadcast_in_dim(added, y.shape, [0]), layout)
        else:
            added = plgpu.load(smem["added"].T, layout=layout, optimized=False)
        y = y + added
    store(smem["out"].T, y)
    plgpu.commit_smem()
    if plan.after != "silu":
        return smem["out"]
    half = ROWS // 2
    sides = [plgpu.layout_cast(smem["out"][:, pl.ds(i * half, half)], row_layout(half)) for i in range(2)]
    gate, up = (side.astype(F32) for side in sides)
    smem["gated"][...] = (gate / (F32(1) + jnp.exp(-gate)) * up).astype(plan.dtype)
    plgpu.commit_smem()
    return smem["gated"]
