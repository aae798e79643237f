"""Conversations that clients' packages can write are read alike by every door, or refused by their type and place."""

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import openai.types.chat as chat_types
import openai.types.responses as response_types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.anthropic import read_message_request
from jaxinfer.protocol.chat import read_chat
from jaxinfer.protocol.messages import PYTHON, read_messages
from jaxinfer.protocol.open_responses import read_response_request
from jaxinfer.protocol.parts import THOUGHT_KINDS, is_call_or_result
from jaxinfer.protocol.response_calls import CALLS, RESULTS
from jaxinfer.protocol.tools import read_tools
from tests.support.sampled import WORDS, sample

Messages = list[dict[str, Any]]


def of_chat(messages: Any) -> Messages:
    return read_chat({"messages": messages}).messages


def of_responses(items: Any, **fields: Any) -> Messages:
    return read_response_request({"input": items, **fields}, lambda _: [], lambda _: None).chat.messages


def of_messages(messages: Any, **fields: Any) -> Messages:
    return read_message_request({"messages": messages, "max_tokens": 9, **fields}).messages


TEXT = st.text("ab \n", max_size=5)
SAID = st.lists(TEXT, min_size=1, max_size=3)  # texts of one message
CALL = st.fixed_dictionaries({"name": st.sampled_from("fg"), "arguments": st.dictionaries(st.sampled_from("ab"), TEXT)})
STEP = st.fixed_dictionaries(
    {"texts": st.lists(TEXT, max_size=2), "thoughts": st.lists(TEXT.filter(bool), max_size=2), "results": st.just([])}
) | st.fixed_dictionaries(
    {
        "texts": st.lists(TEXT.filter(bool), max_size=1),
        "thoughts": st.lists(TEXT.filter(bool), max_size=2),
        "results": st.lists(st.tuples(CALL, SAID), min_size=1, max_size=3),
        "lost": st.integers(0, 3),  # calls that a client has cut off, from the first on
    }
)
TURNS = st.lists(st.tuples(SAID, st.lists(STEP, min_size=1, max_size=2)), min_size=1, max_size=3)


def kept(step: dict[str, Any], calls: list[Any]) -> list[Any]:
    return calls[step.get("lost", 0) :]


def numbered(turns: Any) -> Iterator[tuple[list[str], list[tuple[dict[str, Any], list[tuple[str, Any, list[str]]]]]]]:
    """Each question with its steps, and each of their calls with an id, itself and its result."""
    count = 0
    for question, steps in turns:
        found = []
        for step in steps:
            calls = [(f"c{count + i}", call, result) for i, (call, result) in enumerate(step["results"])]
            count += len(calls)
            found.append((step, calls))
            if not calls:
                break  # an answer without calls ends the turn
        yield question, found


def expected(system: list[str], turns: Any) -> Messages:
    messages: Messages = [{"role": "system", "content": "\n".join(system)}] if system else []
    for question, steps in numbered(turns):
        messages.append({"role": "user", "content": "\n".join(question)})
        for step, calls in steps:
            answer: dict[str, Any] = {"role": "assistant", "content": "\n".join(step["texts"])}
            if step["thoughts"]:
                answer["reasoning_content"] = "".join(step["thoughts"])
            if made := kept(step, calls):
                answer["tool_calls"] = [
                    {"id": call_id, "type": "function", "function": call} for call_id, call, _ in made
                ]
            messages.append(answer)
            messages += [
                {"role": "tool", "tool_call_id": call_id, "content": "\n".join(result)} for call_id, _, result in calls
            ]
    return messages


def parts(kind: str, texts: list[str], field: str = "text") -> list[dict[str, str]]:
    return [{"type": kind, field: text} for text in texts]


def as_chat(system: list[str], turns: Any, thinks: str) -> Messages:
    """thinks: the type of the parts that hold thoughts; or the message's field that does."""
    messages: Messages = [{"role": "developer", "content": parts("text", system)}] if system else []
    for question, steps in numbered(turns):
        messages.append({"role": "user", "content": parts("text", question)})
        for step, calls in steps:
            content = parts("text", step["texts"])
            answer: dict[str, Any] = {"role": "assistant"}
            if thinks in ("reasoning_content", "reasoning", "thinking") and step["thoughts"]:
                answer[thinks] = "".join(step["thoughts"])
            elif step["thoughts"]:
                kind, _, field = thinks.partition(" part ")
                content = [*parts(kind, step["thoughts"], field), *content]
            answer["content"] = content or None
            if made := kept(step, calls):
                answer["tool_calls"] = [
                    {
                        "id": call_id,
                        "type": "function",
                        "function": call | {"arguments": json.dumps(call["arguments"])},
                    }
                    for call_id, call, _ in made
                ]
            messages.append(answer)
            messages += [
                {"role": "tool", "tool_call_id": call_id, "content": parts("text", result)}
                for call_id, _, result in calls
            ]
    return messages


def as_responses(turns: Any) -> Messages:
    items: Messages = []
    for question, steps in numbered(turns):
        items.append({"role": "user", "content": parts("input_text", question)})
        for step, calls in steps:
            if step["thoughts"]:
                items.append(
                    {
                        "type": "reasoning",
                        "id": "r",
                        "summary": [],
                        "content": parts("reasoning_text", step["thoughts"]),
                    }
                )
            made = kept(step, calls)
            if step["texts"] or not (made or step["thoughts"]):
                items.append({"type": "message", "role": "assistant", "content": parts("output_text", step["texts"])})
            for call_id, call, _ in made:
                named = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
                items.append({"type": "function_call", "call_id": call_id, **named})
            for call_id, _, result in calls:
                items.append(
                    {"type": "function_call_output", "call_id": call_id, "output": parts("input_text", result)}
                )
    return items


def as_messages(turns: Any) -> Messages:
    messages: Messages = []
    results: Messages = []
    for question, steps in numbered(turns):
        messages.append({"role": "user", "content": [*results, *parts("text", question)]})
        results = []
        for step, calls in steps:
            if results:
                messages.append({"role": "user", "content": results})
            thoughts = parts("thinking", step["thoughts"], "thinking")
            used = [
                {"type": "tool_use", "id": call_id, "name": call["name"], "input": call["arguments"]}
                for call_id, call, _ in kept(step, calls)
            ]
            content = [*thoughts, *parts("text", step["texts"]), *used]
            messages.append({"role": "assistant", "content": content})
            results = [
                {"type": "tool_result", "tool_use_id": call_id, "content": parts("text", result)}
                for call_id, _, result in calls
            ]
    return messages + ([{"role": "user", "content": results}] if results else [])


def parsed(messages: Messages) -> Messages:
    """With the calls' arguments as objects, which templates get of both."""
    for message in messages:
        for call in message.get("tool_calls", ()):
            arguments = call["function"]["arguments"]
            call["function"]["arguments"] = json.loads(arguments) if isinstance(arguments, str) else arguments
    return messages


THINKS = ["reasoning_content", "reasoning", "thinking", "thinking part thinking", "reasoning part text"]
THINKS += ["reasoning part reasoning", "reasoning_text part text"]


@given(st.lists(TEXT.filter(bool), max_size=2), TURNS, st.sampled_from(THINKS))
@settings(max_examples=60)
def test_a_conversation_is_the_same_to_every_door(system, turns, thinks):
    """With results whose calls were cut off."""
    wanted = expected(system, turns)
    assert parsed(of_chat(as_chat(system, turns, thinks))) == wanted
    assert parsed(read_messages(as_chat(system, turns, thinks), PYTHON)[0]) == wanted
    told = {"instructions": "\n".join(system)} if system else {}
    assert parsed(of_responses(as_responses(turns), **told)) == wanted
    blocks = {"system": parts("text", system)} if system else {}
    assert parsed(of_messages(as_messages(turns), **blocks)) == wanted


@pytest.mark.parametrize("choice", [None, "none", "auto", "required"])
@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_are_the_same_to_every_door_whatever_choice_is_sent_beside_them(tools, choice):
    fields = {"tools": tools, "tool_choice": choice}
    kinds = {"none": {"type": "none"}, "auto": {"type": "auto"}, "required": {"type": "any"}}
    turns = [{"role": "user", "content": "x"}]
    anthropic = {"messages": turns, "max_tokens": 9, "tools": tools, "tool_choice": kinds.get(choice)}
    doors: list[Callable[[], Any]] = [
        lambda: read_chat({"messages": turns, **fields}).tools,
        lambda: read_response_request({"input": turns, **fields}, lambda _: [], lambda _: None).chat.tools,
        lambda: read_message_request(anthropic).tools,
        lambda: read_tools(tools, choice, True),  # LLM.chat's
    ]
    for door in doors:
        if choice == "required":
            with pytest.raises(InvalidRequest, match="tool_choice must be left out without tools"):
                door()
        else:
            assert door() is None


def test_a_conversation_may_begin_with_a_result_to_every_door():
    result = {"role": "tool", "tool_call_id": "c", "content": "sunny"}
    question = {"role": "user", "content": "So?"}
    item = {"type": "function_call_output", "call_id": "c", "output": "sunny"}
    block = {"type": "tool_result", "tool_use_id": "c", "content": "sunny"}
    assert of_chat([result, question]) == read_messages([result, question], PYTHON)[0] == [result, question]
    assert of_responses([item, question]) == [result, question]
    assert of_messages([{"role": "user", "content": [block]}, question]) == [result, question]


def test_thoughts_alone_are_a_turn_to_every_door():
    user, thinking = {"role": "user", "content": "x"}, {"role": "assistant", "content": "", "reasoning_content": "Hm."}
    block = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}]}
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    result = {"type": "function_call_output", "call_id": "c", "output": "y"}
    for before, after in itertools.product(([], [user]), ([], [user])):
        assert of_chat([*before, thinking, *after]) == [*before, thinking, *after]
        assert of_messages([*before, block, *after]) == [*before, thinking, *after]
        assert of_responses([*before, item, *after]) == [*before, thinking, *after]
    assert of_responses([CALLED[0], item, result | {"call_id": WORDS[0]}])[0]["reasoning_content"] == "Hm."


FORM = {"chat": "tool_calls", "python": "tool_calls", "responses": "function_call", "messages": "tool_use"}
DOORS = {"chat": of_chat, "python": lambda raw: read_messages(raw, PYTHON)[0]}
DOORS |= {"responses": of_responses, "messages": of_messages}
FUNCTION = {"name": "f", "arguments": "{}"}
FOREIGN = [  # a turn, what of it the error names, and who reads it
    *(({"type": kind, "call_id": "a"}, kind, {"responses"}) for kind in (*CALLS, *RESULTS)),
    ({"type": "tool_use", "id": "a", "name": "f", "input": {}}, "tool_use", set()),
    *(
        ({"role": role, "content": [{"type": kind, "id": "a"}]}, kind, {"messages"})
        for role, kind in (("assistant", "tool_use"), ("user", "tool_result"), ("assistant", "server_tool_use"))
    ),
    ({"role": "assistant", "tool_calls": [{"id": "a", "function": FUNCTION}]}, "tool_calls", {"chat", "python"}),
    ({"role": "assistant", "function_call": FUNCTION}, "function_call", {"chat", "python"}),
]


@pytest.mark.parametrize("door", DOORS)
@given(st.lists(TEXT, max_size=3), st.sampled_from(FOREIGN))
def test_a_call_in_another_form_is_told_its_place_and_the_form_to_send(door, before, turn):
    """A client that leaves it out, as an error may say, would lose it."""
    message, name, readers = turn
    if door in readers:
        return
    with pytest.raises(InvalidRequest) as refusal:
        DOORS[door]([*({"role": "user", "content": text} for text in before), message])
    said = str(refusal.value)
    field = "input" if door == "responses" else "messages"
    assert said.startswith(f"{field}[{len(before)}]") and name in said and "got null" not in said
    what, _, cure = said.partition(" is not supported by this version of jaxinfer; ")
    assert what and (FORM[door] in cure or "send messages, reasoning, calls" in cure)


@pytest.mark.parametrize("door", ["chat", "python", "messages"])
def test_reasoning_in_another_form_is_told_the_form_to_send(door):
    with pytest.raises(InvalidRequest, match=r"messages\[1\] of type reasoning is not .*; reasoning is an assistant's"):
        DOORS[door]([{"role": "user", "content": "x"}, {"type": "reasoning", "summary": []}])


@pytest.mark.parametrize("door", ["chat", "python", "messages"])
@given(st.lists(TEXT, max_size=2), st.sampled_from(["text", "image_url", "user", "assistant", "", "message"]) | TEXT)
def test_what_is_no_call_and_no_thought_is_told_of_its_missing_role(door, before, kind):
    if is_call_or_result(kind) or kind in THOUGHT_KINDS:
        return
    with pytest.raises(InvalidRequest, match=rf"^messages\[{len(before)}\].role must be one of .*, got null"):
        DOORS[door]([*({"role": "user", "content": text} for text in before), {"type": kind, "text": "hi"}])


def test_settings_of_a_turn_are_no_message():
    user, settings = {"role": "user", "content": "x"}, {"role": "system", "output_config": {"effort": "low"}}
    for told in (settings, settings | {"content": None}):
        assert of_messages([told, user, told]) == [user]
    for sent in ([settings], [user, {"role": "system"}]):
        with pytest.raises(InvalidRequest, match=r"^messages(\[1\].content)? must be"):
            of_messages(sent)


# What is no text, and items that are neither a message, a thought, a call nor a result
PICTURES = {
    "image_url",
    "input_image",
    "image",
    "input_audio",
    "file",
    "input_file",
    "container_upload",
    "browser_state",
    "tool_addition",
    "tool_removal",
    "mcp_tool_listing",
}
ITEMS = {
    "computer_call",
    "computer_call_output",
    "additional_tools",
}
ITEMS |= {"configuration_update", "compaction", "image_generation_call", "mcp_list_tools", "compaction_trigger"}
OWN = {  # whose blocks they are, of those that the types allow in every message
    "user": {"thinking", "tool_use", "server_tool_use", "mcp_tool_use"},
    "assistant": {"tool_result"},
}


def kinds_in(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each typed object of what is said, not of what a call is given."""
    if isinstance(value, dict):
        if isinstance(value.get("type"), str):
            yield value["type"], value
        for name in value.keys() - {"input", "action", "arguments", "results", "citations", "caller", "cache_control"}:
            yield from kinds_in(value[name])
    elif isinstance(value, list):
        for each in value:
            yield from kinds_in(each)


def unreadable(value: Any, role: str) -> set[str]:
    wrong = PICTURES | OWN.get(role, set()) | (ITEMS if not role else set())
    found = {kind for kind, _ in kinds_in(value) if kind in wrong}
    sources = [each.get("source") for kind, each in kinds_in(value) if kind == "document"]
    if any(source and source["type"] not in ("text", "content") for source in sources):
        found.add("document")
    if role == "user":
        found |= {kind for kind, _ in kinds_in(value) if kind.endswith("_tool_result")}
    return found


def check(read: Callable[[], Messages], wrong: set[str], place: str, value: Any) -> None:
    """It is read, unless something in it is no text: then the refusal names one of these and where it stands."""
    try:
        read()
    except InvalidRequest as error:
        named = re.search(r"of type '?([\w.]+)", str(error))
        assert named is not None and named[1] in wrong, (str(error), value)
        assert (error.param or "").startswith(place) and error.code == "unsupported_parameter"
    else:
        assert not wrong, value


def drawn(kind: Any, count: int = 400) -> Iterator[Any]:
    chance = random.Random(0)
    return (sample(kind, chance) for _ in range(count))


def test_every_message_of_openai_s_types_is_read_by_chat_and_by_python_or_refused_by_type_and_place():
    for message in drawn(chat_types.ChatCompletionMessageParam):
        message.pop("audio", None)  # an answer in sound: refused by its field
        wrong = unreadable(message.get("content"), message["role"])
        check(lambda message=message: of_chat([message]), wrong, "messages[0].content", message)
        check(lambda message=message: read_messages([message], PYTHON)[0], wrong, "messages[0].content", message)


CALLED = [{"type": "function_call", "call_id": word, "name": "f", "arguments": "{}"} for word in WORDS]


def test_every_item_of_openai_s_types_is_read_by_responses_or_refused_by_type_and_place():
    for item in drawn(response_types.ResponseInputItemParam, 800):
        if item.get("type") in (None, "item_reference") and "role" not in item:
            with pytest.raises(
                InvalidRequest, match=rf"^input\[{len(CALLED)}\] of type item_reference must name an item"
            ):
                of_responses([*CALLED, item])
            continue
        if item.get("type") == "function_call_output" and item.get("call_id") is None:
            with pytest.raises(InvalidRequest, match=rf"^input\[{len(CALLED)}\].call_id must be the id"):
                of_responses([*CALLED, item | {"output": "x"}])
            call = {"type": "function_call", "call_id": "c", "name": item.get("name") or "f", "arguments": "{}"}
            wrong = unreadable(item, "")
            check(lambda call=call, item=item: of_responses([call, item]), wrong, "input[1]", item)
            continue
        wrong = unreadable(item, "")
        if item.get("type") == "code_interpreter_call":
            wrong = {"image"} & {kind for kind, _ in kinds_in(item)}
        check(lambda item=item: of_responses([*CALLED, item]), wrong, f"input[{len(CALLED)}]", item)


USED = [{"type": "tool_use", "id": word, "name": "f", "input": {}} for word in WORDS]
TOLD = [{"type": "tool_result", "tool_use_id": word} for word in WORDS]


def check_message(message: dict[str, Any]) -> None:
    """One of Anthropic's, between calls and results of every id that it may name."""
    role, content = message["role"], message.get("content", [])
    if "content" not in message:
        if message.get("output_config") is None:
            return  # which Anthropic's API refuses too
        user = {"role": "user", "content": "x"}
        assert of_messages([user, message]) == [user]
        return
    blocks = parts("text", [content]) if isinstance(content, str) else content
    if role == "assistant":
        sent = [{"role": role, "content": [*USED, *blocks]}, {"role": "user", "content": TOLD}]
    else:
        sent = [{"role": "assistant", "content": USED}, {"role": role, "content": blocks}]
    wrong = unreadable(blocks, role)
    check(lambda: of_messages([{"role": "user", "content": "x"}, *sent]), wrong, "messages[", message)


BLOCKS = {
    "search_result": ({"source": "s", "title": "t", "content": parts("text", ["a", "b"])}, "t\ns\na\nb"),
    "document": ({"source": {"type": "text", "media_type": "text/plain", "data": "a"}, "title": "t"}, "t\na"),
    "compaction": ({"content": "So far."}, "So far."),
    "refusal": ({"refusal": "No."}, "No."),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_what_is_text_in_one_api_is_text_in_all(kind):
    fields, text = BLOCKS[kind]
    sent = [{"role": "assistant", "content": [{"type": kind, **fields}]}]
    user = {"role": "user", "content": "x"}
    for found in (of_chat([user, *sent]), of_responses([user, *sent]), of_messages([user, *sent])):
        assert found[1] == {"role": "assistant", "content": text}


def test_openai_s_older_and_newer_forms_of_a_call_are_calls():
    old = [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "g", "input": "a b"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "y"},
        {"role": "assistant", "content": None, "refusal": "No."},
    ]
    called, result, custom, _, refusal = of_chat(old)
    assert called["tool_calls"] == [{"id": "f", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert (result["role"], result["tool_call_id"]) == ("tool", "f")
    assert custom["tool_calls"][0]["function"] == {"name": "g", "arguments": {"input": "a b"}}
    assert refusal["content"] == "No."


def test_what_a_server_of_anthropic_s_found_stands_between_call_and_answer():
    found = {"type": "web_search_result", "title": "t", "url": "u", "encrypted_content": "zzz"}
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "I look."},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [found]},
        {"type": "text", "text": "So."},
    ]
    sent = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": "?"},
    ]
    _, asked, told, answered, _ = of_messages(sent)
    assert (asked["content"], asked["reasoning_content"]) == ("I look.", "Hm.")
    assert json.loads(told["content"]) == [{"type": "web_search_result", "title": "t", "url": "u"}]
    assert (told["tool_call_id"], answered["content"]) == ("s", "So.")


def test_a_message_may_have_more_calls_than_a_list_is_long_elsewhere():
    calls = [{"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in range(300)]
    assert len(of_chat([{"role": "assistant", "tool_calls": calls}])[0]["tool_calls"]) == 300


def test_results_of_a_server_s_calls_are_bounded_as_messages_are():
    used = {"type": "server_tool_use", "id": "s", "name": "f", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    with pytest.raises(InvalidRequest, match=r"messages\[0\].content must be a list with at most 4096 answers"):
        of_messages([{"role": "assistant", "content": [used, found] * 5000}])
