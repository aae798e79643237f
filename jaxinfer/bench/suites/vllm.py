"""The three benchmarks of vLLM's command line: one batch's latency, offline throughput, a server under load.

Source: vllm/benchmarks/latency.py, throughput.py and serve.py of github.com/vllm-project/vllm, with their defaults.
"""

from collections.abc import Sequence

from jaxinfer.bench import throughput
from jaxinfer.bench.chart import Chart
from jaxinfer.bench.http_client import Outcome
from jaxinfer.bench.outcomes import (
    duration_s,
    first_tokens,
    gaps,
    mean_cached,
    most_at_once,
    most_in_a_second,
    output_rate,
    paces,
    wholes,
)
from jaxinfer.bench.program import ReadyServer
from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.report import Table, Value, percentile
from jaxinfer.bench.serve import Goals
from jaxinfer.bench.steps import Timed
from jaxinfer.bench.suites import served
from jaxinfer.bench.suites.job import Found, SuiteJob, call

LATENCY_PROMPT, LATENCY_OUTPUT, LATENCY_BATCH, LATENCY_RUNS = 32, 128, 8, 30
PROMPT, OUTPUT, REQUESTS = 1024, 128, 1000
AT_ONCE = 64
LATENCY = (
    "batch x prompt, answer",
    "mean s, as vLLM counts",
    *(f"p{percent} s" for percent in (10, 25, 50, 75, 90, 99)),
    "first token ms",
    "of matmul %",
    "decode step ms",
    "decode tok/s strict",
    "of bandwidth %",
)
GOALS = Goals(ttft_ms=450.0, itl_ms=40.0)  # what MLPerf Inference asks of an interactive chat (Llama 2 70B)
SERVED = (
    "load",
    "requests/s",
    "goodput requests/s",
    "within the goals %",
    "output tok/s",
    "most output tokens in a second",
    "total tok/s",
    "of the serial roof %",
    "most requests at once",
    "cached tokens",
)
KINDS, OF_EACH = ("TTFT", "TPOT", "ITL", "E2EL"), ("mean", "std", "p50", "p99")
TIMES = ("load", *(f"{kind} {of} ms" for kind in KINDS for of in OF_EACH))
NOTES = (
    "vLLM's latency is of a whole batch, its prompts included; the columns after it say what a first token and what a "
    "decode step took. Its server benchmark sends all requests at once by default, so that its TTFT is mostly a "
    "queue's; the same load with 64 at once and at half the rate it reached shows what a request waits where there is "
    "none. The queue of the server is made long enough for all of them (--max-num-queued-seqs).",
    "Shares: first tokens of the measured matmul rate, decode steps of the measured bandwidth, whole runs of the time "
    "to read and to multiply what they must, one after the other, with as many together as the load has at once.",
    f"Goodput: requests with a first token within {GOALS.ttft_ms:g} ms and at most {GOALS.itl_ms:g} ms of each token "
    "after it (TPOT), which MLPerf Inference asks of a chat; vLLM has no goals of its own, and "
    "`jaxinfer bench serve` takes any.",
    "TPOT: of one request, (last token - first) / (tokens - 1). ITL: between two pieces of one stream, over all "
    "streams. E2EL: a whole request. std is of the values as they are. Random ids, "
    "ignore_eos; output tokens are the server's usage.",
    "Files against the server at equal work: `python benchmarks/batch_file.py`, docs/batch.md.",
)
CHARTS = (
    Chart("server", ("output tok/s",), "tok/s"),
    Chart("server", ("requests/s", "goodput requests/s"), "requests/s"),
    Chart("server times", ("TTFT p50 ms", "TTFT p99 ms"), "ms to the first token"),
    Chart("server times", ("TPOT p50 ms", "TPOT p99 ms"), "ms a token"),
    Chart("offline", ("output tok/s",), "tok/s"),
)


def lengths(job: SuiteJob, max_model_len: int) -> tuple[int, int]:
    """Of prompt and answer, cut to what the context holds."""
    prompt, output = job.tokens(PROMPT), job.tokens(OUTPUT)
    return min(prompt, max_model_len - output), output


def serve(job: SuiteJob, program: ReadyServer, max_model_len: int) -> list[Table]:
    """All at once, some at once, and at half the rate that the first reached."""
    shape = job.requests(REQUESTS), *lengths(job, max_model_len)
    rows: list[tuple[Value, ...]] = []
    times: list[tuple[Value, ...]] = []

    def add(name: str, concurrency: int, rate: float) -> float:
        good = outcomes_of(job, program, concurrency, rate, shape)
        count, prompt, output = shape
        label = f"{name}, {count}x({prompt},{output})" + (f", {rate:.3g} a second" if rate else "")
        rows.append((label, *rates(job, good, shape, None if rate else concurrency or count)))
        times.append((label, *times_of(good)))
        job.say(f"{name}: {output_rate(good):,.5g} output tok/s")
        return count / duration_s(good)

    reached = add("all at once", 0, 0.0)
    add(f"{AT_ONCE} at once", AT_ONCE, 0.0)
    add("half that rate", 0, reached / 2)
    return [Table("server", SERVED, rows), Table("server times", TIMES, times)]


type Shape = tuple[int, int, int]  # requests, tokens of a prompt and of an answer


def outcomes_of(job: SuiteJob, program: ReadyServer, concurrency: int, rate: float, shape: Shape) -> list[Outcome]:
    count, prompt, output = shape
    load = served.load_on(
        program,
        job,
        requests=count,
        concurrency=concurrency,
        rate=rate,
        input_tokens=prompt,
        output_tokens=output,
        seed=job.config.seed + concurrency + (1 if rate else 0),
    )
    return served.outcomes_of(load).outcomes


def rates(job: SuiteJob, good: Sequence[Outcome], shape: Shape, together: int | None) -> tuple[Value, ...]:
    """Of SERVED but the load's name. together: requests at once; None where arrivals decide, and there is no roof."""
    count, prompt, output = shape
    seconds, met = duration_s(good), sum(map(GOALS.are_met, good))
    roof = None if together is None else 100 * job.work.offline_s(job.limits, count, prompt, output, together) / seconds
    goodput = count / seconds, met / seconds, 100 * met / count
    tokens = output_rate(good), most_in_a_second(good), count * (prompt + output) / seconds
    return (*goodput, *tokens, roof, most_at_once(good), mean_cached(good))


def times_of(good: Sequence[Outcome]) -> tuple[Value, ...]:
    """Of TIMES but the load's name."""
    cells: list[Value] = []
    for values in (first_tokens(good), paces(good), gaps(good), wholes(good)):
        cells += [served.mean_ms(values), served.std_ms(values), *served.ms(values, 50, 99)]
    return tuple(cells)


def measure(job: SuiteJob, timed: Timed) -> list[Table]:
    """What is shown without a server."""
    most = timed.core.info.max_model_len
    prompt, output = lengths(job, most)
    load = (job.requests(REQUESTS), prompt, output)
    offline = throughput.measure(timed, load, 1, job.work, job.limits)
    job.say(f"offline: {offline[2]:,.5g} output tok/s")
    return [latency(job, timed), Table("offline", throughput.COLUMNS, [offline])]


def latency(job: SuiteJob, timed: Timed) -> Table:
    llm, _ = timed.llm(prefix_caching=False)
    batch = min(LATENCY_BATCH, timed.core.limits.max_num_seqs)
    prompt, output = job.tokens(LATENCY_PROMPT), job.tokens(LATENCY_OUTPUT)
    runs = max(job.runs, LATENCY_RUNS // job.shrink)
    calls = call(llm, Prompts(job.vocab_size, job.config.seed), batch, prompt, output, runs)
    shape = f"{batch} x {prompt}, {output}"
    if calls is None:
        return Table("latency", LATENCY, [(shape, *([None] * (len(LATENCY) - 1)))])
    spread = [percentile(calls.whole_s, percent) for percent in (10, 25, 50, 75, 90, 99)]
    prefill = calls.prefill_s * 1e3, calls.matmul_share(job) * 100
    strict = *prefill, calls.step_s * 1e3, calls.strict_rate, calls.bandwidth_share(job) * 100
    job.say(f"{shape}: {calls.all_s:.5g} s")
    return Table("latency", LATENCY, [(shape, calls.all_s, *spread, *strict)])


def found(tables: list[Table]) -> Found:
    return Found(tables, CHARTS, NOTES)
