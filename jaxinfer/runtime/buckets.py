"""Which sizes are compiled, and which of them carries a step. No jax here.

A step is padded to the smallest compiled size that holds it, so sizes lie close enough together that padding costs
little, and are few enough that compiling them all takes seconds.
"""

from collections.abc import Iterable

from jaxinfer.config import ExtendBucket

DECODE_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)


def decode_buckets(max_num_seqs: int) -> tuple[int, ...]:
    """Batch sizes of the decode step, rising, the largest being max_num_seqs."""
    largest = DECODE_SIZES[-1]
    beyond = tuple(range(largest + 64, max_num_seqs, 64)) if max_num_seqs > largest else ()
    return tuple(size for size in DECODE_SIZES + beyond if size < max_num_seqs) + (max_num_seqs,)


def extend_buckets(max_num_batched_tokens: int, max_num_seqs: int) -> tuple[ExtendBucket, ...]:
    """Sizes of the ragged step, rising in tokens; the largest carries any plan that fits the step's budget."""
    largest = ExtendBucket(max_num_batched_tokens, max_num_seqs, max_num_seqs)
    few = min(8, max_num_seqs)
    sizes = {largest}
    tokens = 32
    while tokens < max_num_batched_tokens:
        sizes.add(ExtendBucket(tokens, min(few, tokens), min(few, tokens)))
        tokens *= 4
    return tuple(sorted(sizes, key=_cost))


def pick_decode(ready: Iterable[int], need: int) -> int:
    """The smallest of the ready batch sizes that holds `need` rows. Raises ValueError if none does."""
    return min((size for size in ready if size >= need), default=None) or _none_holds(f"{need} rows", ready)


def pick_extend(ready: Iterable[ExtendBucket], need: ExtendBucket) -> ExtendBucket:
    """The cheapest ready bucket that holds `need`. Raises ValueError if none does."""
    holding = (size for size in ready if holds(size, need))
    return min(holding, key=_cost, default=None) or _none_holds(str(need), ready)


def holds(bucket: ExtendBucket, need: ExtendBucket) -> bool:
    return bucket.tokens >= need.tokens and bucket.rows >= need.rows and bucket.logits >= need.logits


def _cost(bucket: ExtendBucket) -> tuple[int, int, int]:
    return (bucket.tokens, bucket.logits, bucket.rows)


def _none_holds(need: str, ready: Iterable[object]) -> object:
    raise ValueError(f"a step must fit a compiled size, got {need}; the sizes are {', '.join(map(str, ready))}")
