"""/v1/responses: Open Responses' cases of texts and functions, the order of events, what is stored, refusals."""

import json
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from jaxinfer.errors import ApiError
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.answers import ANSWERS
from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.fakes import FakeLLM, hello
from tests.server.http import (
    CHAT,
    RESPONSES,
    USER,
    ask_app,
    error_of,
    live,
    named_events,
    post,
    raw_request,
    read_until,
    wait_until,
)
from tests.server.open_responses import WEATHER, check_call_events, check_response, valid_events
from tests.server.scripted import ScriptedLLM
from tests.support.logprobs import token_logprob

ORDER = """
created in_progress output_item.added content_part.added output_text.delta output_text.delta output_text.done
content_part.done output_item.done
"""
ALICE, BOB = {"authorization": "Bearer sk-alice-0123"}, {"authorization": "Bearer sk-bob-012345"}
KEYS = (ApiKey("alice", "sk-alice-0123"), ApiKey("bob", "sk-bob-012345"))


def stream(llm: FakeLLM, **fields: Any) -> list[dict[str, Any]]:
    """The events, after a look at what all of them must have."""
    response = post(llm, RESPONSES, {"input": "hi", "stream": True, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return valid_events(response.text)


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **more}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("items", "rendered"),
    [
        ([said("user", "Say hello.")], ["user:Say hello."]),
        ([said("system", "Talk like a pirate."), said("user", "Hi")], ["system:Talk like a pirate.", "user:Hi"]),
        (
            [said("user", "I am Al."), said("assistant", "Hi Al!"), said("user", "Who am I?")],
            ["user:I am Al.", "assistant:Hi Al!", "user:Who am I?"],
        ),
        (
            [said("user", "1"), said("assistant", "2", phase="commentary"), said("user", "3")],
            ["user:1", "assistant:2", "user:3"],
        ),
        (
            [
                said("developer", [{"type": "input_text", "text": "Be brief."}], id="msg_1", status="completed"),
                said("assistant", [{"type": "output_text", "text": "Yes.", "annotations": [], "logprobs": []}]),
                {"role": "user", "content": [{"type": "input_text", "text": t} for t in ("a", "b")]},
            ],
            ["system:Be brief.", "assistant:Yes.", "user:a\nb"],
        ),
    ],
    ids=["basic", "system prompt", "multi-turn", "assistant phase", "parts"],
)
def test_the_text_cases_of_open_responses(items, rendered, streamed):
    llm = FakeLLM()
    if streamed:
        last = stream(llm, input=items, model="tiny")[-1]
        assert last["type"] == "response.completed"
        response = last["response"]
    else:
        answer = post(llm, RESPONSES, {"model": "tiny", "input": items})
        assert answer.status_code == 200 and "x-jaxinfer-warnings" not in answer.headers
        response = answer.json()
    check_response(response)
    assert response["status"] == "completed" and response["output"][0]["content"][0]["text"] == "Hello"
    assert [f"{message['role']}:{message['content']}" for message in llm.rendered[0]["messages"]] == rendered


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_the_tool_cases_of_open_responses(thinks, streamed):
    thoughts = "<think>\nHm.\n</think>\n\n" if thinks else ""
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "San Francisco, CA"}}\n</tool_call>'
    llm = ScriptedLLM(f"{thoughts}I look.\n{call}", piece=2)
    asked = {"input": [said("user", "What is the weather in San Francisco?")], "tools": [WEATHER], "model": "tiny"}
    asked |= {"reasoning": {"effort": "low"}} if thinks else {}
    if streamed:
        found = stream(llm, **asked)
        check_call_events(found)
        response = found[-1]["response"]
    else:
        response = post(llm, RESPONSES, asked).json()
        check_response(response)
    assert response["status"] == "completed"
    kinds = [item["type"] for item in response["output"]]
    assert kinds == [*(["reasoning"] if thinks else []), "message", "function_call"]
    called = response["output"][-1]
    assert (called["name"], json.loads(called["arguments"])) == ("get_weather", {"city": "San Francisco, CA"})
    assert called["status"] == "completed" and response["tools"][0]["parameters"] == WEATHER["parameters"]


def test_the_events_come_in_their_order_and_say_what_the_whole_answer_says():
    found = stream(FakeLLM(), metadata={"a": "b"})
    assert [event["type"].removeprefix("response.") for event in found] == [*ORDER.split(), "completed"]
    assert "".join(event["delta"] for event in found if event["type"].endswith("text.delta")) == "Hello"
    whole = post(FakeLLM(), RESPONSES, {"input": "hi", "metadata": {"a": "b"}}).json()
    last, changing = found[-1]["response"], {"id", "created_at", "completed_at", "output"}
    assert {name: last[name] for name in last.keys() - changing} == {
        name: whole[name] for name in whole.keys() - changing
    }
    assert found[0]["response"]["id"] == last["id"]
    assert found[-2]["item"] == last["output"][0] and found[-3]["part"] == last["output"][0]["content"][0]
    assert last["usage"]["input_tokens"] == 18 and last["usage"]["input_tokens_details"]["cached_tokens"] == 9
    assert last["usage"]["output_tokens"] == 5 and last["usage"]["total_tokens"] == 23


@pytest.mark.parametrize(
    ("reason", "status", "event"),
    [("length", "incomplete", "incomplete"), ("abort", "cancelled", "incomplete"), ("stop", "completed", "completed")],
)
def test_a_response_says_how_it_ended(reason, status, event):
    llm = FakeLLM(lambda ids, params: [Delta(0, "cut", [1], reason)])
    last = stream(llm)[-1]
    whole = post(llm, RESPONSES, {"input": "hi"}).json()
    assert last["type"] == f"response.{event}"
    details = {"reason": "max_output_tokens"} if reason == "length" else None
    for response in (last["response"], whole):
        assert (response["status"], response["incomplete_details"]) == (status, details)
        assert response["output"][0]["status"] == ("completed" if reason == "stop" else "incomplete")
        assert response["output"][0]["content"][0]["text"] == "cut"
        assert (response["completed_at"] is None) == (reason != "stop")


def test_a_failure_in_mid_stream_is_an_event_and_nothing_is_stored():
    llm = FakeLLM(lambda ids, params: [Delta(0, "Hel", [1]), ApiError("not finite", code="non_finite")])
    app = create_app(llm)
    response = ask_app(app, "POST", RESPONSES, json={"input": "hi", "stream": True})
    last = named_events(response.text)[-1]
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "not finite"}
    assert last["response"]["output"][0]["content"][0]["text"] == "Hel"
    assert ask_app(app, "GET", f"{RESPONSES}/{last['response']['id']}").status_code == 404


def test_a_failure_after_a_silence_still_begins_with_what_clients_wait_for():
    llm = FakeLLM(lambda ids, params: [0.1, ApiError("not finite")])
    response = post(llm, RESPONSES, {"input": "hi", "stream": True}, ServerSettings(ping_interval_s=0.02))
    assert response.text.startswith(": ping\n\n")
    found = [event["type"] for event in named_events(response.text)]
    assert (found[0], found[-1]) == ("response.created", "response.failed")


def test_a_response_says_which_form_its_text_had_to_have():
    form = {"type": "json_schema", "name": "city", "schema": {"type": "object"}}
    answer = post(FakeLLM(), RESPONSES, {"input": "hi", "text": {"format": form}}).json()
    assert {name: answer["text"]["format"][name] for name in form} == form
    check_response(answer)
    jsonschema_rs.validate(ANSWERS["Response"], answer)


def test_logprobs_come_with_the_text_when_they_are_asked_for():
    entries = [token_logprob(1, b"Hel", -0.5, 1, [(1, b"Hel", -0.5), (2, b"x", -2.0)])]
    llm = FakeLLM(lambda ids, params: [Delta(0, "Hel", [1], "stop", logprobs=entries)])
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    found = stream(llm, **fields)
    whole = post(llm, RESPONSES, {"input": "hi", **fields}).json()
    assert llm.calls[0].params.logprobs == 2 and whole["top_logprobs"] == 2
    expected = whole["output"][0]["content"][0]["logprobs"]
    assert [(entry["token"], len(entry["top_logprobs"])) for entry in expected] == [("Hel", 2)]
    deltas = [event["logprobs"] for event in found if event["type"].endswith("text.delta")]
    assert deltas == [expected] and found[-1]["response"]["output"][0]["content"][0]["logprobs"] == expected


def test_a_response_goes_on_from_another_without_its_instructions():
    llm = FakeLLM()
    app = create_app(llm)
    first = ask_app(app, "POST", RESPONSES, json={"input": "one", "instructions": "Be brief."}).json()
    asked = {"input": "two", "previous_response_id": first["id"], "stream": True}
    second = named_events(ask_app(app, "POST", RESPONSES, json=asked).text)[-1]["response"]
    third = ask_app(app, "POST", RESPONSES, json={"input": "three", "previous_response_id": second["id"]}).json()
    assert third["previous_response_id"] == second["id"]
    assert llm.calls[0].prompt == "system:Be brief.\nuser:one\nassistant:"
    assert llm.calls[1].prompt == "user:one\nassistant:Hello\nuser:two\nassistant:"
    assert llm.calls[2].prompt == "user:one\nassistant:Hello\nuser:two\nassistant:Hello\nuser:three\nassistant:"
    again = ask_app(app, "POST", RESPONSES, json={"input": "2", "previous_response_id": first["id"]})
    assert again.status_code == 200 and llm.calls[3].prompt == "user:one\nassistant:Hello\nuser:2\nassistant:"


@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_stored_can_be_had_again_and_forgotten(streamed):
    app = create_app(FakeLLM())
    answer = ask_app(app, "POST", RESPONSES, json={"input": "hi", "stream": streamed})
    given = named_events(answer.text)[-1]["response"] if streamed else answer.json()
    path = f"{RESPONSES}/{given['id']}"
    assert ask_app(app, "GET", path).json() == given
    streamed_again = ask_app(app, "GET", f"{path}?stream=true")
    assert (streamed_again.status_code, error_of(streamed_again)["param"]) == (400, "stream")
    assert ask_app(app, "DELETE", path).json() == {"id": given["id"], "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        assert error_of(ask_app(app, method, path))["code"] == "response_not_found"


def test_what_is_not_to_be_stored_is_not():
    app = create_app(FakeLLM())
    given = ask_app(app, "POST", RESPONSES, json={"input": "hi", "store": False}).json()
    assert given["store"] is False
    assert ask_app(app, "GET", f"{RESPONSES}/{given['id']}").status_code == 404


def test_nobody_reads_goes_on_from_forgets_or_cancels_what_is_another_s():
    app = create_app(FakeLLM(), ServerSettings(api_keys=KEYS))
    given = ask_app(app, "POST", RESPONSES, json={"input": "secret"}, headers=ALICE).json()
    path = f"{RESPONSES}/{given['id']}"
    for method, to in (("GET", path), ("DELETE", path), ("POST", f"{path}/cancel")):
        assert ask_app(app, method, to, headers=BOB).status_code == 404
    asked = {"input": "x", "previous_response_id": given["id"]}
    stolen = ask_app(app, "POST", RESPONSES, json=asked, headers=BOB)
    unknown = ask_app(app, "POST", RESPONSES, json=asked | {"previous_response_id": "resp_no"}, headers=BOB)
    assert error_of(stolen)["code"] == error_of(unknown)["code"] == "previous_response_not_found"
    assert (stolen.status_code, error_of(stolen)["param"]) == (400, "previous_response_id")
    assert ask_app(app, "GET", path, headers=ALICE).json() == given


def endless(ids: list[int], params: Any) -> Any:
    while True:
        yield Delta(0, "x", [1])
        yield 0.01


@pytest.mark.parametrize(("path", "body"), [(RESPONSES, {"input": "hi"}), (CHAT, {"messages": USER})])
def test_what_only_its_client_calls_so_is_not_cancelled(path, body):
    llm = FakeLLM(endless)
    with (
        live(create_app(llm)) as port,
        raw_request(port, path, body | {"stream": True}, x_request_id="resp_1") as connection,
    ):
        connection.recv(1)
        url = f"http://127.0.0.1:{port}{RESPONSES}/resp_1/cancel"
        assert error_of(httpx2.post(url))["code"] == "response_not_found"
        assert len(llm.running) == 1 and not llm.aborts


def test_a_response_under_way_is_cancelled_by_its_own_tenant_alone():
    llm = FakeLLM(endless)
    app = create_app(llm, ServerSettings(api_keys=KEYS, max_requests_per_key=1))
    with live(app) as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
        asked = {"input": "hi", "stream": True}
        with raw_request(port, RESPONSES, asked, connection="close", **ALICE) as connection:
            begun = read_until(connection, b'"sequence_number":4}\n\n\r\n').decode()
            path = f"{RESPONSES}/resp_{begun.partition('resp_')[2].partition(chr(34))[0]}/cancel"
            assert client.post(path, headers=BOB).status_code == 404
            cancelled = client.post(path, headers=ALICE)
            rest = read_until(connection, b"")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
        assert rest.count(b"event: response.incomplete") == 1 and b'"status":"cancelled"' in rest
        wait_until(lambda: not llm.running and len(app.state.running) == 0)
        counted = 'jaxinfer:aborted_requests_total{reason="abort_request"} 1.0\n'
        wait_until(lambda: counted in client.get("/metrics", headers=ALICE).text)
        ended = client.post(path, headers=ALICE)
        assert (ended.status_code, error_of(ended)["code"]) == (400, "invalid_value")
    assert app.state.running._by_key == {}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": 5}, "input", "invalid_value"),
        ({"input": ["x"]}, "input[0]", "invalid_value"),
        ({"input": [said("tool", "x")]}, "input[0].role", "unsupported_parameter"),
        ({"input": [said("user", [{"type": "input_text", "x": "x"}])]}, "input[0].content[0]", "invalid_value"),
        ({"input": [said("user", [{"type": "input_image"}])]}, "input[0].content[0]", "unsupported_parameter"),
        ({"input": [said("user", "x"), {"type": "item_reference"}]}, "input[1].id", "invalid_value"),
        ({"input": [{"type": [], "role": "user", "content": "x"}]}, "input[0].type", "unsupported_parameter"),
        ({"input": [said("user", "x")] * 5000}, "input", "invalid_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"max_output_tokens": 600}, "max_output_tokens", "context_length_exceeded"),
        ({"input": "x" * 600}, "input", "context_length_exceeded"),
        ({"min_tokens": 7, "max_output_tokens": 5}, "min_tokens", "invalid_value"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "invalid_value"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs", "invalid_value"),
        ({"include": ["everything"]}, "include[0]", "invalid_type"),
        ({"metadata": {"a": 1}}, "metadata[...]", "invalid_type"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata", "invalid_type"),
        ({"instructions": ["x"]}, "instructions", "invalid_type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "invalid_value"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": 5}}},
            "text.format.schema",
            "invalid_value",
        ),
        ({"model": "gpt-9"}, "model", "model_not_found"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_in_the_client_s_own_words(fields, param, code):
    llm = FakeLLM()
    response = post(llm, RESPONSES, {"input": "hi", **fields})
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (404 if param == "model" else 400, param, code)
    assert "messages[" not in error["message"] and "max_tokens" not in error["message"]
    assert not llm.calls


def test_texts_of_any_kind_never_cut_an_event():
    text = 'é🙂"\\\n\r\t\x00\x1f\u0085\u2028\u2029</script>data: \n\nevent: x'
    llm = FakeLLM(lambda ids, params: [Delta(0, text, [1], "stop")])
    response = post(llm, RESPONSES, {"input": "hi", "stream": True, "metadata": {"a": text}})
    assert len(response.text.splitlines()) == 3 * len(named_events(response.text))
    assert named_events(response.text)[4]["delta"] == text
    assert named_events(response.text)[-1]["response"]["metadata"] == {"a": text}


LONG = [said("user" if i % 2 == 0 else "assistant", f"{i:03}" + "x" * 97) for i in range(9)]  # 900 bytes for 512 tokens


def test_the_oldest_turns_are_left_out_where_a_request_says_so():
    llm = FakeLLM()
    app = create_app(llm)
    asked = {"input": LONG, "instructions": "Be brief.", "truncation": "auto", "max_output_tokens": 30}
    answer = ask_app(app, "POST", RESPONSES, json=asked)
    assert answer.headers["x-jaxinfer-warnings"] == "truncation: the oldest 6 messages are left out"
    first = answer.json()
    assert first["truncation"] == "auto" and first["usage"]["input_tokens"] <= 482
    read = [line[:20].rstrip("x") for line in llm.calls[0].prompt.splitlines()]
    assert read == ["system:Be brief.", "user:006", "assistant:007", "user:008", "assistant:"]
    streamed = stream(FakeLLM(), **asked)[-1]["response"]
    assert (streamed["truncation"], streamed["usage"]) == ("auto", first["usage"])
    more = {"input": "hm", "previous_response_id": first["id"], "truncation": "auto", "max_output_tokens": 400}
    assert ask_app(app, "POST", RESPONSES, json=more).status_code == 200  # from the whole, which is stored
    assert llm.calls[-1].prompt == "user:hm\nassistant:"
    assert len(max((one["messages"] for one in llm.rendered), key=len)) == 11


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"truncation": "disabled"}, "input", "context_length_exceeded"),
        ({"truncation": "auto", "input": "x" * 600}, "input", "context_length_exceeded"),
        ({"truncation": "auto", "max_output_tokens": 512}, "max_output_tokens", "context_length_exceeded"),
        ({"truncation": "auto", "truncate_prompt_tokens": 9}, "truncation", "invalid_value"),
        ({"truncation": "left"}, "truncation", "invalid_type"),
    ],
)
def test_what_cannot_be_made_to_fit_is_refused(fields, param, code):
    answer = post(FakeLLM(), RESPONSES, {"input": LONG} | fields)
    assert (answer.status_code, error_of(answer)["param"], error_of(answer)["code"]) == (400, param, code), answer.text


def test_what_fits_is_left_as_it_is():
    llm = FakeLLM()
    answer = post(llm, RESPONSES, {"input": LONG[:3], "truncation": "auto"})
    assert answer.status_code == 200 and "x-jaxinfer-warnings" not in answer.headers
    assert len(llm.rendered) == 1 and len(llm.rendered[0]["messages"]) == 3


def test_what_is_sent_is_what_chat_sends():
    """The same prompt and parameters reach the engine."""
    llm = FakeLLM(hello)
    post(llm, RESPONSES, {"input": "hi", "max_output_tokens": 7, "temperature": 0.5, "instructions": "Be."})
    messages = [{"role": "system", "content": "Be."}, {"role": "user", "content": "hi"}]
    post(llm, "/v1/chat/completions", {"messages": messages, "max_completion_tokens": 7, "temperature": 0.5})
    first, second = llm.calls
    assert (first.prompt_ids, first.params, first.chat) == (second.prompt_ids, second.params, second.chat)
