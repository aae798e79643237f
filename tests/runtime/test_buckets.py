"""Which sizes are compiled: few enough, close enough, and one for every step."""

import itertools

import pytest

from jaxinfer.config import ExtendBucket
from jaxinfer.runtime.backends import Backend
from jaxinfer.runtime.buckets import (
    MAX_EXECUTABLES,
    MAX_TOKENS_AT_ONCE,
    Decode,
    decode_buckets,
    decode_contexts,
    decode_sizes,
    draw_sizes,
    extend_buckets,
    pick_decode,
    pick_extend,
    pick_size,
)
from jaxinfer.runtime.plan import Sampler
from jaxinfer.runtime.programs import samplers
from tests.support.tiny_runner import HELPERS

SEQS = [1, 2, 3, 7, 16, 17, 100, 256, 300, 1000, 4096]
TOKENS = [1, 8, 100, 256, 512, 2048, 8192, 50000]
LENGTHS = [2, 300, 512, 513, 1000, 2048, 2049, 131072]


@pytest.mark.parametrize(("coarse", "longest"), [(False, None), (True, None), *((False, n) for n in LENGTHS)], ids=str)
@pytest.mark.parametrize(("seqs", "tokens"), [(s, t) for s in SEQS for t in TOKENS if t >= s])
def test_every_step_within_the_budget_has_a_bucket(seqs: int, tokens: int, coarse: bool, longest: int | None) -> None:
    """longest: of a row, where decode steps are compiled by context."""
    batches = decode_buckets(seqs, coarse=coarse, by_context=longest is not None)
    decode = decode_sizes(batches, decode_contexts(longest) if longest else ())
    extend = extend_buckets(tokens, seqs, coarse=coarse)
    assert list(batches) == sorted(set(batches))
    assert batches[-1] == seqs
    assert len(set(decode)) == len(decode)
    for rows in {1, min(2, seqs), seqs // 2 or 1, seqs}:
        for length in {1, 500, 2048, longest or 9000}:
            picked = pick_decode(decode, rows, length)
            assert picked.batch >= rows
            assert picked.context is None or picked.context >= length
        for count in {rows, min(tokens, rows + 13), tokens}:
            bucket = pick_extend(extend, ExtendBucket(count, rows, rows))
            assert bucket.tokens >= count
            assert bucket.rows >= rows
    num_draws = sum(len(draw_sizes(seqs, sampler)) for sampler in samplers(Backend.XLA, "gpu"))
    num_draws += 2 * len(draw_sizes(seqs, Sampler.FULL))  # masks and logprobs
    assert len(decode) + len(extend) + num_draws + len(HELPERS) <= MAX_EXECUTABLES


def test_decode_steps_by_context_come_for_few_rows_and_for_what_is_worth_it_without_a_loop() -> None:
    batches, contexts = decode_buckets(256, by_context=True), decode_contexts(40960)
    assert (batches, contexts) == ((1, 4, 16, 64, 256), (512, 2048))
    sizes = decode_sizes(batches, contexts)
    assert {Decode(1, 512), Decode(1, 2048), Decode(1), Decode(64, 2048), Decode(256, 512), Decode(256)} <= set(sizes)
    assert Decode(256, 2048) not in sizes
    assert max(size.batch * size.context for size in sizes if size.context) == MAX_TOKENS_AT_ONCE
    assert [decode_contexts(longest) for longest in (300, 512, 513)] == [(300,), (512,), (512, 513)]
    assert decode_sizes((1, 4), ()) == (Decode(1), Decode(4))


def test_rows_and_the_longest_of_them_choose_the_decode_step() -> None:
    sizes = decode_sizes(decode_buckets(256, by_context=True), decode_contexts(40960))
    needs = [(1, 1), (1, 512), (1, 513), (1, 2049), (3, 512), (64, 600), (65, 512), (65, 513)]
    assert [pick_decode(sizes, rows, longest) for rows, longest in needs] == [
        Decode(1, 512),
        Decode(1, 512),
        Decode(1, 2048),
        Decode(1),
        Decode(4, 512),
        Decode(64, 2048),
        Decode(256, 512),
        Decode(256),
    ]
    ready = (Decode(256), Decode(4, 512))  # while the others are compiled
    assert [pick_decode(ready, *need) for need in [(2, 512), (2, 513), (5, 1)]] == [ready[1], ready[0], ready[0]]
    with pytest.raises(ValueError, match="got 5 rows of up to 9 tokens"):
        pick_decode((Decode(4),), 5, 9)


def test_the_decode_sizes_on_a_gpu_are_those_of_the_design() -> None:
    assert decode_buckets(256) == (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
    assert decode_buckets(100) == (1, 2, 4, 8, 16, 32, 48, 64, 96, 100)


def test_the_samplers_come_in_few_sizes() -> None:
    plain = [draw_sizes(seqs, Sampler.PLAIN) for seqs in (1, 16, 100, 256)]
    assert plain == [(1,), (1, 16), (8, 64, 100), (8, 64, 256)]
    assert [draw_sizes(seqs, Sampler.WIDE) for seqs in (1, 16, 100, 256)] == [(1,), (1, 16), (32, 100), (32, 256)]


def test_a_cpu_has_a_dozen_programs() -> None:
    assert decode_buckets(16, coarse=True) == (1, 2, 4, 8, 16)
    sizes = extend_buckets(256, 16, coarse=True)
    assert [bucket.tokens for bucket in sizes] == [16, 32, 64, 128, 256]
    assert {bucket.rows for bucket in sizes} == {16}


@pytest.mark.parametrize("tokens", [33, 100, 300, 700, 3000, 5000])
def test_a_prompt_is_padded_by_at_most_its_own_length(tokens: int) -> None:
    for coarse in (False, True):
        bucket = pick_extend(extend_buckets(8192, 256, coarse=coarse), ExtendBucket(tokens, 1, 1))
        assert bucket.tokens < 2 * tokens


def test_many_decode_rows_beside_a_short_chunk_do_not_take_the_largest_step() -> None:
    sizes = extend_buckets(8192, 256)
    assert pick_extend(sizes, ExtendBucket(200 + 40, 201, 201)).tokens == 256
    assert pick_extend(sizes, ExtendBucket(60, 2, 2)) == ExtendBucket(64, 8, 8)


def test_the_smallest_ready_size_is_taken() -> None:
    assert pick_size((16, 4, 8), 3) == 4
    small, wide, large = ExtendBucket(64, 8, 8), ExtendBucket(64, 64, 64), ExtendBucket(256, 8, 8)
    assert pick_extend((large, wide, small), ExtendBucket(10, 8, 1)) == small
    assert pick_extend((large, wide, small), ExtendBucket(10, 9, 1)) == wide


def test_a_step_that_fits_nowhere_is_an_error_that_lists_the_sizes() -> None:
    with pytest.raises(ValueError, match="compiled sizes 1, 4, got 5"):
        pick_size((1, 4), 5)
    with pytest.raises(ValueError, match="got .*tokens=65"):
        pick_extend((ExtendBucket(64, 8, 8),), ExtendBucket(65, 1, 1))


def test_sizes_between_neighbours_are_never_far_apart() -> None:
    for small, large in itertools.pairwise(decode_buckets(256)):
        assert large <= 2 * small
    tokens = sorted({bucket.tokens for bucket in extend_buckets(8192, 256)})
    assert all(large <= 2 * small for small, large in itertools.pairwise(tokens))
