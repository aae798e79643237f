"""RMS norm of a decode step's rows for Hopper (Mosaic GPU), within a chain: the first, and those of f16.

Others are begun and ended by the products around them (linear.sm90_medium).

Zhang and Sennrich, 2019 (arXiv:1910.07467). A CTA has eight rows, each spread over half a warp, so that sums stay
inside it. Bound by latency: at 128 rows it moves less than a megabyte.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.sm90 import F32, Ref, compiler_params, griddepcontrol, named, padded, row_layout

ROWS, WIDTH = 8, 64  # of a tile, which a warpgroup holds in its registers
AT_ONCE = 32  # tiles


@functools.partial(jax.jit, static_argnames=("eps", "pdl", "interpret"))
def rms_norm(
    x: jax.Array,
    norm: jax.Array,
    layer: jax.Array,
    *,
    eps: float,
    pdl: bool = True,
    interpret: "plgpu.InterpretGPUParams | None" = None,
) -> jax.Array:
    """x over its root mean square along the last axis; normed in f32, rounded, then scaled.

      x: [T, K], bf16 or f16, K a multiple of 64.    norm: [L, K].    layer: i32[], of norm.
      pdl: begin while the kernel before this one still runs.
    Returns [T, K].
    """
    rows = padded(x)
    kernel = plgpu.kernel(
        named("rms_norm", functools.partial(_kernel, eps, pdl and interpret is None)),
        out_type=jax.ShapeDtypeStruct(rows.shape, x.dtype),
        grid=(len(rows) // ROWS,),
        grid_names=("tile",),
        num_threads=1,
        thread_name="warpgroup",
        interpret=interpret,
        compiler_params=compiler_params(),
    )
    return kernel(rows, layer.reshape(1), norm)[: len(x)]


def _kernel(eps: float, pdl: bool, x_ref: Ref, layer_ref: Ref, norm_ref: Ref, out_ref: Ref) -> None:
    """x [T, K], layer i32[1], norm [L, K], out [T, K]."""
    depth, layout, shape = x_ref.shape[1], row_layout(WIDTH), (ROWS, WIDTH)
    rows, layer = pl.ds(lax.axis_index("tile") * ROWS, ROWS), layer_ref[0]
    pieces = [pl.ds(start, WIDTH) for start in range(0, depth, WIDTH)]
    groups = [pieces[i : i + AT_ONCE] for i in range(0, len(pieces), AT_ONCE)]
    if pdl:
        griddepcontrol()

    def read(group: list[object]) -> list[jax.Array]:
        return [plgpu.load(x_ref.at[rows, piece], layout=layout, optimized=False) for piece in group]

    def scales(group: list[object]) -> list[jax.Array]:
        loads = [plgpu.load(norm_ref.at[layer, piece], layout=layout.reduce(0), optimized=False) for piece in group]
        return [plgpu.layout_cast(lax.broadcast_in_dim(one, shape, [1]), layout) for one in loads]

    squares = plgpu.layout_cast(jnp.zeros(shape, F32), layout)
    for group in groups:
        kept = read(group)
        for x in kept:
            squares = squares + x.astype(F32) * x.astype(F32)
    scale = lax.rsqrt(squares.sum(axis=1) * F32(1 / depth) + F32(eps))
    scale = plgpu.layout_cast(lax.broadcast_in_dim(scale, shape, [0]), layout)
    for group in groups:
        kept = kept if len(groups) == 1 else read(group)
        for piece, x, weight in zip(group, kept, scales(group), strict=True):
            out_ref[rows, piece] = (x.astype(F32) * scale).astype(x.dtype) * weight
