"""Tool calls in /v1/responses and /v1/messages: scripted answers over the wire, whole and in pieces, and sent back."""

import itertools
import json
from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

import jsonschema_rs
import pytest

from jaxinfer.errors import ApiError
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.answers import ANSWERS
from jaxinfer.server.app import create_app
from jaxinfer.text.tools.reader import CallDelta
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, MESSAGES, RESPONSES, USER, ask_app, post
from tests.server.http import named_events as events
from tests.server.scripted import ScriptedLLM
from tests.server.test_tools import CALL, HALF, NOW, PARIS, PIECES, TOOLS, WEATHER

COUNT = f"{MESSAGES}/count_tokens"
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
NAMED_NOW: dict[str, Any] = {"name": "now", "input_schema": {"type": "object"}}
BLOCKS = [{"name": "weather", "description": "Of a city.", "input_schema": WEATHER}, NAMED_NOW]
TWO = [("weather", PARIS), ("now", "{}")]
SAID: dict[str, tuple[str, dict[str, Any], list[Any]]] = {  # what is said, chat's fields, and the parts in their order
    "one call": (CALL, {}, [("weather", PARIS)]),
    "text before it": (f"I look.\n{CALL}", {}, ["I look.", ("weather", PARIS)]),
    "two calls": (f"{CALL}\n{NOW}", {}, TWO),
    "not parallel": (f"{CALL}\n{NOW}", {"parallel_tool_calls": False}, [("weather", PARIS)]),
    "none": (CALL, {"tool_choice": "none"}, [CALL]),
    "no call": ("Hello", {}, ["Hello"]),
    "not a tool": (CALL.replace("weather", "other"), {}, [CALL.replace("weather", "other")]),
    "thoughts and calls": (f"<think>\nHm.\n</think>\n\n{CALL}", {}, [["Hm."], ("weather", PARIS)]),
    "all of it": (
        f"<think>\nHm.\n</think>\n\nSo:\n{CALL}{NOW}",
        {},
        [["Hm."], "So:", ("weather", PARIS), ("now", "{}")],
    ),
}


def respond(llm: FakeLLM, **fields: Any) -> Any:
    return post(llm, RESPONSES, {"input": "hi", "tools": FLAT, "reasoning": {"effort": "low"}, **fields})


def message(llm: FakeLLM, **fields: Any) -> Any:
    """With chat's words for the choice."""
    parallel, choice = fields.pop("parallel_tool_calls", True), fields.pop("tool_choice", "auto")
    body = {"messages": USER, "max_tokens": 99, "tools": BLOCKS, "thinking": {"type": "enabled"}}
    return post(llm, MESSAGES, body | {"tool_choice": choice_of(choice, parallel)} | fields)


def choice_of(choice: Any, parallel: bool = True) -> dict[str, Any]:
    if isinstance(choice, dict):
        return {"type": "tool", "name": choice["name"]}
    kind = {"required": "any"}.get(choice, choice)
    return {"type": kind} | ({} if parallel else {"disable_parallel_tool_use": True})


def parts_of_response(body: dict[str, Any]) -> list[Any]:
    """A text, [thoughts] or (name, arguments) for each item."""
    jsonschema_rs.validate(ANSWERS["Response"], body)
    read: dict[str, Callable[[dict[str, Any]], Any]] = {
        "message": lambda item: item["content"][0]["text"],
        "reasoning": lambda item: [item["content"][0]["text"]],
        "function_call": lambda item: (item["name"], item["arguments"]),
    }
    assert len({item["id"] for item in body["output"]}) == len(body["output"])
    return [read[item["type"]](item) for item in body["output"]]


def put_together(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of a stream, made of its deltas alone, after a look at the order of its events."""
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    assert [frame["type"] for frame in frames[:2]] == ["response.created", "response.in_progress"]
    items: list[dict[str, Any]] = []
    for item_index, group in itertools.groupby(frames[2:-1], lambda frame: frame["output_index"]):
        first, *middle, last = group
        assert item_index == len(items)
        assert (first["type"], last["type"]) == ("response.output_item.added", "response.output_item.done")
        added, done = first["item"], last["item"]
        assert added["status"] == "in_progress" and added["id"] == done["id"]
        assert all(frame["item_id"] == added["id"] for frame in middle)
        name = {"message": "output_text", "reasoning": "reasoning_text"}.get(added["type"], "function_call_arguments")
        kinds = [kind.removeprefix("response.") for kind, _ in itertools.groupby(frame["type"] for frame in middle)]
        inner = [f"{name}.delta", f"{name}.done"]
        if added["type"] == "function_call":
            assert kinds == inner and added["arguments"] == ""
        else:
            assert kinds == ["content_part.added", *inner, "content_part.done"]
        text = "".join(frame["delta"] for frame in middle if frame["type"] == f"response.{name}.delta")
        (end,) = [frame for frame in middle if frame["type"] == f"response.{name}.done"]
        is_call = added["type"] == "function_call"
        assert end["arguments" if is_call else "text"] == text
        assert (done["arguments"] if is_call else done["content"][0]["text"]) == text
        items.append(done)
    assert items == frames[-1]["response"]["output"]
    return items


def parts_of_message(body: dict[str, Any]) -> list[Any]:
    jsonschema_rs.validate(ANSWERS["Message"], body)
    read: dict[str, Callable[[dict[str, Any]], Any]] = {
        "text": lambda block: block["text"],
        "thinking": lambda block: [block["thinking"]],
        "tool_use": lambda block: (block["name"], json.dumps(block["input"])),
    }
    return [read[block["type"]](block) for block in body["content"]]


def blocks_of(frames: list[dict[str, Any]]) -> list[Any]:
    """The parts of a streamed message, each block opened, filled and closed before the next."""
    parts: list[Any] = []
    texts: list[str] = []
    kind, name = "", ""
    for frame in frames:
        match frame["type"]:
            case "content_block_start":
                assert frame["index"] == len(parts) and not kind
                kind, texts = frame["content_block"]["type"], []
                name = frame["content_block"].get("name", "")
                assert frame["content_block"].get("input", {}) == {}
            case "content_block_delta":
                delta = frame["delta"]
                field = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}[kind]
                assert frame["index"] == len(parts)
                assert delta["type"] == {"partial_json": "input_json_delta"}.get(field, f"{field}_delta")
                texts.append(delta[field])
            case "content_block_stop":
                assert frame["index"] == len(parts)
                text = "".join(texts)
                parts.append({"tool_use": (name, text), "thinking": [text]}.get(kind, text))
                kind = ""
    assert not kind
    return parts


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize(("says", "fields", "expected"), SAID.values(), ids=SAID)
def test_a_response_is_items_of_what_was_said_whole_and_streamed(says, fields, expected, piece):
    body = respond(ScriptedLLM(says, piece=piece), **fields).json()
    assert (parts_of_response(body), body["status"]) == (expected, "completed")
    assert {item["status"] for item in body["output"]} == {"completed"}
    frames = events(respond(ScriptedLLM(says, piece=piece), stream=True, **fields).text)
    items = put_together(frames)
    last = frames[-1]["response"]
    assert frames[-1]["type"] == "response.completed" and parts_of_response(last) == expected
    ids = {"id": ANY, "call_id": ANY}
    assert items == [item | {name: ANY for name in ids.keys() & item.keys()} for item in body["output"]]
    for item in (*items, *body["output"]):
        if item["type"] == "function_call":
            assert item["id"].startswith("fc_") and item["call_id"].startswith("call_")


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize(("says", "fields", "expected"), SAID.values(), ids=SAID)
def test_a_message_is_blocks_of_what_was_said_whole_and_streamed(says, fields, expected, piece):
    body = message(ScriptedLLM(says, piece=piece), **fields).json()
    reason = "tool_use" if isinstance(expected[-1], tuple) else "end_turn"
    assert (parts_of_message(body), body["stop_reason"]) == (expected, reason)
    frames = events(message(ScriptedLLM(says, piece=piece), stream=True, **fields).text)
    assert blocks_of(frames) == expected
    assert frames[-2]["delta"] == {"stop_reason": reason, "stop_sequence": None}
    for block in body["content"]:
        if block["type"] == "tool_use":
            assert block["id"].startswith("toolu_")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_call_that_was_asked_for_ends_as_each_api_has_it(choice):
    for stream in (False, True):
        answer = respond(ScriptedLLM(CALL), tool_choice=choice, stream=stream)
        body = events(answer.text)[-1]["response"] if stream else answer.json()
        assert (body["status"], body["tool_choice"]) == ("completed", choice)
        answer = message(ScriptedLLM(CALL), tool_choice=choice, stream=stream)
        body = events(answer.text)[-2]["delta"] if stream else answer.json()
        assert body["stop_reason"] == "tool_use"


AMONG_CALLS: dict[str, list[Any]] = {
    f"{CALL} Done.": [("weather", PARIS), "Done."],
    f"a {CALL} b {NOW} c": ["a", ("weather", PARIS), " b", ("now", "{}"), " c"],
    f"<think>\nHm.\n</think>\n\n{CALL}{NOW} b": [["Hm."], ("weather", PARIS), ("now", "{}"), "b"],
}


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize(("says", "parts"), AMONG_CALLS.items(), ids=["behind", "between", "behind two"])
def test_text_around_calls_is_items_and_blocks_of_its_own_in_a_stream(says, parts, piece):
    """However much of it comes at once."""
    frames = events(respond(ScriptedLLM(says, piece=piece), stream=True).text)
    assert put_together(frames) and parts_of_response(frames[-1]["response"]) == parts
    assert blocks_of(events(message(ScriptedLLM(says, piece=piece), stream=True).text)) == parts


def test_text_around_calls_is_one_item_before_them_in_a_whole_answer():
    says = f"{CALL} Done."
    assert parts_of_response(respond(ScriptedLLM(says)).json()) == ["Done.", ("weather", PARIS)]
    assert parts_of_message(message(ScriptedLLM(says)).json()) == ["Done.", ("weather", PARIS)]


@pytest.mark.parametrize("piece", PIECES)
def test_half_a_call_is_text_of_a_whole_answer_and_an_unfinished_item_of_a_stream(piece):
    cut = f"So {HALF}"
    body = respond(ScriptedLLM(cut, piece=piece, finish="length")).json()
    assert (parts_of_response(body), body["status"]) == ([cut], "incomplete")
    frames = events(respond(ScriptedLLM(cut, piece=piece, finish="length"), stream=True).text)
    *_, call = put_together(frames)
    assert (call["type"], call["status"]) == ("function_call", "incomplete")
    assert (frames[-1]["type"], HALF.endswith(call["arguments"])) == ("response.incomplete", True)
    body = message(ScriptedLLM(cut, piece=piece, finish="length"), max_tokens=9).json()
    assert (parts_of_message(body), body["stop_reason"]) == ([cut], "max_tokens")
    frames = events(message(ScriptedLLM(cut, piece=piece, finish="length"), max_tokens=9, stream=True).text)
    assert [type(part) for part in blocks_of(frames)] == [str, tuple]
    assert frames[-2]["delta"]["stop_reason"] == "max_tokens"


BEGUN = Delta(0, "", [1], calls=[CallDelta(0, "chatcmpl-tool-ab", "now", '{"a')])


def test_a_failure_within_a_call_leaves_it_unfinished():
    script = [Delta(0, "So:", [1]), BEGUN, ApiError("not finite", code="non_finite")]
    last = events(post(FakeLLM(lambda *_: script), RESPONSES, {"input": "hi", "tools": FLAT, "stream": True}).text)[-1]
    assert last["type"] == "response.failed"
    said, call = last["response"]["output"]
    assert (said["status"], said["content"][0]["text"]) == ("completed", "So:")
    wanted = {"id": "fc_ab", "call_id": "call_ab", "name": "now", "arguments": '{"a', "status": "incomplete"}
    assert call == {"type": "function_call"} | wanted
    body = {"messages": USER, "tools": BLOCKS, "max_tokens": 9, "stream": True}
    frames = events(post(FakeLLM(lambda *_: script), MESSAGES, body).text)
    assert frames[-1]["type"] == "error" and not any(frame["type"] == "message_stop" for frame in frames)


def test_an_answer_that_is_aborted_within_a_call_closes_it_unfinished():
    script = [BEGUN, Delta(0, "", [], "abort", calls=[CallDelta(0, dropped="<tool_call>x")])]
    frames = events(post(FakeLLM(lambda *_: script), RESPONSES, {"input": "hi", "tools": FLAT, "stream": True}).text)
    (call,) = put_together(frames)
    assert (call["status"], frames[-1]["response"]["status"]) == ("incomplete", "cancelled")
    body = {"messages": USER, "tools": BLOCKS, "max_tokens": 9, "stream": True}
    frames = events(post(FakeLLM(lambda *_: script), MESSAGES, body).text)
    assert blocks_of(frames) == [("now", '{"a')] and frames[-2]["delta"]["stop_reason"] is None


def test_a_response_repeats_its_tools():
    body = respond(ScriptedLLM("x"), parallel_tool_calls=False, tool_choice="none").json()
    nothing = {"description": None, "parameters": None, "strict": False}
    assert body["tools"] == [nothing | tool for tool in FLAT]
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("none", False)
    body = respond(ScriptedLLM("x"), tools=[FLAT[0] | {"strict": True}]).json()
    assert (body["tools"][0]["strict"], body["tool_choice"], body["parallel_tool_calls"]) == (True, "auto", True)
    for none in (None, []):  # only a chat's list may not be empty
        assert respond(ScriptedLLM("x"), tools=none, tool_choice="auto").json()["tools"] == []


CHOICES = ["auto", "none", "required", {"type": "function", "name": "weather"}]


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("choice", CHOICES)
def test_what_is_offered_reaches_the_engine_as_from_a_chat(choice, parallel):
    nested = {"type": "function", "function": {"name": "weather"}} if isinstance(choice, dict) else choice
    asked = {"messages": USER, "tools": TOOLS, "tool_choice": nested, "parallel_tool_calls": parallel}
    llm = FakeLLM()
    post(llm, CHAT, asked)
    post(llm, RESPONSES, {"input": "hi", "tools": FLAT, "tool_choice": choice, "parallel_tool_calls": parallel})
    body = {"messages": USER, "max_tokens": 9, "tool_choice": choice_of(choice, parallel)}
    shown = [*TOOLS[:1], {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]
    post(llm, MESSAGES, body | {"tools": BLOCKS})
    assert [found["tools"] for found in llm.rendered] == [TOOLS, TOOLS, shown]
    assert llm.uses[0] == llm.uses[1]
    if llm.uses[0] is None:
        assert llm.uses[2] is None
    else:
        assert llm.uses[2] is not None and llm.uses[0].schemas.keys() == llm.uses[2].schemas.keys()
        for name in ("parallel", "named", "due", "strict"):
            assert getattr(llm.uses[0], name) == getattr(llm.uses[2], name)


LOOP: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "So:", "reasoning_content": "hm"},
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    {"role": "tool", "tool_call_id": "c2", "content": "noon\nsharp"},
    {"role": "user", "content": "b\nc"},
]
ASKED = [("c1", "weather", PARIS), ("c2", "now", "{}")]


def test_calls_and_results_that_clients_of_responses_send_back_are_chat_s_messages():
    llm = ScriptedLLM("ok")
    calls = [{"type": "function_call", "id": f"fc_{i}", "call_id": i, "name": n, "arguments": a} for i, n, a in ASKED]
    noon = [{"type": "input_text", "text": "noon"}, {"type": "input_text", "text": "sharp"}]
    items = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So:"}]},
        *calls,
        {"type": "function_call_output", "call_id": "c1", "output": "sunny", "status": "completed"},
        {"type": "function_call_output", "call_id": "c2", "output": noon},
        {"role": "user", "content": "b\nc"},
    ]
    answer = respond(llm, input=items)
    assert answer.status_code == 200 and "x-jaxinfer-warnings" not in answer.headers
    assert llm.rendered[0]["messages"] == with_calls(lambda arguments: arguments)


def test_blocks_that_clients_of_messages_send_back_are_the_same():
    llm = ScriptedLLM("ok")
    calls = [{"type": "tool_use", "id": i, "name": n, "input": json.loads(a)} for i, n, a in ASKED]
    noon = [{"type": "text", "text": "noon"}, {"type": "text", "text": "sharp"}]
    thoughts = {"type": "thinking", "thinking": "hm", "signature": ""}
    sent = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [thoughts, {"type": "text", "text": "So:"}, *calls]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"},
                {"type": "tool_result", "tool_use_id": "c2", "content": noon, "is_error": False},
                {"type": "text", "text": "b"},
                {"type": "text", "text": "c"},
            ],
        },
    ]
    answer = message(llm, messages=sent)
    assert answer.status_code == 200 and "x-jaxinfer-warnings" not in answer.headers
    assert llm.rendered[0]["messages"] == with_calls(json.loads)


def with_calls(read: Callable[[str], Any]) -> list[dict[str, Any]]:
    calls = [{"id": i, "type": "function", "function": {"name": n, "arguments": read(a)}} for i, n, a in ASKED]
    return [each | ({"tool_calls": calls} if each["role"] == "assistant" else {}) for each in LOOP]


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ({}, ""),
        ({"content": []}, ""),
        ({"content": "no such city", "is_error": True}, "Error: no such city"),
        ({"content": [{"type": "text", "text": "x"}], "is_error": None}, "x"),
    ],
)
def test_a_result_may_be_empty_or_an_error(result, shown):
    llm = FakeLLM()
    call = {"type": "tool_use", "id": "c1", "name": "now", "input": {}}
    results = [{"type": "text", "text": "first"}, {"type": "tool_result", "tool_use_id": "c1", **result}]
    sent = [*USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": results}]
    assert message(llm, messages=sent, thinking=None).status_code == 200
    told = {"role": "tool", "tool_call_id": "c1", "content": shown}
    assert llm.rendered[0]["messages"][2:] == [{"role": "user", "content": "first"}, told]


def test_a_next_response_goes_on_from_calls_with_their_results_alone():
    llm = ScriptedLLM(f"<think>\nHm.\n</think>\n\nSo:\n{CALL}")
    app = create_app(llm)
    for stream in (False, True):
        asked = {"input": "hi", "tools": FLAT, "reasoning": {"effort": "low"}, "stream": stream}
        answer = ask_app(app, "POST", RESPONSES, json=asked)
        first = events(answer.text)[-1]["response"] if stream else answer.json()
        call_id = first["output"][-1]["call_id"]
        result = {"type": "function_call_output", "call_id": call_id, "output": "sunny"}
        asked = {"input": [result], "tools": FLAT, "previous_response_id": first["id"]}
        assert ask_app(app, "POST", RESPONSES, json=asked).status_code == 200
        function = {"name": "weather", "arguments": PARIS}
        calls = [{"id": call_id, "type": "function", "function": function}]
        assert llm.rendered[-1]["messages"] == [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "So:", "reasoning_content": "Hm.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": call_id, "content": "sunny"},
        ]


B = [{"role": "user", "content": "b"}]
BEHIND = [f"a {CALL} b", f"{CALL} b {NOW} c", f"<think>\nHm.\n</think>\n\na {CALL}{NOW} b"]


@pytest.mark.parametrize("says", BEHIND, ids=["one call", "two calls", "thoughts"])
def test_a_streamed_answer_sent_back_is_the_conversation_that_its_id_stands_for(says):
    llm = ScriptedLLM(says)
    app = create_app(llm)
    asked = {"input": USER, "tools": FLAT, "reasoning": {"effort": "low"}}
    first = events(ask_app(app, "POST", RESPONSES, json=asked | {"stream": True}).text)[-1]["response"]
    calls = [item for item in first["output"] if item["type"] == "function_call"]
    assert first["output"][-1]["type"] == "message" and calls
    results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "x"} for call in calls]
    by_id = asked | {"input": results, "previous_response_id": first["id"]}
    for body in (by_id, asked | {"input": [*USER, *first["output"], *results]}):
        assert ask_app(app, "POST", RESPONSES, json=body).status_code == 200
    kept, sent = (asked["messages"] for asked in llm.rendered[-2:])
    assert [message["role"] for message in sent] == ["user", "assistant", *["tool"] * len(calls)]
    assert sent == kept


def test_messages_that_are_not_one_answer_s_stay_apart():
    llm = FakeLLM()
    call = {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"}
    thoughts = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    answers = [{"role": "assistant", "content": text} for text in "abc"]
    sent = [*USER, answers[0], call, thoughts, answers[1], answers[2]]
    assert respond(llm, input=sent, reasoning=None).status_code == 200
    read = llm.rendered[0]["messages"][1:]
    assert [(each["content"], "tool_calls" in each, "reasoning_content" in each) for each in read] == [
        ("a", True, False),
        ("b", False, True),
        ("c", False, False),
    ]


def thinking(text: str) -> Delta:
    return Delta(0, "", [1], reasoning=text)


def calling(index: int, name: str) -> Delta:
    return Delta(0, "", [1], calls=[CallDelta(index, f"chatcmpl-tool-{index}", name, "{}", is_whole=True)])


def test_thoughts_between_the_parts_of_an_answer_are_its_own_when_it_is_sent_back():
    says = [thinking("hm"), Delta(0, "So:", [1]), thinking(" or"), calling(0, "now"), thinking("!"), calling(1, "now")]
    script = [*says, Delta(0, "", [1], "tool_calls")]
    llm = FakeLLM(lambda *_: script)
    app = create_app(llm)
    first = events(ask_app(app, "POST", RESPONSES, json={"input": USER, "tools": FLAT, "stream": True}).text)[-1]
    output = first["response"]["output"]
    kinds = ["reasoning", "message", "reasoning", "function_call", "reasoning", "function_call"]
    assert [item["type"] for item in output] == kinds
    for asked in ({"input": "b", "previous_response_id": first["response"]["id"]}, {"input": [*USER, *output, *B]}):
        assert ask_app(app, "POST", RESPONSES, json=asked).status_code == 200
    kept, sent = (asked["messages"] for asked in llm.rendered[-2:])
    assert sent == kept and kept[1]["reasoning_content"] == "hm or!" and len(kept[1]["tool_calls"]) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ask", [respond, message])
def test_a_turn_with_calls_is_one_of_its_session(ask, stream):
    """Begun over one API, it goes on over another."""
    llm = ScriptedLLM(f"So:\n{CALL}")
    app = create_app(llm)
    path, body = (RESPONSES, {"input": "hi", "tools": FLAT})
    if ask is message:
        path, body = MESSAGES, {"messages": USER, "tools": BLOCKS, "max_tokens": 99}
    assert ask_app(app, "POST", path, json=body | {"session_id": "s", "stream": stream}).status_code == 200
    ((_, tokens),) = llm.kept.values()
    assert CALL in llm.text.tokenizer.decode(tokens, skip_special_tokens=False)
    result = {"role": "tool", "tool_call_id": "c", "content": "sunny"}
    more = {"messages": [result], "tools": TOOLS, "session_id": "s", "session_append": True}
    assert ask_app(app, "POST", CHAT, json=more).status_code == 200
    *_, answer, told = llm.rendered[-1]["messages"]
    assert (answer["content"], told) == ("So:", result)
    assert [call["function"] for call in answer["tool_calls"]] == [{"name": "weather", "arguments": PARIS}]


def test_tools_are_counted():
    llm = ScriptedLLM("x")
    body = {"messages": USER, "tools": BLOCKS}
    counted = post(llm, COUNT, body).json()["input_tokens"]
    usage = post(llm, MESSAGES, body | {"max_tokens": 9}).json()["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert llm.rendered[0] == llm.rendered[1]
    assert post(llm, COUNT, {"messages": USER}).json()["input_tokens"] < counted
    assert post(FakeLLM(tool_format=None), COUNT, body).status_code == 400
