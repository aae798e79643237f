"""How well a model foretells a text: the log-probability of each of its tokens, and what follows from them all."""

import asyncio
import dataclasses
import itertools
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

from jaxinfer.errors import EngineError
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.logprobs import TokenLogprob
from jaxinfer.protocol.sampling import SamplingParams

LOGPROBS = SamplingParams(temperature=0, prompt_logprobs=0, detokenize=False)


class ScoringModel(Protocol):
    """What this needs of an AsyncLLM."""

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, request_id: str, prompt_only: bool
    ) -> AsyncIterator[Delta]: ...


@dataclasses.dataclass(frozen=True, slots=True)
class ScoredWindow:
    """Tokens begin to end - 1 of a text are read together; those from `scored` on are answered for."""

    begin: int
    scored: int
    end: int


def windows(num_tokens: int, width: int, stride: int) -> Iterator[ScoredWindow]:
    """Windows of `width` tokens, `stride` apart, that score each token but the first once; 0 < stride < width."""
    assert 0 < stride < width, "each window must know what comes before its first scored token"
    scored = 1
    for begin in itertools.count(0, stride):
        if scored >= num_tokens:
            return
        yield (window := ScoredWindow(begin, scored, min(begin + width, num_tokens)))
        scored = window.end


@dataclasses.dataclass(frozen=True)
class Fit:
    """How well a text was foretold. sum, sum_squares: of the negative log-probabilities, in nats, of num_tokens tokens.

    num_bytes: of the text as UTF-8.    Fits add up.
    """

    num_tokens: int = 0
    num_bytes: int = 0
    sum: float = 0.0
    sum_squares: float = 0.0

    @classmethod
    def of(cls, logprobs: Sequence[float], num_bytes: int) -> "Fit":
        return cls(len(logprobs), num_bytes, -math.fsum(logprobs), math.fsum(value * value for value in logprobs))

    def __add__(self, other: "Fit") -> "Fit":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Fit(*(mine + theirs for mine, theirs in pairs))

    @property
    def mean(self) -> float:
        """Nats per token; NaN of none."""
        return self.sum / self.num_tokens if self.num_tokens else math.nan

    @property
    def standard_error(self) -> float:
        """Of the mean, as if tokens were independent; NaN of fewer than two."""
        if self.num_tokens < 2:
            return math.nan
        variance = (self.sum_squares - self.num_tokens * self.mean**2) / (self.num_tokens - 1)
        return math.sqrt(max(variance, 0.0) / self.num_tokens)

    @property
    def perplexity(self) -> float:
        return math.inf if self.mean > 700 else math.exp(self.mean)

    @property
    def bits_per_byte(self) -> float:
        """What a compressor that used the model would need; comparable between tokenizers."""
        return self.sum / math.log(2) / self.num_bytes if self.num_bytes else math.nan


class Reader:
    """Reads texts with a model, at most `at_once` windows at a time."""

    def __init__(self, model: ScoringModel, width: int, stride: int, at_once: int) -> None:
        self._model = model
        self._width = width
        self._stride = stride
        self._room = asyncio.Semaphore(at_once)
        self._numbers = itertools.count()

    async def read(self, ids: Sequence[int]) -> list[TokenLogprob]:
        """Of each token but the first, under those before it in its window. Raises EngineError."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._read(ids, window)) for window in windows(len(ids), self._width, self._stride)
            ]
        return list(itertools.chain.from_iterable(task.result() for task in tasks))

    async def _read(self, ids: Sequence[int], window: ScoredWindow) -> list[TokenLogprob]:
        async with self._room:
            name = f"window-{next(self._numbers)}"
            part = ids[window.begin : window.end]
            found: list[TokenLogprob] = []
            async for delta in await self._model.generate(part, LOGPROBS, request_id=name, prompt_only=True):
                if delta.error is not None:
                    fact = f"tokens {window.begin} to {window.end} were not: {delta.error}"
                    raise EngineError(f"every window must be read, {fact}; see the log above")
                found += (delta.prompt_logprobs or [])[window.scored - window.begin :]
        assert len(found) == window.end - window.scored, "a logprob for each scored token"
        return found
