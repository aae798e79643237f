"""Loading a server of our own with a suite's requests, through the client that `jaxinfer bench serve` uses."""

import re
import statistics
from collections.abc import Sequence

from jaxinfer.bench.client import PATH, ClientResults
from jaxinfer.bench.http_client import Target
from jaxinfer.bench.load import Load, shares
from jaxinfer.bench.program import ReadyServer
from jaxinfer.bench.report import Value, percentile
from jaxinfer.bench.serve import MODELS, ask_once, drive, first_model, look_up, models_of
from jaxinfer.bench.suites.job import SuiteJob
from jaxinfer.errors import EngineError

PROCESSES = 4
COMPILATIONS = re.compile(rb"^jaxinfer:compilations_after_ready(?:_total)?(?:\{[^}]*\})? (\d+)", re.MULTILINE)


def load_on(program: ReadyServer, job: SuiteJob, **fields: object) -> Load:
    """Requests to this server; fields are Load's."""
    model = first_model(program.target)
    return Load(**{"url": program.url, "model": model, "vocab_size": job.vocab_size, **fields})  # type: ignore[arg-type]


def outcomes_of(load: Load, warm_up: int = 2) -> ClientResults:
    """What every request saw, after warm-up requests one by one. Raises EngineError when one was not answered."""
    replies = [ask_once(load.target, "POST", PATH, load.body(-1 - number)) for number in range(warm_up)]
    results = drive(shares(load, PROCESSES))
    everybody = [*results.outcomes, *([results.interruption] if results.interruption else [])]
    errors = [reply.error for reply in replies if reply.error] + [one.error for one in everybody if one.error]
    if errors:
        raise EngineError(f"every request of a suite must be answered, {len(errors)} were not: {errors[0]}")
    return results


def compilations(target: Target) -> int:
    """How many steps the server has compiled since it was ready, as its metrics say. Raises EngineError."""
    reply = look_up(target, "/metrics")
    found = COMPILATIONS.search(reply.body)
    if reply.error or found is None:
        raise EngineError(
            f"{target.base}/metrics must tell of compilations, it said {reply.error or 'nothing of them'}"
        )
    return int(found[1])


def ms(values: Sequence[float], *percents: float) -> list[Value]:
    """Percentiles of seconds, in ms."""
    found = [percentile(values, percent) for percent in percents]
    return [None if each is None else each * 1e3 for each in found]


def mean_ms(values: Sequence[float]) -> Value:
    """Of seconds."""
    return statistics.fmean(values) * 1e3 if values else None


def std_ms(values: Sequence[float]) -> Value:
    """Of seconds, of these values themselves (not of what they are a sample of), as numpy's std is."""
    return statistics.pstdev(values) * 1e3 if values else None


def max_model_len(target: Target) -> int:
    """Of the server's first model. Raises EngineError."""
    card = models_of(target, look_up(target, MODELS))[0]
    if card.max_model_len is None:
        raise EngineError(f"{target.base}/v1/models must tell max_model_len, it does not")
    return card.max_model_len
