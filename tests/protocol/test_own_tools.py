"""Calls of tools that a server has of its own, and what they brought, as clients send them back."""

import pytest

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.anthropic import read_message_request
from tests.protocol.test_histories import of_messages, of_responses


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result"])
def test_a_server_s_call_in_the_users_message_is_said_to_be_the_assistants(kind):
    block = {"type": kind, "id": "a", "name": "f", "input": {}, "tool_use_id": "a", "content": []}
    with pytest.raises(InvalidRequest, match="those of a server's own tools and blocks tool_use are the assistant's"):
        of_messages([{"role": "user", "content": [block]}])


@pytest.mark.parametrize("given", [-1, True, "5", 2**63, 1.5])
def test_no_default_is_offered_for_what_must_be_given(given):
    with pytest.raises(InvalidRequest) as refusal:
        read_message_request({"messages": [{"role": "user", "content": "x"}], "max_tokens": given})
    assert str(refusal.value).startswith("max_tokens must be an integer of at least 0 and below 2^63, got ")
    assert "default" not in str(refusal.value)


def test_a_program_an_approval_and_a_search_for_tools_are_calls_and_their_results():
    sent = [
        {"role": "user", "content": "q"},
        {"type": "program", "id": "i", "call_id": "p", "code": "f()", "fingerprint": "x"},
        {"type": "program_output", "id": "o", "call_id": "p", "result": "42", "status": "completed"},
        {"type": "mcp_approval_request", "id": "a", "name": "f", "server_label": "s", "arguments": '{"x": 1}'},
        {"type": "mcp_approval_response", "approval_request_id": "a", "approve": False, "reason": "no"},
        {"type": "tool_search_call", "arguments": {"q": "f"}, "execution": "server"},
        {"type": "tool_search_output", "tools": [{"type": "function", "name": "f"}], "execution": "server"},
    ]
    messages = of_responses(sent)[1:]
    calls = [message["tool_calls"][0] for message in messages[::2]]
    assert [(call["id"], call["function"]["name"]) for call in calls] == [
        ("p", "program"),
        ("a", "f"),
        ("tool_search", "tool_search"),
    ]
    assert calls[0]["function"]["arguments"] == {"code": "f()"}
    assert [(message["tool_call_id"], message["content"]) for message in messages[1::2]] == [
        ("p", "42"),
        ("a", '{"approve": false, "reason": "no"}'),
        ("tool_search", '[{"type": "function", "name": "f"}]'),
    ]


@pytest.mark.parametrize(
    ("item", "call", "result"),
    [
        (
            {"type": "mcp_call", "id": "m", "name": "f", "server_label": "s", "arguments": "{}", "output": "x"},
            ("f", "{}"),
            "x",
        ),
        (
            {"type": "web_search_call", "id": "m", "status": "completed", "action": {"type": "search", "query": "q"}},
            ("web_search", {"type": "search", "query": "q"}),
            "completed",
        ),
        (
            {"type": "code_interpreter_call", "id": "m", "code": "1", "outputs": [{"type": "logs", "logs": "x"}]},
            ("code_interpreter", {"code": "1"}),
            "x",
        ),
    ],
)
def test_a_call_that_a_server_carried_out_comes_with_its_result(item, call, result):
    user = {"role": "user", "content": "q"}
    answer, told, more = of_responses([user, item, {"role": "assistant", "content": "So."}])[1:]
    function = answer["tool_calls"][0]["function"]
    assert (function["name"], function["arguments"]) == call
    assert told == {"role": "tool", "tool_call_id": "m", "content": result}
    assert more == {"role": "assistant", "content": "So."}
