"""The three benchmarks of vLLM's command line: one batch's latency, offline throughput, a server under load.

Source: vllm/benchmarks/latency.py, throughput.py and serve.py of github.com/vllm-project/vllm, with their defaults.
"""

from jaxinfer.bench import throughput
from jaxinfer.bench.chart import Chart
from jaxinfer.bench.outcomes import duration_s, first_tokens, gaps, mean_cached, output_rate, paces, wholes
from jaxinfer.bench.program import Program
from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.report import Table, Value, percentile
from jaxinfer.bench.steps import Timed
from jaxinfer.bench.suites import served
from jaxinfer.bench.suites.job import Found, Job, call

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
SERVED = (
    "load",
    "requests/s",
    "output tok/s",
    "total tok/s",
    "of the serial roof %",
    *("TTFT mean ms", "TTFT p50 ms", "TTFT p99 ms"),
    *("TPOT mean ms", "TPOT p50 ms", "TPOT p99 ms"),
    *("ITL mean ms", "ITL p50 ms", "ITL p99 ms"),
    *("E2EL mean ms", "E2EL p99 ms"),
    "cached tokens",
)
NOTES = (
    "vLLM's latency is of a whole batch, its prompts included; the columns after it say what a first token and what a "
    "decode step took. Its server benchmark sends all requests at once by default, so that its TTFT is mostly a "
    "queue's; the same load with 64 at once and at half the rate it reached shows what a request waits where there is "
    "none. The queue of the server is made long enough for all of them (--max-num-queued-seqs).",
    "Shares: first tokens of the measured matmul rate, decode steps of the measured bandwidth, whole runs of the time "
    "to read and to multiply what they must, one after the other, with as many together as the load has at once.",
    "TPOT: of one request, (last token - first) / (tokens - 1). ITL: between two pieces of one stream, over all "
    "streams. E2EL: a whole request. Random ids, ignore_eos; output tokens are the server's usage.",
    "Files against the server at equal work: `python benchmarks/batch_file.py`, docs/batch.md.",
)
CHARTS = (
    Chart("server", ("output tok/s",), "tok/s"),
    Chart("server", ("TTFT p50 ms", "TTFT p99 ms"), "ms to the first token"),
    Chart("server", ("TPOT p50 ms", "TPOT p99 ms"), "ms a token"),
    Chart("offline", ("output tok/s",), "tok/s"),
)


def lengths(job: Job, max_model_len: int) -> tuple[int, int]:
    """Of prompt and answer, cut to what the context holds."""
    prompt, output = job.tokens(PROMPT), job.tokens(OUTPUT)
    return min(prompt, max_model_len - output), output


def serve(job: Job, program: Program, max_model_len: int) -> Table:
    """All at once, some at once, and at half the rate that the first reached."""
    prompt, output = lengths(job, max_model_len)
    count = job.requests(REQUESTS)
    rows: list[tuple[Value, ...]] = []
    for name, concurrency in (("all at once", 0), (f"{AT_ONCE} at once", AT_ONCE)):
        rows.append(row(job, program, name, concurrency, 0.0, (count, prompt, output)))
    reached = rows[0][1]
    assert isinstance(reached, float)
    rows.append(row(job, program, "half that rate", 0, reached / 2, (count, prompt, output)))
    return Table("server", SERVED, rows)


def row(
    job: Job, program: Program, name: str, concurrency: int, rate: float, shape: tuple[int, int, int]
) -> tuple[Value, ...]:
    """Of SERVED. shape: requests, tokens of a prompt and of an answer."""
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
    good = served.outcomes_of(load).outcomes
    seconds = duration_s(good)
    roof_s = job.work.offline_s(job.limits, count, prompt, output, concurrency or count)
    share = None if rate else 100 * roof_s / seconds  # where arrivals decide there is none
    cells: list[Value] = [count / seconds, output_rate(good), count * (prompt + output) / seconds, share]
    for values in (first_tokens(good), paces(good), gaps(good)):
        cells += [sum(values) / len(values) * 1e3, *served.ms(values, 50, 99)]
    whole = wholes(good)
    job.say(f"{name}: {cells[1]:,.5g} output tok/s")
    label = f"{name}, {count}x({prompt},{output})" + (f", {rate:.3g} a second" if rate else "")
    return (label, *cells, sum(whole) / count * 1e3, *served.ms(whole, 99), mean_cached(good))


def measure(job: Job, timed: Timed) -> list[Table]:
    """What is shown without a server."""
    most = timed.core.info.max_model_len
    prompt, output = lengths(job, most)
    load = (job.requests(REQUESTS), prompt, output)
    offline = throughput.measure(timed, load, 1, job.work, job.limits)
    job.say(f"offline: {offline[2]:,.5g} output tok/s")
    return [latency(job, timed), Table("offline", throughput.COLUMNS, [offline])]


def latency(job: Job, timed: Timed) -> Table:
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
