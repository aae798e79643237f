"""An engine saves and loads what sessions have in host memory in the right order, with faults planted into that."""

import random

import pytest

from jaxinfer.cache.offload import OffloadPool
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.sequence import Forget, Keep, Request
from jaxinfer.testing.faults import Fault
from tests.engine.client import Client
from tests.engine.device import CURSED, make_limits
from tests.engine.test_engine_law import Workload

SIZE = 4


def converse(client: Client, num_sessions: int, num_turns: int, seed: int = 0) -> int:
    """Conversations that take turns; of each only what is new is computed, and a page. Returns the tokens found."""
    rng, num_found = random.Random(seed), 0
    said: list[list[int]] = [[] for _ in range(num_sessions)]
    for number in range(num_turns):
        for session in range(num_sessions):
            recorded = len(said[session])
            said[session] += [rng.randrange(CURSED) for _ in range(rng.randint(1, 6))]
            request = Request(f"{session} {number}", tuple(said[session]), 3, session=True)
            client.add(request)
            client.finish()
            answer = client.answers[request.id, 0]
            assert len(request.prompt) - answer.cached_tokens <= len(request.prompt) - recorded + SIZE
            num_found += answer.cached_tokens
            said[session] += answer.tokens
            client.engine.inbox.put(Keep(str(session), "", tuple(said[session])))
    client.step()
    return num_found


def test_conversations_that_take_turns_in_a_quarter_of_their_pages_compute_what_is_new():
    client = Client(make_limits(num_pages=24, num_host_pages=200))
    assert converse(client, num_sessions=8, num_turns=8) > 1000
    stats = client.engine.stats()
    assert stats.host_pages + stats.pages_cached >= 4 * 23 and stats.pages_saved > stats.pages_loaded > 100
    assert sum(stats.host_pages_by.values()) == stats.host_pages
    for session in range(8):
        client.engine.inbox.put(Forget(str(session)))
    client.step()
    stats = client.engine.stats()
    assert (stats.host_pages, stats.host_pages_by, stats.pages_kept) == (0, {}, 0)


def test_without_host_memory_the_same_conversations_are_computed_again():
    with pytest.raises(AssertionError):
        converse(Client(make_limits(num_pages=24)), num_sessions=8, num_turns=8)


@pytest.mark.parametrize("kind", ["save_pages", "load_pages"])
def test_a_move_that_fails_costs_no_answer_and_what_is_on_the_host_is_forgotten(kind, monkeypatch):
    client = Client(make_limits(num_pages=30, num_host_pages=200))
    converse(client, num_sessions=8, num_turns=4)
    assert len(client.engine.scheduler.cache.pool.offload) > 20
    client.faults.add(Fault(kind, client.device.num_steps))
    for number in range(8):
        client.add(Request(f"again {number}", client.answers[f"{number} 3", 0].request.prompt, 3, session=True))
        client.finish()
    assert [fault.kind for fault in client.faults.struck] == [kind]
    assert client.engine.stats().recoveries == 1


def _save_pages_after_their_places_were_reused(patch):
    move, advance = Engine._move_pages, Engine._advance
    patch(Engine, "_move_pages", lambda self: None)
    patch(Engine, "_advance", lambda self: (advance(self), move(self)))


def _load_pages_before_what_they_replace_is_saved(patch):
    move = Engine._move_pages

    def loads_first(self):
        host = self.scheduler.cache.pool.offload
        saves, host.saves = host.saves, {}
        if not any(page.data is None for page in host.loads):
            move(self)
        host.saves = saves
        move(self)

    patch(Engine, "_move_pages", loads_first)


def _keep_a_second_copy_on_the_host(patch):
    patch(OffloadPool, "drop", lambda self, content: None)


def _take_any_page_of_the_host(patch):
    patch(OffloadPool, "find", lambda self, table, key, parent: next(iter(self), None))


@pytest.mark.parametrize(
    "fault",
    [
        _save_pages_after_their_places_were_reused,
        _load_pages_before_what_they_replace_is_saved,
        _keep_a_second_copy_on_the_host,
        _take_any_page_of_the_host,
    ],
)
def test_the_laws_catch_a_planted_fault_of_moving(fault, monkeypatch):
    fault(monkeypatch.setattr)
    with pytest.raises((AssertionError, KeyError, ValueError, IndexError)):
        for seed in range(30):
            Workload(seed, num_host_pages=1000, enable_prefix_caching=True).run(300)
