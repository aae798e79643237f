"""The messages of Anthropic's API, whose blocks hold texts, thoughts, calls and their results, as chat's messages."""

import dataclasses
from typing import Any

from jaxinfer.protocol.messages import (
    MAX_CALLS,
    MAX_MESSAGES,
    Dialect,
    read_content,
    read_message,
    read_part,
    unknown_in,
    without_billing,
)
from jaxinfer.protocol.validate import Verbatim, invalid

Messages = list[dict[str, Any]]
DIALECT = Dialect(
    roles=("user", "assistant", "system"),
    ignored=frozenset(),
    result_cure="send a tool_result block in a user message",
    block_cure="blocks tool_use are the assistant's, tool_result the user's",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """goes_on: its last message is the assistant's, and the answer goes on with it.    unknown: names nobody reads."""

    messages: Messages
    unknown: tuple[str, ...]

    @property
    def goes_on(self) -> bool:
        return bool(self.messages[-1]["role"] == "assistant")


def read_conversation(raw: Any, system: Any) -> Conversation:
    """The fields messages and system. Raises InvalidRequest."""
    if not isinstance(raw, list):
        raise invalid("messages", "a list of messages", raw)
    if not 1 <= len(raw) <= MAX_MESSAGES:
        raise invalid("messages", f"a list of 1 to {MAX_MESSAGES} messages", Verbatim(str(len(raw))))
    messages: Messages = []
    unknown: list[str] = []
    if system is not None:
        messages.append({"role": "system", "content": read_content(system, "system", DIALECT)})
    call_ids: set[str] = set()  # of the assistant's last turn, to which alone results belong
    for position, message in enumerate(raw):
        path = f"messages[{position}]"
        found = _read_message(message, path, call_ids)
        if found[0]["role"] == "assistant":
            before = call_ids if messages and messages[-1]["role"] == "assistant" else set()
            call_ids = before | {call["id"] for call in found[0].get("tool_calls", ())}
        messages += found
        unknown += unknown_in(message, path, DIALECT)
    if messages[-1].get("tool_calls"):
        law = "followed by a message of the user with the tool_result of each of its calls"
        raise invalid(f"messages[{len(raw) - 1}]", law, Verbatim("nothing"))
    return Conversation(without_billing(messages), tuple(unknown))


def _read_message(message: Any, path: str, call_ids: set[str]) -> Messages:
    """A message of the user's is several of chat's where it holds results of calls. call_ids: that they may answer."""
    content = message.get("content") if isinstance(message, dict) else None
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(content, list) or not content or role not in ("user", "assistant"):
        return [read_message(message, path, DIALECT)]
    at = f"{path}.content"
    found = _read_answer(content, at) if role == "assistant" else _read_turn(content, at, call_ids)
    rest = read_message(message | {"content": ""}, path, DIALECT)
    return [rest | one for one in found]


def _read_answer(blocks: list[Any], path: str) -> Messages:
    """An answer that a client sends back, its thoughts and calls in fields as templates read them."""
    thoughts = ""
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for position, block in enumerate(blocks):
        at = f"{path}[{position}]"
        match block.get("type") if isinstance(block, dict) else None:
            case "thinking":
                if not isinstance(block.get("thinking"), str):
                    raise invalid(f"{at}.thinking", "a string", block.get("thinking"))
                thoughts += block["thinking"]
            case "redacted_thinking":  # another server's, which nobody else can read
                pass
            case "tool_use":
                calls.append(_read_call(block, at))
            case _:
                texts.append(read_part(block, at, DIALECT))
    if len(calls) > MAX_CALLS:
        raise invalid(path, f"a list with at most {MAX_CALLS} calls", Verbatim(str(len(calls))))
    answer: dict[str, Any] = {"content": "\n".join(texts)}
    if thoughts:
        answer["reasoning_content"] = thoughts
    return [answer | ({"tool_calls": calls} if calls else {})]


def _read_call(block: dict[str, Any], path: str) -> dict[str, Any]:
    for name in ("id", "name"):
        if not isinstance(block.get(name), str) or not block[name]:
            raise invalid(f"{path}.{name}", "a string", block.get(name))
    if not isinstance(block.get("input"), dict):
        raise invalid(f"{path}.input", "an object, the tool's arguments", block.get("input"))
    function = {"name": block["name"], "arguments": block["input"]}
    return {"id": block["id"], "type": "function", "function": function}


def _read_turn(blocks: list[Any], path: str, call_ids: set[str]) -> Messages:
    """What the user says and what tools said, in the order in which they stand; texts side by side are one message."""
    found: Messages = []
    for position, block in enumerate(blocks):
        at = f"{path}[{position}]"
        if isinstance(block, dict) and block.get("type") == "tool_result":
            found.append(_read_result(block, at, call_ids))
            continue
        text = read_part(block, at, DIALECT)
        if found and found[-1].get("role") != "tool":
            found[-1]["content"] += f"\n{text}"
        else:
            found.append({"content": text})
    return found


def _read_result(block: dict[str, Any], path: str, call_ids: set[str]) -> dict[str, Any]:
    call_id, content, failed = block.get("tool_use_id"), block.get("content"), block.get("is_error")
    if not isinstance(call_id, str):
        raise invalid(f"{path}.tool_use_id", "the id of the tool_use that it answers", call_id)
    if not isinstance(failed, bool | None):
        raise invalid(f"{path}.is_error", "true or false", failed)
    text = "" if content in (None, []) else read_content(content, f"{path}.content", DIALECT)
    if call_id not in call_ids:
        law, cure = "that of a tool_use in the assistant's message before it", "send that message with all its blocks"
        raise invalid(f"{path}.tool_use_id", law, call_id, cure=cure)
    # no template has a place for it, and a model that takes an error for a result goes wrong
    return {"role": "tool", "tool_call_id": call_id, "content": f"Error: {text}" if failed else text}
