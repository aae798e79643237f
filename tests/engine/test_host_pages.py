"""What sessions have in host memory: what is put there, dropped and found; and that an engine saves and loads it in the
right order, with faults planted into that.
"""

import random

import pytest

from jaxinfer.engine.engine import Engine
from jaxinfer.engine.host_pages import HostPages
from jaxinfer.engine.page_keys import PageKey, chain, root_key
from jaxinfer.engine.pages import PagePool
from jaxinfer.engine.sequence import Forget, Keep, Request
from jaxinfer.testing.faults import Fault
from tests.engine.client import Client
from tests.engine.device import CURSED, make_limits
from tests.engine.test_engine_law import Workload

SIZE = 4
A, B, C = ([letter] * 12 for letter in (1, 2, 3))


def keys_of(tokens: list[int]) -> list[PageKey]:
    return list(chain(root_key(""), tokens, SIZE))


def turn(pool: PagePool, tokens: list[int], session: str = "") -> list[int]:
    """Compute what is not found of these tokens, and let a session remember them. Returns the pages they were in."""
    table: list[int] = []
    hit = pool.find(root_key(""), keys_of(tokens))
    assert pool.share(table, hit, len(tokens) // SIZE - len(hit), 0)
    for page, key in zip(table, keys_of(tokens), strict=True):
        pool.publish(page, key, bool(session))
    pages = list(table)
    pool.release(table)
    if session:
        pool.remember(session, root_key(""), keys_of(tokens), 99)
    pool.check([])
    return pages


def moved(pool: PagePool) -> tuple[int, int]:
    """Do what the engine does between a plan and its step; how much was saved and loaded."""
    host = pool.host
    counts = len(host.saves), len(host.loads)
    for page in host.saves:
        page.content = "saved"
    assert all(page.content for page in host.loads)
    host.saves.clear()
    host.loads.clear()
    return counts


def found(pool: PagePool, tokens: list[int]) -> tuple[int, int]:
    hit = pool.find(root_key(""), keys_of(tokens))
    return len(hit.pages), len(hit.loads)


def test_what_is_reused_of_a_session_goes_to_the_host_and_comes_back():
    pool = PagePool(5, 8)
    turn(pool, A, "a")
    turn(pool, B, "b")
    assert moved(pool) == (2, 0)
    assert found(pool, A) == (1, 2) and pool.host.num_by == {"a": 2} and pool.num_kept_by == {"a": 1, "b": 3}
    turn(pool, A, "a")
    assert moved(pool) == (2, 2), "one made room for the other"
    assert found(pool, A) == (3, 0) and found(pool, B) == (1, 2) and pool.host.num_by == {"b": 2}


def test_what_no_session_remembers_is_not_saved():
    pool = PagePool(5, 8)
    turn(pool, A)
    turn(pool, B)
    assert moved(pool) == (0, 0) and found(pool, A)[1] == 0


def test_a_turn_that_is_not_recorded_yet_is_saved_too():
    pool, table = PagePool(5, 8), []
    assert pool.grow(table, 3)
    for page, key in zip(table, keys_of(A), strict=True):
        pool.publish(page, key, of_turn=True)
    pool.release(table)
    turn(pool, B)
    assert moved(pool) == (2, 0)
    pool.remember("a", root_key(""), keys_of(A), 99)
    assert found(pool, A) == (1, 2) and pool.host.num_by == {"a": 2}


def test_full_it_drops_the_ends_of_what_was_used_least_recently():
    pool = PagePool(4, 4)
    for session, tokens in (("a", A), ("b", B), ("c", C)):
        turn(pool, tokens, session)
        moved(pool)
    assert [found(pool, tokens) for tokens in (A, B, C)] == [(0, 1), (0, 3), (3, 0)] and len(pool.host) == 4
    assert pool.host.num_by == {"a": 1, "b": 3}


def test_a_hit_survives_that_its_own_loading_fills_the_host():
    pool = PagePool(4, 3)
    turn(pool, A, "a")
    turn(pool, B, "b")
    moved(pool)
    turn(pool, A, "a")
    assert moved(pool) == (3, 3) and found(pool, A) == (3, 0) and found(pool, B) == (0, 3)


def test_a_page_that_is_dropped_before_it_was_saved_is_not_saved():
    pool = PagePool(4, 2)
    turn(pool, A, "a")
    turn(pool, B, "b")
    assert moved(pool) == (2, 0) and found(pool, A) == (0, 2)


def test_an_ended_session_s_host_pages_are_gone_but_for_what_others_remember():
    pool = PagePool(8, 20)
    turn(pool, A, "a")
    turn(pool, A + B, "b")
    table: list[int] = []
    assert pool.grow(table, 7)
    moved(pool)
    assert found(pool, A + B) == (0, 6) and pool.host.num_by == {"a": 3, "b": 6}
    pool.forget("b")
    pool.forget("never there")
    assert found(pool, A + B) == (0, 3) and pool.host.num_by == {"a": 3}
    pool.forget("a")
    assert (len(pool.host), pool.host.num_by) == (0, {})
    pool.check([table])


def test_what_was_edited_away_is_dropped():
    pool = PagePool(8, 20)
    turn(pool, A + B, "a")
    table: list[int] = []
    pool.grow(table, 7)
    moved(pool)
    pool.release(table)
    turn(pool, A + C, "a")
    assert found(pool, A + B) == (3, 0) and found(pool, A + C) == (6, 0) and not pool.host.num_by


def test_what_is_computed_again_replaces_its_copy_on_the_host():
    pool, table = PagePool(4, 8), []
    turn(pool, A, "a")
    turn(pool, B)
    moved(pool)
    assert found(pool, A) == (0, 3)
    pool.grow(table, 3)
    for page, key in zip(table, keys_of(A), strict=True):
        pool.publish(page, key)
    pool.check([table])
    assert found(pool, A) == (3, 0) and not len(pool.host)


def test_a_refused_share_leaves_the_host_as_it_was():
    pool, table = PagePool(4, 8), []
    turn(pool, A, "a")
    turn(pool, B)
    moved(pool)
    hit = pool.find(root_key(""), keys_of(A))
    assert not pool.share(table, hit, num_fresh=1, reserve=0) and found(pool, A) == (0, 3) and not table
    pool.check([])


def test_salts_share_nothing_on_the_host():
    pool = PagePool(4, 8)
    turn(pool, A, "a")
    turn(pool, B)
    moved(pool)
    hit = pool.find(root_key("tenant"), list(chain(root_key("tenant"), A, SIZE)))
    assert (hit.pages, hit.loads) == ([], [])


def test_random_sessions_keep_the_invariants():
    rng, pool = random.Random(12), PagePool(13, 9)
    said: dict[str, list[int]] = {name: [] for name in "abcde"}
    num_saved = num_loaded = 0
    for _ in range(2000):
        name = rng.choice("abcde")
        if rng.random() < 0.05:
            pool.forget(name)
            said[name] = []
            continue
        tokens = said[name][: rng.choice((len(said[name]), rng.randrange(len(said[name]) + 1)))]
        tokens = (tokens + [rng.randrange(3) for _ in range(rng.randint(1, 12))])[:40]
        said[name] = tokens[: len(tokens) // SIZE * SIZE]
        turn(pool, said[name], name if rng.random() < 0.8 else "")
        saved, loaded = moved(pool)
        num_saved, num_loaded = num_saved + saved, num_loaded + loaded
    assert num_saved > 500 < num_loaded


# ---- with an engine around ----


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
    assert len(client.engine.scheduler.pool.host) > 20
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
        host = self.scheduler.pool.host
        saves, host.saves = host.saves, {}
        if not any(page.content is None for page in host.loads):
            move(self)
        host.saves = saves
        move(self)

    patch(Engine, "_move_pages", loads_first)


def _keep_a_second_copy_on_the_host(patch):
    patch(HostPages, "drop", lambda self, digest: None)


def _take_any_page_of_the_host(patch):
    patch(HostPages, "find", lambda self, parent, keys: [p for p, _ in zip(self, keys, strict=False)][:1])


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
