"""PagePool: ownership, keys and reuse, without a scheduler."""

import random
import subprocess
import sys

import pytest

from jaxinfer.engine import page_keys
from jaxinfer.engine.page_keys import PageKey, next_key, root_key
from jaxinfer.engine.pages import Hit, PagePool

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


def test_a_refused_share_changes_nothing():
    pool, table = filled(6, list(range(12)))
    hit = list(table)
    pool.release(table)
    assert not pool.share(table, Hit(hit), num_fresh=2, reserve=1)
    assert (table, pool.num_cached, pool.num_free) == ([], 3, 2)
    pool.check([])


def test_freed_pages_stay_matchable_until_they_are_reused():
    pool, table = filled(4, list(range(12)))
    hit = list(table)
    pool.release(table)
    assert pool.match(root_key(""), chain(list(range(12)))) == hit
    pool.grow(table, 1)
    assert pool.match(root_key(""), chain(list(range(12)))) == hit[:2]  # the end of a prefix goes first
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
        pool.release(table)
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
        pool.release(table)
    pool.share(first, pool.find(root_key(""), chain([1, 2, 3, 4])), 0, 0)
    pool.release(first)
    pool.grow(second, 1)
    assert pool.match(root_key(""), chain([1, 2, 3, 4]))
    assert not pool.match(root_key(""), chain([5, 6, 7, 8]))


def test_a_shared_page_is_freed_by_its_last_owner():
    pool, table = filled(4, list(range(8)))
    other: list[int] = []
    pool.share(other, Hit(list(table)), num_fresh=0, reserve=0)
    pool.release(table)
    pool.check([other])
    assert pool.num_cached == 0
    pool.release(other)
    assert pool.num_cached == 2


def test_a_page_computed_twice_keeps_the_first_copy():
    pool, first = filled(6, list(range(8)))
    second: list[int] = []
    pool.grow(second, 2)
    publish(pool, second, list(range(8)))
    assert pool.match(root_key(""), chain(list(range(8)))) == first
    assert pool.release(second) and pool.num_free == 3
    pool.check([first])


def test_a_page_matches_only_after_the_same_beginning():
    pool, _ = filled(6, list(range(8)))
    other_beginning = [9, 1, 2, 3, 4, 5, 6, 7]
    assert pool.match(root_key(""), chain(other_beginning)) == []


def test_salts_share_nothing():
    pool, _ = filled(6, list(range(8)))
    assert pool.match(root_key("tenant"), chain(list(range(8)), "tenant")) == []


def test_tokens_are_compared_when_digests_collide(monkeypatch):
    monkeypatch.setattr(page_keys, "page_digest", lambda parent, tokens: bytes(16))
    pool, table = filled(6, [1, 2, 3, 4])
    assert pool.match(root_key(""), chain([1, 2, 3, 4])) == table
    assert pool.match(root_key(""), chain([1, 2, 3, 5])) == []
    assert pool.match(root_key("tenant"), chain([1, 2, 3, 4], "tenant")) == []


def test_a_page_whose_beginning_was_evicted_is_found_again_once_that_is_recomputed():
    pool, table = PagePool(4), []
    tokens = list(range(8))
    pool.grow(table, 2)
    publish(pool, table, tokens)
    head, tail = [table[0]], [table[1]]
    pool.release(head)
    filler: list[int] = []
    pool.grow(filler, 2)  # the blank page, then the beginning
    assert pool.match(root_key(""), chain(tokens)) == []
    pool.release(filler)
    pool.grow(head, 1)
    publish(pool, head, tokens[:4])
    assert pool.match(root_key(""), chain(tokens)) == head + tail
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
            hit = pool.find(root_key(""), chain(tokens))
            assert [pool.key_of(page).tokens for page in hit.pages] == [key.tokens for key in chain(tokens)[: len(hit)]]
            table: list[int] = []
            if pool.share(table, hit, len(tokens) // SIZE - len(hit), reserve=0):
                tables.append((table, tokens))
        elif tables:
            table, tokens = tables.pop(rng.randrange(len(tables)))
            if rng.random() < 0.7:
                publish(pool, table, tokens)
            pool.release(table)
        pool.check(table for table, _ in tables)


# ---- what sessions keep ----


def kept(pool: PagePool, session: str, tokens: list[int], most: int = 99, salt: str = "") -> list[int]:
    """What a session that has just held a turn of these tokens keeps."""
    found = pool.match(root_key(salt), chain(tokens, salt))
    pool.keep(session, found, most)
    pool.check([])
    return found


def computed(pool: PagePool, tokens: list[int]) -> list[int]:
    """Pages that hold these tokens, and that nobody owns any more; those that were found already among them."""
    table: list[int] = []
    hit = pool.find(root_key(""), chain(tokens))
    assert pool.share(table, hit, len(tokens) // SIZE - len(hit), 0)
    publish(pool, table, tokens)
    pages = list(table)
    pool.release(table)
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
    assert [len(pool.match(root_key(""), chain(tokens))) for tokens in (A, B, C)] == [3, 0, 0]
    assert pool.num_available == 3 and pool.grow(table, 2)
    assert pool.num_kept_by == {"a": 1}, "the end of a conversation goes first"
    pool.check([table])
    assert pool.grow(table, 1) and not pool.grow(table, 1)
    assert (pool.num_kept, pool.num_kept_by) == (0, {})
    pool.check([table])


def test_an_ended_session_s_pages_are_blank_at_once_but_for_what_others_have():
    pool = PagePool(20)
    for tokens in (A, A + B, C):
        computed(pool, tokens)
    kept(pool, "a", A)
    kept(pool, "b", A + B)
    kept(pool, "c", C)
    table: list[int] = []
    pool.share(table, pool.find(root_key(""), chain(C)), 0, 0)
    before = pool.num_free
    pool.forget("b")
    assert (pool.num_free, pool.num_kept_by) == (before + 3, {"a": 3, "c": 3})
    assert len(pool.match(root_key(""), chain(A + B))) == 3
    pool.forget("c")
    assert pool.num_free == before + 3, "a running sequence has them"
    pool.release(table)
    pool.forget("a")
    pool.forget("never there")
    assert (pool.num_free, pool.num_cached, pool.num_kept) == (16, 3, 0)
    pool.check([])


def test_a_session_keeps_its_last_turn_alone():
    pool = PagePool(20)
    computed(pool, A + B)
    kept(pool, "a", A + B)
    computed(pool, A + C)
    pages = kept(pool, "a", A + C)
    assert pool.num_kept_by == {"a": 6} and pool.num_kept == 6
    assert pool.match(root_key(""), chain(A + B))[:3] == pages[:3], "what was edited away is cached like any other"
    table: list[int] = []
    pool.grow(table, 13)
    assert len(pool.match(root_key(""), chain(A + C))) == 6 and len(pool.match(root_key(""), chain(A + B))) == 3
    pool.release(table)
    kept(pool, "a", [])
    assert (pool.num_kept, pool.num_cached) == (0, 6)


def test_together_sessions_keep_so_many_pages_and_the_oldest_lose_their_ends():
    pool = PagePool(20)
    for session, tokens in (("a", A), ("b", B), ("c", C)):
        computed(pool, tokens)
        kept(pool, session, tokens, most=5)
    assert pool.num_kept_by == {"b": 2, "c": 3}
    assert pool.num_cached == 9, "they stay cached until somebody wants them"
    kept(pool, "d", A + B + C, most=5)
    assert pool.num_kept <= 5
    kept(pool, "c", C, most=0)
    assert pool.num_kept == 0


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
                hit = pool.find(root_key(""), chain(said[name]))
                table: list[int] = []
                if pool.share(table, hit, len(said[name]) // SIZE - len(hit), 0):
                    publish(pool, table, said[name][: len(table) * SIZE])
                    running.append(table)
            case 2 | 3 if running:
                pool.release(running.pop(rng.randrange(len(running))))
            case 4:
                pool.keep(name, pool.match(root_key(""), chain(said[name])), rng.choice((0, 6, 12, 30)))
            case 5 if rng.random() < 0.3:
                pool.forget(name)
        pool.check(running)


def test_the_keys_of_a_very_long_prompt_are_let_go_one_after_the_other() -> None:
    """A chain that is freed by recursion, a key within the key after it, overflows the stack and ends the process."""
    program = (
        "from jaxinfer.engine.page_keys import PageKey, root_key\n"
        "key = root_key('')\n"
        "for _ in range(1_000_000):\n"
        "    key = PageKey(b'', b'', key)\n"
        "del key\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
