"""Which sizes are compiled, and which of them carries a step. No jax here.

A step is padded to the smallest compiled size that holds it. So sizes lie close enough together that padding costs
little, and are few enough (at most MAX_EXECUTABLES) that compiling them all takes seconds on a GPU. A CPU has few
cores to compile with and few sequences to serve: its sizes lie a factor of two apart.

On a GPU each trip of the loop in XLA's decode attention costs tens of microseconds a layer. Where that attention runs,
decode steps are compiled for bounded contexts too, without a loop, and the batch sizes lie a factor of four apart.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import NoReturn

from jaxinfer.config import ExtendBucket, counted
from jaxinfer.runtime.plan import Sampler

MAX_EXECUTABLES = 58
_MAX_DECODE, _MAX_TOKENS = 12, 12  # of these; some extend sizes come twice, the rest is small
_DECODE_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
_FEW_ROWS, _MIXED_SIZES = 8, (128, 256, 512, 1024, 1536, 2048, 4096)
_DRAW_SIZES, _FEW_SIZES = (8, 64), (32,)
_CONTEXTS = (512, 2048)
MAX_TOKENS_AT_ONCE = 2**17  # batch x context without a loop; copying more costs about what the loop does


@dataclasses.dataclass(frozen=True, slots=True)
class Decode:
    """One compiled size of the decode step: up to `batch` rows of up to `context` tokens, or of any length for None."""

    batch: int
    context: int | None = None


def decode_buckets(max_num_seqs: int, *, coarse: bool = False, by_context: bool = False) -> tuple[int, ...]:
    """Batch sizes of the decode step, rising, the largest being max_num_seqs; few where each has several contexts."""
    if by_context:
        return (*_growing(1, max_num_seqs, 4), max_num_seqs)
    sizes = _growing(1, max_num_seqs) if coarse else [*_DECODE_SIZES, *range(320, max_num_seqs, 64)]
    return tuple(_thin([size for size in sizes if size < max_num_seqs] + [max_num_seqs], _MAX_DECODE))


def decode_contexts(max_model_len: int) -> tuple[int, ...]:
    """The lengths of row, rising, that decode steps are compiled for where the one for any length has a loop."""
    return tuple(sorted({min(context, max_model_len) for context in _CONTEXTS}))


def decode_sizes(batches: Sequence[int], contexts: Sequence[int]) -> tuple[Decode, ...]:
    """All sizes of the decode step, rising; each batch size comes for rows of any length too."""
    sizes = (Decode(batch, context) for batch in batches for context in (*contexts, None))
    return tuple(size for size in sizes if size.batch * (size.context or 0) <= MAX_TOKENS_AT_ONCE)


def extend_buckets(max_num_batched_tokens: int, max_num_seqs: int, *, coarse: bool = False) -> tuple[ExtendBucket, ...]:
    """Sizes of the ragged step, rising in tokens; the largest carries any plan that fits the step's budget.

    All come for a few rows, so that a prompt does not pay for others' logits; some also for a step that mixes chunks
    with many decode rows.
    """
    steps = _growing(16, max_num_batched_tokens)
    if not coarse:
        steps = sorted({*steps, *(size // 2 * 3 for size in steps if size >= 512)} - {16, 32})
    tokens = _thin([size for size in steps if size < max_num_batched_tokens] + [max_num_batched_tokens], _MAX_TOKENS)
    sizes = {ExtendBucket(t, r, r) for t in tokens for r in _rows(t, max_num_seqs, coarse)}
    sizes.add(ExtendBucket(max_num_batched_tokens, max_num_seqs, max_num_seqs))
    return tuple(sorted(sizes, key=_cost))


def draw_sizes(max_num_seqs: int, sampler: Sampler) -> tuple[int, ...]:
    """How many rows of logits a sampler comes for, rising."""
    sizes = _FEW_SIZES if sampler in (Sampler.WIDE, Sampler.FULL) else _DRAW_SIZES
    if max_num_seqs <= 32:
        sizes = (1,)
    return (*(size for size in sizes if size < max_num_seqs), max_num_seqs)


def pick_size(ready: Iterable[int], need: int) -> int:
    """The smallest of the ready numbers of rows that holds `need` rows. Raises ValueError if none does."""
    return min((size for size in ready if size >= need), default=None) or _none_holds(need, ready)


def pick_decode(ready: Iterable[Decode], rows: int, longest: int) -> Decode:
    """The cheapest ready size that holds so many rows of up to `longest` tokens. Raises ValueError if none does."""
    holding = (size for size in ready if size.batch >= rows and longest <= _bound(size))
    need = f"{counted(rows, 'row')} of up to {counted(longest, 'token')}"
    return min(holding, key=lambda size: (size.batch, _bound(size)), default=None) or _none_holds(need, ready)


def pick_extend(ready: Iterable[ExtendBucket], need: ExtendBucket) -> ExtendBucket:
    """The cheapest ready size that holds `need`. Raises ValueError if none does."""
    holding = (s for s in ready if s.tokens >= need.tokens and s.rows >= need.rows and s.logits >= need.logits)
    return min(holding, key=_cost, default=None) or _none_holds(need, ready)


def _rows(tokens: int, max_num_seqs: int, coarse: bool) -> set[int]:
    many = min(tokens, max_num_seqs)
    few = min(_FEW_ROWS, many)
    if coarse:
        return {many}
    mixed = tokens in _MIXED_SIZES and 2 * tokens >= max_num_seqs  # smaller ones hold too few of so many rows
    return {few, many} if mixed else {few}


def _growing(first: int, end: int, factor: int = 2) -> list[int]:
    """first, factor first, factor ** 2 first, ... below end."""
    sizes = []
    while first < end:
        sizes.append(first)
        first *= factor
    return sizes


def _thin(sizes: Sequence[int], most: int) -> list[int]:
    """Leave out the sizes whose absence widens a gap least, until `most` are left."""
    kept = list(sizes)
    while len(kept) > most:
        _, index = min((kept[i + 1] / kept[i - 1], i) for i in range(1, len(kept) - 1))
        del kept[index]
    return kept


def _bound(size: Decode) -> float:
    return math.inf if size.context is None else size.context


def _cost(bucket: ExtendBucket) -> tuple[int, int, int]:
    return (bucket.tokens, bucket.logits, bucket.rows)


def _none_holds(need: object, ready: Iterable[object]) -> NoReturn:
    raise ValueError(f"a step must fit one of the compiled sizes {', '.join(map(str, ready))}, got {need}")
