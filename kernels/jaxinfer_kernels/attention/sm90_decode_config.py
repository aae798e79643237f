"""How one launch of the Mosaic decode attention is cut: what the caller may tune, and what follows from the shapes."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxinfer_kernels import plgpu
from jaxinfer_kernels.attention.paged import page_size_of
from jaxinfer_kernels.sm90 import H200, HopperGpu, round_up

ENOUGH = {1: 120, 2: 120, 4: 64, 8: 32}  # CTAs, by splits, with which an H200 gains nothing by more splits (journal)


@dataclasses.dataclass(frozen=True)
class DecodeTuning:
    """How the work is cut. Rows never differ in value, only in rounding, between tunings."""

    block_tokens: int = 64  # keys of one step: a multiple of 64 and of the page size, or 64 with smaller pages
    stages: int = 0  # blocks held by one CTA, at least 2; 0: three, or two for heads of 256 and for many CTAs
    splits: int = 0  # CTAs that share a row of one kv head: 1, 2, 4, 8 or 16; 0: so that multiprocessors have work
    pdl: bool = False  # in a chain: be there when the kernel before this one ends; when writing, with pages fetched
    gpu: HopperGpu = H200


DEFAULT = DecodeTuning()


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """Static facts of one launch."""

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    page: int
    dtype: jnp.dtype
    tuning: DecodeTuning
    interpret: "plgpu.InterpretGPUParams | None"
    write: bool = False  # store the newest token before attending
    joined: bool = False  # q, k and v of the newest token come as one array
    norm_eps: float | None = None  # norm queries and keys
    rotated: bool = True  # false: rotate queries and keys
    padded: int = 0  # rows of q and of the result, of which the first `batch` count; 0: as many as count

    @property
    def pdl(self) -> bool:
        """Whether to begin early; interpret mode does not know how."""
        return self.tuning.pdl and self.interpret is None

    @property
    def groups(self) -> int:
        """Query heads of a kv head."""
        return self.heads // self.kv_heads

    @property
    def columns(self) -> int:
        """The group padded to the wgmma's column tile."""
        return round_up(self.groups, 8)

    @property
    def block(self) -> int:
        return max(self.tuning.block_tokens, self.page)

    @property
    def piece(self) -> int:
        """Tokens: of a row's last page as many pieces are read as it has, and all of it where rows are few."""
        return self.page if self.splits > 1 else max(min(self.page, 16), self.page // 4)

    @property
    def stages(self) -> int:
        gpu = self.tuning.gpu
        many = self.batch * self.kv_heads * self.splits > gpu.multiprocessors  # several on each
        few = self.head_dim == 256 or many or self._bytes(3, self.splits) > gpu.shared_bytes
        return self.tuning.stages or (2 if few else 3)

    @property
    def splits(self) -> int:
        """As given, or the fewest that keep the multiprocessors at work; one where what peers read has no room.

        Hopper takes clusters of 16 at most, and more than a few of them do not find room at once.
        """
        rows, gpu = self.batch * self.kv_heads, self.tuning.gpu
        if self._bytes(2, 2) > gpu.shared_bytes:
            return 1
        return self.tuning.splits or next((n for n, enough in ENOUGH.items() if rows * n >= gpu.scaled(enough)), 16)

    def _bytes(self, stages: int, splits: int) -> int:
        return shared_bytes(self.columns, self.head_dim, self.block, stages, splits)


def supported(num_heads: int, num_kv_heads: int, head_dim: int, page: int, dtype: jnp.dtype, gpu: HopperGpu) -> bool:
    """Whether these kernels can run the shape; what they cannot, the XLA version can."""
    groups = num_heads // num_kv_heads
    return (
        head_dim in (64, 128, 256)
        and groups <= 64
        and page in (8, 16, 32, 64, 128)
        and dtype in (jnp.bfloat16, jnp.float16)
        and shared_bytes(round_up(groups, 8), head_dim, max(DEFAULT.block_tokens, page), 2, 1) <= gpu.shared_bytes
    )


def shared_bytes(columns: int, head_dim: int, block: int, stages: int, splits: int) -> int:
    """What a CTA needs of shared memory, at most: keys and values, queries and results, weights, new token, barriers;
    and what peers read, if there are any."""
    halves = 2 * stages * block * head_dim + 3 * columns * head_dim + columns * block + 2 * head_dim
    return 2 * halves + (8 * columns * head_dim if splits > 1 else 0) + 4096


def plan_launch(
    batch: int,
    heads: int,
    k: jax.Array,
    dtype: jnp.dtype,
    tuning: DecodeTuning,
    interpret: "plgpu.InterpretGPUParams | None",
    **fused: bool | int | float | None,
) -> DecodeConfig:
    """Raises ValueError for shapes and tunings that cannot run."""
    kv_heads, page, head_dim = k.shape[2], page_size_of(k), k.shape[4]
    if not supported(heads, kv_heads, head_dim, page, dtype, tuning.gpu) or dtype != k.dtype:
        raise ValueError(
            "the Mosaic decode attention needs bf16 or f16, head_dim 64, 128 or 256, at most 64 query heads per kv "
            f"head and pages of 8 to 128 tokens, got {heads} heads of {dtype} and pages {k.aval}; "
            "use attention.api.decode_attention"
        )
    plan = DecodeConfig(batch, heads, kv_heads, head_dim, page, jnp.dtype(dtype), tuning, interpret, **fused)
    if plan.block % 64 or plan.block % page:
        raise ValueError(f"block_tokens must be a multiple of 64 and of the page size {page}, got {plan.block}")
    if plan.stages < 2:  # a stage is filled again one step after it was read
        raise ValueError(f"stages must be at least 2, got {plan.stages}")
    return plan
