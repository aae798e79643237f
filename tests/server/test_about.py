"""/v1/models, /health, /ready, /version, /metrics, and what each status of the engine means for them."""

import pytest

from jaxinfer.server.settings import ServerSettings
from jaxinfer.version import __version__
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, COMPLETIONS, USER, ask, error_of, post

CARD = {
    "id": "tiny",
    "object": "model",
    "created": 1_700_000_000,
    "owned_by": "jaxinfer",
    "root": "org/tiny-1B",
    "parent": None,
    "max_model_len": 512,
    "max_context_length": 512,
    "meta": {"n_ctx": 512, "n_ctx_train": 0, "n_vocab": 300, "n_embd": 4, "n_params": 0, "size": 0},
    "permission": [],
    "default_sampling_params": {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": None,
    },
}
PATHS = ("/health", "/ready", "/v1/models", "/metrics", "/version")


def test_every_served_name_has_a_card():
    body = ask(FakeLLM(), "GET", "/v1/models").json()
    assert body == {"object": "list", "data": [CARD, {**CARD, "id": "org/tiny-1B"}]}


def test_a_model_is_found_by_a_name_with_a_slash():
    assert ask(FakeLLM(), "GET", "/v1/models/org/tiny-1B").json() == {**CARD, "id": "org/tiny-1B"}
    assert ask(FakeLLM(), "GET", "/v1/models/org%2Ftiny-1B").json()["id"] == "org/tiny-1B"


@pytest.mark.parametrize("name", ["tiny", "org/tiny-1B"])
def test_a_name_with_the_tag_of_ollama_is_that_model_on_every_route(name):
    assert ask(FakeLLM(), "GET", f"/v1/models/{name}:latest").json()["id"] == name
    given, messages = {"model": f"{name}:latest"}, [{"role": "user", "content": "x"}]
    bodies = {
        "/v1/chat/completions": {"messages": messages},
        "/v1/completions": {"prompt": "x"},
        "/v1/responses": {"input": "x"},
        "/v1/messages": {"messages": messages, "max_tokens": 4},
        "/v1/embeddings": {"input": "x"},
        "/tokenize": {"prompt": "x"},
    }
    for path, body in bodies.items():
        answer = post(FakeLLM(), path, body | given)
        assert answer.status_code == 200 and answer.json().get("model", name) == name, path
    other = post(FakeLLM(), "/v1/chat/completions", {"model": f"{name}:8b", "messages": messages})
    assert other.status_code == 404


@pytest.mark.parametrize("name", ["nope", "../tiny", "a" * 4096, "tiny%00", "%0d%0aset-cookie:x"])
def test_another_name_is_a_404(name):
    response = ask(FakeLLM(), "GET", f"/v1/models/{name}")
    assert response.status_code == 404
    assert error_of(response)["code"] in ("model_not_found", "not_found")
    assert len(response.text) < 600


def test_a_model_that_is_no_real_one_says_so():
    note = "the bundled demo; serve a real model with: jaxinfer serve Qwen/Qwen3-0.6B"
    assert ask(FakeLLM(note=note), "GET", "/v1/models/tiny").json()["note"] == note


@pytest.mark.parametrize(
    ("status", "serve_early", "codes"),
    [
        ("starting", False, (503, 503, 503, 200, 200)),
        ("serving", False, (503, 503, 503, 200, 200)),
        ("serving", True, (200, 503, 200, 200, 200)),
        ("ready", False, (200, 200, 200, 200, 200)),
        ("draining", False, (200, 503, 200, 200, 200)),
        ("failed", False, (503, 503, 503, 200, 200)),
    ],
)
def test_what_answers_in_each_status(status, serve_early, codes):
    settings = ServerSettings(serve_early=serve_early)
    answers = [ask(FakeLLM(status=status), "GET", path, settings) for path in PATHS]
    assert tuple(answer.status_code for answer in answers) == codes
    for answer in answers:
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) >= 1
            assert error_of(answer)["type"] == "service_unavailable_error"


@pytest.mark.parametrize(
    ("status", "code"),
    [("starting", "starting"), ("serving", "starting"), ("draining", "draining"), ("failed", "failed")],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
def test_work_is_refused_with_a_503_and_retry_after_until_the_engine_is_ready(path, status, code):
    llm = FakeLLM(status=status)
    response = post(llm, path, {"messages": USER, "prompt": "x", "tokens": [1]})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    assert error_of(response)["code"] == code
    assert not llm.calls


def test_the_version_is_the_packages():
    assert ask(FakeLLM(), "GET", "/version").json() == {"version": __version__}


def test_the_metrics_page_has_our_names_and_vllms():
    llm = FakeLLM()
    llm.running.add("a")
    response = ask(llm, "GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    for line in (
        'jaxinfer:status{status="ready"} 1.0',
        'jaxinfer:status{status="draining"} 0.0',
        'jaxinfer:kv_pages{model_name="tiny",state="free"} 9.0',
        'jaxinfer:kv_pages{model_name="tiny",state="owned"} 1.0',
        'jaxinfer:compilations_after_ready_total{model_name="tiny"} 0.0',
        'jaxinfer:compilations_total{model_name="tiny"} 2.0',
        'jaxinfer:executables_loaded_total{model_name="tiny"} 3.0',
        'jaxinfer:device_memory_bytes{kind="weights",model_name="tiny"} 1000.0',
        'jaxinfer:backend_info{backend="xla",model_name="tiny",op="decode_attention"} 1.0',
        'jaxinfer:backend_seconds{backend="xla",model_name="tiny",op="decode_attention",step="decode 8"} 0.0005',
        'jaxinfer:backend_seconds{backend="cpu",model_name="tiny",op="decode_attention",step="decode 8"} 0.001',
        'vllm:num_requests_running{engine="0",model_name="tiny"} 1.0',
        'vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0',
        'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.1',
        'vllm:prompt_tokens_total{engine="0",model_name="tiny"} 100.0',
        'vllm:generation_tokens_total{engine="0",model_name="tiny"} 7.0',
        'vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 40.0',
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 3.0',
    ):
        assert line in lines


def test_the_metrics_page_of_a_starting_server_has_its_status_only():
    text = ask(FakeLLM(status="starting"), "GET", "/metrics").text
    assert 'jaxinfer:status{status="starting"} 1.0' in text
    assert "vllm:" not in text


def test_props_are_what_llama_cpp_s_clients_ask_for():
    props = ask(FakeLLM(chat_template="{{ messages }}"), "GET", "/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 512 and props["total_slots"] == 8
    assert props["chat_template"] == "{{ messages }}"
    assert ask(FakeLLM(status="starting"), "GET", "/props").status_code == 503
