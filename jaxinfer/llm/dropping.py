"""A conversation cut so that it fits into the context, where its request says so (truncation auto): oldest turns go.

What stays is a conversation: it begins with the instructions that stood first, the last question is there, a result is
never without its call if that was sent, and a call never without its results.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from jaxinfer.errors import InvalidRequest

Messages = list[dict[str, Any]]
Render = Callable[[Messages], Awaitable[list[int]]]
TOO_LONG = "context_length_exceeded"


def starts(messages: Messages) -> list[int]:
    """The places from which what is left is a conversation, each shorter than the one before: other questions up to the
    last, then the steps behind that, which are answers with their calls' results.
    """
    roles = [message["role"] for message in messages]
    if "user" not in roles:
        return []
    asked = len(roles) - 1 - roles[::-1].index("user")
    parted = _parted(messages)
    begin = _num_instructions(messages)
    questions = [i for i in range(begin + 1, asked + 1) if roles[i] == "user"]
    steps = [i for i in range(asked + 2, len(roles)) if roles[i] == "assistant"]
    return [i for i in questions + steps if i not in parted]


def left_from(messages: Messages, start: int) -> Messages:
    """What stays where the turns before that place go: the first instructions and the last question are kept."""
    asked = max(i for i, message in enumerate(messages) if message["role"] == "user")
    question = [messages[asked]] if asked < start else []
    return [*messages[: _num_instructions(messages)], *question, *messages[start:]]


def _num_instructions(messages: Messages) -> int:
    return next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))


def _parted(messages: Messages) -> set[int]:
    """The places between a call and a result of it: results may come behind another question."""
    called_at: dict[str, int] = {}
    last_result = {}
    for position, message in enumerate(messages):
        called_at |= {call["id"]: position for call in message.get("tool_calls", ())}
        if message["role"] == "tool" and message["tool_call_id"] in called_at:
            last_result[called_at[message["tool_call_id"]]] = position
    found, reach = set(), -1  # reach: of the results of all calls so far
    for position in range(len(messages)):
        if position <= reach:
            found.add(position)
        reach = max(reach, last_result.get(position, -1))
    return found


async def render_to_fit(render: Render, messages: Messages, max_tokens: int) -> tuple[list[int], int]:
    """The prompt's ids, at most so many, and how many messages were left out. Where none fits, those of the shortest
    are refused by whoever reads them. Raises InvalidRequest.
    """
    if (whole := await _fitting(render, messages, max_tokens)) is not None:
        return whole, 0
    places = starts(messages)
    found: tuple[list[int], int] | None = None
    low, high = 0, len(places)  # the first that fits: the shorter, the fewer tokens
    while low < high:
        middle = (low + high) // 2
        left = left_from(messages, places[middle])
        ids = await _fitting(render, left, max_tokens)
        if ids is None:
            low = middle + 1
        else:
            high, found = middle, (ids, len(messages) - len(left))
    if found is not None:
        return found
    least = left_from(messages, places[-1]) if places else messages
    return await render(least), len(messages) - len(least)


async def _fitting(render: Render, messages: Messages, max_tokens: int) -> list[int] | None:
    """Its ids, if they fit."""
    try:
        ids = await render(messages)
    except InvalidRequest as error:
        if error.code != TOO_LONG:  # one that can never fit is refused before its tokens are counted
            raise
        return None
    return ids if len(ids) <= max_tokens else None
