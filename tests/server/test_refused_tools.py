"""Tools, calls and results that /v1/responses and /v1/messages cannot carry out: refused where they stand in what was
sent, in each API's words.
"""

from typing import Any

import pytest

from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, MESSAGES, RESPONSES, USER, error_of, post
from tests.server.scripted import ScriptedLLM
from tests.server.test_tools import BAD_TOOLS
from tests.server.test_tools_of_others import FLAT, NAMED_NOW, message, respond


def test_what_nobody_reads_of_a_tool_is_named():
    answer = post(FakeLLM(), RESPONSES, {"input": "hi", "tools": [FLAT[1] | {"defer_loading": True}]})
    assert answer.headers["x-jaxinfer-warnings"] == "ignored: tools[0].defer_loading"
    body = {"messages": USER, "max_tokens": 9, "tools": [NAMED_NOW | {"cache_control": {"type": "ephemeral"}}]}
    assert "x-jaxinfer-warnings" not in post(FakeLLM(), MESSAGES, body).headers
    answer = post(FakeLLM(), MESSAGES, body | {"tools": [NAMED_NOW | {"input_examples": []}]})
    assert answer.headers["x-jaxinfer-warnings"] == "ignored: tools[0].input_examples"


def flattened(tools: Any) -> Any:
    """What a client of responses would have written."""
    if not isinstance(tools, list):
        return tools
    return [
        {k: v for k, v in tool.items() if k != "function"} | (tool.get("function") or {})
        if isinstance(tool, dict)
        else tool
        for tool in tools
    ]


OF_A_FUNCTION = [  # tools of other types are left out: test_agents.py
    (tools, param.replace(".function", ""))
    for tools, param in BAD_TOOLS
    if param != "tools[0].function" and tools != [{"type": "retrieval"}]
]


@pytest.mark.parametrize(("tools", "param"), OF_A_FUNCTION)
def test_a_tool_that_is_none_is_refused_by_its_place_in_each_api_s_words(tools, param):
    llm = FakeLLM()
    answer = post(llm, RESPONSES, {"input": "hi", "tools": flattened(tools)})
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)
    assert error_of(answer)["message"].startswith(param) and "function." not in error_of(answer)["message"]
    if not param.endswith(".type") or "parameters" in param:
        own = param.replace("parameters", "input_schema")
        renamed = [rename(tool) for tool in flattened(tools)] if isinstance(tools, list) else tools
        answer = post(llm, MESSAGES, {"messages": USER, "max_tokens": 9, "tools": renamed})
        assert answer.status_code == 400 and error_of(answer)["message"].startswith(own)
    assert not llm.rendered


def rename(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    return {"input_schema": tool.get("parameters", {})} | {
        name: value for name, value in tool.items() if name not in ("parameters", "type")
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}, {"type": "function", "name": ""}]}, "tools[1].name"),
        ({"tools": [{"type": "mcp", "server_label": "x"}], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"max_tool_calls": 1}, "max_tool_calls"),
        ({"tool_choice": "required", "text": {"format": {"type": "json_object"}}}, "tool_choice"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": [{"type": "function_call", "name": "x", "arguments": ""}]}, "input[0].call_id"),
        (
            {"input": [{"type": "reasoning"}, {"type": "function_call", "call_id": "c", "name": "", "arguments": ""}]},
            "input[1].name",
        ),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "x", "arguments": {}}]}, "input[0].arguments"),
        ({"input": [*USER, {"type": "function_call_output", "output": "x"}]}, "input[1].call_id"),
        ({"input": [*USER, {"type": "function_call_output", "call_id": "c"}]}, "input[1].output"),
        ({"input": [*USER, {"type": "function_call_output", "name": 5, "output": "x"}]}, "input[1].name"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}]},
            "input[0].output[0]",
        ),
        ({"input": [{"type": "image_generation_call"}]}, "input[0].type"),
        ({"input": [{"type": "reasoning"}, {"role": "user", "content": [{"type": "text"}]}]}, "input[1].content[0]"),
    ],
)
def test_what_a_response_cannot_carry_out_is_refused_where_it_stands(fields, param):
    llm = ScriptedLLM("x")
    answer = respond(llm, **fields)
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [{"type": "function", "name": "x"}]}, "tools[0].type 'function' is not supported"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}, {"name": "x"}]}, "tools[1].input_schema must be"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema must be a JSON schema"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice must be left out without tools, got 'any'"),
        ({"tool_choice": {"name": "nobody"}}, "tool_choice must name one of tools"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": 5}]}]},
            "messages[0].content[0].content must be",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "is_error": 1}]}]},
            "messages[0].content[0].is_error must be",
        ),
        (
            {"messages": [*USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "x"}]}]},
            "messages[1].content[0].input must be an object",
        ),
        (
            {
                "messages": [
                    *USER,
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "x", "input": {}}]},
                ]
            },
            "messages[1] must be followed by",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "c", "name": "x", "input": {}}]}]},
            "messages[0].content[0] of type tool_use is not supported",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": ""}, {"type": "image"}]}]},
            "messages[0].content[1] of type image",
        ),
    ],
)
def test_what_a_message_cannot_carry_out_is_refused_where_it_stands(fields, named):
    answer = message(ScriptedLLM("x"), **fields)
    assert answer.status_code == 400 and error_of(answer)["message"].startswith(named), answer.text


RESULT = {"role": "tool", "tool_call_id": "c", "content": "x"}
BLOCK = {"type": "tool_result", "tool_use_id": "c", "content": "x"}
OWNERS = "blocks tool_use are the assistant's, tool_result the user's"


@pytest.mark.parametrize(
    ("path", "fields", "cure"),
    [
        (RESPONSES, {"input": [*USER, RESULT]}, "send a function_call_output"),
        (MESSAGES, {"messages": [*USER, RESULT]}, "send a tool_result block in a user message"),
        (MESSAGES, {"messages": [*USER, {"role": "assistant", "content": [BLOCK]}]}, OWNERS),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "c"}]}]}, OWNERS),
        (RESPONSES, {"input": [{"role": "user", "content": [BLOCK]}]}, "results function_call_output"),
        (CHAT, {"messages": [{"role": "user", "content": [BLOCK]}]}, "results messages of role tool"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "this server reads text only"),
    ],
)
def test_a_result_in_the_wrong_place_is_told_its_place(path, fields, cure):
    due = {"max_tokens": 9} if path == MESSAGES else {}
    answer = post(FakeLLM(), path, due | fields)
    assert answer.status_code == 400
    message = error_of(answer)["message"]
    assert "is not supported by this version of jaxinfer; " in message and message.endswith(cure)


@pytest.mark.parametrize("tools", [None, []])
def test_a_choice_by_name_without_tools_is_shown_as_it_was_sent(tools):
    choice = {"type": "function", "name": "now"}
    answer = respond(FakeLLM(), tools=tools, tool_choice=choice)
    assert answer.status_code == 400
    law = "tool_choice must be left out without tools, got {'type': 'function', 'name': 'now'}"
    assert error_of(answer)["message"].startswith(law)
