"""The scheduler's invariants, recomputed from nothing: run after every step in tests, and when idle."""

from jaxinfer.cache.prefix import next_key, same_chain
from jaxinfer.engine.scheduler import Scheduler
from jaxinfer.engine.sequence import Sequence, State


def check_scheduler(scheduler: Scheduler) -> None:
    """Hold a scheduler against its module's docstring, its pool too; AssertionError names what does not hold."""
    for queue, state in ((scheduler.waiting, State.WAITING), (scheduler.running, State.RUNNING)):
        ranks = [sequence.rank for sequence in queue]
        assert ranks == sorted(set(ranks)), f"the {state.name} sequences are out of order"
        assert all(sequence.state is state for sequence in queue), f"a {state.name} sequence has another state"
    live = [sequence for group in scheduler.live.values() for sequence in group.values()]
    held = [sequence for sequence in live if sequence.state is State.HELD]
    assert len(live) == len(scheduler.waiting) + len(scheduler.running) + len(held), (
        "a live sequence is in no queue or in two"
    )
    assert sorted(map(id, held)) == sorted(id(h) for s in live for h in s.held), "a held sequence waits for nobody"
    for sequence in (*scheduler.waiting, *held):
        assert not (sequence.cache.tables or sequence.slot or sequence.dispatched), (
            "a sequence owns what only running ones may"
        )
    slots = [*scheduler.free_slots, *(sequence.slot for sequence in scheduler.running)]
    assert sorted(slots) == list(range(1, scheduler.limits.max_num_seqs + 1)), "free and used slots are not all slots"
    for sequence in scheduler.running:
        _check_pages(scheduler, sequence)
        _check_tokens(scheduler, sequence)
    running, deferred = [sequence.cache for sequence in scheduler.running], scheduler.cache.deferred
    assert scheduler.in_flight or not deferred, "an ended sequence has pages although nothing is in flight"
    assert {id(s.cache) for s in live}.isdisjoint(map(id, deferred)), "pages of a live sequence are about to be freed"
    scheduler.cache.check(running, [sequence.cache for sequence in scheduler.waiting])
    suspects = set(scheduler.isolation.trial())
    assert not suspects or suspects.issuperset(scheduler.running), "a sequence runs beside those on trial"


def _check_tokens(scheduler: Scheduler, sequence: Sequence) -> None:
    in_flight = sequence.dispatched + 1 - len(sequence.known)
    assert not sequence.decoding or 0 <= in_flight <= scheduler.in_flight, f"{in_flight} tokens of a sequence in flight"
    assert sequence.decoding or in_flight <= sequence.is_pooled, "a position without a token was dispatched"
    assert len(sequence.tokens) < sequence.max_length, "a sequence outlived its length"


def _check_pages(scheduler: Scheduler, sequence: Sequence) -> None:
    limits, owned = scheduler.limits, sequence.cache.tables[0]
    needed = -(-sequence.dispatched // limits.page_size)
    if limits.kv_layout == "contiguous":
        assert owned == list(range(owned[0], owned[0] + limits.max_pages_per_seq)), "contiguous pages are scattered"
    else:
        most = max(needed, -(-len(sequence.tokens) // limits.page_size)) if sequence.watch is not None else needed
        assert needed <= len(owned) <= most, f"{len(owned)} pages for {sequence.dispatched} positions"
    expected = sequence.cache.root
    for i, page in enumerate(owned[:needed]):
        expected = next_key(expected, sequence.tokens[i * limits.page_size : (i + 1) * limits.page_size])
        key = scheduler.cache.pool.key_of(page)
        if key is not None:
            end = (i + 1) * limits.page_size
            assert end < len(sequence.tokens), "a page was published before its tokens were committed"
            assert same_chain(key, expected), f"page {page} is published as what it does not hold"
            expected = key
