"""A model that says what a test wants: FakeLLM's script, by what it is asked."""

import asyncio
from collections.abc import Iterable

from jaxinfer.llm.types import Delta
from jaxinfer.protocol.sampling import SamplingParams
from tests.server.fakes import Step

Said = str | float | asyncio.Event | Exception


def steps(said: Iterable[Said], ids_each: int = 1) -> Iterable[Step]:
    """Each text is a delta; seconds are waited."""
    for piece in said:
        yield Delta(0, piece, [1] * ids_each) if isinstance(piece, str) else piece


class Scripted:
    """answers: by the last message. Anything else is answered with how often it has been asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Iterable[Said]] = {}
        self.asked: list[str] = []

    def __call__(self, prompt_ids: list[int], params: SamplingParams) -> Iterable[Step]:
        asked = bytes(prompt_ids).decode().rpartition("user:")[2].removesuffix("\nassistant:")
        self.asked.append(asked)
        yield from steps(self.answers.get(asked, (f"Answer {self.asked.count(asked)} ", f"to: {asked}")))
        yield Delta(0, "", [257], "stop")


def endless() -> Iterable[Said]:
    while True:
        yield "word "
        yield 0.01
