"""Each optimisation off and on, in one run: the same requests to two engines over one device state, in turns.

Nothing else differs between the two sides of a row, and whatever else the machine does falls on both alike: rounds go
off, on, on, off. What belongs to a process (kernels, CUDA graphs) is asked of `jaxinfer bench latency`, off and on.
"""

import dataclasses
import json
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxinfer import children
from jaxinfer.bench.arrivals import drive
from jaxinfer.bench.chart import Chart
from jaxinfer.bench.http_client import Outcome
from jaxinfer.bench.load import Ask
from jaxinfer.bench.outcomes import duration_s, first_tokens, gaps, output_rate
from jaxinfer.bench.padding import Padding
from jaxinfer.bench.program import CALL, settings_of, without_ours
from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.report import Table, Value, percentile
from jaxinfer.bench.steps import COMPILING, StepLog, Timed, TimedEngine
from jaxinfer.bench.suites import paladin
from jaxinfer.bench.suites.job import Found, SuiteJob
from jaxinfer.bench.suites.workloads import Workload, workloads
from jaxinfer.config import Limits
from jaxinfer.engine.sequence import Structure
from jaxinfer.errors import EngineError
from jaxinfer.llm.structure import check_here, constraint_for
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.runtime import nvidia

CHUNK = 512
STRUCTURED_REQUESTS, STRUCTURED_PROMPT, STRUCTURED_MOST = 8, 64, 256
_SHARE = {"type": "integer", "minimum": 0, "maximum": 99}
FIELDS = {
    "temperature_celsius": _SHARE,
    "chance_of_rain_percent": _SHARE,
    "wind_direction": {"enum": ["north", "east", "south", "west"]},
    "is_weekend": {"type": "boolean"},
}
SCHEMA = {"type": "object", "properties": FIELDS, "required": [*FIELDS], "additionalProperties": False}
CONTIGUOUS_SEQUENCES = 8  # that the small pool of the paged row holds when each has max_model_len
COLUMNS = (
    "optimisation",
    "workload",
    "off tok/s",
    "on tok/s",
    "on / off",
    "least, most of the rounds",
    "off of the serial roof %",
    "on of the serial roof %",
    "off first token p50 ms",
    "on first token p50 ms",
    "off longest gap ms",
    "on longest gap ms",
    "off padding %",
    "on padding %",
)
DEVICE_COLUMNS = (
    "optimisation",
    "shape",
    "off tok/s",
    "on tok/s",
    "on / off",
    "least, most of the rounds",
    "off of bandwidth %",
    "on of bandwidth %",
    "off compiling s",
    "on compiling s",
    "off compiles after ready",
    "on compiles after ready",
)
NOTES = (
    "off and on differ in the named setting alone, get the same requests with the same random ids, greedy, ignore_eos, "
    "in this process, and take turns (off on, on off, ...). Rates and times are medians of the rounds; on / off is the "
    "median of the rounds' own ratios, with the least and the most of them: a row whose range holds 1 shows nothing.",
    "Where requests come at a fixed rate that both sides keep up with, tok/s says nothing and the first token does. "
    f"Chunked prefill: on is chunks of {CHUNK} tokens at most, off is whole prompts. Paged: both sides get a pool "
    f"that holds {CONTIGUOUS_SEQUENCES} sequences of max_model_len, fewer where requests are divided too.",
    "The prefix cache is off in all rows but its own. Fast-forward: answers are JSON of a schema of four fields, "
    "which ends them; their lengths are the model's, and the same on both sides.",
    "Padding: of the tokens that the compiled steps carried, as each step takes the smallest size that holds it. Both "
    "sides of a row of the host share what was compiled once, in the time that the facts say; those of the device have "
    "processes of their own, whose compiling is short where the cache had it from a run before.",
    "Shares are of the time to read and to multiply what the workload must, one after the other, at the rates measured "
    "in this run; where arrivals, a cache or a grammar decide how long it takes there is no such limit.",
)
CHARTS = (
    Chart("toggles", ("off tok/s", "on tok/s"), "tok/s"),
    Chart("toggles", ("off first token p50 ms", "on first token p50 ms"), "ms to the first token"),
    Chart("toggles", ("off longest gap ms", "on longest gap ms"), "longest ms between tokens"),
    Chart("toggles", ("off padding %", "on padding %"), "% of what steps carried is padding"),
)


@dataclasses.dataclass(frozen=True)
class Toggle:
    """An optimisation, the workload that it is for, and what Limits say without and with it."""

    name: str
    workload: str
    off: dict[str, Any]
    on: dict[str, Any]


def toggles(job: SuiteJob, limits: Limits) -> list[Toggle]:
    chunk = min(limits.max_num_batched_tokens, max(limits.max_num_seqs, job.tokens(CHUNK)))
    pages = min(limits.num_pages, 1 + job.requests(CONTIGUOUS_SEQUENCES) * limits.max_pages_per_seq)
    return [
        Toggle("requests together", "paged attention", {"max_num_seqs": 1}, {}),
        Toggle("continuous batching", "continuous batching", {"scheduling": "static"}, {"scheduling": "continuous"}),
        Toggle(
            "paged KV",
            "paged attention",
            {"kv_layout": "contiguous", "num_pages": pages},
            {"kv_layout": "paged", "num_pages": pages},
        ),
        Toggle(
            "chunked prefill",
            "chunked prefill",
            {"enable_chunked_prefill": False},
            {"enable_chunked_prefill": True, "max_num_batched_tokens": chunk},
        ),
        Toggle("prefix cache", "prefix caching", {"enable_prefix_caching": False}, {"enable_prefix_caching": True}),
        Toggle("one step ahead", "paged attention", {"run_ahead": 0}, {"run_ahead": 1}),
        Toggle("fast-forward", "structured", {"enable_fast_forward": False}, {"enable_fast_forward": True}),
    ]


def measure(job: SuiteJob, timed: Timed) -> Table:
    """A row for each toggle of the host."""
    rows = []
    found = workloads(job) | {"structured": structured(job)}
    common = dataclasses.replace(timed.core.limits, enable_prefix_caching=False)
    room = min(common.max_model_len, common.max_num_batched_tokens)  # a whole prompt is one step without chunks
    for toggle in toggles(job, common):
        workload = found[toggle.workload].within(room if toggle.name == "chunked prefill" else common.max_model_len)
        rounds = list(in_turns(job, timed, common, toggle, workload))
        rows.append((toggle.name, toggle.workload, *figures(rounds, *least_s(job, toggle, workload))))
        job.say(f"{toggle.name}: on / off {rows[-1][4]:.3f}")
    return Table("toggles", COLUMNS, rows)


def structured(job: SuiteJob) -> Workload:
    """Requests at once for JSON of SCHEMA, whose names are forced. How long an answer may be is not divided."""
    asks = [Ask(0.0, job.tokens(STRUCTURED_PROMPT), STRUCTURED_MOST) for _ in range(job.requests(STRUCTURED_REQUESTS))]
    return Workload("structured", tuple(asks), schema=json.dumps(SCHEMA))


def least_s(job: SuiteJob, toggle: Toggle, workload: Workload) -> list[float | None]:
    """What the workload takes at least, off and on; None where something else than the device decides."""
    if workload.schema:
        return [None, None]
    sides = [dataclasses.replace(workload, concurrency=side.get("max_num_seqs", 0)) for side in (toggle.off, toggle.on)]
    return [paladin.roof_s(job, side) for side in sides]


@dataclasses.dataclass(frozen=True)
class SideResult:
    """What a round's requests saw of one side, and what its steps carried."""

    outcomes: list[Outcome]
    padding: Padding


type Round = tuple[SideResult, SideResult]  # off and on


def in_turns(job: SuiteJob, timed: Timed, common: Limits, toggle: Toggle, workload: Workload) -> Iterator[Round]:
    """Each round; both sides of one get the same requests, and those of another get others."""
    structures = [structure_of(workload.schema, timed)] * len(workload.asks) if workload.schema else None
    for number in range(job.runs):
        ids = prompts_of(workload.asks, job, number)
        sides = [("off", toggle.off), ("on", toggle.on)]
        told = {}
        for name, changes in sides if number % 2 == 0 else sides[::-1]:
            limits = dataclasses.replace(common, **changes)
            engine = TimedEngine(timed.core, limits, StepLog())
            engine.on_step = padding = Padding(timed.core.limits)
            told[name] = SideResult(drive(engine, workload.asks, ids, structures), padding)
        yield told["off"], told["on"]


def structure_of(schema: str, timed: Timed) -> Structure:
    """Raises InvalidRequest where the model's tokenizer cannot be asked for grammars."""
    constraint = constraint_for(SamplingParams(json_schema=schema), None, {})
    assert constraint is not None
    tried = check_here(timed.core.grammars, constraint, {})
    return Structure(tried.text, frozenset(timed.core.info.eos_token_ids))


def prompts_of(asks: tuple[Ask, ...], job: SuiteJob, seed: int) -> list[list[int]]:
    prompts = Prompts(job.vocab_size, (job.config.seed, seed))
    shared = prompts.one(max(ask.shared_tokens for ask in asks))
    return [shared[: ask.shared_tokens] + prompts.one(ask.input_tokens - ask.shared_tokens) for ask in asks]


def figures(rounds: list[Round], *least: float | None) -> tuple[Value, ...]:
    """Of COLUMNS, from the rate on. least: seconds that the workload takes at least, off and on, if that is known."""
    outcomes = [(off.outcomes, on.outcomes) for off, on in rounds]
    rates = [(output_rate(off), output_rate(on)) for off, on in outcomes]
    ratios = [on / off for off, on in rates]
    cells: list[Value] = [statistics.median(side) for side in zip(*rates, strict=True)]
    cells += [statistics.median(ratios), f"{min(ratios):.3f}, {max(ratios):.3f}"]
    for side, least_s in enumerate(least):
        middle = statistics.median(duration_s(one[side]) for one in outcomes)
        cells.append(None if least_s is None else 100 * least_s / middle)
    for side in range(2):
        cells.append(statistics.median(percentile(first_tokens(one[side]), 50) or 0.0 for one in outcomes) * 1e3)
    for side in range(2):
        cells.append(statistics.median(max(gaps(one[side]), default=0.0) for one in outcomes) * 1e3)
    cells += [statistics.median(one[side].padding.percent for one in rounds) for side in range(2)]
    return tuple(cells)


def of_the_device(job: SuiteJob) -> tuple[list[Table], list[str]]:
    """What a process is started with, and a note where there is nothing to choose. Nothing may hold the device yet."""
    if job.config.device == "cpu" or not nvidia.visible_gpus(nvidia.list_gpus()):
        return [], ["attention_backend and cuda_graphs have no effect on a CPU and are not measured here."]
    toggles: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "Mosaic kernels": ({"attention_backend": "xla"}, {"attention_backend": "auto"}),
        "CUDA graphs": ({"cuda_graphs": False}, {"cuda_graphs": True}),
    }
    rows: list[tuple[Value, ...]] = []
    for name, sides in toggles.items():
        rounds = []
        for number in range(max(2, job.runs - 1)):
            told = [started(job, change) for change in (sides if number % 2 == 0 else sides[::-1])]
            rounds.append(told if number % 2 == 0 else told[::-1])
        rows += device_rows(name, rounds)
        job.say(f"{name}: on / off {rows[-1][4]:.3f}")
    return [Table("toggles of the device", DEVICE_COLUMNS, rows)], []


@dataclasses.dataclass(frozen=True)
class StartedProcess:
    """A process of its own. shapes: by batch x prompt, tokens per second of decoding and their per cent of the
    bandwidth."""

    shapes: dict[str, tuple[float, float]]
    compiling_s: float
    compiles_after_ready: int

    @classmethod
    def of(cls, report: dict[str, Any]) -> "StartedProcess":
        """From the JSON of `jaxinfer bench latency`."""
        facts, table = report["facts"], report["tables"]["speed"]
        shapes = {row["batch x prompt"]: (row["decode tok/s"], row["of bandwidth %"]) for row in table}
        return cls(shapes, float(facts[COMPILING].partition(" ")[0]), int(facts["compiles after ready"]))


def device_rows(name: str, rounds: list[list[StartedProcess]]) -> list[tuple[Value, ...]]:
    """Of DEVICE_COLUMNS. rounds: off and on of each. Compiling is the longest of the rounds: the cache helps later."""
    rows: list[tuple[Value, ...]] = []
    compiling = [max(one[side].compiling_s for one in rounds) for side in range(2)]
    late = [sum(one[side].compiles_after_ready for one in rounds) for side in range(2)]
    for shape in rounds[0][0].shapes:
        rates = [(off.shapes[shape][0], on.shapes[shape][0]) for off, on in rounds]
        ratios = [on / off for off, on in rates]
        middle = [statistics.median(side) for side in zip(*rates, strict=True)]
        cells: list[Value] = [statistics.median(ratios), f"{min(ratios):.3f}, {max(ratios):.3f}"]
        shares = [statistics.median(one[side].shapes[shape][1] for one in rounds) for side in range(2)]
        rows.append((name, shape, *middle, *cells, *shares, *compiling, *late))
    return rows


def started(job: SuiteJob, change: dict[str, Any]) -> StartedProcess:
    """What `jaxinfer bench latency` finds with these settings changed. Raises EngineError."""
    config = dataclasses.replace(job.config, **change)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = children.python("-c", CALL, "bench", "latency", "--json", str(file), "--first-steps", "0")
        command += [
            "--prompt-lengths",
            str(job.tokens(128)),
            "--batch-sizes",
            f"1,{min(32, config.max_num_seqs or 32)}",
        ]
        done = subprocess.run(command, env=without_ours() | settings_of(config), capture_output=True, text=True)
        if done.returncode:
            raise EngineError(
                f"`jaxinfer bench latency` must run, it said: {done.stderr.strip().rpartition(chr(10))[2]}"
            )
        return StartedProcess.of(json.loads(file.read_text(encoding="utf-8")))


def found(tables: list[Table], notes: list[str]) -> Found:
    return Found(tables, CHARTS, (*NOTES, *notes))
