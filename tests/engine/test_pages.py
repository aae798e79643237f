"""PagePool: ownership, keys and reuse, without a scheduler."""

import random

import pytest

from jaxinfer.engine import pages
from jaxinfer.engine.pages import PageKey, PagePool, next_key, root_key

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
    assert not pool.share(table, hit, num_fresh=2, reserve=1)
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
    pool.share(first, pool.match(root_key(""), chain([1, 2, 3, 4])), 0, 0)
    pool.release(first)
    pool.grow(second, 1)
    assert pool.match(root_key(""), chain([1, 2, 3, 4]))
    assert not pool.match(root_key(""), chain([5, 6, 7, 8]))


def test_a_shared_page_is_freed_by_its_last_owner():
    pool, table = filled(4, list(range(8)))
    other: list[int] = []
    pool.share(other, table, num_fresh=0, reserve=0)
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
    monkeypatch.setattr(pages, "page_digest", lambda parent, tokens: bytes(16))
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
            hit = pool.match(root_key(""), chain(tokens))
            assert [pool.key_of(page).tokens for page in hit] == [key.tokens for key in chain(tokens)[: len(hit)]]
            table: list[int] = []
            if pool.share(table, hit, len(tokens) // SIZE - len(hit), reserve=0):
                tables.append((table, tokens))
        elif tables:
            table, tokens = tables.pop(rng.randrange(len(tables)))
            if rng.random() < 0.7:
                publish(pool, table, tokens)
            pool.release(table)
        pool.check(table for table, _ in tables)
