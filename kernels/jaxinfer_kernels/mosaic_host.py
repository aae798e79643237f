"""What the host has written to memory of its own, read by a kernel (Mosaic GPU).

A program of XLA's copies such an array by the copy engine, on a stream of its own: what comes after waits 19 us for
1.5 kB (H100). Pinned memory has the same addresses on the device (CUDA Programming Guide, "Mapped Memory"), so a kernel
of one CTA can load it in 2.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.mosaic.gpu import utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, memref

from jaxinfer_kernels.mosaic_decode_plan import COMPILER_PARAMS, Ref, named

THREADS = 128  # of a CTA


def address_of(pointer: int) -> np.ndarray:
    """A pointer as `read_host` takes it: i32[2], its low half first."""
    return np.array([pointer], np.int64).view(np.int32)


@functools.partial(jax.jit, static_argnames="shape")
def read_host(address: jax.Array, *, shape: tuple[int, ...]) -> jax.Array:
    """What lies in the host's pinned memory when the kernel runs. On a GPU, which nobody has checked that it may.

      address: i32[2], as `address_of` makes it, of i32[shape].
    Returns i32[shape].
    """
    kernel = plgpu.kernel(
        named("read_host", functools.partial(_kernel)),
        out_type=jax.ShapeDtypeStruct((math.prod(shape),), jnp.int32),
        num_threads=1,
        thread_name="warpgroup",
        compiler_params=COMPILER_PARAMS,
    )
    return kernel(address).reshape(shape)


def _kernel(address_ref: Ref, out_ref: Ref) -> None:
    """address i32[2], out i32[n]."""

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType()))
    def copy(_: object, address: ir.Value, out: ir.Value) -> None:
        index, i64 = ir.IndexType.get(), ir.IntegerType.get_signless(64)
        low, high = (memref.load(address, [arith.constant(index, half)]) for half in range(2))
        whole = arith.ori(arith.extui(i64, low), arith.shli(arith.extui(i64, high), utils.c(32, i64)))
        pointer = llvm.inttoptr(ir.Type.parse("!llvm.ptr"), whole)
        count = math.prod(out_ref.shape)
        source = utils.ptr_as_memref(pointer, ir.MemRefType.get((count,), ir.IntegerType.get_signless(32)))
        thread, last = arith.index_cast(index, utils.thread_idx()), arith.constant(index, count - 1)
        firsts = [arith.constant(index, first) for first in range(0, count, THREADS)]
        places = [arith.minui(arith.addi(thread, first), last) for first in firsts]  # then the last again
        values = [memref.load(source, [place]) for place in places]  # all on their way before one has to be there
        for place, value in zip(places, values, strict=True):
            memref.store(value, out, [place])

    copy(address_ref, out_ref)
