"""What every suite works with: the model, how much of each table is wanted, and one measured call."""

import dataclasses
import statistics
from collections.abc import Sequence

from jaxinfer.bench.chart import Chart
from jaxinfer.bench.latency import GREEDY, Say, generate
from jaxinfer.bench.machine import MachineLimits
from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.report import Table
from jaxinfer.bench.work import ModelWork
from jaxinfer.config import EngineConfig
from jaxinfer.llm.llm import LLM
from jaxinfer.llm.outputs import RequestOutput
from jaxinfer.protocol.sampling import SamplingParams

LEAST_TOKENS, LEAST_REQUESTS = 4, 2


@dataclasses.dataclass(frozen=True)
class SuiteJob:
    """A model on a device. shrink: every length and number of requests is divided by it.    runs: of each figure.

    vocab_size: of the model, below which random ids are drawn.
    """

    config: EngineConfig
    vocab_size: int
    work: ModelWork
    limits: MachineLimits
    say: Say
    shrink: int = 1
    runs: int = 3

    def tokens(self, count: int) -> int:
        return max(LEAST_TOKENS, count // self.shrink)

    def requests(self, count: int) -> int:
        return max(LEAST_REQUESTS, count // self.shrink)


@dataclasses.dataclass(frozen=True)
class Found:
    """What a suite says. notes: how its authors count, and where that misleads."""

    tables: Sequence[Table]
    charts: Sequence[Chart]
    notes: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Calls:
    """Calls of LLM.generate with the same shape: seconds of each until its last prompt had a token, and in all."""

    batch: int
    prompt: int
    output: int
    first_s: tuple[float, ...]
    whole_s: tuple[float, ...]
    cached_tokens: int

    @property
    def prefill_s(self) -> float:
        return statistics.fmean(self.first_s)

    @property
    def all_s(self) -> float:
        return statistics.fmean(self.whole_s)

    @property
    def decode_s(self) -> float:
        """Of output - 1 steps."""
        return self.all_s - self.prefill_s

    @property
    def step_s(self) -> float:
        return self.decode_s / (self.output - 1)

    @property
    def spread(self) -> float:
        """Of the whole calls: (longest - shortest) / mean."""
        return (max(self.whole_s) - min(self.whole_s)) / self.all_s

    @property
    def strict_rate(self) -> float:
        """Tokens per second that decode steps made: the first token of each answer was its prompt's."""
        return self.batch / self.step_s

    def matmul_share(self, job: SuiteJob) -> float:
        """Of the prompts' own work, by the time until the last of them had a token."""
        return job.work.prefill_flops(self.batch, self.prompt) / self.prefill_s / job.limits.flops

    def bandwidth_share(self, job: SuiteJob) -> float:
        read = job.work.decode_bytes(self.batch, self.prompt + self.output / 2)
        return read / self.step_s / job.limits.bytes_per_s


def call(
    llm: LLM,
    prompts: Prompts,
    batch: int,
    prompt: int,
    output: int,
    runs: int,
    drawn: SamplingParams = GREEDY,
    beginning: Sequence[int] = (),
) -> Calls | None:
    """Measure `runs` calls of fresh prompts after one that is not counted; None where they do not fit the context.

    beginning: of every prompt, the same in all calls.
    """
    if prompt + output > llm.info.max_model_len:
        return None

    def once() -> tuple[float, list[RequestOutput]]:
        fresh = prompts.many(batch, prompt - len(beginning))
        return generate(llm, [[*beginning, *ids] for ids in fresh], output, drawn)

    once()
    found = [once() for _ in range(runs)]
    metrics = [[one.metrics for one in outputs] for _, outputs in found]
    return Calls(
        batch,
        prompt,
        output,
        tuple(max(one.time_to_first_token_s for one in ones) for ones in metrics),
        tuple(seconds for seconds, _ in found),
        sum(one.cached_tokens for ones in metrics for one in ones),
    )
