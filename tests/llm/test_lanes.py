"""Tokenizing of short texts goes on while long ones take their time."""

import asyncio
import threading

from jaxinfer.llm.lanes import AT_ONCE_CHARS, LONG_CHARS, Lanes


def test_what_is_short_does_not_wait_for_what_is_long():
    async def run() -> None:
        lanes, gate = Lanes(), threading.Event()
        long = [asyncio.create_task(lanes.run(gate.wait, LONG_CHARS)) for _ in range(4)]
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert [await lanes.run(lambda: i, LONG_CHARS - 1) for i in range(8)] == list(range(8))  # noqa: B023
        assert not any(task.done() for task in long)
        gate.set()
        assert await asyncio.gather(*long) == [True] * 4
        lanes.close()

    asyncio.run(run())


def test_a_few_words_wait_for_no_thread_and_get_the_same_ids(served):
    async def run(llm) -> None:
        gate, text = threading.Event(), "a" * AT_ONCE_CHARS
        busy = [asyncio.create_task(llm._lanes.run(gate.wait, LONG_CHARS - 1)) for _ in range(8)]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(10):
                ids = await llm.encode(text)
            waits = asyncio.create_task(llm.encode(text + "a"))
            await asyncio.sleep(0.05)
            assert not waits.done(), "one more goes to a thread"
        finally:
            gate.set()
            await asyncio.gather(*busy)
        assert (await waits)[: len(ids) // 2] == ids[: len(ids) // 2]

    served.run(run)


def test_a_few_words_that_may_take_long_wait_for_a_thread(served, monkeypatch):
    async def run(llm) -> None:
        gate = threading.Event()

        class Slow:
            def encode(self, text: str, **asked: bool) -> list[int]:
                return [1] if gate.wait(10) else []

        monkeypatch.setattr(llm._model.text.tokenizer, "_process", Slow())
        waits = asyncio.create_task(llm.encode("a"))
        await asyncio.sleep(0.05)
        assert not waits.done()
        gate.set()
        assert await waits == [1]

    served.run(run)


def test_short_texts_go_on_beside_several_that_processes_encode():
    async def run() -> None:
        lanes, gate = Lanes(is_linear=False), threading.Event()
        slow = [asyncio.create_task(lanes.run(gate.wait, LONG_CHARS - 1)) for _ in range(6)]
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert await lanes.run(lambda: "short", 1) == "short"
        gate.set()
        await asyncio.gather(*slow)
        lanes.close()

    asyncio.run(run())


def test_what_is_given_up_before_its_turn_is_not_done():
    async def run() -> None:
        lanes, gate, done = Lanes(), threading.Event(), []
        first = asyncio.create_task(lanes.run(gate.wait, LONG_CHARS))
        left = asyncio.create_task(lanes.run(lambda: done.append(1), LONG_CHARS))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait([left])
        gate.set()
        await first
        lanes.close()
        assert done == []

    asyncio.run(run())
