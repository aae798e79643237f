"""A choice among some of the tools, many tools, and the wish for verbosity."""

from typing import Any

import openai.types.responses as theirs
import pytest
from pydantic import TypeAdapter

from jaxinfer.protocol.tools import MAX_TOOL_BYTES
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, MESSAGES, RESPONSES, USER, error_of, post
from tests.server.scripted import ScriptedLLM
from tests.server.test_tools import CALL, NOW, TOOLS
from tests.server.test_tools_of_others import BLOCKS, FLAT

SEARCH = {"type": "web_search"}


def asked(path: str, mode: Any, *names: str) -> dict[str, Any]:
    """In the words of chat or of responses."""
    if path == RESPONSES:
        tools = [{"type": "function", "name": name} for name in names]
        return {"input": USER, "tools": FLAT, "tool_choice": {"type": "allowed_tools", "mode": mode, "tools": tools}}
    choice = {"mode": mode, "tools": [{"type": "function", "function": {"name": name}} for name in names]}
    return {"messages": USER, "tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": choice}}


def calls_in(body: dict[str, Any]) -> list[str]:
    if "output" in body:
        return [item["name"] for item in body["output"] if item["type"] == "function_call"]
    return [call["function"]["name"] for call in body["choices"][0]["message"].get("tool_calls", ())]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_all_tools_are_shown_and_those_allowed_may_be_called(path, mode):
    llm = FakeLLM()
    assert post(llm, path, asked(path, mode, "now", "now")).status_code == 200
    (use,) = llm.uses
    assert use is not None and (list(use.schemas), use.due, use.named) == (["now"], mode == "required", False)
    assert [tool["function"]["name"] for tool in llm.rendered[0]["tools"]] == ["weather", "now"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_a_call_of_another_tool_is_none(path):
    answer = post(ScriptedLLM(f"{CALL}\n{NOW}"), path, asked(path, "auto", "now"))
    assert calls_in(answer.json()) == ["now"] and "Paris" in answer.text


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize(
    ("mode", "names", "named"),
    [("auto", [], "tools must be a list"), ("auto", ["x"], "one of tools"), ("none", ["now"], "mode must be auto or")],
)
def test_a_choice_among_tools_that_is_none_is_refused(path, mode, names, named):
    llm = FakeLLM()
    error = error_of(post(llm, path, asked(path, mode, *names)))
    assert named in error["message"] and error["param"].startswith("tool_choice") and not llm.rendered


def test_tools_that_cannot_be_offered_cannot_be_allowed():
    llm = FakeLLM()
    body = asked(RESPONSES, "required", "now")
    body["tools"] = [*FLAT, SEARCH]
    body["tool_choice"]["tools"].insert(0, SEARCH)
    assert post(llm, RESPONSES, body).status_code == 200
    assert llm.uses[0] is not None and list(llm.uses[0].schemas) == ["now"]
    for mode, status in (("auto", 200), ("required", 400)):
        body["tool_choice"] = {"type": "allowed_tools", "mode": mode, "tools": [SEARCH]}
        assert post(llm, RESPONSES, body).status_code == status
    assert llm.uses[-1] is None, "nothing that is left may be called"
    body["tool_choice"]["tools"] = [{"type": "mcp", "server_label": "x"}]
    assert error_of(post(llm, RESPONSES, body))["param"] == "tool_choice.tools[0]"


def test_a_response_repeats_the_choice_as_the_client_s_package_reads_it():
    body = post(FakeLLM(), RESPONSES, asked(RESPONSES, "auto", "now")).json()
    choice = TypeAdapter(theirs.Response).validate_python(body).tool_choice
    assert isinstance(choice, theirs.ToolChoiceAllowed) and choice.mode == "auto"


@pytest.mark.parametrize("verbosity", ["low", "medium", "high"])
def test_verbosity_is_a_wish_that_nobody_reads_in_both_apis(verbosity):
    answers = {
        "verbosity": post(FakeLLM(), CHAT, {"messages": USER, "verbosity": verbosity}),
        "text.verbosity": post(FakeLLM(), RESPONSES, {"input": "x", "text": {"verbosity": verbosity}}),
    }
    for name, answer in answers.items():
        assert answer.status_code == 200
        assert answer.headers["x-jaxinfer-warnings"] == f"ignored: {name}"


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, f"{MESSAGES}/count_tokens"])
def test_tools_are_bounded_by_their_bytes_and_not_by_their_number(path):
    shape = {CHAT: TOOLS[1], RESPONSES: FLAT[1]}.get(path, BLOCKS[1])
    conversation = {"input": "x"} if path == RESPONSES else {"messages": USER}
    limit = {"max_tokens": 9} if path == MESSAGES else {}

    def named(name: str) -> dict[str, Any]:
        return {**shape, "function": {"name": name}} if path == CHAT else {**shape, "name": name}

    for count, size, status in ((150, 1, 200), (2000, 1, 200), (3, MAX_TOOL_BYTES // 3, 400)):
        tools = [named(f"t{i}") | ({} if path == CHAT else {"description": "x" * size}) for i in range(count)]
        if path == CHAT:
            tools = [tool | {"function": tool["function"] | {"description": "x" * size}} for tool in tools]
        answer = post(FakeLLM(), path, conversation | limit | {"tools": tools})
        assert answer.status_code == status, answer.text


def test_a_fault_of_a_late_tool_is_named_by_its_place():
    tools = [{**BLOCKS[1], "name": f"t{i}"} for i in range(1200)] + [{**BLOCKS[1], "name": "a b"}]
    error = error_of(post(FakeLLM(), MESSAGES, {"messages": USER, "max_tokens": 9, "tools": tools}))
    assert error["message"].startswith("tools[1200].name must be")
