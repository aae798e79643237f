"""EngineConfig: every setting of the engine, and Limits: the concrete numbers derived from it for one model and device.

Both are frozen and built once. Nothing here imports jax.
"""

import dataclasses
from typing import Literal

DType = Literal["auto", "bfloat16", "float16", "float32"]
Device = Literal["auto", "cpu", "cuda"]
LoadFormat = Literal["auto", "safetensors", "dummy"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What the user may set; None means: chosen from the model and the device (see Limits).

    model: a folder, a hub id, or "demo" for the bundled checkpoint.    revision: of the hub id.
    max_model_len: tokens of prompt and answer together.    max_num_seqs: sequences computed together.
    max_num_batched_tokens: tokens per step.    page_size: tokens per KV page.    num_pages: of the KV pool.
    gpu_memory_utilization: share of the device's free memory that weights, pages and temporaries may take together.
    kv_cache_memory_bytes: for the pages alone; overrides the share.    run_ahead: steps in flight beyond the one
    being committed, 0 or 1.    compile_cache_dir: None is the user's cache directory, "" is off.
    """

    model: str = "demo"
    revision: str | None = None
    tokenizer: str | None = None
    served_model_name: tuple[str, ...] = ()
    dtype: DType = "auto"
    load_format: LoadFormat = "auto"
    device: Device = "auto"
    seed: int = 0
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    page_size: int | None = None
    num_pages: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    run_ahead: int = 1
    max_num_queued_seqs: int | None = None
    generation_config: Literal["auto", "none"] = "auto"
    download_dir: str | None = None
    compile_cache_dir: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ExtendBucket:
    """One compiled size of the ragged step: up to `tokens` tokens of `rows` rows with `logits` sampled rows."""

    tokens: int
    rows: int
    logits: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The engine's concrete numbers, fixed before anything is allocated.

    num_pages counts page 0, the null page that padding writes to; the pool hands out 1 .. num_pages - 1.
    vocab_size is the width of the logits, which may exceed the tokenizer's.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    page_size: int
    num_pages: int
    vocab_size: int
    decode_buckets: tuple[int, ...]
    extend_buckets: tuple[ExtendBucket, ...]
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    run_ahead: int = 1
    max_num_queued_seqs: int = 256

    @property
    def max_pages_per_seq(self) -> int:
        """The width of the page table."""
        return -(-self.max_model_len // self.page_size)
