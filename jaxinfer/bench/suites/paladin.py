"""The tables of paladin8/infer: five serving workloads over a socket, seven shapes of one generation in this process.

Source: benchmarks/bench_serving.py and bench_generation.py of github.com/paladin8/infer and their logs.
"""

from collections.abc import Sequence

from jaxinfer.bench.chart import Chart
from jaxinfer.bench.http_client import Outcome
from jaxinfer.bench.latency import GREEDY
from jaxinfer.bench.outcomes import duration_s, first_tokens, gaps, mean_cached, output_rate, wholes
from jaxinfer.bench.program import ReadyServer
from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.report import Table, Value, percentile
from jaxinfer.bench.steps import Timed
from jaxinfer.bench.suites import served
from jaxinfer.bench.suites.job import Found, SuiteJob, call
from jaxinfer.bench.suites.workloads import SEED, Workload, workloads
from jaxinfer.protocol.sampling import SamplingParams

SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=SEED)
FULL = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=SEED, repetition_penalty=1.1)
SHAPES = {
    "short, greedy": (64, 64, GREEDY),
    "medium, greedy": (256, 256, GREEDY),
    "prefill-heavy": (1024, 64, GREEDY),
    "decode-heavy": (64, 1024, GREEDY),
    "long context": (1024, 1024, GREEDY),
    "medium, sampled": (256, 256, SAMPLED),
    "medium, with repetition penalty": (256, 256, FULL),
}
SERVED = (
    "workload",
    "requests",
    "output tok/s",
    "of the serial roof %",
    "tokens of an answer",
    *("first token p50 ms", "first token p99 ms", "token gap p50 ms", "token gap p99 ms", "whole request p50 s"),
    *("cached tokens", "ended early"),
)
TIMES = (
    "workload",
    *(f"first token {name} ms" for name in ("mean", "p50", "p95", "p99")),
    *(f"token gap {name} ms" for name in ("mean", "p50", "p95", "p99")),
    *(f"whole request {name} ms" for name in ("mean", "p50", "p95", "p99")),
)
GENERATED = (
    "generation",
    "prompt, answer",
    "first token ms",
    "prompt tok/s",
    "of matmul %",
    "decode tok/s as paladin counts",
    "decode tok/s strict",
    "of bandwidth %",
    "end to end tok/s",
    *("step mean ms", "p50 ms", "p95 ms", "p99 ms", "least ms", "most ms", "spread %"),
)
NOTES = (
    "paladin's client lets an answer end at EOS, so that the tokens of a run depend on what the model says; each "
    "workload is therefore run twice, so and with ignore_eos. Its prompts are texts of about the length; ours are "
    "random ids of exactly that length, others in each of the two runs. Seed 42, greedy, over a socket, streamed.",
    "Its decode rate divides all of an answer's tokens by the time after the first; strict leaves the first one out, "
    "which the prompt's step made. Its generation prompt repeats one sentence; ours are fresh random ids. Steps: "
    "of decoding, over all runs, by the host's clock.",
    "Shares: prompts of the measured matmul rate, decode steps of the measured bandwidth, whole workloads of the time "
    "to read and to multiply what the workload must, one after the other, where all requests are there at once or one "
    "by one and answers have all their tokens.",
    "Workloads longer than max_model_len are cut to it, and say so. Not reproduced: speculation, which "
    "jaxinfer does not have yet, FP8 and INT8.",
)
CHARTS = (
    Chart("serving workloads", ("output tok/s",), "tok/s"),
    Chart("serving workloads", ("first token p50 ms", "first token p99 ms"), "ms to the first token"),
    Chart("serving workloads", ("token gap p50 ms", "token gap p99 ms"), "ms between tokens"),
    Chart("times of the serving workloads", ("whole request mean ms", "whole request p95 ms"), "ms of a whole request"),
    Chart("generation", ("decode tok/s strict", "end to end tok/s"), "tok/s"),
)


def serve(job: SuiteJob, program: ReadyServer, max_model_len: int) -> list[Table]:
    """Every workload twice: with ignore_eos and without."""
    rows, times = [], []
    for workload in workloads(job).values():
        fitting = workload if workload.longest <= max_model_len else workload.within(max_model_len)
        cut = "" if fitting is workload else f", cut to {max_model_len}"
        for ignore_eos, how in ((True, "ignore_eos"), (False, "EOS ends")):
            name, good = f"{workload.name}{cut}, {how}", outcomes_of(job, program, fitting, ignore_eos)
            rows.append(row(job, fitting, name, good, ignore_eos))
            times.append(times_row(name, good))
            job.say(f"{name}: {rows[-1][2]:,.5g} output tok/s")
    return [Table("serving workloads", SERVED, rows), Table("times of the serving workloads", TIMES, times)]


def outcomes_of(job: SuiteJob, program: ReadyServer, workload: Workload, ignore_eos: bool) -> list[Outcome]:
    """What every request saw. The seed of the prompts is the run's own, so that none is cached from an earlier run."""
    load = served.load_on(
        program,
        job,
        requests=len(workload.asks),
        concurrency=workload.concurrency,
        asks=workload.asks,
        input_tokens=workload.asks[0].input_tokens,
        output_tokens=workload.asks[0].output_tokens,
        ignore_eos=ignore_eos,
        seed=SEED + (0 if ignore_eos else 1),
    )
    return served.outcomes_of(load).outcomes


def row(job: SuiteJob, workload: Workload, name: str, good: Sequence[Outcome], ignore_eos: bool) -> tuple[Value, ...]:
    """Of SERVED."""
    asked = sum(ask.output_tokens for ask in workload.asks)
    told = sum(one.tokens for one in good)
    early = sum(one.finish_reason == "stop" for one in good)
    times = [*served.ms(first_tokens(good), 50, 99), *served.ms(gaps(good), 50, 99)]
    middle = percentile(wholes(good), 50)
    assert not ignore_eos or told == asked, "ignore_eos gives every token"
    least_s = roof_s(job, workload) if ignore_eos else None
    share = None if least_s is None else 100 * least_s / duration_s(good)
    return (name, len(good), output_rate(good), share, told / len(good), *times, middle, mean_cached(good), early)


def times_row(name: str, good: Sequence[Outcome]) -> tuple[Value, ...]:
    """Of TIMES."""
    cells: list[Value] = []
    for values in (first_tokens(good), gaps(good), wholes(good)):
        cells += [served.mean_ms(values), *served.ms(values, 50, 95, 99)]
    return name, *cells


def roof_s(job: SuiteJob, workload: Workload) -> float | None:
    """What the workload takes at least, reading and multiplying one after the other; None where arrivals decide."""
    if any(ask.after_s for ask in workload.asks):
        return None
    shapes = [(ask.input_tokens, ask.output_tokens) for ask in workload.asks]
    steps = sum(output for _, output in shapes) if workload.concurrency == 1 else max(output for _, output in shapes)
    work, read, flops = job.work, float(steps * job.work.read_bytes), 0.0
    for prompt, output in shapes:
        context = prompt + output / 2
        read += output * work.layout.read_bytes(context)
        flops += work.prefill_flops(1, prompt) + work.decode_flops(output, context)
    return read / job.limits.bytes_per_s + flops / job.limits.flops


def measure(job: SuiteJob, timed: Timed) -> Table:
    """The seven generations, one request at a time."""
    llm, log = timed.llm(prefix_caching=False)
    prompts = Prompts(job.vocab_size, job.config.seed)
    rows: list[tuple[Value, ...]] = []
    for name, (prompt, output, drawn) in SHAPES.items():
        prompt, output = job.tokens(prompt), job.tokens(output)
        index = len(log.steps)
        calls = call(llm, prompts, 1, prompt, output, job.runs, drawn)
        shape = f"{prompt}, {output}"
        if calls is None:
            rows.append((name, shape, *([None] * (len(GENERATED) - 2))))
            continue
        steps = log.since(index).wall_s
        prefill = prompt / calls.prefill_s, calls.matmul_share(job) * 100
        decode = output / calls.decode_s, calls.strict_rate, calls.bandwidth_share(job) * 100
        shown = [sum(steps) / len(steps) * 1e3, *served.ms(steps, 50, 95, 99), min(steps) * 1e3, max(steps) * 1e3]
        rows.append(
            (name, shape, calls.prefill_s * 1e3, *prefill, *decode, output / calls.all_s, *shown, calls.spread * 100)
        )
        job.say(f"{name}: {calls.strict_rate:,.5g} decode tok/s")
    return Table("generation", GENERATED, rows)


def found(tables: list[Table]) -> Found:
    return Found(tables, CHARTS, NOTES)
