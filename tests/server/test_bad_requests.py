"""What no client may send, over HTTP: refused quickly, in one shape, before anything is tokenized (A01 to A04, A06 to
A08, A13, A18, A19, A21, A22); test_errors.py has the bytes that are no JSON (A09), test_faults.py the ids (A05).
"""

import json
import logging
import os
import socket
import time
from typing import Any

import httpx2
import pytest

from jaxinfer.server.settings import ServerSettings
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, COMPLETIONS, USER, ask, error_of, post
from tests.support.attempts import assert_below, processor_s
from tests.support.processes import footprint

VOCAB = 300  # FakeLLM's
COUNTS: tuple[Any, ...] = (0, -1, 17, 10**6, 10**18, "2", 2.0, True)
FLOATS: tuple[Any, ...] = ("0.7", [], True, {}, -1e9, 1e9)
TOKENS = (b"NaN", b"Infinity", b"-Infinity", b"1e309", b"-1e309")
NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
SWARMS = (["x"] * 17, ["x"] * 200_000, ["x" * 2**20], "x" * 2**20, "", [""], [5], {"a": 1})
BASE: dict[str, dict[str, Any]] = {CHAT: {"messages": USER}, COMPLETIONS: {"prompt": "secret words"}}


def both(name: str, given: tuple[Any, ...]) -> list[tuple[str, str, Any]]:
    return [(path, name, value) for path in BASE for value in given]


REFUSED: list[tuple[str, str, Any]] = [
    *both("n", COUNTS),  # A01
    *((COMPLETIONS, "best_of", value) for value in COUNTS),
    *both("max_tokens", (-2, -1.0, 1.5, "9", 10**12, 2**70, True)),  # A02
    *((CHAT, "max_completion_tokens", value) for value in (0, -2, -1.0, 1.5, "9", True)),
    *both("max_tokens", (0,)),
    (COMPLETIONS, "prompt", "x" * 600),
    (COMPLETIONS, "prompt", [1] * 513),
    (CHAT, "messages", [{"role": "user", "content": "x" * 600}]),
    *both("max_tokens", (512,)),  # with the prompt
    *(case for name in NUMBERS for case in both(name, FLOATS)),  # A03
    *both("logit_bias", ({"5": "1"}, {"5": 101}, {"5": []}, {"5": True}, {"5": None})),
    *both("logit_bias", ({"x": 1}, {"-1": 1}, {str(VOCAB): 1}, [1])),
    *((CHAT, "top_logprobs", value) for value in (21, -1, VOCAB, 2**31, 10**9, "5", True)),  # A04
    *((COMPLETIONS, "logprobs", value) for value in (21, -1, VOCAB, 2**31, 10**9, "5", True)),
    *both("prompt_logprobs", (21, -1, 2**31)),
    (COMPLETIONS, "prompt", ["x"] * 100_000),  # A06
    (CHAT, "messages", USER * 30_000),
    *both("stop", SWARMS),  # A07
    *((COMPLETIONS, "prompt", value) for value in ("", [], None, 5, {}, [""], [[]], [None], [True], ["a", 5])),  # A08
    *((CHAT, "messages", value) for value in ([], None, "x", {}, [5], [{}], [{"role": "user"}], [{"role": "x"}])),
    (CHAT, "messages", [{"role": "user", "content": None}]),
    *both("model", ("gpt-5", "../tiny", "/etc/passwd", "tiny\0", "t" * 4096, 5)),  # A08, A21
    *both("session_id", ("../../etc", "/tmp/x")),
    *both("lora_path", ("../adapter", "/etc/passwd")),
    *both("prompt_embeds", ("gASV",)),  # A19
    *both("custom_logit_processor", ("{}",)),
    *both("kv_transfer_params", ({"x": 1},)),
    (CHAT, "chat_template", "{{ ''.__class__.__mro__ }}"),  # A22
    (CHAT, "chat_template_kwargs", {"tokenize": True}),
    (CHAT, "chat_template_kwargs", {"messages": []}),
    (CHAT, "chat_template_kwargs", {"enable_thinking": "{{ 7*7 }}"}),
]
IDS = [f"{path.rpartition('/')[2]}-{name}-{number}" for number, (path, name, _) in enumerate(REFUSED)]
MEDIA = [
    {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}},
    {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "file", "file": {"file_url": "https://example.org/x.pdf"}},
    {"type": "video_url", "video_url": {"url": "gopher://127.0.0.1"}},
]


@pytest.mark.parametrize(("path", "name", "value"), REFUSED, ids=IDS)
def test_it_is_refused_by_name_and_costs_nothing(path, name, value, caplog):
    caplog.set_level(logging.DEBUG, "jaxinfer")
    llm = FakeLLM()
    raw = json.dumps(BASE[path] | {name: value} | ({"logprobs": True} if name == "top_logprobs" else {})).encode()
    response = quickly(llm, path, raw)
    error = error_of(response)
    assert response.status_code == (404 if error["code"] == "model_not_found" else 400)
    assert error["param"].startswith((name, "max_tokens" if name == "max_completion_tokens" else name))
    assert "secret" not in response.text
    assert len(response.text) < 600
    assert not llm.calls
    assert not llm.rendered or error["code"] == "context_length_exceeded"
    assert not llm.encoded or error["code"] == "context_length_exceeded"
    assert not [record for record in caplog.records if record.name.startswith("jaxinfer")]


def quickly(llm: FakeLLM, path: str, raw: bytes) -> httpx2.Response:
    """The answer, in time: seconds of a processor, more of which pass while others use it or garbage is collected."""
    responses = []

    def measured_s() -> float:
        return processor_s(lambda: responses.append(post(llm, path, raw)), time.process_time)

    assert_below(0.1 if len(raw) < 100_000 else 0.2, measured_s, "a refusal's processor time")
    return responses[-1]


def test_numbers_of_choices_that_are_refused_cost_no_memory():
    """A01"""
    names = ((COMPLETIONS, "n"), (CHAT, "n"), (COMPLETIONS, "best_of"))
    bodies = [(path, json.dumps(BASE[path] | {name: value}).encode()) for path, name in names for value in COUNTS]
    for _ in range(3):
        before = footprint(os.getpid()).kib  # the last round's: the first ones may import and cache
        for path, raw in bodies:
            assert post(FakeLLM(), path, raw).status_code == 400
    assert footprint(os.getpid()).kib - before < 5 * 2**10


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": USER * 100_000}),  # A06
        (COMPLETIONS, {"prompt": ["x"] * 300_000}),
        (COMPLETIONS, {"prompt": [1] * 5_000_000}),
        (COMPLETIONS, {"prompt": "x", "stop": ["x"] * 500_000}),  # A07
    ],
    ids=["messages", "prompts", "ids", "stop"],
)
def test_what_holds_too_many_values_is_refused_before_they_are_made(path, fields):
    llm = FakeLLM()
    response = quickly(llm, path, json.dumps(fields).encode())
    is_prompt = "messages" in fields or fields["prompt"][:1] == [1]
    code = "context_length_exceeded" if is_prompt else "invalid_json"
    assert (response.status_code, error_of(response)["code"]) == (400, code)
    assert not llm.calls and not llm.encoded and not llm.rendered


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_that_is_not_finite_comes_in(name, token):
    for path, base in BASE.items():
        raw = json.dumps(base).encode()[:-1] + b', "%s": %s}' % (name.encode(), token)
        llm = FakeLLM()
        response = post(llm, path, raw)
        assert (response.status_code, error_of(response)["param"]) == (400, name)
        assert not llm.encoded and not llm.rendered


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("path", BASE)
def test_no_bias_that_is_not_finite_comes_in(path, token):
    llm = FakeLLM()
    response = post(llm, path, json.dumps(BASE[path]).encode()[:-1] + b', "logit_bias": {"5": %s}}' % token)
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_json", "logit_bias['5']")
    assert not llm.encoded and not llm.rendered


@pytest.mark.parametrize(("path", "name"), [(CHAT, "messages"), (COMPLETIONS, "prompt")])
def test_what_is_needed_and_missing_is_named(path, name):
    """A08"""
    response = post(FakeLLM(), path, {"max_tokens": 1})
    assert (response.status_code, error_of(response)["param"]) == (400, name)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"n": 16}),
        (CHAT, {"logprobs": True, "top_logprobs": 20}),
        (COMPLETIONS, {"logprobs": 20}),
        (CHAT, {"stop": ["a", "b", "c", "d"]}),
        (COMPLETIONS, {"stop": ["x" * 1024] * 16}),
        (COMPLETIONS, {"prompt": "   "}),
        (CHAT, {"temperature": 0.0, "top_p": 1, "min_p": 1.0}),
    ],
)
def test_what_is_just_within_the_limits_passes(path, fields):
    assert post(FakeLLM(), path, BASE[path] | fields).status_code == 200


@pytest.mark.parametrize("part", MEDIA, ids=[f"{number} {part['type']}" for number, part in enumerate(MEDIA)])
def test_media_are_refused_and_no_address_is_looked_up(part, monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **rest: asked.append(args))
    monkeypatch.setattr(socket.socket, "connect", lambda *args: asked.append(args))
    for content in ([part], [{"type": "text", "text": "see http://127.0.0.1:9/x"}, part]):
        response = post(FakeLLM(), CHAT, {"messages": [{"role": "user", "content": content}]})
        assert response.status_code == 400
        assert error_of(response)["code"] == "unsupported_parameter"
    assert post(FakeLLM(), CHAT, {"messages": [{"role": "user", "content": "![x](http://127.0.0.1:9/)"}]}).is_success
    assert asked == []


def test_what_is_logged_of_a_failure_holds_no_prompt_no_key_and_one_line_each(caplog):
    llm = FakeLLM(lambda ids, params: [RuntimeError("a bug")])
    secrets = {"authorization": "Bearer secret-key-0123", "x_request_id": "id\x1b[31m"}
    assert post(llm, COMPLETIONS, {"prompt": "secret words"}, **secrets).status_code == 500
    assert ask(llm, "GET", "/%0d%0aforged%1b[31m", headers={"user-agent": "a"}).status_code == 404
    shown = [record.getMessage() for record in caplog.records]
    assert any("failed" in line for line in shown), "the failure itself is logged"
    assert not any("secret" in line or "\n" in line or "\r" in line or "\x1b" in line for line in shown)


def test_what_is_logged_of_requests_holds_no_client_s_escapes(caplog):
    """A13: whatever the path, the model, the request id or the method hold."""
    caplog.set_level(logging.INFO, "jaxinfer")
    forged = "x\r\nforged\x1b[31m"
    settings, llm = ServerSettings(log_requests=True), FakeLLM()
    for body in ({"prompt": "secret", "model": forged}, {"prompt": "secret", forged: 1}):
        post(llm, COMPLETIONS, body, settings, x_request_id="x\x1b[31m", user_agent="secret \x1b[31m")
    assert ask(llm, "GET", "/%0d%0aforged%1b[31m?secret", settings).status_code == 404
    assert ask(llm, "FORGED", "/", settings).status_code == 405
    shown = [record.getMessage() for record in caplog.records]
    assert len(shown) == 4
    assert not any("secret" in line or "\n" in line or "\r" in line or "\x1b" in line for line in shown)
