"""mini-infer's tables: clients at once over a socket, the gap that a long prompt makes, prefix hit and miss, a batch of
eight, contexts from 128 to 8,192; its preemption and its scheduler's trace have files of their own.

Source: the README and the benchmarks of github.com/psmarter/mini-infer.
"""

import dataclasses
import statistics
from typing import Any

import jax
import msgspec

from jaxinfer.bench import kernels
from jaxinfer.bench.chart import Chart
from jaxinfer.bench.load import Load
from jaxinfer.bench.outcomes import (
    duration_s,
    first_tokens,
    gaps,
    longest_gap_s,
    mean_cached,
    output_rate,
    ttft_s,
    wholes,
)
from jaxinfer.bench.program import ReadyServer, serving
from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.report import Table, Value, percentile
from jaxinfer.bench.steps import Timed
from jaxinfer.bench.suites import preemption, scheduler_trace, served
from jaxinfer.bench.suites.job import Found, SuiteJob, call
from jaxinfer.config import counted
from jaxinfer.errors import ConfigError
from jaxinfer_kernels.attention.cases import HEADS, DecodeCase
from jaxinfer_kernels.attention.sm90_decode_config import DecodeTuning

CLIENTS = (1, 2, 4, 8)
CHUNKS = (0, 256, 128)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
SHORT, LONG = 7, 1024
PREFIX_BATCH = 4
ROOM, LEAST_ROOM = 2 * LONG, 256
SEED = 42
CONCURRENT = (
    "clients",
    "output tok/s",
    "times one client",
    "first token p50 ms",
    "its TTFT: whole answer p50 ms",
    "token gap p50 ms",
    "of bandwidth %",
    "gap p99 ms",
)
SPIKE = (
    "chunks of",
    "longest gap of the running ms",
    "their median gap ms",
    "of bandwidth %",
    "first token of the long prompt ms",
    "of matmul %",
    "output tok/s",
)
PREFIX = (
    "prefix",
    "first token p50 ms",
    "of matmul %",
    "its TTFT: whole answer p50 ms",
    "cached tokens",
    "first token, times the miss's",
    "whole answer, times the miss's, as it counts",
)
BATCH = ("batch x prompt, answer", "tok/s as mini-infer counts", "decode tok/s strict", "of bandwidth %", "spread %")
SWEEP = ("context", "decode step ms", "decode tok/s", "of bandwidth %")
NOTES = (
    "mini-infer's server benchmark asks in process, without a socket, and what it calls TTFT is the time of the whole "
    "answer; here a socket is used and both are shown. Its counts of tokens come from texts encoded again, ours from "
    "the server's usage.",
    "Chunked prefill: 7 streams run, a quarter into their answers a prompt of 1,024 tokens comes; 0 is "
    "--no-enable-chunked-prefill, the others are --max-num-batched-tokens. The gap is the longest between two tokens "
    "of a stream, any time between that prompt's arrival and its first token.",
    "Prefix: its gain of a hit is of the whole answer, which hides what it is for; the first token's stands beside. "
    "Of several together the first token is the last one's, medians are of the batches, and the shares too.",
    "Batch: mini-infer divides all tokens by the whole time, prompts included; strict are decode steps alone. "
    "Attention alone is without the model around it; `jaxinfer bench kernels` has more of it.",
    "Shares: decode steps of the measured bandwidth, clients by the median gap between tokens as if all of them were "
    "in each step; prompts of the measured matmul rate, the long one as if the streams beside it took nothing of it. "
    "The longest gap, and a hit, have no such limit.",
    preemption.NOTE,
    scheduler_trace.NOTE,
    "Not reproduced: speculation, two GPUs, replicas, prefill and decode apart, MLA, W8A8 and experts, which jaxinfer "
    "does not have; docs/suites.md names the rest.",
)
CHARTS = (
    Chart("clients at once", ("output tok/s",), "tok/s"),
    Chart("clients at once", ("first token p50 ms", "its TTFT: whole answer p50 ms"), "ms"),
    Chart("chunked prefill", ("longest gap of the running ms", "first token of the long prompt ms"), "ms"),
    Chart("prefix cache", ("first token p50 ms", "its TTFT: whole answer p50 ms"), "ms"),
    Chart("prefix cache, several together", ("first token p50 ms", "its TTFT: whole answer p50 ms"), "ms"),
    Chart("contexts", ("decode tok/s",), "tok/s", is_line=True),
    Chart("preemption", ("goes on after p50 ms", "of which a step p50 ms"), "ms"),
    Chart("scheduler trace", ("first token p95 steps", "whole request p95 steps"), "steps"),
)


def serve(job: SuiteJob, program: ReadyServer) -> list[Table]:
    """What one server with the given settings can show."""
    return [clients(job, program), prefix(job, program)]


def clients(job: SuiteJob, program: ReadyServer) -> Table:
    """The same number of requests at each concurrency."""
    rows: list[tuple[Value, ...]] = []
    alone = 0.0
    for count in CLIENTS:
        lengths = {"input_tokens": job.tokens(32), "output_tokens": job.tokens(64)}
        load = served.load_on(program, job, requests=8 * job.runs, concurrency=count, seed=SEED + count, **lengths)
        good = served.outcomes_of(load).outcomes
        rate = output_rate(good)
        alone = alone or rate
        times = [*served.ms(first_tokens(good), 50), *served.ms(wholes(good), 50)]
        middle, last = (percentile(gaps(good), percent) for percent in (50, 99))
        assert middle is not None and last is not None
        read = job.work.decode_bytes(count, lengths["input_tokens"] + lengths["output_tokens"] / 2)
        share = _share(read / job.limits.bytes_per_s, middle)
        rows.append((str(count), rate, rate / alone, *times, middle * 1e3, share, last * 1e3))
        job.say(f"{counted(count, 'client')}: {rate:,.5g} output tok/s")
    return Table("clients at once", CONCURRENT, rows)


def _share(least_s: float, middle_s: float) -> float | None:
    """Per cent of a median gap that reading takes; None where tokens come several in a frame, so that it is 0."""
    return 100 * least_s / middle_s if middle_s else None


def prefix(job: SuiteJob, program: ReadyServer) -> Table:
    """One request at a time, with a beginning that was computed before and without."""
    rows: list[tuple[Value, ...]] = []
    shared = job.tokens(257)
    for name, tokens in (("miss", 0), ("hit", shared)):
        load = served.load_on(
            program,
            job,
            requests=8 * job.runs,
            concurrency=1,
            shared_tokens=tokens,
            input_tokens=shared + job.tokens(32),
            output_tokens=job.tokens(64),
            seed=SEED + tokens,
        )
        good = served.outcomes_of(load).outcomes
        first, whole = (percentile(values, 50) for values in (first_tokens(good), wholes(good)))
        assert first is not None and whole is not None
        flops = job.work.prefill_flops(1, load.shared_tokens + load.input_tokens)
        share = None if tokens else 100 * flops / first / job.limits.flops  # of a hit nearly nothing is computed
        rows.append((f"{shared} tokens, {name}", first * 1e3, share, whole * 1e3, mean_cached(good)))
        job.say(f"prefix {name}: {first * 1e3:,.5g} ms to the first token")
    return Table("prefix cache", PREFIX, against_the_miss(rows))


def prefix_together(job: SuiteJob, timed: Timed) -> Table:
    """The same where several prompts of one beginning come at once, one batch in this process after another."""
    llm, _ = timed.llm(prefix_caching=timed.core.limits.enable_prefix_caching)
    prompts = Prompts(job.vocab_size, job.config.seed)
    batch, shared = min(PREFIX_BATCH, timed.core.limits.max_num_seqs), job.tokens(257)
    rows: list[tuple[Value, ...]] = []
    for name, beginning in (("miss", []), ("hit", prompts.one(shared))):
        prompt, output = shared + job.tokens(32), job.tokens(64)
        calls = call(llm, prompts, batch, prompt, output, job.runs, beginning=beginning)
        if calls is None:
            raise too_long(prompt + output, llm.info.max_model_len)
        first, whole = statistics.median(calls.first_s), statistics.median(calls.whole_s)
        share = None if beginning else 100 * job.work.prefill_flops(batch, prompt) / first / job.limits.flops
        cached = calls.cached_tokens / (batch * job.runs)
        rows.append((f"{batch} x {shared} tokens, {name}", first * 1e3, share, whole * 1e3, cached))
        job.say(f"prefix of {batch} together, {name}: {first * 1e3:,.5g} ms to the last first token")
    return Table("prefix cache, several together", PREFIX, against_the_miss(rows))


def against_the_miss(rows: list[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    """Rows of PREFIX whose last two columns are still missing; the first is the miss."""
    first, whole = rows[0][1], rows[0][3]
    return [(*row, row[1] / first, row[3] / whole) for row in rows]  # type: ignore[operator]


def chunked_prefill(job: SuiteJob) -> Table:
    """A server for each size of chunk, one after another."""
    rows = []
    seqs, long = SHORT + 1, job.tokens(LONG)
    room = min(job.config.max_model_len or ROOM, max(LEAST_ROOM, 2 * long))  # a step without chunks must hold it all
    for size in dict.fromkeys(max(seqs, job.tokens(chunk)) if chunk else 0 for chunk in CHUNKS):
        changes: dict[str, Any] = {"max_num_seqs": seqs, "max_model_len": room, "max_num_batched_tokens": size or None}
        changes |= {} if size else {"enable_chunked_prefill": False}
        with serving(dataclasses.replace(job.config, **changes)) as program:
            rows.append((f"{size} tokens" if size else "0: off", *spike(job, program, long)))
        job.say(f"chunks of {rows[-1][0]}: longest gap {rows[-1][1]:,.5g} ms")
    return Table("chunked prefill", SPIKE, rows)


def spike(job: SuiteJob, program: ReadyServer, long: int) -> tuple[Value, ...]:
    """Of SPIKE but its name. A run without the long prompt says when a quarter of the answers is over."""
    load = served.load_on(
        program,
        job,
        requests=SHORT,
        concurrency=SHORT,
        input_tokens=job.tokens(32),
        output_tokens=max(32, job.tokens(128)),
        seed=SEED,
    )
    calm = duration_s(served.outcomes_of(load).outcomes)
    changes = {"interrupt_tokens": long, "interrupt_after_s": calm / 4}
    tries = [run_of(load, number, changes) for number in range(job.runs)]
    gap, middle, first, rate = (sorted(column)[len(column) // 2] for column in zip(*tries, strict=True))
    read_s = job.work.decode_bytes(SHORT, load.input_tokens + load.output_tokens / 2) / job.limits.bytes_per_s
    matmul_s = job.work.prefill_flops(1, long) / job.limits.flops
    return gap * 1e3, middle * 1e3, _share(read_s, middle), first * 1e3, 100 * matmul_s / first, rate


def run_of(load: Load, number: int, changes: dict[str, Any]) -> tuple[float, ...]:
    """Of one interrupted run: seconds of the longest gap, of the median one, of the long prompt's first token; rate."""
    results = served.outcomes_of(msgspec.structs.replace(load, seed=load.seed + 1 + number, **changes), 0)
    assert results.interruption is not None
    good, late = results.outcomes, results.interruption
    every = sorted(gaps(good))
    return longest_gap_s(late, good), every[len(every) // 2], ttft_s(late), output_rate(good)


def measure(job: SuiteJob, timed: Timed) -> list[Table]:
    """What is shown without a server."""
    tables = [prefix_together(job, timed), batch_of_eight(job, timed), contexts(job, timed)]
    return [*tables, preemption.table(job, timed)]


def too_long(tokens: int, max_model_len: int) -> ConfigError:
    return ConfigError(f"max_model_len must hold {tokens} tokens, got {max_model_len}; raise it, or --shrink")


def batch_of_eight(job: SuiteJob, timed: Timed) -> Table:
    llm, _ = timed.llm(prefix_caching=False)
    batch = min(8, timed.core.limits.max_num_seqs)
    prompt, output = job.tokens(32), job.tokens(128)
    calls = call(llm, Prompts(job.vocab_size, job.config.seed), batch, prompt, output, job.runs)
    if calls is None:
        raise too_long(prompt + output, llm.info.max_model_len)
    counted = batch * output / calls.all_s
    row = (
        f"{batch} x {prompt}, {output}",
        counted,
        calls.strict_rate,
        calls.bandwidth_share(job) * 100,
        calls.spread * 100,
    )
    return Table("a batch", BATCH, [row])


def contexts(job: SuiteJob, timed: Timed) -> Table:
    """Decode steps of the whole model, one row, as its context grows."""
    llm, _ = timed.llm(prefix_caching=False)
    prompts = Prompts(job.vocab_size, job.config.seed)
    rows: list[tuple[Value, ...]] = []
    for context in dict.fromkeys(map(job.tokens, CONTEXTS)):
        calls = call(llm, prompts, 1, context, job.tokens(64), job.runs)
        if calls is None:
            rows.append((f"{context}", None, None, None))
            continue
        rows.append((f"{context}", calls.step_s * 1e3, calls.strict_rate, calls.bandwidth_share(job) * 100))
        job.say(f"context {context}: {calls.step_s * 1e3:.5g} ms a step")
    return Table("contexts", SWEEP, rows)


def attention(job: SuiteJob) -> Table:
    """Decode attention alone, of one row, at the heads of a 1.5B model: our kernel where it runs, and XLA's version.

    It compiles what it times, so no engine that counts compilations may be there.
    """
    cases = [DecodeCase(HEADS[1], 1, context) for context in dict.fromkeys(map(job.tokens, CONTEXTS))]
    device, place = kernels.place_of(job.config.device, job.limits)
    with jax.default_device(device):
        rows = [kernels.decode_row(DecodeTuning(), case, place) for case in cases]
    return Table("attention alone", kernels.columns("GB/s", place.ours), rows)


def found(tables: list[Table]) -> Found:
    return Found(tables, CHARTS, NOTES)
