"""What coding agents send is answered: Codex 0.169 over /v1/responses, Claude Code 2.1.197 over /v1/messages.

The bodies are what these programs sent to a server with the settings that `jaxinfer connect` prints, with fewer tools
and with texts of our own. What none of them insists on is left out and named; what a request insists on is refused.
"""

from typing import Any

import pytest

from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from tests.server.fakes import FakeLLM
from tests.server.http import MESSAGES, RESPONSES, USER, ask_app, error_of, named_events, post
from tests.server.scripted import ScriptedLLM

COUNT = f"{MESSAGES}/count_tokens"
COMMAND = {
    "type": "object",
    "properties": {"cmd": {"type": "string", "description": "What the shell runs."}},
    "required": ["cmd"],
    "additionalProperties": False,
}


def text(role: str, *texts: str) -> dict[str, Any]:
    parts = [{"type": "input_text", "text": each} for each in texts]
    return {"type": "message", "id": f"msg_{role}", "role": role, "content": parts}


CODEX: dict[str, Any] = {
    "model": "tiny",
    "stream": True,
    "input": [
        text("developer", "Be a coder."),
        text("developer", "No skills.", "Look."),
        text("user", "Read."),
    ],
    "tools": [
        {
            "type": "namespace",
            "name": "multi_agent_v1",
            "description": "Others to ask.",
            "tools": [{"type": "function", "name": "spawn_agent", "strict": False, "parameters": {"type": "object"}}],
        },
        {"type": "function", "name": "exec_command", "description": "A shell.", "strict": False, "parameters": COMMAND},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a2",
    "client_metadata": {"session_id": "01a2", "x-codex-window-id": "01a2:0"},
}
CODEX_LEFT_OUT = "tools[0] of type namespace, tools[2] of type custom, tools[3] of type web_search"
CACHED = {"cache_control": {"type": "ephemeral"}}
CLAUDE_CODE: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Now."}, {"type": "text", "text": "Read.", **CACHED}],
        },
        {"role": "system", "content": "There are agents."},
    ],
    "system": [{"type": "text", "text": "Be an agent.", **CACHED}, {"type": "text", "text": "Help.", **CACHED}],
    "tools": [
        {
            "name": "Read",
            "description": "A file.",
            "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {"file_path": {"type": "string"}},
                "required": ["file_path"],
                "additionalProperties": False,
            },
        }
    ],
    "metadata": {"user_id": '{"device_id":"e1","account_uuid":"","session_id":"81"}'},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}
# Claude Code asks for a session's title so
TITLE = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
BETA = "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,effort-2025-11-24"
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}


def warnings(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.headers.get("x-jaxinfer-warnings", "")).removeprefix("ignored: ")


def test_codex_is_answered_calls_its_tool_and_goes_on():
    call = '<tool_call>\n{"name": "exec_command", "arguments": {"cmd": "cat a"}}\n</tool_call>'
    llm = ScriptedLLM(f"I look.\n{call}", piece=3)
    answer = post(llm, RESPONSES, CODEX, accept="text/event-stream", originator="codex_exec")
    assert warnings(answer) == f"client_metadata, {CODEX_LEFT_OUT}"
    last = named_events(answer.text)[-1]
    assert last["type"] == "response.completed"
    assert [tool["name"] for tool in last["response"]["tools"]] == ["exec_command"]
    message, called = last["response"]["output"]
    assert (called["name"], called["arguments"]) == ("exec_command", '{"cmd": "cat a"}')
    result = {"type": "function_call_output", "id": "fco_1", "call_id": called["call_id"], "output": "Exit 0\nb"}
    more = CODEX | {"input": [*CODEX["input"], message, called, result]}
    assert warnings(post(llm, RESPONSES, more)) == f"client_metadata, {CODEX_LEFT_OUT}"
    assert [(turn["role"], turn["content"]) for turn in llm.rendered[-1]["messages"]] == [
        ("system", "Be a coder."),
        ("system", "No skills.\nLook."),
        ("user", "Read."),
        ("assistant", "I look."),
        ("tool", "Exit 0\nb"),
    ]
    assert [tool["function"]["name"] for tool in llm.rendered[-1]["tools"]] == ["exec_command"]


def test_claude_code_is_answered_calls_its_tool_and_goes_on():
    call = '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>'
    app = create_app(llm := ScriptedLLM(f"I look.\n{call}", piece=3))
    assert ask_app(app, "HEAD", "/").status_code == 200
    path = f"{MESSAGES}?beta=true"
    answer = ask_app(app, "POST", path, json=CLAUDE_CODE, headers={"anthropic-beta": BETA})
    assert warnings(answer) == ""
    found = named_events(answer.text)
    assert found[-2]["delta"]["stop_reason"] == "tool_use" and found[-1]["type"] == "message_stop"
    begun = [event["content_block"] for event in found if event["type"] == "content_block_start"]
    assert [block["type"] for block in begun] == ["text", "tool_use"]
    used = [{"type": "text", "text": "I look."}, begun[1] | {"input": {"file_path": "/a"}}]
    result = {"type": "tool_result", "tool_use_id": begun[1]["id"], "content": "1\tb", **CACHED}
    sent = [*CLAUDE_CODE["messages"], {"role": "assistant", "content": used}, {"role": "user", "content": [result]}]
    assert warnings(ask_app(app, "POST", path, json=CLAUDE_CODE | {"messages": sent})) == ""
    assert [(turn["role"], turn["content"]) for turn in llm.rendered[-1]["messages"]] == [
        ("system", "Be an agent.\nHelp."),
        ("user", "Now.\nRead."),
        ("system", "There are agents."),
        ("assistant", "I look."),
        ("tool", "1\tb"),
    ]
    counted = {name: value for name, value in CLAUDE_CODE.items() if name not in ("max_tokens", "stream")}
    assert warnings(ask_app(app, "POST", COUNT, json=counted)) == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": TITLE}, "effort": "high"}},
        {"output_format": {"type": "json_schema", "schema": TITLE}},
    ],
)
def test_the_answer_is_of_the_form_that_a_message_s_request_asks_for(fields):
    llm = FakeLLM()
    assert warnings(post(llm, MESSAGES, {"messages": USER, "max_tokens": 9} | fields)) == ""
    assert llm.calls[0].params.json_schema == TITLE


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format.type must be json_schema"),
        ({"output_config": {"format": {}}}, "output_config.format.type must be json_schema"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.json_schema.schema must be"),
        (
            {"output_config": {"format": {"type": "json_schema"}}, "output_format": {"type": "json_schema"}},
            "output_config.format must be the only field that says what the answer must be, got 2 of them",
        ),
        (
            {"output_config": {"format": {"type": "json_schema"}}, "response_format": {"type": "text"}},
            "output_config.format must be the only field that says what the answer must be, got 2 of them",
        ),
        ({"response_format": {"type": "x"}}, "response_format.type must be"),
    ],
)
def test_a_form_that_is_none_is_refused_under_the_name_it_was_given(fields, named):
    answer = post(FakeLLM(), MESSAGES, {"messages": USER, "max_tokens": 9} | fields)
    assert answer.status_code == 400 and error_of(answer)["message"].startswith(named), answer.text


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"output_config": {"effort": "medium"}}, "output_config.effort"),
        (
            {"output_config": {"effort": None, "task_budget": {"total": 9}}},
            "output_config.task_budget",
        ),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"context_management": {"edits": []}, "output_config": {}}, ""),
        ({"tools": [SEARCH]}, "tools[0] of type web_search_20250305"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0] of type bash_20250124"),
    ],
)
def test_hints_and_tools_that_a_message_need_not_have_are_left_out_and_named(fields, named):
    for path, due in ((MESSAGES, {"max_tokens": 9}), (COUNT, {})):
        llm = FakeLLM()
        assert warnings(post(llm, path, {"messages": USER} | due | fields)) == named
        assert not llm.rendered[0]["tools"]
    strict = post(llm, MESSAGES, {"messages": USER, "max_tokens": 9} | fields, ServerSettings(strict=True))
    assert strict.status_code == (400 if named else 200)


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        (RESPONSES, {"tool_choice": {"type": "web_search"}}, "tool_choice of type 'web_search' is not supported"),
        (
            RESPONSES,
            {"tool_choice": {"type": "function", "name": "apply_patch"}},
            "tool_choice 'apply_patch', tools[2] of type 'custom', is not supported",
        ),
        (RESPONSES, {"tools": CODEX["tools"][3:], "tool_choice": "required"}, "tool_choice must be left out without"),
        (
            MESSAGES,
            {"tools": [SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}},
            "tool_choice 'web_search', tools[0] of type 'web_search_20250305', is not supported",
        ),
        (
            MESSAGES,
            {"tools": [*CLAUDE_CODE["tools"], SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}},
            "tool_choice 'web_search', tools[1] of type 'web_search_20250305', is not supported",
        ),
        (MESSAGES, {"tools": [SEARCH], "tool_choice": {"type": "any"}}, "tool_choice must be left out without tools"),
        (MESSAGES, {"tools": True}, "tools must be a list of tools, got true"),
        (RESPONSES, {"tools": 5}, "tools must be a list of tools, got 5"),
        (MESSAGES, {"tools": [SEARCH, {"name": "a b", "input_schema": {}}]}, "tools[1].name must be"),
        (RESPONSES, {"tools": [*CODEX["tools"], {"type": "function", "name": "a b"}]}, "tools[4].name must be"),
    ],
)
def test_what_is_insisted_on_is_refused_where_it_stands(path, fields, named):
    llm = FakeLLM()
    answer = post(llm, path, (CODEX if path == RESPONSES else CLAUDE_CODE) | fields)
    assert answer.status_code == 400 and error_of(answer)["message"].startswith(named), answer.text
    assert not llm.rendered


def test_a_function_with_the_name_of_a_tool_that_is_left_out_may_be_chosen():
    own = {"name": "web_search", "input_schema": {"type": "object"}}
    choice = {"tools": [SEARCH, own], "tool_choice": {"type": "tool", "name": "web_search"}}
    answer = post(FakeLLM(), MESSAGES, {"messages": USER, "max_tokens": 9} | choice)
    assert warnings(answer) == "tools[0] of type web_search_20250305"
