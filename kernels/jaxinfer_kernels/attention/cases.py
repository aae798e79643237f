"""Real shapes, listed once: each op's test, its lowering test and its benchmark read the same list."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Heads:
    """The attention of one model."""

    model: str
    heads: int
    kv_heads: int
    head_dim: int
    norm: bool = False


HEADS = (
    Heads("Qwen2.5-0.5B", 14, 2, 64),
    Heads("Qwen2.5-1.5B", 12, 2, 128),
    Heads("Qwen3-0.6B", 16, 8, 128, norm=True),
    Heads("Qwen3-8B", 32, 8, 128, norm=True),
    Heads("Llama-3.2-1B", 32, 8, 64),
    Heads("Gemma-like", 8, 4, 256),
    Heads("multi-head", 4, 4, 64),
    Heads("multi-query", 64, 1, 128),
)


@dataclasses.dataclass(frozen=True)
class DecodeCase:
    """A decode step's attention: a batch of rows of one context length."""

    heads: Heads
    batch: int
    context: int


DECODE = tuple(
    DecodeCase(heads, batch, context)
    for heads, sizes in (
        (HEADS[1], ((1, 128), (1, 1024), (1, 4096), (8, 1024), (32, 1024), (256, 256), (256, 1024))),
        (HEADS[3], ((1, 1024), (64, 1024), (16, 4096))),
    )
    for batch, context in sizes
)


@dataclasses.dataclass(frozen=True)
class ExtendCase:
    """A prefill step's attention: rows of `count` new tokens, the last of `context`."""

    heads: Heads
    rows: int
    count: int
    context: int


EXTEND = tuple(
    ExtendCase(heads, rows, count, context)
    for heads, sizes in (
        (HEADS[1], ((1, 1024, 1024), (1, 4096, 4096), (1, 2048, 8000), (64, 128, 128))),
        (HEADS[3], ((1, 1024, 1024), (1, 4096, 4096), (1, 8192, 8192))),
    )
    for rows, count, context in sizes
)
