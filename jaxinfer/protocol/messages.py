"""Messages as clients of each API write them, to the plain dicts that a chat template reads. Text only."""

import dataclasses
from typing import Any

from jaxinfer.protocol.fields import Refusal, check_refused
from jaxinfer.protocol.validate import Verbatim, invalid, show, unsupported

MAX_MESSAGES = 4096
ROLES = ("system", "developer", "user", "assistant")
MAX_CALLS = 128  # of one message
BILLING = "x-anthropic-billing-header:"
_LATER_ROLES = ("tool", "function")
_TEMPLATE_FIELDS = ("name", "reasoning_content")
_REFUSED = {
    "function_call": Refusal(),
    "audio": Refusal(),
}
_TOOLS_REFUSED = {"tool_calls": Refusal(([],)), "tool_call_id": Refusal()}  # where a dialect has no role tool
# What our own answers and OpenAI's carry beside the text; clients send their history back as they got it.
_IGNORED = frozenset({"refusal", "annotations", "reasoning"})
_LATER_PARTS = frozenset(
    {"image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file", "input_file", "refusal"}
    | {"tool_use", "tool_result", "thinking", "redacted_thinking", "document", "search_result", "container_upload"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class Dialect:
    """How an API writes a conversation. name: the field's.    text_parts: types of parts that are text.

    ignored: fields of a message, beside those that are read, which ask for nothing.    result_cure, block_cure: what to
    do instead of a role of a tool's, and of a call or a result among the parts.
    """

    name: str = "messages"
    roles: tuple[str, ...] = ROLES
    text_parts: tuple[str, ...] = ("text",)
    ignored: frozenset[str] = _IGNORED
    result_cure: str = "send a message of role tool"
    block_cure: str = "calls are an assistant's tool_calls, results messages of role tool"


CHAT = Dialect(roles=(*ROLES, "tool"))


def read_messages(raw: Any, dialect: Dialect = CHAT) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The messages to render, and the names of unknown fields as `messages[i].name`."""
    if not isinstance(raw, list):
        raise invalid(dialect.name, "a list of messages", raw)
    if not 1 <= len(raw) <= MAX_MESSAGES:
        raise invalid(dialect.name, f"a list of 1 to {MAX_MESSAGES} messages", Verbatim(str(len(raw))))
    messages, unknown = [], []
    for position, message in enumerate(raw):
        path = f"{dialect.name}[{position}]"
        messages.append(read_message(message, path, dialect))
        unknown += unknown_in(message, path, dialect)
    return messages, tuple(unknown)


def without_billing(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same without the line that Claude Code begins its instructions with: it changes with every request, so that
    nothing behind it would be found in the prefix cache. Only the first line of the first system text may be one.
    """
    place = next((i for i, message in enumerate(messages) if message["role"] == "system"), None)
    if place is None or not messages[place]["content"].startswith(BILLING):
        return messages
    rest = messages[place]["content"].partition("\n")[2]
    return [*messages[:place], *([messages[place] | {"content": rest}] if rest else []), *messages[place + 1 :]]


def unknown_in(message: dict[str, Any], path: str, dialect: Dialect) -> list[str]:
    """The names of fields that nobody reads."""
    known = {"role", "content", *dialect.ignored, *_REFUSED, *_TOOLS_REFUSED, *_TEMPLATE_FIELDS}
    return [f"{path}.{name}" for name in message if name not in known]


def read_message(message: Any, path: str, dialect: Dialect) -> dict[str, Any]:
    """The message to render. path: its place in the request. Raises InvalidRequest."""
    if not isinstance(message, dict):
        raise invalid(path, "an object with role and content", message)
    role = message.get("role")
    if role in _LATER_ROLES and role not in dialect.roles:
        raise unsupported(f"{path}.role {show(role)}", cure=dialect.result_cure, param=f"{path}.role")
    if role not in dialect.roles:
        raise invalid(f"{path}.role", f"one of {', '.join(dialect.roles)}", role)
    has_tools = "tool" in dialect.roles
    for name, refusal in (_REFUSED if has_tools else _REFUSED | _TOOLS_REFUSED).items():
        if message.get(name) is not None:
            check_refused(f"{path}.{name}", message[name], refusal)
    # developer is OpenAI's newer name; no open template knows it
    read: dict[str, Any] = {"role": "system" if role == "developer" else role}
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""
    read["content"] = read_content(content, f"{path}.content", dialect)
    given = {name: value for name, value in message.items() if value is not None}
    for name, value in {"reasoning_content": given.get("reasoning"), **given}.items():
        if name in _TEMPLATE_FIELDS and value is not None:
            if not isinstance(value, str):
                raise invalid(f"{path}.{name}", "a string", value)
            read[name] = value
    return read | _read_tool_fields(message, role, path) if has_tools else read


def _read_tool_fields(message: dict[str, Any], role: Any, path: str) -> dict[str, Any]:
    """An assistant's calls, and which of them a tool's message answers."""
    calls, call_id = message.get("tool_calls"), message.get("tool_call_id")
    if role == "tool":
        if not isinstance(call_id, str):
            raise invalid(f"{path}.tool_call_id", "the id of the call that it answers", call_id)
        return {"tool_call_id": call_id}
    if call_id is not None:
        raise invalid(f"{path}.tool_call_id", "left out but for role tool", call_id)
    if not calls:
        if calls not in (None, []):
            raise invalid(f"{path}.tool_calls", "a list of calls", calls)
        return {}
    if role != "assistant" or not isinstance(calls, list) or len(calls) > MAX_CALLS:
        given = Verbatim(f"{len(calls)} of role {show(role)}") if isinstance(calls, list) else calls
        raise invalid(f"{path}.tool_calls", f"a list of at most {MAX_CALLS} calls of the assistant", given)
    return {"tool_calls": [_read_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(calls)]}


def _read_call(call: Any, path: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise invalid(path, 'an object, {"id": ..., "type": "function", "function": {...}}', call)
    name, arguments = function.get("name"), function.get("arguments", "{}")
    if not isinstance(name, str) or not name:
        raise invalid(f"{path}.function.name", "a string", name)
    if not isinstance(arguments, str | dict):
        raise invalid(f"{path}.function.arguments", "the text of a JSON object", arguments)
    if not isinstance(call.get("id", ""), str):
        raise invalid(f"{path}.id", "a string", call["id"])
    return {"id": call.get("id", ""), "type": "function", "function": {"name": name, "arguments": arguments}}


def read_content(content: Any, path: str, dialect: Dialect = CHAT) -> str:
    """The text of a string or of a list of text parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid(path, "a string or a list of text parts", content)
    # vLLM's way for templates that take a string: a line to each part
    parts = [read_part(part, f"{path}[{position}]", dialect) for position, part in enumerate(content)]
    return "\n".join(parts)


def read_part(part: Any, path: str, dialect: Dialect) -> str:
    """The text of one part."""
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _LATER_PARTS:
        cure = dialect.block_cure if kind in ("tool_use", "tool_result") else "this server reads text only"
        raise unsupported(f"{path} of type {kind}", cure=cure, param=path)
    if kind not in dialect.text_parts or not isinstance(part.get("text"), str):
        raise invalid(path, f'a text part, {{"type": "{dialect.text_parts[0]}", "text": "..."}}', part)
    text: str = part["text"]
    return text
