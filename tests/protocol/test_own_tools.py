"""Calls of tools that a server has of its own, and what they brought, as clients send them back."""

import pytest

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.anthropic import read_message_request
from tests.protocol.test_histories import of_messages, of_responses

USER = {"role": "user", "content": "q"}


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
    name = call[0]
    without = {field: value for field, value in item.items() if field != "id"}
    for sent, call_id in ((item, "m"), (without, name), (item | {"id": None}, name), (item | {"id": ""}, name)):
        answer, told, more = of_responses([USER, sent, {"role": "assistant", "content": "So."}])[1:]
        function = answer["tool_calls"][0]["function"]
        assert (answer["tool_calls"][0]["id"], function["name"], function["arguments"]) == (call_id, *call)
        assert told == {"role": "tool", "tool_call_id": call_id, "content": result}
        assert more == {"role": "assistant", "content": "So."}


def test_an_item_of_codex_that_no_other_names_needs_no_id():
    sent = [
        USER,
        {"type": "ghost_snapshot", "ghost_commit": {"id": "c0ffee", "parent": None}},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": None},
        {"type": "ghost_snapshot", "ghost_commit": {}},
        {"type": "web_search_call", "status": "in_progress"},
        {"type": "local_shell_call", "id": "lsh", "call_id": None, "status": "completed", "action": {"type": "exec"}},
        {"type": "function_call_output", "call_id": "lsh", "output": "done"},
        {"type": "mcp_approval_request", "name": "f", "server_label": "s", "arguments": "{}"},
    ]
    searched, _, shell, told, approval = of_responses(sent)[1:]
    assert searched["reasoning_content"] == "Hm."
    calls = [message["tool_calls"][0] for message in (searched, shell, approval)]
    assert [(call["id"], call["function"]["name"]) for call in calls] == [
        ("web_search", "web_search"),
        ("lsh", "local_shell"),
        ("f", "f"),
    ]
    assert calls[0]["function"]["arguments"] == {}
    assert (told["tool_call_id"], told["content"]) == ("lsh", "done")


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary", "context_compaction"])
def test_what_another_server_has_encrypted_of_a_conversation_is_refused_with_the_cure(kind):
    with pytest.raises(InvalidRequest, match=rf"input\[1\] of type '{kind}'.*send the messages that it stands for"):
        of_responses([USER, {"type": kind, "encrypted_content": "gAAAA"}])


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "call_id"),
        ({"type": "local_shell_call", "action": {}}, "call_id"),
        ({"type": "web_search_call", "id": 5, "action": {}}, "id"),
    ],
)
def test_an_id_that_a_result_must_name_is_due(item, field):
    with pytest.raises(InvalidRequest, match=rf"input\[1\].{field} must be a string"):
        of_responses([USER, item])
