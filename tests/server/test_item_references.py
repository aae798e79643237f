"""Items of /v1/responses that stand for what an earlier response said, as clients send that count on its store."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.llm.types import Delta
from jaxinfer.server.app import create_app
from jaxinfer.server.response_store import ENTRY_BYTES, ResponseStore
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from jaxinfer.text.tools.reader import CallDelta
from tests.server.fakes import FakeLLM
from tests.server.http import RESPONSES, USER, ask_app, error_of, named_events

COUNT = f"{RESPONSES}/input_tokens"
ALICE, BOB = {"authorization": "Bearer sk-alice-0123"}, {"authorization": "Bearer sk-bob-012345"}
KEYS = (ApiKey("alice", "sk-alice-0123"), ApiKey("bob", "sk-bob-012345"))
TOOLS = [{"type": "function", "name": "now", "parameters": {"type": "object"}}]
PART = st.tuples(st.sampled_from(["thought", "text", "call"]), st.sampled_from(["Hm.", "So: é", '{"a": "b"}']))


def script(parts: list[tuple[str, str]], number: int) -> list[Delta]:
    """An answer of thoughts, texts and calls in that order. number: of the answer, for ids of its own."""
    deltas = []
    for index, (kind, text) in enumerate(parts):
        said = {"text": text if kind == "text" else "", "reasoning": text if kind == "thought" else ""}
        call = CallDelta(index, f"chatcmpl-tool-{number}x{index}", "now", '{"a": 1}', is_whole=True)
        deltas.append(Delta(0, token_ids=[1], calls=[call] if kind == "call" else None, **said))
    return [*deltas, Delta(0, "", [1], "tool_calls" if any(kind == "call" for kind, _ in parts) else "stop")]


def respond(app: Any, items: Any, **fields: Any) -> dict[str, Any]:
    answer = ask_app(app, "POST", RESPONSES, json={"input": items, "tools": TOOLS, **fields})
    assert answer.status_code == 200 and "x-jaxinfer-warnings" not in answer.headers, answer.text
    return named_events(answer.text)[-1]["response"] if fields.get("stream") else answer.json()


@settings(max_examples=40)
@given(st.lists(st.tuples(st.lists(PART, max_size=4), st.booleans()), min_size=1, max_size=3), st.data())
def test_a_reference_is_the_item_that_it_names(answers, data):
    """Whole or streamed, with its type and without, some of a conversation's items or all of them."""
    answering = iter([script(parts, number) for number, (parts, _) in enumerate(answers)] * 2)
    llm = FakeLLM(lambda *_: next(answering))
    app = create_app(llm)
    whole: list[Any] = list(USER)
    referring: list[Any] = list(USER)
    for _, stream in answers:
        output = respond(app, referring, stream=stream)["output"]
        for item in output:
            form = data.draw(st.sampled_from([{"type": "item_reference"}, {"type": None}, {}, item]))
            referring.append(form | {"id": item["id"]})
        results = results_of(output)
        whole += [*output, *results, *USER]
        referring += [*results, *USER]
    for path, items in ((RESPONSES, whole), (RESPONSES, referring), (COUNT, referring)):
        answering = iter([script([], 9)])
        assert ask_app(app, "POST", path, json={"input": items}).status_code == 200
    sent, referred, counted = (asked["messages"] for asked in llm.rendered[-3:])
    assert sent == referred == counted


def refused(app: Any, items: list[Any], **request: Any) -> dict[str, Any]:
    refusals = [ask_app(app, "POST", path, json={"input": items}, **request) for path in (RESPONSES, COUNT)]
    assert [refusal.status_code for refusal in refusals] == [400, 400]
    (error,) = {json.dumps(error_of(refusal)) for refusal in refusals}
    return json.loads(error)


@pytest.mark.parametrize("item_id", [None, 5, ["msg_1"], {}])
def test_a_reference_without_an_id_is_refused_with_its_place(item_id):
    error = refused(create_app(FakeLLM()), [*USER, {"type": "item_reference", "id": item_id}])
    assert (error["param"], error["code"]) == ("input[1].id", "invalid_value") and "item_reference" in error["message"]


def test_what_is_not_held_is_refused_by_type_place_and_cure():
    app = create_app(FakeLLM(), ServerSettings(api_keys=KEYS, max_stored_responses=3))

    def said(**fields: Any) -> tuple[str, str]:
        answer = ask_app(app, "POST", RESPONSES, json={"input": "hi", **fields}, headers=ALICE).json()
        return answer["id"], answer["output"][0]["id"]

    deleted_id, deleted = said()
    assert ask_app(app, "DELETE", f"{RESPONSES}/{deleted_id}", headers=ALICE).status_code == 200
    _, oldest = said()
    held = [said() for _ in range(3)]
    gone = [deleted, oldest, said(store=False)[1], held[0][0], "msg_1", ""]
    for tenant, ids in ((ALICE, gone), (BOB, [held[0][1]])):
        for item_id in ids:
            error = refused(app, [*USER, {"type": "item_reference", "id": item_id}], headers=tenant)
            assert (error["param"], error["code"]) == ("input[1].id", "item_not_found")
            assert error["message"].startswith("input[1] of type item_reference must name an item of a stored response")
            assert error["message"].endswith("send the item itself")
    asked = {"input": [*USER, *({"type": "item_reference", "id": item_id} for _, item_id in held)]}
    assert ask_app(app, "POST", RESPONSES, json=asked, headers=ALICE).status_code == 200


def test_an_item_is_named_once():
    """Else a short request would be a long conversation."""
    app = create_app(FakeLLM())
    reference = {"type": "item_reference", "id": respond(app, "hi")["output"][0]["id"]}
    error = refused(app, [*USER, reference, *USER, {"id": reference["id"]}])
    assert error["param"] == "input[3].id" and "input[1]" in error["message"]


@settings(max_examples=30)
@given(st.lists(st.lists(PART, max_size=3), min_size=1, max_size=4), st.data())
def test_a_reference_to_what_the_conversation_has_already_adds_nothing(answers, data):
    """Of any response that the request goes on from, near or far."""
    answering = iter([*(script(parts, number) for number, parts in enumerate(answers)), script([], 8), script([], 9)])
    llm = FakeLLM(lambda *_: next(answering))
    app = create_app(llm)
    fields: dict[str, Any] = {}
    items: list[Any] = []
    last: list[Any] = []
    for _ in answers:
        response = respond(app, [*results_of(last), *USER], **fields)
        fields, last = {"previous_response_id": response["id"]}, response["output"]
        items += last
    references = [
        {"type": "item_reference", "id": item["id"]} for item in items if data.draw(st.booleans(), "is it named")
    ]
    for given_items in ([*references, *results_of(last), *USER], [*results_of(last), *USER]):
        respond(app, given_items, **fields)
    referred, plain = (asked["messages"] for asked in llm.rendered[-2:])
    assert referred == plain


def results_of(output: list[Any]) -> list[Any]:
    calls = [item["call_id"] for item in output if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": call_id, "output": "x"} for call_id in calls]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 900), st.integers(0, 3)), max_size=30)
)
def test_the_items_of_a_store_are_those_of_what_it_holds(steps):
    store = ResponseStore(4, 4 * ENTRY_BYTES, 60.0, lambda: 0.0)
    put: dict[str, tuple[str, str]] = {}
    for number, (tenant, count, size, forgotten) in enumerate(steps):
        items = [{"id": f"msg_{number}_{index}", "text": "x" * size} for index in range(count)]
        ids = tuple(item["id"] for item in items)
        store.put(tenant, str(number), json.dumps({"output": items}).encode(), b"[]", ids)
        put |= dict.fromkeys(ids, (tenant, str(number)))
        store.forget(tenant, str(number - forgotten))
        for item_id, (owner, response_id) in put.items():
            is_held = store.get(owner, response_id) is not None
            assert (item_id in store.items(owner, item_id)) == is_held
            assert store.items({"a": "b", "b": "a"}[owner], item_id) == {}
    assert set(store._holders) == {(put[name][0], name) for name in put if store.items(put[name][0], name)}
