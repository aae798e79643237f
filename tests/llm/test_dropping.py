"""A conversation that is cut to fit: what stays is one, and as much of it as fits."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.errors import InvalidRequest
from jaxinfer.llm.dropping import TOO_LONG, left_from, render_to_fit, starts
from tests.support.attempts import assert_below, processor_s

Messages = list[dict[str, Any]]


def text(role: str, content: str = "x") -> dict[str, Any]:
    return {"role": role, "content": content}


def step(number: int, results: int) -> Messages:
    """An answer with calls, and their results."""
    ids = [f"{number}-{i}" for i in range(results)]
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return [text("assistant") | {"tool_calls": calls}, *(text("tool") | {"tool_call_id": i} for i in ids)]


@st.composite
def conversations(draw: st.DrawFn) -> Messages:
    messages = [text("system") for _ in range(draw(st.integers(0, 2)))]
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["asked", "stepped", "told", "late", "lost"]))
        if kind == "told":
            messages += [text("user"), text("assistant")]
        elif kind == "lost":  # results whose call the client has cut off
            messages += [*step(number, 2)[1:], text("user")]
        elif kind == "late":  # another question comes before the results
            answer, *results = step(number, 2)
            messages += [text("user"), answer, text("user"), *results]
        else:
            messages += [text("user")] if kind == "asked" else []
            messages += step(number, draw(st.integers(1, 3)))
    return messages if draw(st.booleans()) else [*messages, text("user", "last")]


def shorter(messages: Messages) -> list[Messages]:
    return [left_from(messages, start) for start in starts(messages)]


def check_conversation(cut: Messages, whole: Messages) -> None:
    rest = iter(whole)
    assert all(any(message is other for other in rest) for message in cut), "in their order, none twice"
    first = next((i for i, message in enumerate(whole) if message["role"] != "system"), len(whole))
    assert cut[:first] == whole[:first] and cut[-1] is whole[-1]
    asked = [message for message in whole if message["role"] == "user"]
    assert not asked or any(message is asked[-1] for message in cut)
    called = {call["id"] for message in cut for call in message.get("tool_calls", ())}
    results = [message["tool_call_id"] for message in cut if message["role"] == "tool"]
    known = {call["id"] for message in whole for call in message.get("tool_calls", ())}
    assert called == known & set(results)


@given(conversations())
def test_each_cut_is_a_conversation_and_shorter_than_the_one_before(whole):
    cuts = shorter(whole)
    for before, cut in zip([whole, *cuts], cuts, strict=False):
        assert len(cut) < len(before)
        if any(message["role"] == "user" for message in whole):
            check_conversation(cut, whole)


@given(conversations(), st.integers(0, 30), st.booleans())
def test_the_longest_cut_that_fits_is_rendered(whole, room, refuses):
    async def render(messages: Messages) -> list[int]:
        if refuses and len(messages) > room:
            raise InvalidRequest("too long", code=TOO_LONG)
        return list(range(len(messages)))

    fitting = [len(cut) for cut in (whole, *shorter(whole)) if len(cut) <= room]
    if fitting:
        ids, num_dropped = asyncio.run(render_to_fit(render, whole, room))
        assert len(ids) == max(fitting) == len(whole) - num_dropped
    elif refuses:
        with pytest.raises(InvalidRequest, match="too long"):
            asyncio.run(render_to_fit(render, whole, room))
    else:
        ids, _ = asyncio.run(render_to_fit(render, whole, room))
        assert len(ids) == min(len(cut) for cut in (whole, *shorter(whole)))


def test_a_long_one_is_cut_without_looking_at_each_pair_of_its_messages():
    turns = [text("user"), *step(0, 2), text("assistant")] * 1000
    assert len(starts(turns)) == 999 + 1  # the last step
    assert_below(0.5, lambda: processor_s(lambda: starts(turns)), "4 ms; each pair: 8 million")


def test_what_else_is_wrong_with_a_conversation_is_told():
    async def render(messages: Messages) -> list[int]:
        raise InvalidRequest("no such role")

    with pytest.raises(InvalidRequest, match="no such role"):
        asyncio.run(render_to_fit(render, [text("user")], 9))
