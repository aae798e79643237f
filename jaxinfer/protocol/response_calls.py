"""Calls and their results among the items of /v1/responses, of whatever tool: each as a call of a function and a text.

OpenAI's models have tools of their own, and agents send back what those said. A call keeps its tool's name, and what
the item says of it are its arguments. Pictures cannot be read, nor what is encrypted: such items are refused.
"""

from collections.abc import Callable, Iterable
from typing import Any

from jaxinfer.protocol.messages import read_custom
from jaxinfer.protocol.parts import as_text, kind_of, shown
from jaxinfer.protocol.validate import invalid, unsupported

Item = dict[str, Any]
Called = tuple[str, str, Any]  # id, name, arguments


def _text(item: Item, name: str, path: str, *, may_be_empty: bool = False) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise invalid(f"{path}.{name}", "a string", value)
    return value


def _text_or(item: Item, name: str, path: str, other: str) -> str:
    """The field's text, or another where it says nothing: agents leave out an id that no other item names."""
    return other if item.get(name) in (None, "") else _text(item, name, path)


def _function(item: Item, path: str) -> Called:
    call_id, name = (_text(item, field, path) for field in ("call_id", "name"))
    return call_id, name, _text(item, "arguments", path, may_be_empty=True)


def _custom(item: Item, path: str) -> Called:
    return _text(item, "call_id", path), *read_custom(item, path)


def _mcp(item: Item, path: str) -> Called:
    name = _text(item, "name", path)
    return _text_or(item, "id", path, name), name, _text(item, "arguments", path, may_be_empty=True)


def _own(name: str, field: str) -> Callable[[Item, str], Called]:
    """Of a tool without a name of its own. field: an object, or what is one argument of that name."""

    def read(item: Item, path: str) -> Called:
        value = item.get(field)
        if field not in item:
            raise invalid(f"{path}.{field}", f"what {item['type']} is to do", value)
        given = {} if value is None else {field: value}
        return _text(item, "call_id", path), name, value if isinstance(value, dict) else given

    return read


def _done(name: str, field: str) -> Callable[[Item, str], Called]:
    """The same of one that the server carried out, whose result stands in the item."""

    def read(item: Item, path: str) -> Called:
        return _own(name, field)(item | {"call_id": _text_or(item, "id", path, name)}, path)

    return read


def _local_shell(item: Item, path: str) -> Called:
    """Results name it by its own id where it has no other."""
    given = item if item.get("call_id") is not None or item.get("id") is None else item | {"call_id": item["id"]}
    return _own("local_shell", "action")(given, path)


def _web_search(item: Item, path: str) -> Called:
    """Codex keeps no action of one that was not finished."""
    return _done("web_search", "action")(item if item.get("action") is not None else item | {"action": {}}, path)


def _search(item: Item, path: str) -> Called:
    """For tools, by whoever has them: one that the server made has no id of a call."""
    return _own(_TOOL_SEARCH, "arguments")(item | {"call_id": _text_or(item, "call_id", path, _TOOL_SEARCH)}, path)


_TOOL_SEARCH = "tool_search"
CALLS: dict[str, Callable[[Item, str], Called]] = {
    "function_call": _function,
    "custom_tool_call": _custom,
    "local_shell_call": _local_shell,
    "shell_call": _own("shell", "action"),
    "apply_patch_call": _own("apply_patch", "operation"),
    "mcp_call": _mcp,
    "web_search_call": _web_search,
    "file_search_call": _done("file_search", "queries"),
    "code_interpreter_call": _done("code_interpreter", "code"),
    "program": _own("program", "code"),
    "mcp_approval_request": _mcp,
    "tool_search_call": _search,
}


def _outcome(*names: str) -> Callable[[Item, str], str]:
    """What a server says of its own call, or how far that came."""

    def read(item: Item, path: str) -> str:
        for name in names:
            if (value := item.get(name)) not in (None, []):
                return value if isinstance(value, str) else as_text(value)
        return str(item.get("status") or "")

    return read


def _logs(item: Item, path: str) -> str:
    outputs = item.get("outputs") or []
    if not isinstance(outputs, list):
        raise invalid(f"{path}.outputs", "a list of logs", outputs)
    logs = [each.get("logs") if isinstance(each, dict) else None for each in outputs]
    for position, text in enumerate(logs):
        if not isinstance(text, str):
            place, kind = f"{path}.outputs[{position}]", shown(kind_of(outputs[position]) or "unknown")
            raise unsupported(f"{place} of type {kind}", cure="this server reads text only", param=place)
    return "\n".join(map(str, logs))


OWN_RESULTS: dict[str, Callable[[Item, str], str]] = {
    "mcp_call": _outcome("output", "error"),
    "web_search_call": _outcome(),
    "file_search_call": _outcome("results"),
    "code_interpreter_call": _logs,
}


def _output(item: Item, path: str) -> Any:
    return item.get("output")


def _streams(item: Item, path: str) -> str:
    output = item.get("output")
    if not isinstance(output, list):
        raise invalid(f"{path}.output", 'a list of {"stdout", "stderr", "outcome"}', output)
    return as_text(output)


def _patched(item: Item, path: str) -> Any:
    return item.get("status") if item.get("output") is None else item["output"]


def _of_program(item: Item, path: str) -> str:
    return _text(item, "result", path, may_be_empty=True)


def _approval(item: Item, path: str) -> str:
    if not isinstance(item.get("approve"), bool):
        raise invalid(f"{path}.approve", "true or false", item.get("approve"))
    return as_text({name: item[name] for name in ("approve", "reason") if item.get(name) is not None})


def _found_tools(item: Item, path: str) -> str:
    if not isinstance(item.get("tools"), list):
        raise invalid(f"{path}.tools", "a list of tools", item.get("tools"))
    return as_text(item["tools"])


# What a result says: a text, or parts of one.
RESULTS: dict[str, Callable[[Item, str], Any]] = {
    "function_call_output": _output,
    "custom_tool_call_output": _output,
    "local_shell_call_output": _output,
    "shell_call_output": _streams,
    "apply_patch_call_output": _patched,
    "program_output": _of_program,
    "mcp_approval_response": _approval,
    "tool_search_output": _found_tools,
}


def result_id(item: Item, path: str, open_calls: Iterable[Item]) -> str:
    """Of the call that it answers; that of a local shell stands where others have their own. OpenAI's types leave it
    out of a function's: then it answers the only call that has no result yet. open_calls: chat's, without one.
    """
    name = "approval_request_id" if item["type"] == "mcp_approval_response" else "call_id"
    if item.get(name) is None and item["type"] == "tool_search_output":
        return _TOOL_SEARCH
    if item.get(name) is None and item["type"] == "local_shell_call_output":
        name = "id"
    call_id = item.get(name)
    if call_id is None and item["type"] == "function_call_output":
        return _only_open(item, path, open_calls)
    if not isinstance(call_id, str):
        raise invalid(f"{path}.{name}", "the id of the call that it answers", call_id)
    return call_id


def _only_open(item: Item, path: str, open_calls: Iterable[Item]) -> str:
    tool = item.get("name")
    if not isinstance(tool, str | None):
        raise invalid(f"{path}.name", "the name of the tool that was called", tool)
    found = [call["id"] for call in open_calls if tool in (None, call["function"]["name"])]
    if len(found) != 1:
        law = f"the id of the call that it answers, where {len(found)} that it may answer have no result yet"
        raise invalid(f"{path}.call_id", law, None)
    return str(found[0])


_FIELDS = frozenset({"type", "id", "status", "call_id", "caller", "name", "namespace"})
RESULT_FIELDS = _FIELDS | {
    "output",
    "max_output_length",
    "result",
    "approve",
    "reason",
    "approval_request_id",
    "tools",
    "execution",
}
CALL_FIELDS = (
    _FIELDS
    | {"arguments", "input", "action", "operation", "environment", "async", "server_label", "output", "error"}
    | {"approval_request_id", "queries", "results", "code", "outputs", "container_id"}
    | {"fingerprint", "execution"}
)
