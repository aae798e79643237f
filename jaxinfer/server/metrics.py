"""GET /metrics: the engine's counters under our names and under vLLM's, so that its dashboards work unchanged."""

from collections.abc import Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from jaxinfer.llm.async_llm import AsyncLLM, Status
from jaxinfer.llm.types import Stats

STATUSES: tuple[Status, ...] = get_args(Status)


def render_metrics(llm: AsyncLLM) -> bytes:
    """The page, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(llm))
    return generate_latest(registry)


class _Snapshot:
    """The engine at one moment, as prometheus-client collects it."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    def collect(self) -> Iterator[Metric]:
        status = self._llm.status
        family = GaugeMetricFamily("jaxinfer:status", "1 for the status the server is in", labels=("status",))
        for name in STATUSES:
            family.add_metric((name,), float(name == status))
        yield family
        if status not in ("starting", "failed"):
            model = self._llm.info.served_names[0]
            stats = self._llm.stats()
            text = "How long the engine has had work and taken no step"
            yield _gauge("jaxinfer:stalled_seconds", text, (model,), self._llm.stalled_s)
            yield from _ours(stats, model)
            yield from _vllms(stats, model)


def _ours(stats: Stats, model: str) -> Iterator[Metric]:
    pages = GaugeMetricFamily("jaxinfer:kv_pages", "KV pages by state", labels=("model_name", "state"))
    for state, count in (("free", stats.pages_free), ("cached", stats.pages_cached), ("owned", stats.pages_owned)):
        pages.add_metric((model, state), count)
    yield pages
    yield _gauge("jaxinfer:kv_pages_total", "KV pages in the pool", (model,), stats.pages_total)
    requests = GaugeMetricFamily("jaxinfer:requests", "Sequences by state", labels=("model_name", "state"))
    requests.add_metric((model, "running"), stats.running)
    requests.add_metric((model, "waiting"), stats.waiting)
    yield requests
    yield _gauge("jaxinfer:last_step_age_seconds", "Time since the last step", (model,), stats.last_step_age_s)
    for name, text, value in (
        ("steps", "Steps run", stats.steps),
        ("prompt_tokens", "Prompt tokens of admitted requests", stats.prompt_tokens),
        ("cached_tokens", "Prompt tokens found in the prefix cache", stats.cached_tokens),
        ("generated_tokens", "Tokens generated", stats.generated_tokens),
        ("preemptions", "Sequences preempted", stats.preemptions),
        ("failed_steps", "Steps that raised", stats.failed_steps),
        ("engine_recoveries", "Times the engine went on after a failed step", stats.recoveries),
        ("engine_restarts", "Times a new engine process went on where one had ended", stats.restarts),
        ("nonfinite_rows", "Requests ended because their numbers were not finite", stats.nonfinite_rows),
        ("compilations_after_ready", "Compilations since ready; 0 or a bug", stats.compiles_after_ready),
    ):
        yield _counter(f"jaxinfer:{name}", text, (model,), value)


def _vllms(stats: Stats, model: str) -> Iterator[Metric]:
    labels = (model, "0")
    used = stats.pages_owned / stats.pages_total if stats.pages_total else 0.0
    yield _gauge("vllm:num_requests_running", "Sequences being computed", labels, stats.running)
    yield _gauge("vllm:num_requests_waiting", "Sequences waiting to be admitted", labels, stats.waiting)
    yield _gauge("vllm:kv_cache_usage_perc", "Share of KV pages owned by sequences, 0 to 1", labels, used)
    for name, text, value in (
        ("prompt_tokens", "Prompt tokens of admitted requests", stats.prompt_tokens),
        ("prompt_tokens_cached", "Prompt tokens found in the prefix cache", stats.cached_tokens),
        ("generation_tokens", "Tokens generated", stats.generated_tokens),
        ("num_preemptions", "Sequences preempted", stats.preemptions),
        ("prefix_cache_queries", "Tokens looked up in the prefix cache", stats.prompt_tokens),
        ("prefix_cache_hits", "Tokens found in the prefix cache", stats.cached_tokens),
    ):
        yield _counter(f"vllm:{name}", text, labels, value)
    finished = CounterMetricFamily(
        "vllm:request_success", "Sequences finished, by reason", labels=("model_name", "engine", "finished_reason")
    )
    for reason, count in sorted(stats.finished.items()):
        finished.add_metric((*labels, reason), count)
    yield finished


def _gauge(name: str, text: str, labels: tuple[str, ...], value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=("model_name", "engine")[: len(labels)])
    family.add_metric(labels, value)
    return family


def _counter(name: str, text: str, labels: tuple[str, ...], value: float) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=("model_name", "engine")[: len(labels)])
    family.add_metric(labels, value)
    return family
