"""Tool calls and thoughts over HTTP: scripted answers through the text side and the wire, whole and in pieces."""

import itertools
import json
from typing import Any

import pytest

from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.text.tools.formats import Format
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, MESSAGES, USER, chat, error_of, events, post
from tests.server.scripted import ScriptedLLM

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
PARIS = '{"city": "Paris"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
HALF = '<tool_call>\n{"name": "weather", "arguments": {"city": "Pa'
PIECES = (1, 2, 3, 7, 1000)


def whole(llm: FakeLLM, **fields: Any) -> list[dict[str, Any]]:
    response = chat(llm, **fields)
    assert response.status_code == 200, response.text
    choices: list[dict[str, Any]] = response.json()["choices"]
    for choice in choices:
        for call in choice["message"].get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
    return choices


def streamed(llm: FakeLLM, **fields: Any) -> list[dict[str, Any]]:
    """The choices of a stream, put together as clients do."""
    choices: dict[int, dict[str, Any]] = {}
    for frame in events(chat(llm, stream=True, **fields).text):
        for piece in frame["choices"]:
            choice = choices.setdefault(piece["index"], {"message": {"content": ""}, "finish_reason": None})
            assert choice["finish_reason"] is None, "nothing comes after the end"
            message, delta = choice["message"], piece["delta"]
            message["content"] += delta.get("content") or ""
            for name in ("reasoning", "reasoning_content"):
                if name in delta:
                    message[name] = message.get(name, "") + delta[name]
            for part in delta.get("tool_calls", ()):
                add_call(message.setdefault("tool_calls", {}), part)
            choice["finish_reason"] = piece["finish_reason"]
    for choice in choices.values():
        message = choice["message"]
        if "tool_calls" in message:
            message["tool_calls"] = list(message["tool_calls"].values())
        message["content"] = message["content"] or (None if len(message) > 1 else "")
    return [choices[index] for index in sorted(choices)]


def add_call(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    if part["index"] not in calls:
        assert part.keys() == {"index", "id", "type", "function"} and part["function"]["arguments"] == ""
        calls[part["index"]] = {"id": part["id"], "type": "function", "function": dict(part["function"])}
    else:
        assert part.keys() == {"index", "function"} and part["function"].keys() == {"arguments"}
        calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]


def said(choice: dict[str, Any]) -> dict[str, Any]:
    """What must be the same whole and streamed."""
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    thoughts = message.get("reasoning")
    assert thoughts == message.get("reasoning_content")
    return {"content": message["content"], "calls": calls, "reasoning": thoughts, "finish": choice["finish_reason"]}


def answer(content: str | None, calls: Any = (), reasoning: str | None = None, finish: str = "stop") -> dict[str, Any]:
    return {"content": content, "calls": list(calls), "reasoning": reasoning, "finish": finish}


ONE = [("weather", PARIS)]
LONE = '{"name": "weather", "arguments": {"city": "Paris"}}'
AS_JSON = {"response_format": {"type": "json_object"}}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "one call": (CALL, {}, answer(None, ONE, finish="tool_calls")),
    "text before it": (f"I look.\n{CALL}", {}, answer("I look.", ONE, finish="tool_calls")),
    "two calls": (f"{CALL}\n{NOW}", {}, answer(None, [*ONE, ("now", "{}")], finish="tool_calls")),
    "not parallel": (f"{CALL}\n{NOW}", {"parallel_tool_calls": False}, answer(None, ONE, finish="tool_calls")),
    "none": (CALL, {"tool_choice": "none"}, answer(CALL)),
    "no call": ("Hello\n", {}, answer("Hello\n")),
    "not a tool": (CALL.replace("weather", "other"), {}, answer(CALL.replace("weather", "other"))),
    "not JSON": ("<tool_call>\nhm\n</tool_call>", {}, answer("<tool_call>\nhm\n</tool_call>")),
    "thoughts and a call": (
        f"<think>\nThe tool fits.\n</think>\n\n{CALL}",
        {"reasoning_effort": "low"},
        answer(None, ONE, "The tool fits.", "tool_calls"),
    ),
    "a call within thoughts": (
        f"<think>\n{CALL}\n</think>\n\nNo.",
        {"reasoning_effort": "low"},
        answer("No.", reasoning=CALL),
    ),
    "stop string in the thoughts and after them": (
        "<think>\nOne, two\n</think>\n\nOne, two",
        {"reasoning_effort": "low", "stop": [", two", "\n\n"]},
        answer("One", reasoning="One, two"),
    ),
    "spelt tags": ("a <thi" + "nk> b", {}, answer("a <think> b")),
    "thinking off": ("a\n</think>\nb", {"reasoning_effort": "none"}, answer("a\n</think>\nb")),
}


@pytest.mark.parametrize(("says", "fields", "expected"), CASES.values(), ids=CASES)
def test_an_answer_is_taken_apart_whole_and_in_every_piece(says, fields, expected):
    for piece in PIECES:
        assert said(whole(ScriptedLLM(says, piece=piece), tools=TOOLS, **fields)[0]) == expected
        assert said(streamed(ScriptedLLM(says, piece=piece), tools=TOOLS, **fields)[0]) == expected


PARTS = f"all\nI look.>>>weather\n{PARIS}>>>now\n{{}}"
TWO = [*ONE, ("now", "{}")]
FORMS: dict[str, tuple[Format, str, dict[str, Any], dict[str, Any]]] = {
    "a recipient's text": ("functionary_v3_2", "all\nHello >>> x\n", {"tools": TOOLS}, answer("Hello >>> x\n")),
    "its text without tools": ("functionary_v3_2", "all\nHello", {}, answer("Hello")),
    "its text where no call may be": ("functionary_v3_2", PARTS, {"tools": TOOLS, "tool_choice": "none"}, answer(
        f"I look.>>>weather\n{PARIS}>>>now\n{{}}"
    )),
    "its JSON": ("functionary_v3_2", LONE, AS_JSON, answer(LONE)),
    "its parts": ("functionary_v3_2", PARTS, {"tools": TOOLS}, answer("I look.", TWO, finish="tool_calls")),
    "its calls": ("functionary_v3_2", f"now\n{{}}>>>weather\n{PARIS}", {"tools": TOOLS}, answer(
        None, TWO[::-1], finish="tool_calls"
    )),
    "its first call alone": ("functionary_v3_2", PARTS, {"tools": TOOLS, "parallel_tool_calls": False}, answer(
        "I look.", ONE, finish="tool_calls"
    )),
    "its unknown tool": ("functionary_v3_2", "nope\n{}>>>all\nSo", {"tools": TOOLS}, answer("nope\n{}\nSo")),
    "functools": ("firefunction_v2", f"I look. functools[{LONE}, {{\"name\": \"now\"}}]", {"tools": TOOLS}, answer(
        "I look.", TWO, finish="tool_calls"
    )),
    "functools without tools": ("firefunction_v2", f" functools[{LONE}]", {}, answer(f" functools[{LONE}]")),
}  # fmt: skip


@pytest.mark.parametrize(("form", "says", "fields", "expected"), FORMS.values(), ids=FORMS)
def test_forms_that_mark_text_or_begin_with_a_word_are_taken_apart(form, says, fields, expected):
    for piece, read in ((1000, whole), (1, streamed), (3, streamed)):
        assert said(read(ScriptedLLM(says, piece=piece, form=form), **fields)[0]) == expected


@pytest.mark.parametrize(("finish", "fields"), [("length", {}), ("stop", {"stop": "Pa"}), ("stop", {})])
def test_half_a_call_is_no_call(finish, fields):
    """Its text is the content of a whole answer; a stream has shown some of it as arguments."""
    for piece in PIECES:
        (choice,) = whole(ScriptedLLM(f"So {HALF}", piece=piece, finish=finish), tools=TOOLS, **fields)
        text = f"So {HALF}".removesuffix("Pa") if fields else f"So {HALF}"
        assert said(choice) == answer(text, finish=finish)
        (choice,) = streamed(ScriptedLLM(f"So {HALF}", piece=piece, finish=finish), tools=TOOLS, **fields)
        assert choice["finish_reason"] == finish
        (call,) = choice["message"]["tool_calls"]
        assert text.endswith(call["function"]["arguments"])


def test_a_call_that_goes_wrong_leaves_its_text_where_it_stood():
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": oops}}\n</tool_call> sorry'
    for piece in PIECES:
        assert said(whole(ScriptedLLM("a " + text, piece=piece), tools=TOOLS)[0]) == answer("a " + text)


@pytest.mark.parametrize("text", [LONE, f"```json\n{LONE}\n```", f"<tools>\n{LONE}\n</tools>"])
def test_an_answer_that_is_one_object_is_a_call_unless_json_was_asked_for(text):
    for piece, read in itertools.product(PIECES, (whole, streamed)):
        (choice,) = read(ScriptedLLM(text, piece=piece), tools=TOOLS)
        assert said(choice) == answer(None, [("weather", '{"city": "Paris"}')], finish="tool_calls")
    for fields, read in itertools.product((AS_JSON, {"tool_choice": "none"}), (whole, streamed)):
        assert said(read(ScriptedLLM(text), tools=TOOLS, **fields)[0]) == answer(text)


def test_what_a_model_writes_too_much_around_a_call_is_no_content():
    text = f"<tool_call>\n{LONE}}}\n{LONE}\n</tool_call>"
    call = ("weather", '{"city": "Paris"}')
    for piece, read in itertools.product(PIECES, (whole, streamed)):
        assert said(read(ScriptedLLM(text, piece=piece), tools=TOOLS)[0]) == answer(
            None, [call, call], finish="tool_calls"
        )


def test_each_choice_has_a_parser_of_its_own():
    texts = (CALL, "<think>\nhm\n</think>\n\nno", f"x {NOW}")
    for read in (whole, streamed):
        choices = read(ScriptedLLM(*texts), tools=TOOLS, n=3, reasoning_effort="high")
        assert [said(choice) for choice in choices] == [
            answer(None, ONE, finish="tool_calls"),
            answer("no", reasoning="hm"),
            answer("x", [("now", "{}")], finish="tool_calls"),
        ]


def test_thoughts_cut_short_are_thoughts_alone():
    for read in (whole, streamed):
        (choice,) = read(ScriptedLLM("<think>\nTens: 1", finish="length"), reasoning_effort="low")
        assert said(choice) == answer(None, reasoning="Tens: 1", finish="length")


def test_a_prompt_that_ends_within_thoughts_begins_with_them():
    llm = ScriptedLLM(" 1\n</think>\n\nDone.")
    ids = llm.text.tokenizer.encode("<|im_start|>assistant\n<think>\nTens:", add_special_tokens=False)
    assert llm.text.reading(ids, None, SamplingParams()).start == "thinking"
    assert llm.text.reading([*ids, *llm.text.tokenizer.encode("</think>")], None, SamplingParams()).start == "answering"
    assert (
        llm.text.reading(llm.text.tokenizer.encode("<|im_start|>assistant\n"), None, SamplingParams()).start == "either"
    )
    assert (
        llm.text.reading([*ids, *llm.text.tokenizer.encode("<|im_end|>\n")], None, SamplingParams()).start == "either"
    )


@pytest.mark.parametrize(
    ("begun", "says", "expected"),
    [
        ("<think>\nTens:", " 1\n</think>\n\nDone.", answer("Done.", reasoning=" 1")),
        ("<think>\nTens: 1\n</think>\n\nIt is", " 12.", answer(" 12.")),
        ("It is", " 12.", answer(" 12.")),
    ],
    ids=["within thoughts", "after them", "without any"],
)
def test_a_message_that_goes_on_is_read_from_where_it_stood(begun, says, expected):
    """What comes after </think> is an answer whatever the model says next; the text that was given is not repeated."""
    fields = {"messages": [*USER, {"role": "assistant", "content": begun}], "continue_final_message": True}
    for read in (whole, streamed):
        assert said(read(ScriptedLLM(says), **fields)[0]) == expected


def test_usage_tells_how_many_tokens_were_thoughts():
    llm = ScriptedLLM("<think>\nhm\n</think>\n\nno")
    usage = chat(llm, reasoning_effort="low").json()["usage"]
    thoughts = llm.text.tokenizer.encode("<think>\nhm\n</think>")
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len(thoughts)}
    frames = events(chat(llm, reasoning_effort="low", stream=True, stream_options={"include_usage": True}).text)
    assert frames[-1]["usage"] == usage
    assert chat(ScriptedLLM("no"), reasoning_effort="none").json()["usage"]["completion_tokens_details"] == {
        "reasoning_tokens": 0
    }
    assert "completion_tokens_details" not in chat(FakeLLM()).json()["usage"]


def test_continuous_usage_is_on_every_chunk_of_thoughts_and_calls_too():
    said = f"<think>\nThe tool fits.\n</think>\n\nI look.\n{CALL}"
    fields = {"reasoning_effort": "low", "tools": TOOLS, "stream_options": {"continuous_usage_stats": True}}
    chunks = events(chat(ScriptedLLM(said), stream=True, **fields).text)
    shown = {name for chunk in chunks for name in chunk["choices"][0]["delta"]}
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert shown >= {"role", "reasoning", "content", "tool_calls"}
    assert counts == sorted(counts) and len(set(counts)) > 4


def test_tools_and_their_results_are_shown_to_the_model():
    called = {"role": "assistant", "content": None}
    called["tool_calls"] = [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": PARIS}}]
    messages = [*USER, called, {"role": "tool", "tool_call_id": "c1", "content": "sunny"}]
    llm = ScriptedLLM("It is sunny.")
    assert post(llm, CHAT, {"messages": messages, "tools": TOOLS}).status_code == 200
    rendered = llm.text.template.render(llm.rendered[0]["messages"], tools=llm.rendered[0]["tools"])
    assert CALL in rendered and "<tool_response>\nsunny\n</tool_response>" in rendered
    assert llm.rendered[0]["tools"] == TOOLS


BAD_TOOLS: list[tuple[Any, str]] = [
    ("x", "tools"),
    ({}, "tools"),
    ([5], "tools[0]"),
    ([{}], "tools[0].type"),
    ([{"type": "retrieval"}], "tools[0].type"),
    ([{"type": "function"}], "tools[0].function"),
    ([{"type": "function", "function": {}}], "tools[0].function.name"),
    ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
    ([{"type": "function", "function": {"name": "x" * 129}}], "tools[0].function.name"),
    ([{"type": "function", "function": {"name": "a", "parameters": []}}], "tools[0].function.parameters"),
    (
        [{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}],
        "tools[0].function.parameters.type",
    ),
    (
        [{"type": "function", "function": {"name": "a", "parameters": {"properties": []}}}],
        "tools[0].function.parameters.properties",
    ),
    (
        [{"type": "function", "function": {"name": "a", "parameters": {"properties": {"x": "string"}}}}],
        "tools[0].function.parameters.properties.x",
    ),
    (
        [{"type": "function", "function": {"name": "a", "parameters": {"properties": {"x": {}}, "required": 5}}}],
        "tools[0].function.parameters.required",
    ),
    ([*TOOLS, TOOLS[0]], "tools[2].function.name"),
    ([{"type": "function", "function": {"name": f"f{i}", "description": "x" * 2000}} for i in range(530)], "tools"),
    ([{"type": "function", "function": {"name": "a", "description": "x" * 2**20}}], "tools"),
]


LONG = f"mcp__{'s' * 100}__look-up"
SPELT: dict[Format, str] = {
    "hermes": f'<tool_call>\n{{"name": "{LONG}", "arguments": {{"city": "Paris"}}}}\n</tool_call>',
    "qwen3_coder": f"<tool_call>\n<function={LONG}>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
    "minicpm5": f'<function name="{LONG}"><param name="city">Paris</param></function>',
    "llama3_json": f'{{"name": "{LONG}", "parameters": {{"city": "Paris"}}}}',
    "pythonic": f'[{LONG.replace("-", "_")}(city="Paris")]',
}


@pytest.mark.parametrize("form", SPELT)
def test_a_tool_s_name_may_be_as_long_as_agents_make_them(form):
    name = LONG.replace("-", "_") if form == "pythonic" else LONG
    tools = [{"type": "function", "function": {"name": name.ljust(128, "x"), "parameters": WEATHER}}]
    tools.append({"type": "function", "function": {"name": name, "parameters": WEATHER}})
    expected = answer(None, [(name, PARIS)], finish="tool_calls")
    assert said(whole(ScriptedLLM(SPELT[form], form=form), tools=tools)[0]) == expected
    for piece in PIECES:
        assert said(streamed(ScriptedLLM(SPELT[form], piece=piece, form=form), tools=tools)[0]) == expected
    flat = [{"name": tool["function"]["name"], "input_schema": WEATHER} for tool in tools]
    sent = {"messages": USER, "max_tokens": 500, "tools": flat}
    (block,) = post(ScriptedLLM(SPELT[form], form=form), MESSAGES, sent).json()["content"]
    assert (block["name"], block["input"]) == (name, {"city": "Paris"})


@pytest.mark.parametrize(("tools", "param"), BAD_TOOLS)
def test_a_tool_that_is_none_is_refused_by_its_place(tools, param):
    llm = FakeLLM()
    response = chat(llm, tools=tools)
    assert (response.status_code, error_of(response)["param"]) == (400, param)
    assert not llm.rendered


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "nobody"}}, "tools": TOOLS},
        {"tool_choice": {"type": "function"}, "tools": TOOLS},
        {"tool_choice": 5, "tools": TOOLS},
        {"tool_choice": ["auto"], "tools": TOOLS},
    ],
)
def test_a_choice_that_cannot_be_kept_is_refused(fields):
    response = chat(FakeLLM(), **fields)
    assert (response.status_code, error_of(response)["param"]) == (400, "tool_choice")


NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize(("choice", "ends"), [("required", "tool_calls"), (NAMED, "stop")])
def test_a_call_that_was_asked_for_is_read_as_any_other(choice, ends):
    for read in (whole, streamed):
        assert said(read(ScriptedLLM(CALL), tools=TOOLS, tool_choice=choice)[0]) == answer(None, ONE, finish=ends)


@pytest.mark.parametrize(("choice", "schemas"), [("required", len(TOOLS)), (NAMED, 1)])
def test_a_call_that_is_due_is_one_of_the_tools_asked_for(choice, schemas):
    llm = FakeLLM()
    chat(llm, tools=TOOLS, tool_choice=choice)
    (use,) = llm.uses
    assert (use.due, use.named, len(use.schemas)) == (True, choice is NAMED, schemas)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"grammar": 'start: "a"'}, "grammar"),
    ],
)
def test_an_answer_that_must_be_two_things_is_refused(fields, param):
    response = chat(ScriptedLLM(CALL), tools=TOOLS, **fields)
    assert (response.status_code, error_of(response)["param"]) == (400, param)


def test_what_the_model_does_not_know_is_refused():
    response = chat(FakeLLM(tool_format=None), tools=TOOLS)
    assert (response.status_code, error_of(response)["param"]) == (400, "tools")
    assert "--tool-call-parser" in error_of(response)["message"]
    response = chat(FakeLLM(), reasoning_effort="low")
    assert (response.status_code, error_of(response)["param"]) == (400, "reasoning_effort")
    for switch in ("enable_thinking", "thinking"):
        response = chat(ScriptedLLM("x"), reasoning_effort="low", chat_template_kwargs={switch: False})
        assert (response.status_code, error_of(response)["param"]) == (400, "reasoning_effort")
