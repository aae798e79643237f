"""GET /metrics over the whole server but for the device: vLLM's dashboards find what they ask for, and no client makes
a label or a counter fall.
"""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.server.app import create_app
from tests.server.dry import dry_llm
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, COMPLETIONS, USER, ask, live, wait_until
from tests.server.streams import ask_all

# What vLLM's dashboards ask of a server, with the labels they select or sum by: examples/observability of its
# repository, prometheus_grafana/grafana.json (commit 4b5c627) and, in dashboards/grafana, performance_statistics
# (5961e8d), query_statistics (030ea52), vllm_overview (8aed4e5), vllm_service_status (712d754), vllm_instances
# (0b9faa4), vllm_kv_cache (5836216) and vllm_speculative_decoding (8aed4e5).
OF_HISTOGRAMS = (
    *("e2e_request_latency_seconds", "inter_token_latency_seconds", "time_to_first_token_seconds"),
    *("request_time_per_output_token_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
    *("request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens"),
    *("request_max_num_generation_tokens", "iteration_tokens_total", "request_prefill_kv_computed_tokens"),
)
DASHBOARDS = {
    "vllm:engine_sleep_state": {"model_name", "sleep_state"},
    "vllm:prompt_tokens_cached_total": {"model_name"},
    "vllm:prompt_tokens_cached_by_source_total": {"model_name", "source"},
    "vllm:cache_config_info": {
        *("num_gpu_blocks", "num_cpu_blocks", "block_size", "cache_dtype", "gpu_memory_utilization"),
        "enable_prefix_caching",
    },
    **dict.fromkeys(("process_start_time_seconds", "process_cpu_seconds_total", "process_open_fds"), set()),
    **dict.fromkeys(("process_resident_memory_bytes", "process_max_fds"), set()),
    **{f"vllm:{name}_bucket": {"model_name", "le"} for name in OF_HISTOGRAMS},
    **{f"vllm:{name}_{part}": {"model_name"} for name in OF_HISTOGRAMS for part in ("sum", "count")},
    "vllm:generation_tokens_total": {"model_name"},
    "vllm:kv_cache_usage_perc": {"model_name"},
    "vllm:num_preemptions_total": {"model_name"},
    "vllm:num_requests_running": {"model_name"},
    "vllm:num_requests_waiting": {"model_name"},
    "vllm:num_requests_waiting_by_reason": {"model_name", "reason"},
    "vllm:prefix_cache_hits_total": {"model_name"},
    "vllm:prefix_cache_queries_total": {"model_name"},
    "vllm:prompt_tokens_total": {"model_name"},
    "vllm:prompt_tokens_by_source_total": {"model_name", "source"},
    "vllm:request_success_total": {"model_name", "finished_reason"},
    "http_requests_total": {"handler", "status"},
    "http_request_duration_seconds_sum": {"handler"},
    "http_request_duration_seconds_count": {"handler"},
}
# What they ask beyond that: of features that a vLLM has only where they are switched on, and this server has not. Their
# panels are empty, as those of a vLLM are without them.
ABSENT = (
    *("lora_requests_info", "estimated_flops_per_gpu", "nixl_", "mm_cache_"),
    *("estimated_read_bytes_per_gpu", "estimated_write_bytes_per_gpu", "spec_decode_", "external_prefix_cache_"),
    *("sleep_mode_operation_duration_seconds", "rl_weight_update_operation_duration_seconds", "kv_block_"),
    "num_requests_kv_fetch_by_stage",
)
# and the values that it selects by, which must be spelt alike
SELECTED = {
    "vllm:engine_sleep_state": ("sleep_state", {"awake", "discard_all"}),
    "vllm:time_to_first_token_seconds_bucket": ("le", {"0.1", "0.25", "0.5", "0.75", "1.0", "2.5", "5.0", "10.0"}),
    "vllm:request_time_per_output_token_seconds_bucket": (
        "le",
        {"0.025", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.5"},
    ),
    "vllm:num_requests_waiting_by_reason": ("reason", {"capacity", "deferred"}),
    "vllm:prompt_tokens_by_source_total": ("source", {"local_compute", "local_cache_hit", "external_kv_transfer"}),
    "vllm:prompt_tokens_cached_by_source_total": ("source", {"device", "host", "disk", "p2p", "external_unspecified"}),
    "vllm:request_success_total": ("finished_reason", {"stop", "length", "abort", "error"}),
    "http_requests_total": ("status", {"2xx", "4xx"}),
}
# Beside those what vLLM serves and we have, by type
TYPES = {
    "gauge": ("num_requests_waiting_by_reason", "cache_config_info", "gpu_cache_usage_perc"),
    "counter": (
        *("prompt_tokens_cached", "prompt_tokens_by_source", "num_preemptions", "corrupted_requests"),
        *("prefix_cache_queries", "prefix_cache_hits", "generation_tokens", "prompt_tokens", "request_success"),
    ),
    "histogram": (
        *("request_time_per_output_token_seconds", "time_per_output_token_seconds", "request_inference_time_seconds"),
        *("request_params_max_tokens", "request_params_n", "request_prefill_kv_computed_tokens"),
        *("request_num_preemptions", "iteration_tokens_total", "inter_token_latency_seconds"),
    ),
}
NUM_VALUES = 10_000
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def llm() -> AsyncLLM:
    return dry_llm(0.002, served_model_name=("made-up",), max_num_seqs=4)


@pytest.fixture(scope="module")
def port(llm: AsyncLLM) -> Iterator[int]:
    with live(create_app(llm), llm.start, llm.close) as port:
        yield port


Key = tuple[str, frozenset[tuple[str, str]]]


def families(page: str) -> list[Metric]:
    return list(text_string_to_metric_families(page))


def samples(page: str) -> dict[Key, float]:
    found = [sample for family in families(page) for sample in family.samples]
    by_key = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}
    assert len(by_key) == len(found), "a sample is there twice"
    return by_key


def scrape(port: int) -> str:
    return httpx2.get(f"http://127.0.0.1:{port}/metrics").raise_for_status().text


def value(page: str, name: str, **labels: str) -> float:
    """One sample of a page, of the engine's one model."""
    return samples(page)[name, frozenset({"model_name": "made-up", **labels}.items())]


def settled(port: int, llm: AsyncLLM) -> str:
    """The page once the engine process has told of all it has done."""
    wait_until(lambda: llm.stats().running + llm.stats().waiting + llm.stats().pages_owned == 0)
    return scrape(port)


def some(count: int, max_tokens: int = 10) -> list[dict]:
    return [{"prompt": f"say something, {i}", "max_tokens": max_tokens} for i in range(count)]


def test_vllm_s_dashboards_find_every_metric_with_its_labels(port):
    ask_all(port, some(3))
    there = {}
    for name, labels in samples(scrape(port)):
        there.setdefault(name, set()).update(label for label, _ in labels)
    assert {name: labels for name, labels in DASHBOARDS.items() if not labels <= there.get(name, set())} == {}
    assert all("engine" in there[name] for name in DASHBOARDS if name.startswith("vllm:"))
    assert not [name for name in there if name.startswith(tuple(f"vllm:{absent}" for absent in ABSENT))], "not ABSENT"


def test_their_board_of_services_shows_that_this_one_is_up(port):
    """Which takes the largest value of an engine awake for it."""
    page = scrape(port)
    states = {s: value(page, "vllm:engine_sleep_state", engine="0", sleep_state=s) for s in ("awake", "discard_all")}
    assert states == {"awake": 1, "discard_all": 0}
    started_s = samples(page)["process_start_time_seconds", frozenset()]
    assert 0 < time.time() - started_s < 24 * 3600, "uptime is shown from it"


def test_what_the_dashboards_select_by_is_spelt_as_they_do(port):
    httpx2.post(f"http://127.0.0.1:{port}{COMPLETIONS}", json={})
    found = [(name, dict(labels)) for name, labels in samples(scrape(port))]
    for name, (label, wanted) in SELECTED.items():
        assert {labels[label] for other, labels in found if other == name} >= wanted
    probes = {labels["handler"] for name, labels in found if name == "http_requests_total"}
    assert COMPLETIONS in probes and probes.isdisjoint({"/metrics", "/health", "/ready"})


def test_vllm_s_other_metrics_have_its_types(port):
    types = {family.name: family.type for family in families(scrape(port))}
    wanted = {f"vllm:{name}": kind for kind, names in TYPES.items() for name in names}
    assert {name: types.get(name) for name in wanted} == wanted


def test_a_request_is_counted_in_every_phase(port, llm):
    before = settled(port, llm)
    body = {"prompt": list(range(40)), "max_tokens": 10, "n": 2, "ignore_eos": True}
    httpx2.post(f"http://127.0.0.1:{port}{COMPLETIONS}", json=body).raise_for_status()
    after = settled(port, llm)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    for phase in ("prepare", "queue", "prefill", "decode"):
        assert grown("jaxinfer:request_phase_seconds_count", phase=phase) == 2
    whole_s = grown("jaxinfer:request_seconds_sum")
    assert 2 * 10 * 0.002 < whole_s < 2 * 5
    phases_s = sum(grown("jaxinfer:request_phase_seconds_sum", phase=p) for p in ("prepare", "queue", "prefill"))
    first_s = grown("jaxinfer:time_to_first_token_seconds_sum")
    assert 0 < phases_s <= first_s < whole_s
    assert grown("jaxinfer:inter_token_seconds_count") == 2 * 9
    assert grown("jaxinfer:request_phase_seconds_sum", phase="decode") == pytest.approx(whole_s - first_s)
    assert grown("vllm:request_generation_tokens_sum", engine="0") == 20
    assert grown("vllm:request_prompt_tokens_sum", engine="0") == 80
    assert grown("vllm:request_params_n_sum", engine="0") == 2
    assert grown("vllm:request_max_num_generation_tokens_sum", engine="0") == 10
    assert grown("vllm:request_success_total", engine="0", finished_reason="length") == 2


def test_the_steps_rows_and_times_add_up(port, llm):
    ask_all(port, some(8, max_tokens=20))
    page = settled(port, llm)
    steps = value(page, "jaxinfer:steps_total")
    assert (
        value(page, "jaxinfer:batch_size_count")
        == value(page, "vllm:iteration_tokens_total_count", engine="0")
        == steps
    )
    kinds = [value(page, "jaxinfer:step_rows_total", kind=kind) for kind in ("decode", "prompt")]
    assert all(kinds) and sum(kinds) == value(page, "jaxinfer:batch_size_sum")
    assert value(page, "vllm:iteration_tokens_total_sum", engine="0") == value(page, "jaxinfer:computed_tokens_total")
    phases = {p: value(page, "jaxinfer:step_seconds_total", phase=p) for p in ("plan", "dispatch", "wait", "commit")}
    assert all(seconds > 0 for seconds in phases.values())
    busy_s = value(page, "jaxinfer:device_busy_seconds_total")
    assert busy_s >= steps * 0.002
    assert busy_s >= phases["wait"]


def test_grammars_and_what_is_drawn_under_them_are_counted(port, llm):
    before = settled(port, llm)
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    body = {"prompt": "once", "max_tokens": 20, "temperature": 1, "seed": 2}
    num_tokens = 0
    for fields in ({}, form, form, form | {"close_within_max_tokens": True}, form | {"close_within_max_tokens": True}):
        answer = httpx2.post(f"http://127.0.0.1:{port}{COMPLETIONS}", json=body | fields).raise_for_status().json()
        num_tokens += answer["usage"]["completion_tokens"] if fields else 0
    after = settled(port, llm)

    def grown(name: str) -> float:
        return value(after, f"jaxinfer:{name}_total") - value(before, f"jaxinfer:{name}_total")

    assert (grown("grammars"), grown("grammar_cache_hits")) == (4, 2), "one that closes is compiled for that"
    assert 0 < grown("grammar_compile_seconds") < 60
    assert grown("masked_tokens") == num_tokens > 0
    assert 0 <= grown("forwarded_tokens") < num_tokens
    assert grown("closing_answers") == 2
    assert value(after, "jaxinfer:requests_awaiting_grammar") == 0


def falling(before: str, after: str) -> list[Key]:
    """Counters and buckets that have fallen or are gone."""
    rising = re.compile(r"(jaxinfer:|vllm:|http_).*(_total|_bucket|_count|_sum)")
    then, now = samples(before), samples(after)
    return [key for key, was in then.items() if rising.fullmatch(key[0]) and not now.get(key, -1.0) >= was]


def test_nothing_that_counts_falls_when_the_engine_process_is_killed(port, llm):
    ask_all(port, some(4))
    before = settled(port, llm)
    assert value(before, "jaxinfer:inter_token_seconds_count") > 0
    os.kill(llm.replicas.transports[0].pid, signal.SIGKILL)
    answers = ask_all(port, some(4))
    assert all(answer.status == 200 and answer.error is None for answer in answers)
    after = settled(port, llm)
    assert value(after, "jaxinfer:engine_restarts_total") == value(before, "jaxinfer:engine_restarts_total") + 1
    assert falling(before, after) == []
    assert falling(after, before), "the check sees what falls"
    assert value(after, "jaxinfer:time_to_first_token_seconds_count") >= len(answers)


def test_a_preempted_request_says_so():
    """32 pages for 4 sequences of up to 200 tokens, some of whose pages are taken on the way."""
    llm = dry_llm(0, served_model_name=("made-up",), max_num_seqs=4, max_model_len=208, page_size=16, num_pages=33)
    with live(create_app(llm), llm.start, llm.close) as port:
        ask_all(port, some(8, max_tokens=180))
        page = settled(port, llm)
    preemptions = value(page, "vllm:num_preemptions_total", engine="0")
    assert preemptions > 0
    assert value(page, "vllm:request_num_preemptions_sum", engine="0") == preemptions


async def serve(app, path: str, body: dict, request_id: str) -> int:
    """One POST, straight to the app; its status."""
    status = []
    content = json.dumps(body).encode()
    headers = [(b"host", b"test"), (b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers}
    scope |= {"query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1", "state": {}}
    messages = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive():
        if (message := next(messages, None)) is not None:
            return message
        return await asyncio.Event().wait()

    async def send(message):
        status.append(message.get("status"))

    await app(scope, receive, send)
    return status[0]


def test_no_user_model_or_path_makes_a_label():
    app = create_app(FakeLLM())

    async def ask_as(number: int) -> int:
        user, kind = f"user-{number}", number % 3
        if kind == 0:
            return await serve(app, CHAT, {"messages": USER, "user": user}, user)
        if kind == 1:
            return await serve(app, COMPLETIONS, {"prompt": "x", "model": f"model-{number}", "user": user}, user)
        return await serve(app, f"/path-{number}" if number % 2 else f"/v1/models/m-{number}", {}, user)

    async def test() -> None:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            statuses = {await ask_as(number) for number in range(6)}
            assert statuses == {200, 404, 405}
            await client.get("/metrics")
            few = (await client.get("/metrics")).text
            for number in range(6, NUM_VALUES):
                await ask_as(number)
            many = (await client.get("/metrics")).text
        assert samples(few).keys() == samples(many).keys()
        assert re.sub(r" \S+$", "", few, flags=re.MULTILINE) == re.sub(r" \S+$", "", many, flags=re.MULTILINE)
        counted = {labels: n for (name, labels), n in samples(many).items() if name == "jaxinfer:http_answers_total"}
        assert sum(counted.values()) == NUM_VALUES + 2

    asyncio.run(test())


def test_the_docs_name_every_metric_of_ours_and_no_other(port):
    text = (DOCS / "observability.md").read_text()
    ours = {family.name: family.type for family in families(scrape(port)) if family.name.startswith("jaxinfer:")}
    rows = re.findall(r"^\| (`.*`) \| (gauge|counter|histogram) \|", text, re.MULTILINE)
    named = {
        name.removesuffix("_total" * (kind == "counter")): kind
        for names, kind in rows
        for name in re.findall(r"`(\w+)`", names)
    }
    assert named == {name.removeprefix("jaxinfer:"): kind for name, kind in ours.items()}


def queried(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric of a PromQL expression of ours with the labels it is selected by, and those that are summed by."""
    for operand in expression.split(" / "):
        summed = {label for found in re.findall(r" by \(([^)]*)\)", operand) for label in found.split(", ")}
        for name, selectors in re.findall(r"\b((?:jaxinfer:|vllm:|http_|process_)\w+)\{([^}]*)\}", operand):
            yield name, summed | set(re.findall(r'(\w+)(?:=~|!~|!=|=)"', selectors))


def test_our_dashboard_asks_for_what_is_served(port):
    ask_all(port, some(3))
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    there = {}
    device = ask(FakeLLM(), "GET", "/metrics").text  # a dry run has none
    for name, labels in [*samples(scrape(port)), *samples(device)]:
        there.setdefault(name, {"job"}).update(label for label, _ in labels)  # job is Prometheus' own
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = [found for expression in expressions for found in queried(expression)]
    assert len(asked) >= len(expressions) > 20
    assert {name: labels for name, labels in asked if not labels <= there.get(name, set())} == {}
    sources = [variable["query"] for variable in dashboard["templating"]["list"]]
    assert [re.search(r"\((\S+), (\w+)\)", source["query"]).groups() for source in sources[1:]] == [
        ("jaxinfer:steps_total", "model_name"),
        ("jaxinfer:build_info", "job"),
    ]
    assert all(expression.count("(") == expression.count(")") for expression in expressions)
