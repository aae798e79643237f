"""The metrics of /metrics that have vLLM's names, types, labels and buckets, so that what reads a vLLM reads us.

Not here is what belongs to features that are not: LoRA, speculation, caches beside the pages. An engine never sleeps,
and says so: vLLM's board of services takes one that says nothing for one that is down.
"""

from collections.abc import Iterator

from prometheus_client.core import Metric

from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.latency import BETWEEN, FIRST_TOKEN, WHOLE
from jaxinfer.llm.types import Stats
from jaxinfer.server.families import Labels, by_label, counter, gauge, histogram

# name, text, its histogram, the bounds that vLLM shows of it (None: all)
_OF_REQUESTS: tuple[tuple[str, str, str, tuple[float, ...] | None], ...] = (
    ("time_to_first_token_seconds", "From arrival to the first token", "time_to_first_token", FIRST_TOKEN),
    ("inter_token_latency_seconds", "Between two tokens of one sequence", "between_tokens", BETWEEN),
    ("time_per_output_token_seconds", "The same, under its older name", "between_tokens", BETWEEN),
    ("request_time_per_output_token_seconds", "Mean time between a sequence's tokens", "per_output_token", BETWEEN),
    ("e2e_request_latency_seconds", "From arrival to the last token", "whole", WHOLE),
    ("request_queue_time_seconds", "Until the sequence was admitted", "queue", WHOLE),
    ("request_inference_time_seconds", "From there to its last token", "inference", WHOLE),
    ("request_prefill_time_seconds", "From there to its first token", "prefill", WHOLE),
    ("request_decode_time_seconds", "From its first token to its last", "decode", WHOLE),
    ("request_prompt_tokens", "Prompt tokens of a sequence", "prompt_tokens", None),
    ("request_generation_tokens", "Tokens generated for a sequence", "generation_tokens", None),
    ("request_max_num_generation_tokens", "Tokens of a request's longest answer", "longest_generation", None),
    ("request_params_max_tokens", "max_tokens of a request", "max_tokens", None),
    ("request_params_n", "n of a request", "n", None),
    ("request_prefill_kv_computed_tokens", "Prompt tokens not found in the cache", "computed_prompt_tokens", None),
    ("request_num_preemptions", "Preemptions of a sequence", "preemptions", None),
)


def vllm_metrics(llm: AsyncLLM, stats: Stats) -> Iterator[Metric]:
    """All of them. There is one engine, whose number is 0."""
    labels = {"model_name": llm.info.served_names[0], "engine": "0"}
    yield from _gauges(stats, labels)
    yield _cache_config(llm)
    yield from _counters(stats, labels)
    for name, text, key, bounds in _OF_REQUESTS:
        yield histogram(f"vllm:{name}", text, [(labels, llm.latency.histograms[key])], bounds)
    yield histogram("vllm:iteration_tokens_total", "Tokens of a step", [(labels, stats.work.tokens)])


def _gauges(stats: Stats, labels: Labels) -> Iterator[Metric]:
    used = stats.pages_owned / stats.pages_total if stats.pages_total else 0.0
    for name, text, value in (
        ("num_requests_running", "Sequences being computed", stats.running),
        ("num_requests_waiting", "Sequences waiting to be admitted", stats.waiting),
        ("kv_cache_usage_perc", "Share of KV pages owned by sequences, 0 to 1", used),
        ("gpu_cache_usage_perc", "The same, under its older name", used),
    ):
        yield gauge(f"vllm:{name}", text, [(labels, value)])
    reasons = {"capacity": stats.waiting - stats.held, "deferred": stats.held}
    states = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    yield gauge("vllm:engine_sleep_state", "1 for the state the engine is in", by_label(labels, "sleep_state", states))
    text = "Sequences waiting for a slot and pages, or for a sibling's prompt"
    yield gauge("vllm:num_requests_waiting_by_reason", text, by_label(labels, "reason", reasons))


def _cache_config(llm: AsyncLLM) -> Metric:
    config, limits = llm.config, llm.limits
    labels = {
        "block_size": str(limits.page_size),
        "cache_dtype": "auto",  # that of the weights
        "enable_prefix_caching": str(limits.enable_prefix_caching),
        "gpu_memory_utilization": str(config.gpu_memory_utilization),
        "num_gpu_blocks": str(limits.num_pages - 1),
        "num_cpu_blocks": str(limits.num_host_pages),
        "engine": "0",
    }
    return gauge("vllm:cache_config_info", "1, with the settings of the KV cache", [(labels, 1)])


def _counters(stats: Stats, labels: Labels) -> Iterator[Metric]:
    for name, text, value in (
        ("prompt_tokens", "Prompt tokens of admitted requests", stats.prompt_tokens),
        ("prompt_tokens_cached", "Prompt tokens found in the prefix cache", stats.cached_tokens),
        ("generation_tokens", "Tokens generated", stats.generated_tokens),
        ("num_preemptions", "Sequences preempted", stats.preemptions),
        ("prefix_cache_queries", "Tokens looked up in the prefix cache", stats.prompt_tokens),
        ("prefix_cache_hits", "Tokens found in the prefix cache", stats.cached_tokens),
        ("corrupted_requests", "Sequences whose numbers were not finite", stats.nonfinite_rows),
    ):
        yield counter(f"vllm:{name}", text, [(labels, value)])
    computed = stats.prompt_tokens - stats.cached_tokens
    sources = {"local_compute": computed, "local_cache_hit": stats.cached_tokens, "external_kv_transfer": 0}
    yield counter("vllm:prompt_tokens_by_source", "Prompt tokens by source", by_label(labels, "source", sources))
    host = stats.host_cached_tokens
    tiers = {"device": stats.cached_tokens - host, "host": host, "disk": 0, "p2p": 0, "external_unspecified": 0}
    text = "Prompt tokens found in the prefix cache, by where they were"
    yield counter("vllm:prompt_tokens_cached_by_source", text, by_label(labels, "source", tiers))
    finished = by_label(labels, "finished_reason", dict(sorted(stats.finished.items())))
    yield counter("vllm:request_success", "Sequences finished, by reason", finished)
