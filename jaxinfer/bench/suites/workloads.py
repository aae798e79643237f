"""The five serving workloads of paladin8/infer as lists of requests: who comes when, how long, with what beginning.

Source: benchmarks/bench_serving.py of that repository. Lengths and arrivals are drawn from one seed; ours are exact
token counts, theirs are texts cut to four characters a token.
"""

import dataclasses
import random

from jaxinfer.bench.load import Ask
from jaxinfer.bench.suites.job import SuiteJob

SEED = 42
SHARED_TOKENS = 1024


@dataclasses.dataclass(frozen=True)
class Workload:
    """Requests and how many may be under way, 0 for all of them. schema: of every answer, in JSON; empty for none."""

    name: str
    asks: tuple[Ask, ...]
    concurrency: int = 0
    schema: str = ""

    @property
    def longest(self) -> int:
        """Tokens of the largest request, prompt and answer."""
        return max(ask.input_tokens + ask.output_tokens for ask in self.asks)

    def within(self, tokens: int) -> "Workload":
        """The same where nothing is longer than `tokens`: prompts are cut, and answers if that is not enough."""

        def cut(ask: Ask) -> Ask:
            output = min(ask.output_tokens, tokens // 2)
            prompt = min(ask.input_tokens, tokens - output)
            return Ask(ask.after_s, prompt, output, min(ask.shared_tokens, prompt - 1))

        return dataclasses.replace(self, asks=tuple(map(cut, self.asks)))


def workloads(job: SuiteJob) -> dict[str, Workload]:
    """All five, by name."""
    makers = (baseline, continuous_batching, paged_attention, chunked_prefill, prefix_caching)
    return {made.name: made for maker in makers for made in [maker(job, random.Random(SEED))]}


def baseline(job: SuiteJob, draw: random.Random) -> Workload:
    asks = [Ask(0.0, job.tokens(256), job.tokens(256)) for _ in range(job.requests(10))]
    return Workload("baseline", tuple(asks), concurrency=1)


def continuous_batching(job: SuiteJob, draw: random.Random) -> Workload:
    count = job.requests(32)
    asks = [Ask(number / 4, _tokens(job, draw, 64, 512), _tokens(job, draw, 64, 256)) for number in range(count)]
    return Workload("continuous batching", tuple(asks))


def paged_attention(job: SuiteJob, draw: random.Random) -> Workload:
    count = job.requests(48)
    asks = [Ask(0.0, _tokens(job, draw, 128, 384), _tokens(job, draw, 128, 256)) for _ in range(count)]
    return Workload("paged attention", tuple(asks))


def chunked_prefill(job: SuiteJob, draw: random.Random) -> Workload:
    asks, after_s = [], 0.0
    for number in range(job.requests(48)):
        prompt = _tokens(job, draw, 64, 128) if number % 4 == 3 else _tokens(job, draw, 1024, 2048)
        asks.append(Ask(after_s, prompt, _tokens(job, draw, 64, 256)))
        after_s += draw.expovariate(6)
    return Workload("chunked prefill", tuple(asks))


def prefix_caching(job: SuiteJob, draw: random.Random) -> Workload:
    count, shared = job.requests(48), job.tokens(SHARED_TOKENS)
    asks = [Ask(number / 8, shared + _tokens(job, draw, 32, 128), job.tokens(256), shared) for number in range(count)]
    return Workload("prefix caching", tuple(asks))


def _tokens(job: SuiteJob, draw: random.Random, least: int, most: int) -> int:
    return job.tokens(draw.randint(least, most))
