"""Precedence: who must give up a running sequence's place, for somebody more urgent who waits for one."""

from typing import TYPE_CHECKING

from jaxinfer.engine.sequence import Sequence

if TYPE_CHECKING:
    from jaxinfer.engine.scheduler import Scheduler


def must_yield(scheduler: "Scheduler") -> bool:
    """Whether the most urgent sequence that could start finds no slot, or no pages for its first chunk, while a `bulk`
    one of a lower priority runs: the last of those is to be preempted. Nobody else yields: a priority is whatever its
    client says, and streams do not stand still for that.
    """
    running = scheduler.running
    if not running or not running[-1].request.bulk:
        return False
    if scheduler.limits.scheduling == "static" or scheduler.isolation.active:
        return False
    first = next((sequence for sequence in scheduler.waiting if not sequence.may_not_start), None)
    if first is None or running[-1].rank[0] <= first.rank[0]:
        return False
    missing = _num_pages_to_start(scheduler, first) - scheduler.cache.pool.num_available
    yielding = (s for s in running if s.request.bulk and s.rank[0] > first.rank[0])
    if missing <= 0:
        return not scheduler.free_slots
    return missing <= sum(len(sequence.cache.page_ids()) for sequence in yielding)


def _num_pages_to_start(scheduler: "Scheduler", sequence: Sequence) -> int:
    """For its first chunk as long as a step has room, with what must be left: never too few."""
    prefix, cache = scheduler.prefix(sequence), scheduler.cache
    end = min(len(sequence.tokens), prefix.length + scheduler.limits.max_num_batched_tokens)
    return cache.price(prefix, end) + cache.watermark
