"""Messages as clients of each API write them, to the plain dicts that a chat template reads. Text only."""

import dataclasses
from typing import Any

from jaxinfer.protocol.fields import Refusal, check_refused
from jaxinfer.protocol.parts import THOUGHT_KINDS, PartRules, is_call_or_result, kind_of, read_parts, shown
from jaxinfer.protocol.validate import Verbatim, invalid, show, unsupported

MAX_MESSAGES = 4096
ROLES = ("system", "developer", "user", "assistant")
BILLING = "x-anthropic-billing-header:"
_LATER_ROLES = ("tool", "function")
# Names under which clients send an assistant's thoughts back
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_TEXTS = ("name", *_THOUGHTS, "refusal")
_REFUSED = {"audio": Refusal()}
# Where a dialect has no role tool
_NO_CALLS: dict[str, tuple[Any, ...]] = {"tool_calls": ([],), "tool_call_id": (), "function_call": ()}
# What our own answers and OpenAI's carry beside the text; clients send their history back as they got it.
_IGNORED = frozenset({"annotations"})


@dataclasses.dataclass(frozen=True, slots=True)
class Dialect:
    """How an API writes a conversation. name: the field's.    text_parts: types of parts that are text, as its clients
    write them; those of the others are read as well.

    ignored: fields of a message, beside those that are read, which ask for nothing.    result_cure, block_cure,
    thought_cure: what to do instead of a role of a tool's, of calls and results in another API's form, and of thoughts.
    ids_are_due: a result must name its call.
    """

    name: str = "messages"
    roles: tuple[str, ...] = ROLES
    text_parts: tuple[str, ...] = ("text",)
    ignored: frozenset[str] = _IGNORED
    result_cure: str = "send a message of role tool"
    block_cure: str = "calls are an assistant's tool_calls, results messages of role tool"
    thought_cure: str = "reasoning is an assistant's reasoning_content"
    ids_are_due: bool = True


CHAT = Dialect(roles=(*ROLES, *_LATER_ROLES))
PYTHON = dataclasses.replace(CHAT, ids_are_due=False)  # as transformers has it


def read_messages(raw: Any, dialect: Dialect = CHAT) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The messages to render, and the names of unknown fields as `messages[i].name`."""
    if not isinstance(raw, list):
        raise invalid(dialect.name, "a list of messages", raw, cure="send one message at least")
    if not 1 <= len(raw) <= MAX_MESSAGES:
        raise invalid(
            dialect.name, f"a list of 1 to {MAX_MESSAGES} messages", Verbatim(str(len(raw))), cure="send that many"
        )
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
    text = messages[place]["content"]
    rest = text[len(text.splitlines(keepends=True)[0]) :]
    left = [messages[place] | {"content": rest}] if rest or len(messages) == 1 else []  # some message must be left
    return [*messages[:place], *left, *messages[place + 1 :]]


def unknown_in(message: dict[str, Any], path: str, dialect: Dialect) -> list[str]:
    """The names of fields that nobody reads."""
    known = {"role", "content", *dialect.ignored, *_REFUSED, *_NO_CALLS, *_TEXTS}
    return [f"{path}.{name}" for name in message if name not in known]


def read_message(message: Any, path: str, dialect: Dialect) -> dict[str, Any]:
    """The message to render. path: its place in the request. Raises InvalidRequest."""
    if not isinstance(message, dict):
        raise invalid(path, "an object with role and content", message, cure="send both in it")
    role = message.get("role")
    if role in _LATER_ROLES and role not in dialect.roles:
        raise unsupported(f"{path}.role {show(role)}", cure=dialect.result_cure, param=f"{path}.role")
    kind = "" if role is not None else kind_of(message) or ""
    if kind in THOUGHT_KINDS or is_call_or_result(kind):  # another API's item, which a client would miss
        cure = dialect.thought_cure if kind in THOUGHT_KINDS else dialect.block_cure
        raise unsupported(f"{path} of type {shown(kind)}", cure=cure, param=f"{path}.type")
    if role not in dialect.roles:
        raise invalid(f"{path}.role", f"one of {', '.join(dialect.roles)}", role, cure="name one of them")
    has_tools = "tool" in dialect.roles
    no_calls = {} if has_tools else {name: Refusal(blank, dialect.block_cure) for name, blank in _NO_CALLS.items()}
    for name, refusal in (_REFUSED | no_calls).items():
        if message.get(name) is not None:
            check_refused(f"{path}.{name}", message[name], refusal)
    texts = {name: message[name] for name in _TEXTS if message.get(name) is not None}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise invalid(f"{path}.{name}", "a string", value)
    read = _read_said(message, role, path, dialect, texts)
    if "name" in texts:
        read["name"] = texts["name"]
    return read | _read_tool_fields(message, role, path, dialect) if has_tools else read


def _read_said(
    message: dict[str, Any], role: Any, path: str, dialect: Dialect, texts: dict[str, str]
) -> dict[str, Any]:
    """Role, content and thoughts. texts: the message's fields beside them."""
    content = message.get("content")
    if content is None and role in ("assistant", "function"):
        content = []
    said = read_parts(content, f"{path}.content", part_rules(dialect, role))
    thoughts, among_parts = next((texts[name] for name in _THOUGHTS if name in texts), ""), "".join(said.thoughts)
    if among_parts != thoughts:  # clients that know both ways write them twice
        thoughts += among_parts
    if "refusal" in texts and role == "assistant":
        said.texts.append(texts["refusal"])
    # developer is OpenAI's newer name, no open template knows it; function is the older one of tool
    read = {"role": {"developer": "system", "function": "tool"}.get(role, role), "content": said.text}
    has_field = any(name in texts for name in _THOUGHTS)
    return read | ({"reasoning_content": thoughts} if thoughts or has_field else {})


def part_rules(dialect: Dialect, role: Any) -> PartRules:
    """Of a message of this role."""
    return PartRules(dialect.text_parts[0], dialect.block_cure, thinks=role == "assistant")


def read_content(content: Any, path: str, dialect: Dialect = CHAT) -> str:
    """The text of a string or of a list of text parts."""
    return read_parts(content, path, part_rules(dialect, None)).text


def _read_tool_fields(message: dict[str, Any], role: Any, path: str, dialect: Dialect) -> dict[str, Any]:
    """An assistant's calls, and which of them a tool's message answers."""
    calls, call_id, old = message.get("tool_calls"), message.get("tool_call_id"), message.get("function_call")
    if role == "function":  # OpenAI's older form has no ids: a call is known by its function's name
        if not isinstance(message.get("name"), str):
            raise invalid(f"{path}.name", "the name of the function that was called", message.get("name"))
        return {"tool_call_id": message["name"]}
    if role == "tool":
        if not isinstance(call_id, str) and (dialect.ids_are_due or call_id is not None):
            raise invalid(f"{path}.tool_call_id", "the id of the call that it answers", call_id)
        return {} if call_id is None else {"tool_call_id": call_id}
    if call_id is not None:
        raise invalid(f"{path}.tool_call_id", "left out but for role tool", call_id)
    if calls in (None, []) and old is None:
        return {}
    if role != "assistant":
        name = "function_call" if calls in (None, []) else "tool_calls"
        raise invalid(f"{path}.{name}", "left out but for role assistant", message[name])
    if calls is not None and not isinstance(calls, list):
        raise invalid(f"{path}.tool_calls", "a list of calls", calls)
    found = [_read_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(calls or ())]
    return {"tool_calls": found if old is None else [*found, _read_old_call(old, f"{path}.function_call")]}


def _read_call(call: Any, path: str) -> dict[str, Any]:
    kind = kind_of(call)
    if kind not in (None, "function", "custom"):
        raise unsupported(f"{path} of type {shown(kind)}", cure="calls are of functions", param=f"{path}.type")
    function = call.get(kind or "function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise invalid(path, 'an object, {"id": ..., "type": "function", "function": {...}}', call)
    if not isinstance(call.get("id", ""), str):
        raise invalid(f"{path}.id", "a string", call["id"])
    if kind == "custom":
        return called(call.get("id", ""), *read_custom(function, f"{path}.custom"))
    return called(call.get("id", ""), *_read_function(function, f"{path}.function"))


def _read_old_call(function: Any, path: str) -> dict[str, Any]:
    if not isinstance(function, dict):
        raise invalid(path, "an object with name and arguments", function)
    name, arguments = _read_function(function, path)
    return called(name, name, arguments)


def _read_function(function: dict[str, Any], path: str) -> tuple[str, Any]:
    name, arguments = function.get("name"), function.get("arguments", "{}")
    if not isinstance(name, str) or not name:
        raise invalid(f"{path}.name", "a string", name)
    if not isinstance(arguments, str | dict):
        raise invalid(f"{path}.arguments", "the text of a JSON object", arguments)
    return name, arguments


def read_custom(tool: dict[str, Any], path: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a call whose one argument is a text of no form."""
    for name in ("name", "input"):
        if not isinstance(tool.get(name), str) or (name == "name" and not tool[name]):
            raise invalid(f"{path}.{name}", "a string", tool.get(name))
    return tool["name"], {"input": tool["input"]}


def called(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """A call as templates read it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
