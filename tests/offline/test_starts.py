"""Rows that begin alike start one after another and wait for the pages that one of them computes; nobody starves."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.offline.starts import LONGEST_WAIT, Starts

LONG = list(range(100, 110))


class Rows:
    """Rows that wait for their start, and those that have got it, in order."""

    def __init__(self, most: int = 2, page_size: int = 4, num_pages: int = 100) -> None:
        self.starts = Starts(most, page_size, num_pages)
        self.started: list[int] = []
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def add(self, row: int, ids: list[int], choices: int = 1, salt: str = "") -> None:
        async def wait() -> None:
            await self.starts.wait(row, self.starts.chain(ids, salt), choices)
            self.started.append(row)

        self.tasks[row] = asyncio.create_task(wait())

    async def settle(self) -> list[int]:
        for _ in range(4):
            await asyncio.sleep(0)
        return self.started


def test_a_page_is_waited_for_and_rows_without_it_pass():
    async def test() -> None:
        rows = Rows(most=8)
        for row, ids in enumerate([[*LONG, 1], [*LONG, 2], [1, 2, 3], [*LONG[:6], 9]]):
            rows.add(row, ids)
        assert sorted(await rows.settle()) == [0, 2]  # 1 and 3 begin as 0 does
        rows.starts.computed(0)
        assert sorted(await rows.settle()) == [0, 1, 2, 3]

    asyncio.run(test())


def test_what_was_computed_before_is_waited_for_by_nobody():
    async def test() -> None:
        rows = Rows(most=8)
        rows.add(0, [*LONG, 1])
        await rows.settle()
        rows.starts.computed(0)
        rows.starts.end(0, 1)
        for row in (1, 2, 3):
            rows.add(row, [*LONG, row])
        assert sorted(await rows.settle()) == [0, 1, 2, 3]

    asyncio.run(test())


def test_a_row_that_ends_early_leaves_its_pages_to_the_next():
    async def test() -> None:
        rows = Rows(most=8)
        rows.add(0, LONG)
        rows.add(1, LONG)
        assert await rows.settle() == [0]
        rows.starts.end(0, 1)
        assert await rows.settle() == [0, 1]

    asyncio.run(test())


def test_salts_and_a_missing_cache_keep_rows_apart():
    async def test() -> None:
        rows = Rows(most=8)
        rows.add(0, LONG, salt="a")
        rows.add(1, LONG, salt="b")
        assert sorted(await rows.settle()) == [0, 1]
        without = Rows(most=8, page_size=0)
        without.add(0, LONG)
        without.add(1, LONG)
        assert sorted(await without.settle()) == [0, 1]

    asyncio.run(test())


def test_neighbours_start_one_after_another():
    async def test() -> None:
        rows = Rows(most=1)
        rows.add(0, [9])
        await rows.settle()
        first, second = LONG, [*reversed(LONG)]
        for row in range(1, 9):
            rows.add(row, [*(first if row % 2 else second), row])
        for _ in range(8):
            row = (await rows.settle())[-1]
            rows.starts.computed(row)
            rows.starts.end(row, 1)
        order = (await rows.settle())[1:]
        assert sorted(order[:4]) in ([1, 3, 5, 7], [2, 4, 6, 8])

    asyncio.run(test())


def test_rows_that_sort_before_do_not_come_between_neighbours():
    async def test() -> None:
        rows = Rows(most=1)
        low, high = sorted((LONG, [*reversed(LONG)]), key=lambda ids: rows.starts.chain(ids, ""))
        for row, ids in enumerate([high, high, low, high]):
            rows.add(row, [*ids, row])
            await rows.settle()
        for _ in range(4):
            row = (await rows.settle())[-1]
            rows.starts.computed(row)
            rows.starts.end(row, 1)
        assert rows.started == [0, 1, 3, 2]

    asyncio.run(test())


def test_short_prompts_start_in_the_order_of_the_rows():
    async def test() -> None:
        rows = Rows(most=1)
        for row in range(10):
            rows.add(row, [row])
        for _ in range(10):
            rows.starts.end((await rows.settle())[-1], 1)
        assert rows.started == list(range(10))

    asyncio.run(test())


def test_the_oldest_is_not_passed_over_for_ever():
    async def test() -> None:
        rows = Rows(most=1)
        chains = sorted(([*LONG, 0], [*reversed(LONG), 0]), key=lambda ids: rows.starts.chain(ids, ""))
        rows.add(0, chains[1])
        await rows.settle()
        rows.add(1, chains[0])  # before the cursor, while rows behind it keep coming
        for row in range(2, 3 * LONGEST_WAIT):
            rows.add(row, [*chains[1][:-1], row])
            last = (await rows.settle())[-1]
            rows.starts.computed(last)
            rows.starts.end(last, 1)
        assert 1 in rows.started

    asyncio.run(test())


def test_a_cancelled_row_takes_no_place():
    async def test() -> None:
        rows = Rows(most=1)
        for row in range(3):
            rows.add(row, [row])
        await rows.settle()
        rows.tasks[1].cancel()
        await rows.settle()
        rows.starts.end(0, 1)
        assert await rows.settle() == [0, 2]

    asyncio.run(test())


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=12), st.integers(1, 5)), min_size=1, max_size=30
    ),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_every_row_starts_and_the_bound_holds(wanted, most, random):
    async def test() -> None:
        rows = Rows(most=most, page_size=2, num_pages=3)
        for row, (ids, choices) in enumerate(wanted):
            rows.add(row, ids, choices)
        ended: set[int] = set()
        while len(ended) < len(wanted):
            running = sorted(set(await rows.settle()) - ended)
            assert running, "nothing runs although rows wait"
            assert len(running) == 1 or sum(wanted[row][1] for row in running) <= most
            row = random.choice(running)
            if random.random() < 0.5:
                rows.starts.computed(row)
            rows.starts.end(row, wanted[row][1])
            ended.add(row)

    asyncio.run(test())


def test_a_prompt_of_whole_pages_keeps_its_last_to_itself():
    starts = Starts(1, 4, 10)
    assert [len(starts.chain(range(length), "")) for length in (1, 4, 5, 8, 9)] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("most", [1, 3])
def test_a_row_larger_than_the_bound_runs_alone(most):
    async def test() -> None:
        rows = Rows(most=most)
        rows.add(0, [1])
        rows.add(1, [2], choices=9)
        rows.add(2, [3])
        assert await rows.settle() == [0]
        rows.starts.end(0, 1)
        assert await rows.settle() == [0, 1]
        rows.starts.end(1, 9)
        assert await rows.settle() == [0, 1, 2]

    asyncio.run(test())
