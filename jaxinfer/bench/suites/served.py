"""Loading a server of our own with a suite's requests, through the client that `jaxinfer bench serve` uses."""

import asyncio
import re
from collections.abc import Sequence

import msgspec

from jaxinfer.bench.client import PATH, Results
from jaxinfer.bench.http_client import Outcome
from jaxinfer.bench.load import Load, shares
from jaxinfer.bench.program import Program
from jaxinfer.bench.report import Value, percentile
from jaxinfer.bench.serve import ask, drive, first_model, gaps_s, per_token_s, ttft_s
from jaxinfer.bench.suites.job import Job
from jaxinfer.errors import EngineError

PROCESSES = 4
COMPILATIONS = re.compile(rb"^jaxinfer:compilations_after_ready(?:_total)?(?:\{[^}]*\})? (\d+)", re.MULTILINE)


def load_on(program: Program, job: Job, **fields: object) -> Load:
    """Requests to this server; fields are Load's."""
    load = Load(**{"url": program.url, "model": "", "vocab_size": job.vocab_size, **fields})  # type: ignore[arg-type]
    return msgspec.structs.replace(load, model=first_model(load.target))


def outcomes_of(load: Load, warm_up: int = 2) -> Results:
    """What every request saw, after warm-up requests one by one. Raises EngineError when one was not answered."""
    replies = [asyncio.run(ask(load.target, "POST", PATH, load.body(-1 - number))) for number in range(warm_up)]
    results = drive(shares(load, PROCESSES))
    everybody = [*results.outcomes, *([results.interruption] if results.interruption else [])]
    errors = [reply.error for reply in replies if reply.error] + [one.error for one in everybody if one.error]
    if errors:
        raise EngineError(f"every request of a suite must be answered, {len(errors)} were not: {errors[0]}")
    return results


def compilations(program: Program, load: Load) -> int:
    """How many steps the server has compiled since it was ready, as its metrics say. Raises EngineError."""
    reply = asyncio.run(ask(load.target, "GET", "/metrics"))
    found = COMPILATIONS.search(reply.body)
    if reply.error or found is None:
        raise EngineError(
            f"{program.url}/metrics must tell of compilations, it said {reply.error or 'nothing of them'}"
        )
    return int(found[1])


def ms(values: Sequence[float], *percents: float) -> list[Value]:
    """Percentiles of seconds, in ms."""
    found = [percentile(values, percent) for percent in percents]
    return [None if each is None else each * 1e3 for each in found]


def first_tokens(outcomes: Sequence[Outcome]) -> list[float]:
    return [ttft_s(one) for one in outcomes]


def gaps(outcomes: Sequence[Outcome]) -> list[float]:
    return [gap for one in outcomes for gap in gaps_s(one)]


def wholes(outcomes: Sequence[Outcome]) -> list[float]:
    return [one.times_s[-1] - one.sent_s for one in outcomes]


def paces(outcomes: Sequence[Outcome]) -> list[float]:
    return [pace for one in outcomes if (pace := per_token_s(one)) is not None]


def cached(outcomes: Sequence[Outcome]) -> Value:
    """Tokens of a prompt that were found in the prefix cache, on average."""
    counts = [one.cached_tokens for one in outcomes if one.cached_tokens is not None]
    return sum(counts) / len(counts) if counts else None


def max_model_len(load: Load) -> int:
    """Of the server's first model. Raises EngineError."""
    reply = asyncio.run(ask(load.target, "GET", "/v1/models"))
    if reply.error:
        raise EngineError(f"{load.url}/v1/models must answer, it said: {reply.error}")
    return int(msgspec.json.decode(reply.body)["data"][0]["max_model_len"])
