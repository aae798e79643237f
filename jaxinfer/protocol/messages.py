"""Messages as clients of each API write them, to the plain dicts that a chat template reads. Text only."""

import dataclasses
from typing import Any

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.fields import Refusal, check_refused
from jaxinfer.protocol.validate import Verbatim, invalid, show, unsupported

MAX_MESSAGES = 4096
ROLES = ("system", "developer", "user", "assistant")
_LATER_ROLES = ("tool", "function")
_TEMPLATE_FIELDS = ("name", "reasoning_content")
_REFUSED = {
    "tool_calls": Refusal(([],)),
    "function_call": Refusal(),
    "tool_call_id": Refusal(),
    "audio": Refusal(),
}
# What our own answers and OpenAI's carry beside the text; clients send their history back as they got it.
_IGNORED = frozenset({"refusal", "annotations", "reasoning"})
_LATER_PARTS = frozenset(
    {"image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file", "input_file", "refusal"}
    | {"tool_use", "tool_result", "thinking", "redacted_thinking", "document", "search_result", "container_upload"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class Dialect:
    """How an API writes a conversation. name: the field's.    text_parts: types of parts that are text.

    ignored: fields of a message, beside those that are read, which ask for nothing.
    """

    name: str = "messages"
    roles: tuple[str, ...] = ROLES
    text_parts: tuple[str, ...] = ("text",)
    ignored: frozenset[str] = _IGNORED


CHAT = Dialect()


def read_messages(raw: Any, dialect: Dialect = CHAT) -> tuple[list[dict[str, str]], tuple[str, ...]]:
    """The messages to render, and the names of unknown fields as `messages[i].name`."""
    if not isinstance(raw, list):
        raise invalid(dialect.name, "a list of messages", raw)
    if not 1 <= len(raw) <= MAX_MESSAGES:
        raise invalid(dialect.name, f"a list of 1 to {MAX_MESSAGES} messages", Verbatim(str(len(raw))))
    messages, unknown = [], []
    known = {"role", "content", *dialect.ignored, *_REFUSED, *_TEMPLATE_FIELDS}
    for position, message in enumerate(raw):
        path = f"{dialect.name}[{position}]"
        if not isinstance(message, dict):
            raise invalid(path, "an object with role and content", message)
        messages.append(_read_message(message, path, dialect))
        unknown += [f"{path}.{name}" for name in message if name not in known]
    return messages, tuple(unknown)


def _read_message(message: dict[str, Any], path: str, dialect: Dialect) -> dict[str, str]:
    role = message.get("role")
    if role in _LATER_ROLES:
        raise InvalidRequest(
            f"{path}.role {show(role)} is not supported by this version of jaxinfer; put its text in a user message",
            param=f"{path}.role",
            code="unsupported_parameter",
        )
    if role not in dialect.roles:
        raise invalid(f"{path}.role", f"one of {', '.join(dialect.roles)}", role)
    for name, refusal in _REFUSED.items():
        if message.get(name) is not None:
            check_refused(f"{path}.{name}", message[name], refusal)
    read = {"role": "system" if role == "developer" else role}  # OpenAI's newer name; no open template knows it
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""
    read["content"] = read_content(content, f"{path}.content", dialect)
    reasoning = {"reasoning_content": message["reasoning"]} if message.get("reasoning") is not None else {}
    for name, value in {**reasoning, **message}.items():
        if name in _TEMPLATE_FIELDS and value is not None:
            if not isinstance(value, str):
                raise invalid(f"{path}.{name}", "a string", value)
            read[name] = value
    return read


def read_content(content: Any, path: str, dialect: Dialect = CHAT) -> str:
    """The text of a string or of a list of text parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid(path, "a string or a list of text parts", content)
    # vLLM's way for templates that take a string: a line to each part
    parts = [_read_part(part, f"{path}[{position}]", dialect) for position, part in enumerate(content)]
    return "\n".join(parts)


def _read_part(part: Any, path: str, dialect: Dialect) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _LATER_PARTS:
        raise unsupported(f"{path} of type {kind}", cure="this server reads text only", param=path)
    if kind not in dialect.text_parts or not isinstance(part.get("text"), str):
        raise invalid(path, f'a text part, {{"type": "{dialect.text_parts[0]}", "text": "..."}}', part)
    text: str = part["text"]
    return text
