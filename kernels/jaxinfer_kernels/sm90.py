"""What Mosaic GPU kernels for Hopper (sm_90) share: sizes of the GPU, layouts, barriers, starting in a sequence."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxinfer_kernels import plgpu

type Ref = Any  # Pallas exports no type for its references
type Layout = Any
type Smem = Mapping[str, Ref]

F32, I32 = jnp.float32, jnp.int32
LOWEST = -1e30  # a running maximum to start from; -inf would make inf - inf = NaN
CAPABILITY = "9.0"  # of every GPU that these kernels run on


SHARED_BYTES = 232_448  # of every GPU of this capability (CUDA C++ programming guide, technical specifications)


@dataclasses.dataclass(frozen=True)
class HopperGpu:
    """What kernels are cut for.    shared_bytes: of shared memory, that a CTA may have."""

    multiprocessors: int
    shared_bytes: int

    @classmethod
    def of(cls, device: Any) -> "HopperGpu | None":
        """Of a jax.Device, or of one that is not here with the same attributes; None if it is no Hopper GPU."""
        if str(getattr(device, "compute_capability", "")) != CAPABILITY:
            return None
        return cls(device.core_count, getattr(device, "shared_memory_per_block_optin", SHARED_BYTES))

    def scaled(self, count: int) -> int:
        """A number of CTAs or clusters that was measured on 132 multiprocessors, for this GPU."""
        return max(count * self.multiprocessors // 132, 1)

    @property
    def resident(self) -> dict[int, tuple[int, tuple[int, ...]]]:
        """CTAs beside each other on a multiprocessor: the shared memory of each, and how many clusters of 1 to 8 CTAs
        then run at once. More would wait for a second wave.

        An H200 answered so, whose multiprocessors are grouped by 14 to 18. For others, and for three or four CTAs,
        it is a guess.
        """
        two, one = (264, 132, 79, 62, 47, 39, 32, 30), (132, 66, 39, 30, 22, 17, 15, 15)
        rooms = {2: (self.shared_bytes // 2 - 4_224, two), 1: (self.shared_bytes - 3_448, one)}
        rooms |= {many: (self.shared_bytes // many - 4_224, tuple(n * many // 2 for n in two)) for many in (3, 4)}
        return {ctas: (room, tuple(map(self.scaled, clusters))) for ctas, (room, clusters) in rooms.items()}


H200 = HopperGpu(132, 232_448)  # and H100 SXM: what all kernels were measured on


@functools.cache
def compiler_params() -> Any:
    """Lane semantics: every layout is the one written here. Inferred, memory without a layout was given tiles of one
    row, swizzled, and the halves of a head then lie elsewhere than their addresses say (jax 0.11.2).
    """
    return plgpu.CompilerParams(approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane)


def named(name: str, body: functools.partial[None]) -> functools.partial[None]:
    """The body of a kernel, under the name that profilers show."""
    vars(body)["__name__"] = name
    return body


def griddepcontrol() -> None:
    """PDL, in a launch sequence: let the next kernel launch, and wait until the kernel before this one has ended."""
    plgpu.griddepcontrol_launch_dependents()
    plgpu.griddepcontrol_wait()


def cluster_sync(barrier: Ref) -> None:
    """Commit this CTA's shared memory, then wait at the cluster's barrier for all its CTAs.

    Only some lanes arrive at a cluster barrier, and warps wait independently. The CTA's warps come together first:
    otherwise one may read shared memory that a peer takes away, or miss a phase of the barrier and hang.
    """
    plgpu.commit_smem()
    plgpu.barrier_arrive(barrier)
    plgpu.barrier_wait(barrier)


def store(ref: Ref, value: jax.Array) -> None:
    """ref[...] = value, bank conflicts allowed: once a launch they cost nothing, and jax 0.12 refuses them unasked.

    jax 0.11 has no plgpu.store and allows them always.
    """
    if hasattr(plgpu, "store"):
        plgpu.store(ref, value, optimized=False)
    else:
        ref[...] = value


def store_tile(smem: Ref, value: jax.Array, place: Ref) -> None:
    """Copy a value to where it belongs, through shared memory that has been read when it is overwritten."""
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    store(smem, value)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(smem, place)


def free_stage(free: Ref, step: jax.Array, stages: int) -> jax.Array:
    """The stage of a ring in which a step's block goes, once nobody reads the one before it there.

    free: its barriers.
    """
    stage = lax.rem(step, I32(stages))
    pl.when(step >= stages)(functools.partial(plgpu.barrier_wait, free.at[stage]))
    return stage


def swiglu(gate: jax.Array, up: jax.Array) -> jax.Array:
    """silu(gate) * up in f32 without a division, which is no instruction."""
    return gate * jnp.square(lax.rsqrt(F32(1) + jnp.exp(-gate))) * up


def row_layout(width: int, itemsize: int = 2) -> Layout:
    """A tile [8 n, width] spread so that a warp holds two whole rows: sums along them stay inside it.

    No lane holds 32 bits of bf16, or of what has one byte: for those jax 0.11.2 turns to ldmatrix, which is made for
    the layouts of wgmma.
    """
    # Of a row; 1, 4 or 4 values a lane for 32, 64 or 128 columns, 8 for 128 bytes.
    lanes = 16 if width == 64 or itemsize == 1 else 32
    tiling = plgpu.Tiling(((8, width), (2, width), (width // lanes,)))
    return plgpu.Layout.TILED(tiling, warp_dims=(-5,), lane_dims=(-2,) if lanes == 32 else (-3, -2), vector_dim=-1)


def padded(x: jax.Array) -> jax.Array:
    """With rows of zeros, up to a multiple of 8."""
    return jnp.pad(x, ((0, -len(x) % 8), (0, 0))) if len(x) % 8 else x


def operand(shape: tuple[int, ...], dtype: jnp.dtype) -> object:
    """Shared memory laid out as the wgmma wants it: rows of 128 bytes."""
    tile = 8, 128 // jnp.dtype(dtype).itemsize
    return plgpu.SMEM(shape, dtype, transforms=(plgpu.TilingTransform(tile), plgpu.SwizzleTransform(128)))


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
