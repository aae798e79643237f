"""What sessions have in host memory: what is put there, dropped and found."""

import random

from jaxinfer.cache.manager import CacheManager, SequenceCache
from jaxinfer.cache.prefix import root_key
from tests.engine.device import make_limits

SIZE = 4
A, B, C = ([letter] * 12 for letter in (1, 2, 3))


def manager(num_pages: int, num_host_pages: int = 0) -> CacheManager:
    return CacheManager(make_limits(num_pages=num_pages, num_host_pages=num_host_pages, max_session_pages=99))


def begun(cache: CacheManager, tokens: list[int], salt: str = "", session: str = "", leave: int = 0) -> SequenceCache:
    """A sequence with room for `tokens`, what is found of them shared; without tables where there are too few pages.

    It has a token more, which is never computed: a prefix leaves one out.
    """
    sequence = SequenceCache(root_key(salt), [*tokens, 0], is_turn=bool(session))
    cache.start(sequence, cache.find(sequence), len(tokens), leave)
    return sequence


def turn(cache: CacheManager, tokens: list[int], session: str = "") -> None:
    """Compute what is not found of these tokens, and let a session remember them."""
    sequence = begun(cache, tokens, session=session)
    assert sequence.tables
    cache.publish(sequence, len(tokens))
    cache.release(sequence)
    if session:
        cache.keep(session, "", tokens)
    cache.check([])


def moved(cache: CacheManager) -> tuple[int, int]:
    """Do what the engine does between a plan and its step; how much was saved and loaded."""
    offload = cache.pool.offload
    counts = len(offload.saves), len(offload.loads)
    for page in offload.saves:
        page.data = "saved"
    assert all(page.data for page in offload.loads)
    offload.saves.clear()
    offload.loads.clear()
    return counts


def found(cache: CacheManager, tokens: list[int], salt: str = "") -> tuple[int, int]:
    """Pages of the device and of the host that `tokens` begin with."""
    prefix = cache.find(SequenceCache(root_key(salt), [*tokens, 0]))
    return len(prefix.pages), prefix.num_offloaded


def test_what_is_reused_of_a_session_goes_to_the_host_and_comes_back():
    cache = manager(5, 8)
    turn(cache, A, "a")
    turn(cache, B, "b")
    assert moved(cache) == (2, 0)
    assert (
        found(cache, A) == (1, 2)
        and cache.pool.offload.num_by == {"a": 2}
        and cache.pool.num_pinned_by == {"a": 1, "b": 3}
    )
    turn(cache, A, "a")
    assert moved(cache) == (2, 2), "one made room for the other"
    assert found(cache, A) == (3, 0) and found(cache, B) == (1, 2) and cache.pool.offload.num_by == {"b": 2}


def test_what_no_session_remembers_is_not_saved():
    cache = manager(5, 8)
    turn(cache, A)
    turn(cache, B)
    assert moved(cache) == (0, 0) and found(cache, A)[1] == 0


def test_a_turn_that_is_not_recorded_yet_is_saved_too():
    cache = manager(5, 8)
    sequence = begun(cache, A, session="a")
    cache.publish(sequence, 12)
    cache.release(sequence)
    turn(cache, B)
    assert moved(cache) == (2, 0)
    cache.keep("a", "", A)
    assert found(cache, A) == (1, 2) and cache.pool.offload.num_by == {"a": 2}


def test_full_it_drops_the_ends_of_what_was_used_least_recently():
    cache = manager(4, 4)
    for session, tokens in (("a", A), ("b", B), ("c", C)):
        turn(cache, tokens, session)
        moved(cache)
    assert [found(cache, tokens) for tokens in (A, B, C)] == [(0, 1), (0, 3), (3, 0)] and len(cache.pool.offload) == 4
    assert cache.pool.offload.num_by == {"a": 1, "b": 3}


def test_a_hit_survives_that_its_own_loading_fills_the_host():
    cache = manager(4, 3)
    turn(cache, A, "a")
    turn(cache, B, "b")
    moved(cache)
    turn(cache, A, "a")
    assert moved(cache) == (3, 3) and found(cache, A) == (3, 0) and found(cache, B) == (0, 3)


def test_a_page_that_is_dropped_before_it_was_saved_is_not_saved():
    cache = manager(4, 2)
    turn(cache, A, "a")
    turn(cache, B, "b")
    assert moved(cache) == (2, 0) and found(cache, A) == (0, 2)


def test_an_ended_session_s_host_pages_are_gone_but_for_what_others_remember():
    cache = manager(8, 20)
    turn(cache, A, "a")
    turn(cache, A + B, "b")
    sequence = begun(cache, [9] * 28)
    moved(cache)
    assert found(cache, A + B) == (0, 6) and cache.pool.offload.num_by == {"a": 3, "b": 6}
    cache.forget("b")
    cache.forget("never there")
    assert found(cache, A + B) == (0, 3) and cache.pool.offload.num_by == {"a": 3}
    cache.forget("a")
    assert (len(cache.pool.offload), cache.pool.offload.num_by) == (0, {})
    cache.check([sequence])


def test_what_was_edited_away_is_dropped():
    cache = manager(8, 20)
    turn(cache, A + B, "a")
    sequence = begun(cache, [9] * 28)
    moved(cache)
    cache.release(sequence)
    turn(cache, A + C, "a")
    assert found(cache, A + B) == (3, 0) and found(cache, A + C) == (6, 0) and not cache.pool.offload.num_by


def test_what_is_computed_again_replaces_its_copy_on_the_host():
    cache = manager(7, 8)
    first, second = begun(cache, A), begun(cache, A)
    cache.publish(first, 12)
    cache.release(first)
    cache.keep("a", "", A)
    third = begun(cache, B)
    moved(cache)
    assert found(cache, A) == (0, 3)
    cache.publish(second, 12)
    cache.check([second, third])
    assert found(cache, A) == (3, 0) and not len(cache.pool.offload)


def test_a_refused_share_leaves_the_host_as_it_was():
    cache = manager(4, 8)
    turn(cache, A, "a")
    turn(cache, B)
    moved(cache)
    assert not begun(cache, A, leave=1).tables and found(cache, A) == (0, 3)
    cache.check([])


def test_salts_share_nothing_on_the_host():
    cache = manager(4, 8)
    turn(cache, A, "a")
    turn(cache, B)
    moved(cache)
    assert found(cache, A, "tenant") == (0, 0)


def test_random_sessions_keep_the_invariants():
    rng, cache = random.Random(12), manager(13, 9)
    said: dict[str, list[int]] = {name: [] for name in "abcde"}
    num_saved = num_loaded = 0
    for _ in range(2000):
        name = rng.choice("abcde")
        if rng.random() < 0.05:
            cache.forget(name)
            said[name] = []
            continue
        tokens = said[name][: rng.choice((len(said[name]), rng.randrange(len(said[name]) + 1)))]
        tokens = (tokens + [rng.randrange(3) for _ in range(rng.randint(1, 12))])[:40]
        said[name] = tokens[: len(tokens) // SIZE * SIZE]
        turn(cache, said[name], name if rng.random() < 0.8 else "")
        saved, loaded = moved(cache)
        num_saved, num_loaded = num_saved + saved, num_loaded + loaded
    assert num_saved > 500 < num_loaded
