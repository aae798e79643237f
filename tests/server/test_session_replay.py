"""Conversations of twenty turns with edits and regenerations over a real float32 engine: with a session every answer is
that of the same request without one, and little but what is new is computed (A49).
"""

import asyncio
import dataclasses
import random
import time
from functools import partial
from pathlib import Path

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.core import Core
from jaxinfer.llm.generation import Generation, Job
from jaxinfer.llm.thread import EngineThread
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.server.sessions import Sessions, SessionTurn
from tests.support.checkpoints import write_checkpoint
from tests.support.engines import build, built_before

pytestmark = pytest.mark.slow

NUM_TURNS = 20
SIZE = 16
Messages = list[dict[str, str]]


@dataclasses.dataclass
class Said:
    """An answer and how much of its prompt was there."""

    prompt: list[int]
    token_ids: list[int]
    text: str
    cached: int


async def ask(
    llm: AsyncLLM, prompt: list[int], sampling: SamplingParams, salt: str = "", turn: SessionTurn | None = None
) -> Said:
    job = Job([prompt], sampling, 0, chat=True, salt=salt, arrived_s=time.monotonic(), turn=turn)
    said = Said(prompt, [], "", 0)
    generation = await Generation.start(llm, job)
    try:
        async for _, delta in generation.deltas():
            said.token_ids += delta.token_ids
            said.text += delta.text
            said.cached = delta.cached_tokens
    finally:
        await generation.close()
    return said


class Conversation:
    """What a person does: goes on, edits what was said, asks for another answer."""

    def __init__(self, number: int, llm: AsyncLLM, sessions: Sessions) -> None:
        self.name = f"conversation-{number}"
        self.rng = random.Random(number)
        later = [*("edit", "again", "reword") * 2, *("go on",) * (NUM_TURNS - 10)]
        self._kinds = ["go on"] * 4 + self.rng.sample(later, len(later))
        self.messages: Messages = []
        self.asked: list[tuple[Said, SamplingParams]] = []
        self._llm, self._sessions = llm, sessions

    async def run(self) -> None:
        for number in range(NUM_TURNS):
            self._change(number)
            prompt = await self._llm.render(self.messages)
            sampling = SamplingParams(temperature=self.rng.choice((0, 1)), seed=number, max_tokens=12, ignore_eos=True)
            turn = self._sessions.begin("", self.name)
            said = await ask(self._llm, prompt, sampling, turn=turn)
            self.asked.append((said, sampling))
            self.messages.append({"role": "assistant", "content": said.text})

    def _change(self, number: int) -> None:
        kind = self._kinds[number]
        if kind == "again":
            self.messages.pop()
            return
        if kind == "edit":
            least = min(number // 2, len(self.messages) - 1)
            del self.messages[self.rng.randrange(least, len(self.messages)) // 2 * 2 :]
        if kind == "reword":
            self.messages[-1] = {"role": "assistant", "content": "what it did not say"}
        words = " ".join(self.rng.choice(("seven", "plus", "five", "is", "ape", "noon")) for _ in range(8))
        self.messages.append({"role": "user", "content": words})

    async def replay(self) -> None:
        """The same requests without a session and without a cache."""
        for number, (said, sampling) in enumerate(self.asked):
            again = await ask(self._llm, said.prompt, sampling, salt=f"{self.name} {number}")
            assert again.cached == 0
            assert (said.token_ids, said.text) == (again.token_ids, again.text), number

    def check_computed(self) -> int:
        """Each turn computed its new tokens and at most a page. Returns how many those may be, answers included."""
        recorded: list[int] = []
        most = 0
        for said, _ in self.asked:
            pairs = zip(said.prompt, recorded, strict=False)
            common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(said.prompt), len(recorded)))
            assert len(said.prompt) - said.cached <= len(said.prompt) - common + SIZE
            recorded = said.prompt + said.token_ids
            most += len(recorded) - common + SIZE
        return most

    @property
    def num_pages(self) -> int:
        """At its longest."""
        return max(-(-(len(said.prompt) + len(said.token_ids)) // SIZE) for said, _ in self.asked)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, executables: Path) -> tuple[EngineConfig, Core]:
    """A context of 64 pages in a pool of 80, of which sessions keep at most 40."""
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", max_position_embeddings=1024)
    return build(folder, executables, max_model_len=1024, num_pages=81)


@pytest.fixture(scope="module")
def offloading(tmp_path_factory: pytest.TempPathFactory, executables: Path) -> tuple[EngineConfig, Core]:
    """The same with host memory for more than anybody says."""
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", max_position_embeddings=1024)
    return build(folder, executables, max_model_len=1024, num_pages=81, num_host_pages=1000)


async def talk(engine: tuple[EngineConfig, Core], num_people: int) -> tuple[int, int, list[Conversation]]:
    """Let so many people talk at the same time, then delete their sessions and replay. Returns how many preemptions
    and computed tokens their talk took, too.
    """
    config, core = engine
    llm = AsyncLLM(config, new_transport=partial(EngineThread, start_core=built_before(core)))
    await llm.start()
    try:
        before = llm.stats()
        sessions = Sessions(llm, 100, 1800.0)
        people = [Conversation(number, llm, sessions) for number in range(num_people)]
        await asyncio.gather(*(person.run() for person in people))
        preemptions = llm.stats().preemptions - before.preemptions
        computed = llm.stats().computed_tokens - before.computed_tokens
        assert sessions.counts() == {"busy": 0, "idle": num_people}
        assert 0 < llm.stats().pages_kept <= 40
        for session in sessions.of(""):
            assert session.turns == NUM_TURNS
            sessions.delete(session)
        await asyncio.gather(*(person.replay() for person in people))
        stats = llm.stats()
        assert (stats.pages_kept, stats.pages_kept_by, stats.pages_owned) == (0, {}, 0)
        assert (stats.host_pages, stats.host_pages_by) == (0, {})
        core.engine.check()
        return preemptions, computed, people
    finally:
        await llm.close()


def test_twenty_turns_are_as_without_a_session_and_compute_what_is_new(engine):
    preemptions, computed, (person,) = asyncio.run(talk(engine, 1))
    assert computed <= person.check_computed() + NUM_TURNS  # one step ahead of each answer's end
    assert preemptions == 0
    found = sum(said.cached for said, _ in person.asked)
    assert found > 0.8 * sum(len(said.prompt) for said, _ in person.asked)


def test_eight_conversations_in_a_quarter_of_the_pages_they_need_are_as_without_sessions(engine):
    preemptions, _, people = asyncio.run(talk(engine, 8))
    assert sum(person.num_pages for person in people) >= 4 * 80
    assert preemptions > 0


def test_eight_conversations_in_a_quarter_of_the_pages_they_need_compute_what_is_new_where_the_host_has_the_rest(
    offloading,
):
    preemptions, computed, people = asyncio.run(talk(offloading, 8))
    assert sum(person.num_pages for person in people) >= 4 * 80
    most = sum(person.check_computed() for person in people) + 8 * NUM_TURNS
    assert computed <= most + preemptions * 2 * SIZE, "who was preempted goes on from what the host has, too"
    _, core = offloading
    counters = core.engine.scheduler.counters
    assert counters.pages_saved > 1000 < counters.pages_loaded
    assert core.runner.compiles_after_ready == 0
