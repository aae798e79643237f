"""Chat messages as clients write them, to the plain dicts that a chat template reads. Text only."""

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
_IGNORED = frozenset({"role", "content", "refusal", "annotations", "reasoning"})
_MEDIA = frozenset(
    {"image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file", "input_file", "refusal"}
)


def read_messages(raw: Any) -> tuple[list[dict[str, str]], tuple[str, ...]]:
    """The messages to render, and the names of unknown fields as `messages[i].name`."""
    if not isinstance(raw, list):
        raise invalid("messages", "a list of messages", raw)
    if not 1 <= len(raw) <= MAX_MESSAGES:
        raise invalid("messages", f"a list of 1 to {MAX_MESSAGES} messages", Verbatim(str(len(raw))))
    messages, unknown = [], []
    for position, message in enumerate(raw):
        path = f"messages[{position}]"
        if not isinstance(message, dict):
            raise invalid(path, "an object with role and content", message)
        messages.append(_read_message(message, path))
        known = _IGNORED | _REFUSED.keys() | set(_TEMPLATE_FIELDS)
        unknown += [f"{path}.{name}" for name in message if name not in known]
    return messages, tuple(unknown)


def _read_message(message: dict[str, Any], path: str) -> dict[str, str]:
    role = message.get("role")
    if role in _LATER_ROLES:
        raise InvalidRequest(
            f"{path}.role {show(role)} is not supported by this version of jaxinfer; put its text in a user message",
            param=f"{path}.role",
            code="unsupported_parameter",
        )
    if role not in ROLES:
        raise invalid(f"{path}.role", f"one of {', '.join(ROLES)}", role)
    for name, refusal in _REFUSED.items():
        if message.get(name) is not None:
            check_refused(f"{path}.{name}", message[name], refusal)
    read = {"role": "system" if role == "developer" else role}  # OpenAI's newer name; no open template knows it
    read["content"] = _read_content(message.get("content"), role, f"{path}.content")
    reasoning = {"reasoning_content": message["reasoning"]} if message.get("reasoning") is not None else {}
    for name, value in {**reasoning, **message}.items():
        if name in _TEMPLATE_FIELDS and value is not None:
            if not isinstance(value, str):
                raise invalid(f"{path}.{name}", "a string", value)
            read[name] = value
    return read


def _read_content(content: Any, role: Any, path: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if role != "assistant":
            raise invalid(path, "a string or a list of text parts", content)
        return ""
    if not isinstance(content, list) or not content:
        raise invalid(path, "a string or a list of text parts", content)
    # vLLM's way for templates that take a string: a line to each part
    return "\n".join(_read_part(part, f"{path}[{position}]") for position, part in enumerate(content))


def _read_part(part: Any, path: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _MEDIA:
        raise unsupported(f"{path} of type {kind}", cure="this server reads text only", param=path)
    if kind != "text" or not isinstance(part.get("text"), str):
        raise invalid(path, 'a text part, {"type": "text", "text": "..."}', part)
    text: str = part["text"]
    return text
