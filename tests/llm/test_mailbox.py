"""What a reader that falls behind finds: everything, in order, in as few deltas as can be."""

import asyncio

from jaxinfer.llm.mailbox import Mailbox
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.logprobs import TokenLogprob


def fetched(*deltas: Delta) -> list[Delta]:
    """All that is found when the reader comes after they have."""

    async def run() -> list[Delta]:
        mailbox, found = Mailbox(), []
        were_empty = [mailbox.put(delta) for delta in deltas]
        assert were_empty == [True] + [False] * (len(deltas) - 1)
        mailbox.wake()
        while mailbox._waiting:
            found.append(await mailbox.get())
        return found

    return asyncio.run(run())


def entry(token_id: int) -> TokenLogprob:
    return TokenLogprob(token_id, b"x", -1.0, 1)


def test_what_waits_of_a_choice_becomes_one_delta():
    first = Delta(0, "a", [1], logprobs=[entry(1)], prompt_logprobs=[entry(9)], prompt_tokens=3)
    last = Delta(0, "bc", [2, 3], "stop", "bc", cached_tokens=2, logprobs=[entry(2), entry(3)], prompt_tokens=3)
    assert fetched(first, last) == [
        Delta(0, "abc", [1, 2, 3], "stop", "bc", 3, 2, None, None, [entry(1), entry(2), entry(3)], [entry(9)])
    ]


def test_choices_stay_apart_and_the_one_that_waits_longest_comes_first():
    found = fetched(Delta(1, "a", [1]), Delta(0, "b", [2]), Delta(1, "c", [3]))
    assert [(delta.index, delta.text) for delta in found] == [(1, "ac"), (0, "b")]


def test_an_error_comes_after_the_text_before_it():
    found = fetched(Delta(0, "a", [1]), Delta(0, "b", [2]), Delta(0, "", [], "error", error="broken", code="c"))
    assert [(delta.text, delta.finish_reason, delta.error) for delta in found] == [
        ("ab", None, None), ("", "error", "broken"),
    ]  # fmt: skip


def test_a_reader_who_keeps_up_gets_each_by_itself_and_waits_for_the_next():
    async def run() -> list[str]:
        mailbox, texts = Mailbox(), []

        async def read() -> None:
            while len(texts) < 3:
                texts.append((await mailbox.get()).text)

        reader = asyncio.create_task(read())
        for text in "abc":
            await asyncio.sleep(0)
            assert mailbox.put(Delta(0, text, [1]))
            mailbox.wake()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.wait_for(reader, 5)
        return texts

    assert asyncio.run(run()) == ["a", "b", "c"]
