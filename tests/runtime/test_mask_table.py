"""MaskTable: what lies on the device is what was put there for a key, however many come, and nothing goes up twice."""

import random

import numpy as np
import pytest

from jaxinfer.runtime import mask_table
from jaxinfer.runtime.mask_table import ANY, MaskTable

VOCAB, ROWS = 64, 4


@pytest.fixture
def table(monkeypatch):
    """With room for five."""
    monkeypatch.setattr(mask_table, "mask_rows", lambda vocab_size, max_num_seqs: (6, max_num_seqs))
    return MaskTable(VOCAB, ROWS)


def mask_of(key):
    """Every seventh has the same."""
    key = key % 7 if key < 100 else key
    return np.random.default_rng(key).integers(-(2**31), 2**31, VOCAB // 32).astype(np.int32)


@pytest.mark.parametrize("seed", range(20))
def test_each_row_of_a_step_finds_its_mask_on_the_device(table, monkeypatch, seed):
    draw, device, num_new, num_asked = random.Random(seed), {}, 0, 0
    monkeypatch.setattr(mask_table, "MAX_KEYS", draw.choice([5, 9, 1000]))
    monkeypatch.setattr(mask_table, "hash", draw.choice([hash, lambda content: content[0] % 3]), raising=False)
    for _ in range(300):
        if draw.random() < 0.02:
            table.clear()
            device = {}
        keys = draw.sample(range(draw.choice([4, 5, 40])), draw.randint(0, ROWS))
        keys += draw.choices(keys, k=ROWS - len(keys)) if keys else []  # two at the same spot
        rows = table.begin(keys)
        for i, key in enumerate(keys):
            if rows[i] == ANY:
                row = table.add(key, mask_of(key))
                rows = [row if other == key else old for other, old in zip(keys, rows, strict=True)]
        own = [table.put(i, mask_of(100 + i)) for i in range(ROWS - len(keys))]
        masks = table.masks([*rows, *own, ANY])
        assert len({*masks.news.tolist()}) == len(masks.news)
        num_new, num_asked = num_new + len(masks.news) - len(own), num_asked + len(keys)
        device |= dict(zip(masks.news.tolist(), masks.words.copy(), strict=True))
        wanted = [*map(mask_of, keys), *(mask_of(100 + i) for i in range(len(own)))]
        for row, mask in zip(masks.rows.tolist()[:-1], wanted, strict=True):
            np.testing.assert_array_equal(device[row], mask)
            np.testing.assert_array_equal(table.words[row], mask)
        assert masks.rows[-1] == ANY and 0 not in device
        if draw.random() < 0.5:
            masks.words[:] = 0  # theirs, and of nobody else
    assert num_new < num_asked


def test_what_nobody_asked_for_longest_goes_first(table):
    for key in range(5):
        table.begin([])
        table.add(key, mask_of(key))
    table.begin([0, 2])
    table.add(5, mask_of(5))
    assert [row == ANY for row in table.begin(range(6))] == [False, True, False, False, False, False]


def test_what_is_the_same_goes_up_once_and_is_forgotten_with_all_its_keys(table):
    table.begin([])
    assert table.add(1, mask_of(1)) == table.add(8, mask_of(8)) == table.add(15, mask_of(15))
    assert len(table.masks([]).news) == 1
    for key in (2, 3, 4, 5, 6):
        table.begin([])
        table.add(key, mask_of(key))
    assert table.begin([1, 8, 15, 2]) == [ANY, ANY, ANY, 2]


def test_masks_of_one_token_are_known(table):
    cases = {1: [5], 2: [5, 6], 3: [5, 40], 4: [31], 5: []}
    for key, tokens in cases.items():
        flags = np.zeros(VOCAB, bool)
        flags[tokens] = True
        table.begin([])
        row = table.add(key, np.packbits(flags, bitorder="little").view(np.int32))
        assert table.only_one[row] == (len(tokens) == 1)
