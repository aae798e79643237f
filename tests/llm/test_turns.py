"""Callbacks in turns: in order, few in a round, and whoever has nothing to do with them is served in between."""

import asyncio

from jaxinfer.llm.turns import Turns


def test_a_hundred_calls_are_made_in_order_four_in_a_round_of_the_loop():
    async def run() -> tuple[list[int], list[int]]:
        turns, made, seen = Turns(4), [], []
        for number in range(100):
            turns.take(lambda number=number: made.append(number))
        while len(made) < 100:
            seen.append(len(made))
            await asyncio.sleep(0)
        return made, [later - earlier for earlier, later in zip(seen, [*seen[1:], 100], strict=True)]

    made, in_a_round = asyncio.run(run())
    assert made == list(range(100))
    assert max(in_a_round) == 4


def test_a_call_is_made_at_once_when_there_are_few_and_the_next_round_has_room_again():
    async def run() -> list[str]:
        turns, made = Turns(2), []
        for name in "abc":
            turns.take(lambda name=name: made.append(name))
        assert made == ["a", "b"]
        await asyncio.sleep(0)
        assert made == ["a", "b", "c"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for name in "de":
            turns.take(lambda name=name: made.append(name))
        return made

    assert asyncio.run(run()) == list("abcde")


def test_who_waits_for_a_turn_and_leaves_holds_up_nobody():
    async def run() -> list[int]:
        turns, passed = Turns(1), []

        async def come(number: int) -> None:
            await turns.wait()
            passed.append(number)

        tasks = [asyncio.create_task(come(number)) for number in range(5)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return passed

    assert asyncio.run(run()) == [0, 1, 3, 4]
