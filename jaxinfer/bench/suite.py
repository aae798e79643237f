"""`jaxinfer bench suite NAME`: the tables of one of the systems that this project learnt from, and of our own switches.

What needs a server starts one with the same settings; it has ended before the engine of this process takes the device.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence

from jaxinfer.bench import machine
from jaxinfer.bench.chart import Chart
from jaxinfer.bench.latency import Say
from jaxinfer.bench.program import ReadyServer, serving
from jaxinfer.bench.report import Report
from jaxinfer.bench.steps import Timed
from jaxinfer.bench.suites import mini_infer, paladin, scheduler_trace, served, toggles, vllm, zedinfer
from jaxinfer.bench.suites.job import Found, SuiteJob
from jaxinfer.bench.work import work_of
from jaxinfer.config import Resolved
from jaxinfer.llm.events import OnEvent

SHRUNK = "Every length and number of requests was divided by {}: a look at the suite, not its tables."

type Facts = list[tuple[str, str]]


@dataclasses.dataclass
class SuiteStage:
    """Where a suite measures: a server of its own, or an engine in this process. facts, details: of both, as the
    report's.
    """

    job: SuiteJob
    on_event: OnEvent
    facts: Facts = dataclasses.field(default_factory=list)
    details: Facts = dataclasses.field(default_factory=list)

    def on_server[T](self, measure: Callable[[ReadyServer, int], T], **changes: object) -> T:
        """What `measure` finds on a server with these settings changed; its second argument is max_model_len."""
        with serving(dataclasses.replace(self.job.config, **changes)) as program:  # type: ignore[arg-type]
            self.job.say(f"server ready after {program.ready_s:.1f} s")
            found = measure(program, served.max_model_len(program.target))
            compiled = served.compilations(program.target)
        self.details += [("server ready after", f"{program.ready_s:.1f} s, with imports")]
        self.facts += [("server's compiles after ready", str(compiled))]
        return found

    def in_process[T](self, measure: Callable[[Timed], T]) -> T:
        """What `measure` finds in an engine of this process."""
        with Timed.start(self.job.config, self.on_event) as timed:
            found = measure(timed)
            compiled = timed.core.stats().compiles_after_ready
        self.details += timed.facts
        self.facts += [("compiles after ready", str(compiled))]
        return found


def _zedinfer(stage: SuiteStage) -> Found:
    return stage.in_process(lambda timed: zedinfer.measure(stage.job, timed))


def _paladin(stage: SuiteStage) -> Found:
    job = stage.job
    workloads = stage.on_server(lambda program, most: paladin.serve(job, program, most))
    return paladin.found([*workloads, stage.in_process(lambda timed: paladin.measure(job, timed))])


def _mini_infer(stage: SuiteStage) -> Found:
    job = stage.job
    tables = [*stage.on_server(lambda program, most: mini_infer.serve(job, program)), mini_infer.chunked_prefill(job)]
    tables += stage.in_process(lambda timed: mini_infer.measure(job, timed))
    return mini_infer.found([*tables, mini_infer.attention(job), scheduler_trace.table()])


def _vllm(stage: SuiteStage) -> Found:
    job = stage.job
    queue = {"max_num_queued_seqs": max(256, vllm.REQUESTS)}
    server = stage.on_server(lambda program, most: vllm.serve(job, program, most), **queue)
    return vllm.found([*server, *stage.in_process(lambda timed: vllm.measure(job, timed))])


def _toggles(stage: SuiteStage) -> Found:
    job = stage.job
    tables, notes = toggles.of_the_device(job)
    return toggles.found([stage.in_process(lambda timed: toggles.measure(job, timed)), *tables], notes)


SUITES: dict[str, Callable[[SuiteStage], Found]] = {
    "zedinfer": _zedinfer,
    "paladin": _paladin,
    "mini-infer": _mini_infer,
    "vllm": _vllm,
    "toggles": _toggles,
}


def run(
    name: str, resolved: Resolved, shrink: int, runs: int, on_event: OnEvent, say: Say
) -> tuple[Report, Sequence[Chart]]:
    """Make every table of a suite. Raises EngineError when a request is not answered."""
    config, load_before = resolved.config, os.getloadavg()
    work = work_of(config)
    job = SuiteJob(config, work.vocab_size, work, machine.measure_limits(config.device, on_event), say, shrink, runs)
    stage = SuiteStage(job, on_event)
    found = SUITES[name](stage)
    facts = [*machine.facts(job.limits, resolved), *stage.facts, ("load average", _loads(load_before))]
    facts += [("runs of each figure", str(runs))]
    notes = [*found.notes]
    if shrink > 1:
        facts.append(("shrunk", f"every length and number of requests divided by {shrink}"))
        notes.insert(0, SHRUNK.format(shrink))
    notes.append(
        "A row without figures does not fit max_num_seqs or max_model_len (see the facts, -v shows all). Figures that "
        "other engines took on other cards are not beside ours; shares of the bandwidth measured in this run are what "
        "compares."
    )
    return Report(f"jaxinfer bench suite {name}", facts, found.tables, notes, details=stage.details), found.charts


def _loads(before: tuple[float, float, float]) -> str:
    """What other programs did meanwhile shows in the first; ours is in the second."""
    return f"{before[0]:.2f} over the minute before, {os.getloadavg()[0]:.2f} over the last one"
