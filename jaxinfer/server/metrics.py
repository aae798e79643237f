"""GET /metrics: what the engine and the requests were up to, under our names and under vLLM's (vllm_metrics.py).

No label holds what a client sent: routes, statuses, states and reasons are from lists of ours.
"""

import dataclasses
from collections.abc import Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric

from jaxinfer.llm.admission import Status
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.latency import Latency
from jaxinfer.llm.replicas import ReplicaStats
from jaxinfer.llm.types import Stats
from jaxinfer.server.families import Labels, by_label, counter, gauge, histogram
from jaxinfer.server.http_counts import HttpCounts
from jaxinfer.server.response_store import ResponseStore
from jaxinfer.server.sessions import Sessions
from jaxinfer.server.storage import Storage
from jaxinfer.server.vllm_metrics import vllm_metrics
from jaxinfer.version import __version__

STATUSES: tuple[Status, ...] = get_args(Status)


@dataclasses.dataclass(frozen=True)
class Kept:
    """What the server keeps for clients. storage: None where it keeps no files."""

    sessions: Sessions
    responses: ResponseStore
    storage: Storage | None

    def families(self) -> Iterator[Metric]:
        yield gauge("jaxinfer:sessions", "Sessions by state", by_label({}, "state", self.sessions.counts()))
        number, num_bytes = self.responses.counts()
        yield gauge("jaxinfer:stored_responses", "Responses kept for clients", [({}, number)])
        text = "What they take, with their conversations"
        yield gauge("jaxinfer:stored_response_bytes", text, [({}, num_bytes)])
        states = {"running": 0, "waiting": 0} if self.storage is None else self.storage.batches.counts()
        yield gauge("jaxinfer:batches", "Batches that have not ended, by state", by_label({}, "state", states))
        number, num_bytes = (0, 0) if self.storage is None else self.storage.files.counts()
        yield gauge("jaxinfer:files", "Files kept for clients", [({}, number)])
        yield gauge("jaxinfer:file_bytes", "What they take, with answers of batches", [({}, num_bytes)])


def render_metrics(llm: AsyncLLM, http: HttpCounts, kept: Kept) -> bytes:
    """The page, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(llm, http, kept))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Snapshot:
    """The server at one moment, as prometheus-client collects it."""

    def __init__(self, llm: AsyncLLM, http: HttpCounts, kept: Kept) -> None:
        self._llm = llm
        self._http = http
        self._kept = kept

    def collect(self) -> Iterator[Metric]:
        llm, status = self._llm, self._llm.status
        yield gauge("jaxinfer:build_info", "1, with the version", [({"version": __version__}, 1)])
        statuses = by_label({}, "status", {name: name == status for name in STATUSES})
        yield gauge("jaxinfer:status", "1 for the status the server is in", statuses)
        yield from self._http.families()
        yield from self._kept.families()
        if status not in ("starting", "failed"):
            labels, stats = {"model_name": llm.info.served_names[0]}, llm.stats()
            text = "How long the engine has had work and taken no step"
            yield gauge("jaxinfer:stalled_seconds", text, [(labels, llm.stalled_s)])
            yield from _replicas(llm.replica_stats(), labels)
            yield from _state(stats, labels)
            yield from _counters(stats, labels)
            yield from _steps(stats, labels)
            yield from _device(stats, labels)
            yield from _latency(llm.latency, labels)
            yield from vllm_metrics(llm, stats)


def _replicas(replicas: list[ReplicaStats], labels: Labels) -> Iterator[Metric]:
    by_replica = [(labels | {"replica": str(one.index)}, one) for one in replicas]
    text = "1 while the replica's engine runs"
    yield gauge("jaxinfer:replica_running", text, [(own, one.is_running) for own, one in by_replica])
    text = "Requests of the replica, running and waiting"
    yield gauge("jaxinfer:replica_requests", text, [(own, one.num_requests) for own, one in by_replica])
    text = "Estimated tokens of its requests: prompts that are not known there, and answers"
    yield gauge("jaxinfer:replica_load_tokens", text, [(own, one.load_tokens) for own, one in by_replica])
    for name, text in (
        ("generated_tokens", "Tokens that the replica generated"),
        ("prompt_tokens", "Prompt tokens of requests that the replica admitted"),
        ("cached_tokens", "Prompt tokens found in the replica's prefix cache"),
        ("restarts", "Restarts of the replica's engine"),
    ):
        yield counter(f"jaxinfer:replica_{name}", text, [(own, getattr(one.stats, name)) for own, one in by_replica])


def _state(stats: Stats, labels: Labels) -> Iterator[Metric]:
    pages = {"free": stats.pages_free, "cached": stats.pages_cached, "owned": stats.pages_owned}
    yield gauge("jaxinfer:kv_pages", "KV pages by state", by_label(labels, "state", pages))
    yield gauge("jaxinfer:kv_pages_total", "KV pages in the pool", [(labels, stats.pages_total)])
    yield gauge("jaxinfer:session_pages", "KV pages that sessions keep, cached or owned", [(labels, stats.pages_kept)])
    text = "KV pages of sessions in host memory"
    yield gauge("jaxinfer:host_pages", text, [(labels, stats.host_pages)])
    states = {"running": stats.running, "waiting": stats.waiting}
    yield gauge("jaxinfer:requests", "Sequences by state", by_label(labels, "state", states))
    text = "Requests that wait for their grammar to be compiled"
    yield gauge("jaxinfer:requests_awaiting_grammar", text, [(labels, stats.awaiting_grammar)])
    yield gauge("jaxinfer:last_step_age_seconds", "Time since the last step", [(labels, stats.last_step_age_s)])


def _counters(stats: Stats, labels: Labels) -> Iterator[Metric]:
    for name, text, value in (
        ("steps", "Steps run", stats.steps),
        ("prompt_tokens", "Prompt tokens of admitted requests", stats.prompt_tokens),
        ("cached_tokens", "Prompt tokens found in the prefix cache", stats.cached_tokens),
        ("generated_tokens", "Tokens generated", stats.generated_tokens),
        ("computed_tokens", "Tokens computed, what was computed again or in vain included", stats.computed_tokens),
        ("preemptions", "Sequences preempted", stats.preemptions),
        ("pages_saved", "KV pages that went to host memory", stats.pages_saved),
        ("pages_loaded", "KV pages that came back from host memory", stats.pages_loaded),
        ("embeddings", "Prompts that became an embedding", stats.embeddings),
        ("failed_steps", "Steps that raised", stats.failed_steps),
        ("engine_recoveries", "Times the engine went on after a failed step", stats.recoveries),
        ("engine_restarts", "Times a new engine process went on where one had ended", stats.restarts),
        ("nonfinite_rows", "Requests ended because their numbers were not finite", stats.nonfinite_rows),
        ("compilations_after_ready", "Compilations since ready; 0 or a bug", stats.compiles_after_ready),
        ("compilations", "Programs that were compiled", stats.device.compiled),
        ("grammars", "Grammars that requests asked the engine for", stats.grammars.asked),
        ("grammar_cache_hits", "Of those, the ones that it had compiled or was compiling", stats.grammars.known),
        ("grammar_compile_seconds", "Time for the others, summed over threads", stats.grammars.seconds),
        ("masked_tokens", "Tokens that a grammar had a say in", stats.masked_tokens),
        ("forwarded_tokens", "Of those, tokens that it forced and that took no step", stats.forwarded_tokens),
        ("closing_answers", "Answers that closing within max_tokens has led", stats.closing_answers),
        ("executables_loaded", "Programs that came from the cache", stats.device.loaded),
        ("compile_seconds", "Time for both, summed over threads", stats.device.compile_s),
    ):
        yield counter(f"jaxinfer:{name}", text, [(labels, value)])


def _steps(stats: Stats, labels: Labels) -> Iterator[Metric]:
    work = stats.work
    kinds = {"decode": work.decode_rows, "prompt": work.prompt_rows}
    yield counter("jaxinfer:step_rows", "Rows of steps by kind", by_label(labels, "kind", kinds))
    yield histogram("jaxinfer:batch_size", "Rows of a step", [(labels, work.rows)])
    text = "The engine thread's time in steps by phase; wait is for the device"
    yield counter("jaxinfer:step_seconds", text, by_label(labels, "phase", work.phase_s))
    text = "Time with a step given to the device and not read yet: no less than the device was busy"
    yield counter("jaxinfer:device_busy_seconds", text, [(labels, work.busy_s)])


def _device(stats: Stats, labels: Labels) -> Iterator[Metric]:
    kinds = by_label(labels, "kind", stats.device.memory_bytes)
    yield gauge("jaxinfer:device_memory_bytes", "Device memory by kind; temporaries are the largest program's", kinds)
    ops = [({**labels, "op": op, "backend": backend}, 1) for op, backend in stats.device.backends.items()]
    yield gauge("jaxinfer:backend_info", "1 for what runs each op, and what weights are held in", ops)
    times = [
        ({**labels, "op": one.op, "backend": one.backend, "step": one.step}, one.median_s)
        for one in stats.device.timings
    ]
    yield gauge("jaxinfer:backend_seconds", "Median time of a layer when a start chose what runs its op", times)


def _latency(latency: Latency, labels: Labels) -> Iterator[Metric]:
    found = latency.histograms
    for name, text, key in (
        ("time_to_first_token_seconds", "From a request's arrival to its first token", "time_to_first_token"),
        ("inter_token_seconds", "Between two tokens of one choice", "between_tokens"),
        ("request_seconds", "From a request's arrival to its last token", "whole"),
    ):
        yield histogram(f"jaxinfer:{name}", text, [(labels, found[key])])
    phases = [({**labels, "phase": phase}, found[phase]) for phase in ("prepare", "queue", "prefill", "decode")]
    text = "A request's time by phase; prepare is reading, templates and tokenizing"
    yield histogram("jaxinfer:request_phase_seconds", text, phases)
