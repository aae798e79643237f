"""The messages of Anthropic's API, whose blocks hold texts, thoughts, calls and their results, as chat's messages."""

import dataclasses
from typing import Any

from jaxinfer.protocol.messages import (
    MAX_MESSAGES,
    Dialect,
    called,
    part_rules,
    read_content,
    read_message,
    unknown_in,
    without_billing,
)
from jaxinfer.protocol.parts import CALL_KINDS, Content, as_text, kind_of
from jaxinfer.protocol.validate import Verbatim, invalid

Messages = list[dict[str, Any]]
DIALECT = Dialect(
    roles=("user", "assistant", "system"),
    ignored=frozenset({"clear_at"}),
    result_cure="send a tool_result block in a user message",
    block_cure="those of a server's own tools and blocks tool_use are the assistant's, tool_result the user's",
    thought_cure="reasoning is an assistant's block of type thinking",
)
RULES = {role: part_rules(DIALECT, role) for role in DIALECT.roles}


@dataclasses.dataclass(frozen=True, slots=True)
class AnthropicConversation:
    """goes_on: its last message is the assistant's, and the answer goes on with it.    unknown: names nobody reads."""

    messages: Messages
    unknown: tuple[str, ...]

    @property
    def goes_on(self) -> bool:
        return bool(self.messages[-1]["role"] == "assistant")


def read_conversation(raw: Any, system: Any) -> AnthropicConversation:
    """The fields messages and system. Raises InvalidRequest."""
    if not isinstance(raw, list):
        raise invalid("messages", "a list of messages", raw)
    if not 1 <= len(raw) <= MAX_MESSAGES:
        raise invalid("messages", f"a list of 1 to {MAX_MESSAGES} messages", Verbatim(str(len(raw))))
    messages: Messages = []
    unknown: list[str] = []
    if system is not None:
        messages.append({"role": "system", "content": read_content(system, "system", DIALECT)})
    last_turn = max(
        (at for at, each in enumerate(raw) if isinstance(each, dict) and each.get("role") == "user"), default=0
    )
    for position, message in enumerate(raw):
        path = f"messages[{position}]"
        found = _read_message(message, path)
        if not (_ends_with_turn(message, path) and position < last_turn):
            messages += found
        unknown += unknown_in(message, path, DIALECT)
    if not messages:
        raise invalid("messages", "a list with a message that has content", Verbatim("none"))
    if messages[-1].get("tool_calls"):
        law = "followed by a message of the user with the tool_result of each of its calls"
        raise invalid(f"messages[{len(raw) - 1}]", law, Verbatim("nothing"))
    return AnthropicConversation(without_billing(messages), tuple(unknown))


def _ends_with_turn(message: dict[str, Any], path: str) -> bool:
    """Whether a message of the system's is shown only until the user's next one."""
    clear_at = message.get("clear_at")
    if clear_at is None:
        return False
    if message["role"] != "system":
        raise invalid(f"{path}.clear_at", "in a message of the role system only", clear_at, cure="leave it out")
    if clear_at not in ("next_user_message", "never"):
        raise invalid(f"{path}.clear_at", "next_user_message or never", clear_at)
    return bool(clear_at == "next_user_message")


def _read_message(message: Any, path: str) -> Messages:
    """A message of the user's is several of chat's where it holds results of calls; one of the system's with the turn's
    settings and no content is none.
    """
    content = message.get("content") if isinstance(message, dict) else None
    role = message.get("role") if isinstance(message, dict) else None
    if role == "system" and content is None and isinstance(message.get("output_config"), dict):
        return []
    if not isinstance(content, list) or not content or role not in ("user", "assistant"):
        return [read_message(message, path, DIALECT)]
    at = f"{path}.content"
    found = _Answer(at).read(content) if role == "assistant" else _read_turn(content, at)
    rest = read_message(message | {"content": ""}, path, DIALECT)
    return [rest | one for one in found]


class _Answer:
    """An answer that a client sends back, its thoughts and calls in fields as templates read them. It is several of
    chat's messages where a server carried calls out, and their results stand among its blocks.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._found: Messages = []
        self._said = Content()
        self._calls: list[dict[str, Any]] = []

    def read(self, blocks: list[Any]) -> Messages:
        for position, block in enumerate(blocks):
            at = f"{self._path}[{position}]"
            kind = kind_of(block) or ""
            if kind in CALL_KINDS:
                self._calls.append(_read_call(block, at))
            elif kind.endswith("_tool_result"):
                self._add_result(block, at)
            else:
                self._said.add(block, at, RULES["assistant"])
        if self._said != Content() or self._calls or not self._found:
            self._end()
        return self._found

    def _end(self) -> None:
        """The message is whole."""
        message: dict[str, Any] = {"content": self._said.text}
        if self._said.thoughts:
            message["reasoning_content"] = "".join(self._said.thoughts)
        self._found.append(message | ({"tool_calls": self._calls} if self._calls else {}))
        self._said, self._calls = Content(), []

    def _add_result(self, block: dict[str, Any], path: str) -> None:
        if self._calls:
            self._end()
        if len(self._found) >= MAX_MESSAGES:
            raise invalid(self._path, f"a list with at most {MAX_MESSAGES} answers and results", Verbatim("more"))
        self._found.append(_read_result(block, path))


def _read_call(block: dict[str, Any], path: str) -> dict[str, Any]:
    for name in ("id", "name"):
        if not isinstance(block.get(name), str) or not block[name]:
            raise invalid(f"{path}.{name}", "a string", block.get(name))
    if not isinstance(block.get("input"), dict):
        raise invalid(f"{path}.input", "an object, the tool's arguments", block.get("input"))
    return called(block["id"], block["name"], block["input"])


def _read_turn(blocks: list[Any], path: str) -> Messages:
    """What the user says and what tools said, in the order in which they stand; texts side by side are one message."""
    found: list[dict[str, Any] | Content] = []
    for position, block in enumerate(blocks):
        at = f"{path}[{position}]"
        if kind_of(block) == "tool_result":
            found.append(_read_result(block, at))
            continue
        if not found or not isinstance(found[-1], Content):
            found.append(Content())
        said = found[-1]
        assert isinstance(said, Content)
        said.add(block, at, RULES["user"])
    return [{"content": one.text} if isinstance(one, Content) else one for one in found]


def _read_result(block: dict[str, Any], path: str) -> dict[str, Any]:
    call_id, content, failed = block.get("tool_use_id"), block.get("content"), block.get("is_error")
    if not isinstance(call_id, str):
        raise invalid(f"{path}.tool_use_id", "the id of the tool_use that it answers", call_id)
    if not isinstance(failed, bool | None):
        raise invalid(f"{path}.is_error", "true or false", failed)
    if block["type"] in ("tool_result", "mcp_tool_result"):
        text = "" if content is None else read_content(content, f"{path}.content", DIALECT)
    else:
        text = as_text(_readable(content, f"{path}.content"))
    # no template has a place for it, and a model that takes an error for a result goes wrong
    return {"role": "tool", "tool_call_id": call_id, "content": f"Error: {text}" if failed else text}


def _readable(value: Any, path: str) -> Any:
    """What a server's own tool brought, without what it encrypted; documents are their texts."""
    if kind_of(value) in ("document", "image"):
        return read_content([value], path, DIALECT)
    if isinstance(value, dict):
        names = (name for name in value if not name.startswith("encrypted_"))
        return {name: _readable(value[name], f"{path}.{name}") for name in names}
    return [_readable(each, f"{path}[{i}]") for i, each in enumerate(value)] if isinstance(value, list) else value
