"""Fields of a conversation that the packages' types may leave out, or have added: what they mean is read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.anthropic import read_message_request
from jaxinfer.protocol.open_responses import read_response_request
from tests.protocol.test_histories import of_messages, of_responses


def test_code_that_is_null_is_no_argument():
    item = {"type": "code_interpreter_call", "id": "i", "code": None, "container_id": "c", "outputs": None}
    called, result = of_responses([{**item, "status": "failed"}])
    assert called["tool_calls"][0]["function"] == {"name": "code_interpreter", "arguments": {}}
    assert (result["tool_call_id"], result["content"]) == ("i", "")


@given(st.lists(st.tuples(st.sampled_from("fg"), st.booleans(), st.booleans()), min_size=1, max_size=4), st.data())
def test_a_result_without_its_call_s_id_answers_the_only_call_that_it_may(calls, data):
    """Of a conversation that is sent, or goes on."""
    items: list[Any] = []
    whole: list[Any] = []
    open_calls: dict[str, str] = {}
    for number, (name, answers, is_named) in enumerate(calls):
        call = {"type": "function_call", "call_id": f"c{number}", "name": name, "arguments": "{}"}
        items.append(call)
        whole.append(call)
        open_calls[f"c{number}"] = name
        if not answers:
            continue
        result = {"type": "function_call_output", "output": "x"} | ({"name": name} if is_named else {})
        items.append(result)
        candidates = [call_id for call_id, tool in open_calls.items() if tool == name or not is_named]
        if len(candidates) != 1:
            with pytest.raises(
                InvalidRequest, match=rf"^input\[{len(items) - 1}\].call_id must be .* {len(candidates)} "
            ):
                of_responses(items)
            return
        del open_calls[candidates[0]]
        whole.append(result | {"call_id": candidates[0]})
    cut = data.draw(st.integers(0, len(items) - 1))
    before = of_responses(whole[:cut]) if cut else []
    assert of_responses(items) == of_responses(whole)
    found, expected_of_it = (
        read_response_request({"input": each[cut:], "previous_response_id": "r"}, lambda _: before, lambda _: None).chat
        for each in (items, whole)
    )
    assert found.messages == expected_of_it.messages


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["user", "assistant", "system"]), st.sampled_from([None, "never", "next_user_message"])
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_message_of_the_system_s_stays_as_long_as_it_says(roles):
    said = [{"role": role, "content": str(number)} for number, (role, _) in enumerate(roles)]
    said = [{"role": "user", "content": "x"}, *said]
    sent = [
        message | ({"clear_at": clear_at} if message["role"] == "system" else {})
        for message, clear_at in zip(said, [None, *(clear_at for _, clear_at in roles)], strict=True)
    ]
    last = max(number for number, message in enumerate(said) if message["role"] == "user")
    left = [
        message
        for number, (message, each) in enumerate(zip(said, sent, strict=True))
        if each.get("clear_at") != "next_user_message" or number > last
    ]
    assert of_messages(sent) == of_messages(left)
    assert read_message_request({"messages": sent, "max_tokens": 9}).unknown == ()


@pytest.mark.parametrize(("role", "clear_at"), [("user", "never"), ("system", "later"), ("system", 5)])
def test_another_end_of_a_message_is_refused_by_its_place(role, clear_at):
    with pytest.raises(InvalidRequest, match=r"^messages\[1\].clear_at must be"):
        of_messages([{"role": "user", "content": "x"}, {"role": role, "content": "y", "clear_at": clear_at}])
