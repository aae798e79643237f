"""ZedInfer's tables: single requests whose answer is as long as their prompt, the same four at a time, and its plans.

Source: the performance page of github.com/tianyuxbear/zedinfer (v0.1.0) and the benchmark plan of its repository.
"""

from jaxinfer.bench.chart import Chart
from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.report import Table, Value
from jaxinfer.bench.steps import Timed
from jaxinfer.bench.suites import published
from jaxinfer.bench.suites.job import Calls, Found, SuiteJob, call

LENGTHS = (128, 256, 512, 1024)
TOGETHER = tuple((batch, length) for batch in (4, 8, 16, 32) for length in LENGTHS)  # its page has batch 4 alone
PLANS = {  # requests, prompt, answer, runs
    "A": (1, 32, 256, 5),
    "B": (1, 128, 128, 5),
    "C": (1, 512, 64, 5),
    "D": (1, 2048, 128, 3),
    "E": (1, 16, 32, 10),
    "MU-A": (4, 128, 128, 3),
    "MU-B": (16, 64, 64, 3),
    "MU-C": (32, 32, 32, 3),
    "MU-D": (4, 2048, 128, 3),
}
RATES = ("decode tok/s as ZedInfer counts", "decode tok/s strict", "step ms", "of bandwidth %", "spread %", "cached")
PREFILL = ("prefill tok/s", "of matmul %")
SINGLE = ("prompt = answer", *PREFILL, *RATES)
BATCH = ("batch x length", *PREFILL, *RATES, "times single, as counted", "times single, strict")
NOTES = (
    "ZedInfer's decode rate of a single request divides the answer's length L by the time of L - 1 steps; strict "
    "divides what those steps made. Its rate of a batch divides all tokens of the answers by the whole time, prompts "
    "included; strict leaves the time to the last first token out. Its answers may end early at EOS, ours do not.",
    "Figures are means of the runs, after one run that is not counted; spread is (longest - shortest) / mean of the "
    "whole calls. Prompts are fresh random ids, the prefix cache is off; cached counts tokens found in it.",
)
CHARTS = (
    Chart("single request", ("decode tok/s strict", "decode tok/s as ZedInfer counts"), "tok/s", is_line=True),
    Chart("single request", ("prefill tok/s",), "tok/s", is_line=True),
    Chart("requests together", ("decode tok/s strict", "decode tok/s as ZedInfer counts"), "tok/s"),
)


def measure(job: SuiteJob, timed: Timed) -> Found:
    """All tables, in this process."""
    llm, _ = timed.llm(prefix_caching=False)
    prompts = Prompts(job.vocab_size, job.config.seed)
    alone: dict[int, Calls] = {}
    single: list[tuple[Value, ...]] = []
    lengths = tuple(dict.fromkeys(map(job.tokens, LENGTHS)))
    for length in lengths:
        calls = call(llm, prompts, 1, length, length, job.runs)
        single.append((str(length), *figures(job, calls)))
        job.say(f"{length}: {single[-1][4] or 0:.5g} tok/s")
        if calls is not None:
            alone[length] = calls
    together: list[tuple[Value, ...]] = []
    batches = tuple(dict.fromkeys((batch, job.tokens(length)) for batch, length in TOGETHER))
    for batch, length in batches:
        calls = call(llm, prompts, batch, length, length, job.runs) if batch <= timed.core.limits.max_num_seqs else None
        together.append((f"{batch} x {length}", *figures(job, calls), *times(calls, alone.get(length))))
        job.say(f"{batch} x {length}: {together[-1][4] or 0:.5g} tok/s")
    tables = [
        published.beside(job, Table("single request", SINGLE, single), [(1, length) for length in lengths]),
        published.beside(job, Table("requests together", BATCH, together), batches),
        Table("plans", ("plan", "batch x prompt, answer", *PREFILL, *RATES), plans(job, timed, prompts)),
    ]
    return Found(tables, CHARTS, (*NOTES, published.NOTE) if published.of_the_same(job) else NOTES)


def plans(job: SuiteJob, timed: Timed, prompts: Prompts) -> list[tuple[Value, ...]]:
    """ZedInfer's later plan: A to E one request at a time, MU-A to MU-D several at once."""
    llm, _ = timed.llm(prefix_caching=False)
    rows: list[tuple[Value, ...]] = []
    for name, (batch, prompt, output, runs) in PLANS.items():
        prompt, output = job.tokens(prompt), job.tokens(output)
        fits = batch <= timed.core.limits.max_num_seqs
        calls = call(llm, prompts, batch, prompt, output, min(runs, job.runs)) if fits else None
        rows.append((name, f"{batch} x {prompt}, {output}", *figures(job, calls)))
        job.say(f"plan {name}: {rows[-1][5] or 0:.5g} tok/s")
    return rows


def figures(job: SuiteJob, calls: Calls | None) -> tuple[Value, ...]:
    """PREFILL and RATES; nothing of what did not fit."""
    if calls is None:
        return (None,) * (len(PREFILL) + len(RATES))
    prefill = calls.batch * calls.prompt / calls.prefill_s
    rates = (prefill, calls.matmul_share(job) * 100, counted(calls), calls.strict_rate, calls.step_s * 1e3)
    return (*rates, calls.bandwidth_share(job) * 100, calls.spread * 100, calls.cached_tokens)


def counted(calls: Calls) -> float:
    """The decode rate as ZedInfer's programs print it."""
    return calls.batch * calls.output / (calls.decode_s if calls.batch == 1 else calls.all_s)


def times(calls: Calls | None, alone: Calls | None) -> tuple[Value, Value]:
    """A batch's rates over those of one request of its length."""
    if calls is None or alone is None:
        return None, None
    return counted(calls) / counted(alone), calls.strict_rate / alone.strict_rate
