"""PagePool: ownership, keys and reuse, without a scheduler."""

import random
import subprocess
import sys

import pytest

from jaxinfer.cache import prefix
from jaxinfer.cache.pool import PagePool
from jaxinfer.cache.prefix import PageKey, next_key, root_key

SIZE = 4


def chain(tokens: list[int], salt: str = "") -> list[PageKey]:
    """The keys of all full pages of `tokens`."""
    keys: list[PageKey] = []
    for i in range(len(tokens) // SIZE):
        keys.append(next_key(keys[-1] if keys else root_key(salt), tokens[i * SIZE : (i + 1) * SIZE]))
    return keys


def publish(pool: PagePool, page_ids: list[int], tokens: list[int], salt: str = "") -> None:
    for page, key in zip(page_ids, chain(tokens, salt), strict=True):
        pool.publish(page, key)


def match(pool: PagePool, tokens: list[int], salt: str = "") -> list[int]:
    """The longest run of pages that hold the beginning of `tokens`."""
    pages: list[int] = []
    parent = root_key(salt)
    for key in chain(tokens, salt):
        if not (page := pool.find(0, key, parent)):
            break
        pages.append(page)
        parent = pool.key_of(page)
    return pages


def release(pool: PagePool, table: list[int]) -> list[int]:
    blank = pool.release(table)
    table.clear()
    return blank


def begun(pool: PagePool, tokens: list[int]) -> list[int]:
    """A table of all full pages of `tokens`, those found shared and the others fresh; empty where there are too few."""
    table = match(pool, tokens)
    missing = len(tokens) // SIZE - len(table)
    if pool.num_available - pool.num_unowned(table) < missing:
        return []
    pool.share(table)
    assert pool.grow(table, missing)
    return table


def filled(num_pages: int, tokens: list[int]) -> tuple[PagePool, list[int]]:
    """A pool and a table whose pages are published as `tokens`."""
    pool, table = PagePool(num_pages), []
    assert pool.grow(table, len(tokens) // SIZE)
    publish(pool, table, tokens)
    return pool, table


def test_the_null_page_is_never_handed_out():
    pool, table = PagePool(5), []
    assert pool.grow(table, 4)
    assert sorted(table) == [1, 2, 3, 4]


def test_a_refused_growth_changes_nothing():
    pool, table = PagePool(5), []
    pool.grow(table, 3)
    before = list(table)
    assert not pool.grow(table, 2)
    assert (table, pool.num_available) == (before, 1)
    pool.check([table])


def test_freed_pages_stay_matchable_until_they_are_reused():
    pool, table = filled(4, list(range(12)))
    hit = list(table)
    release(pool, table)
    assert match(pool, list(range(12))) == hit
    pool.grow(table, 1)
    assert match(pool, list(range(12))) == hit[:2]  # the end of a prefix goes first
    pool.check([table])


def test_blank_pages_are_used_before_cached_ones_and_the_oldest_cached_before_the_newest():
    pool, old = PagePool(6), []
    new, blank = [], []
    for table, tokens in ((old, [1, 2, 3, 4]), (new, [5, 6, 7, 8])):
        pool.grow(table, 1)
        publish(pool, table, tokens)
    pool.grow(blank, 3)
    (old_page,), (new_page,), blanks = old, new, set(blank)
    for table in (old, new, blank):
        release(pool, table)
    taken: list[int] = []
    pool.grow(taken, 5)
    assert set(taken[:3]) == blanks
    assert taken[3:] == [old_page, new_page]


def test_a_hit_makes_a_page_young_again():
    pool, first = PagePool(3), []
    second: list[int] = []
    for table, tokens in ((first, [1, 2, 3, 4]), (second, [5, 6, 7, 8])):
        pool.grow(table, 1)
        publish(pool, table, tokens)
        release(pool, table)
    pool.share(first := match(pool, [1, 2, 3, 4]))
    release(pool, first)
    pool.grow(second, 1)
    assert match(pool, [1, 2, 3, 4])
    assert not match(pool, [5, 6, 7, 8])


def test_a_shared_page_is_freed_by_its_last_owner():
    pool, table = filled(4, list(range(8)))
    pool.share(other := list(table))
    release(pool, table)
    pool.check([other])
    assert pool.num_cached == 0
    release(pool, other)
    assert pool.num_cached == 2


def test_a_page_computed_twice_keeps_the_first_copy():
    pool, first = filled(6, list(range(8)))
    second: list[int] = []
    pool.grow(second, 2)
    publish(pool, second, list(range(8)))
    assert match(pool, list(range(8))) == first
    assert release(pool, second) and pool.num_free == 3
    pool.check([first])


def test_a_page_matches_only_after_the_same_beginning():
    pool, _ = filled(6, list(range(8)))
    other_beginning = [9, 1, 2, 3, 4, 5, 6, 7]
    assert match(pool, other_beginning) == []


def test_salts_share_nothing():
    pool, _ = filled(6, list(range(8)))
    assert match(pool, list(range(8)), "tenant") == []


def test_tokens_are_compared_when_digests_collide(monkeypatch):
    monkeypatch.setattr(prefix, "page_digest", lambda parent, tokens: bytes(16))
    pool, table = filled(6, [1, 2, 3, 4])
    assert match(pool, [1, 2, 3, 4]) == table
    assert match(pool, [1, 2, 3, 5]) == []
    assert match(pool, [1, 2, 3, 4], "tenant") == []


def test_a_page_whose_beginning_was_evicted_is_found_again_once_that_is_recomputed():
    pool, table = PagePool(4), []
    tokens = list(range(8))
    pool.grow(table, 2)
    publish(pool, table, tokens)
    head, tail = [table[0]], [table[1]]
    release(pool, head)
    filler: list[int] = []
    pool.grow(filler, 2)  # the blank page, then the beginning
    assert match(pool, tokens) == []
    release(pool, filler)
    pool.grow(head, 1)
    publish(pool, head, tokens[:4])
    assert match(pool, tokens) == head + tail
    pool.check([head, tail])


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_calls_keeps_the_invariants(seed):
    rng = random.Random(seed)
    pool = PagePool(rng.randint(2, 30))
    tables: list[tuple[list[int], list[int]]] = []  # page table, its tokens
    texts = [[rng.randrange(3) for _ in range(SIZE * 6)] for _ in range(4)]
    for _ in range(1000):
        if rng.random() < 0.5:
            tokens = list(rng.choice(texts)[: SIZE * rng.randint(1, 6)])
            hit = match(pool, tokens)
            assert [pool.key_of(page).tokens for page in hit] == [key.tokens for key in chain(tokens)[: len(hit)]]
            if table := begun(pool, tokens):
                tables.append((table, tokens))
        elif tables:
            table, tokens = tables.pop(rng.randrange(len(tables)))
            if rng.random() < 0.7:
                publish(pool, table, tokens)
            release(pool, table)
        pool.check(table for table, _ in tables)


# ---- what sessions keep ----


def kept(pool: PagePool, session: str, tokens: list[int], most: int = 99, salt: str = "") -> list[int]:
    """What a session that has just held a turn of these tokens keeps."""
    found = match(pool, tokens, salt)
    pool.pin(session, found, most)
    pool.check([])
    return found


def computed(pool: PagePool, tokens: list[int]) -> list[int]:
    """Pages that hold these tokens, and that nobody owns any more; those that were found already among them."""
    assert (table := begun(pool, tokens))
    publish(pool, table, tokens)
    pages = list(table)
    release(pool, table)
    return pages


A, B, C = ([letter] * 12 for letter in (1, 2, 3))


def test_kept_pages_are_reused_after_all_others_but_before_anybody_waits():
    pool = PagePool(10)
    computed(pool, A)
    assert len(kept(pool, "a", A)) == 3
    computed(pool, B)
    computed(pool, C)
    table: list[int] = []
    assert pool.grow(table, 6)
    assert [len(match(pool, tokens)) for tokens in (A, B, C)] == [3, 0, 0]
    assert pool.num_available == 3 and pool.grow(table, 2)
    assert pool.num_pinned_by == {"a": 1}, "the end of a conversation goes first"
    pool.check([table])
    assert pool.grow(table, 1) and not pool.grow(table, 1)
    assert (pool.num_pinned, pool.num_pinned_by) == (0, {})
    pool.check([table])


def test_an_ended_session_s_pages_are_blank_at_once_but_for_what_others_have():
    pool = PagePool(20)
    for tokens in (A, A + B, C):
        computed(pool, tokens)
    kept(pool, "a", A)
    kept(pool, "b", A + B)
    kept(pool, "c", C)
    pool.share(table := match(pool, C))
    before = pool.num_free
    pool.forget("b")
    assert (pool.num_free, pool.num_pinned_by) == (before + 3, {"a": 3, "c": 3})
    assert len(match(pool, A + B)) == 3
    pool.forget("c")
    assert pool.num_free == before + 3, "a running sequence has them"
    release(pool, table)
    pool.forget("a")
    pool.forget("never there")
    assert (pool.num_free, pool.num_cached, pool.num_pinned) == (16, 3, 0)
    pool.check([])


def test_a_session_keeps_its_last_turn_alone():
    pool = PagePool(20)
    computed(pool, A + B)
    kept(pool, "a", A + B)
    computed(pool, A + C)
    pages = kept(pool, "a", A + C)
    assert pool.num_pinned_by == {"a": 6} and pool.num_pinned == 6
    assert match(pool, A + B)[:3] == pages[:3], "what was edited away is cached like any other"
    table: list[int] = []
    pool.grow(table, 13)
    assert len(match(pool, A + C)) == 6 and len(match(pool, A + B)) == 3
    release(pool, table)
    kept(pool, "a", [])
    assert (pool.num_pinned, pool.num_cached) == (0, 6)


def test_together_sessions_keep_so_many_pages_and_the_oldest_lose_their_ends():
    pool = PagePool(20)
    for session, tokens in (("a", A), ("b", B), ("c", C)):
        computed(pool, tokens)
        kept(pool, session, tokens, most=5)
    assert pool.num_pinned_by == {"b": 2, "c": 3}
    assert pool.num_cached == 9, "they stay cached until somebody wants them"
    kept(pool, "d", A + B + C, most=5)
    assert pool.num_pinned <= 5
    kept(pool, "c", C, most=0)
    assert pool.num_pinned == 0


def test_random_sessions_keep_the_invariants():
    rng, pool = random.Random(11), PagePool(25)
    running: list[list[int]] = []
    said = {name: [] for name in "abcde"}
    for _ in range(3000):
        name = rng.choice("abcde")
        match rng.randrange(6):
            case 0 | 1:
                tokens = said[name][: rng.randrange(len(said[name]) + 1)]
                said[name] = (tokens + [rng.randrange(3) for _ in range(rng.randint(1, 12))])[:40]
                if table := begun(pool, said[name]):
                    publish(pool, table, said[name][: len(table) * SIZE])
                    running.append(table)
            case 2 | 3 if running:
                release(pool, running.pop(rng.randrange(len(running))))
            case 4:
                pool.pin(name, match(pool, said[name]), rng.choice((0, 6, 12, 30)))
            case 5 if rng.random() < 0.3:
                pool.forget(name)
        pool.check(running)


def test_the_keys_of_a_very_long_prompt_are_let_go_one_after_the_other() -> None:
    """A chain that is freed by recursion, a key within the key after it, overflows the stack and ends the process."""
    program = (
        "from jaxinfer.cache.prefix import PageKey, root_key\n"
        "key = root_key('')\n"
        "for _ in range(1_000_000):\n"
        "    key = PageKey(b'', b'', key)\n"
        "del key\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
