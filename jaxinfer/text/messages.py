"""Messages as chat templates expect them, from messages as clients send them. The caller's objects stay untouched."""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.tools.strict_json import dumped, loaded

# How a template reads `content`: as a string, as a list of {"type": "text"} parts, or either.
ContentFormat = Literal["text", "parts", "either"]

# Names under which clients send an assistant's reasoning; templates read the first, gpt-oss's reads the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")


def plain_messages(messages: Any) -> list[dict[str, Any]]:
    """A deep copy of the messages as transformers would show them to a template.

    Keys whose value is null are dropped, reasoning is found under each of its names, and tool-call arguments that came
    as a JSON string are parsed. Raises InvalidRequest.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InvalidRequest(
            'messages must be a list of at least one message, such as [{"role": "user", "content": "Hello"}].',
            param="messages",
        )
    return [_plain_message(plain_data(message, f"messages[{i}]"), i) for i, message in enumerate(messages)]


def plain_data(value: Any, name: str) -> Any:
    """A deep copy made of None, bool, int, float, str, list and dict alone: a template must not get hold of objects."""
    if type(value) is float and not math.isfinite(value):
        raise InvalidRequest(f"{name} must be plain JSON data, which has no {value}.", param=name)
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):  # an enum, say
        return str.__str__(value)
    try:
        if isinstance(value, Mapping):
            return {str(key): plain_data(item, name) for key, item in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
            return [plain_data(item, name) for item in value]
    except RecursionError as error:
        raise InvalidRequest(f"{name} must not be nested that deeply.", param=name) from error
    raise InvalidRequest(
        f"{name} must be plain JSON data, but holds a {type(value).__name__}. Convert it to a dict first.",
        param=name,
    )


def plain_objects(values: Any, name: str) -> list[dict[str, Any]]:
    """A deep copy of a list of objects. Raises InvalidRequest."""
    plain = plain_data(values, name)
    if not isinstance(plain, list) or not all(isinstance(item, dict) for item in plain):
        raise InvalidRequest(f"{name} must be a list of objects, got {str(values)[:80]!r}.", param=name)
    return plain


def format_content(messages: list[dict[str, Any]], wanted: ContentFormat) -> list[dict[str, Any]]:
    """The messages with `content` in the form that the template reads; text parts are joined by newlines."""
    formatted = []
    for i, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            parts = [_text_part(part, f"messages[{i}].content[{k}]") for k, part in enumerate(content)]
            text = "\n".join(part["text"] for part in parts)
            message = {**message, "content": text if wanted == "text" else parts}
        elif isinstance(content, str) and wanted == "parts":
            message = {**message, "content": [{"type": "text", "text": content}]}
        formatted.append(message)
    return formatted


def with_text_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the arguments of their tool calls as JSON text; the calls are changed in place."""
    for message in messages:
        for call in message.get("tool_calls", []):
            function = call.get("function", call)
            if isinstance(function.get("arguments"), dict):
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return messages


def text_arguments(messages: list[dict[str, Any]]) -> tuple[str, str, list[dict[str, Any]]] | None:
    """The place and the text of the first call whose arguments are text, and the messages with an empty object for each
    such text; None where no arguments are text.
    """
    mended, found = copy.deepcopy(messages), list[tuple[str, str]]()
    for i, message in enumerate(mended):
        for k, call in enumerate(message.get("tool_calls", [])):
            function = call.get("function", call)
            if isinstance(text := function.get("arguments"), str):
                inner = ".function" if "function" in call else ""
                found.append((f"messages[{i}].tool_calls[{k}]{inner}.arguments", text))
                function["arguments"] = {}
    return (*found[0], mended) if found else None


def _plain_message(given: Any, i: int) -> dict[str, Any]:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise InvalidRequest(
            f'messages[{i}] must be an object with a role, such as {{"role": "user", "content": "Hello"}}.',
            param=f"messages[{i}]",
        )
    message: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if not isinstance(message.get("content", ""), (str, list)):
        raise InvalidRequest(
            f"messages[{i}].content must be a string, a list of text parts or null, "
            f"got {type(message['content']).__name__}.",
            param=f"messages[{i}].content",
        )
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    calls = message.get("tool_calls", [])
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(calls, list) or not isinstance(function, dict):
            raise InvalidRequest(
                f'messages[{i}].tool_calls must be a list of objects like {{"type": "function", "function": {{...}}}}.',
                param=f"messages[{i}].tool_calls",
            )
        if isinstance(function.get("arguments"), str):
            function["arguments"] = _arguments(function["arguments"])
    return message


def _arguments(text: str) -> Any:
    """OpenAI sends arguments as a JSON string, templates write them with `tojson`, which would quote them twice."""
    try:
        parsed = loaded(text or "{}")
        dumped(parsed)
    except (ValueError, RecursionError):  # what a model wrote may be no JSON, or hold 1e999: show it as it is
        return text
    return parsed if isinstance(parsed, dict) else text


def _text_part(part: Any, name: str) -> dict[str, Any]:
    match part:
        case str():
            return {"type": "text", "text": part}
        case {"type": "text", "text": str(text)}:
            return {**part, "text": text}
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "text", "text": text}
        case {"type": str(kind)} if kind not in ("text", "refusal"):
            raise InvalidRequest(
                f'{name} must be a part of type "text", got "{kind}". This model reads text only.', param=name
            )
    raise InvalidRequest(f'{name} must be {{"type": "text", "text": "..."}}.', param=name)
