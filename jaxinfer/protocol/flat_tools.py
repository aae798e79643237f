"""Tools as /v1/responses and /v1/messages write them, without chat's level of `function`, translated into chat's."""

import dataclasses
from typing import Any

from jaxinfer.protocol.tools import CHOICES
from jaxinfer.protocol.validate import invalid, show, unsupported

Tool = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class ToolShape:
    """How an API writes a tool. kind: its type, which may be left out unless it is due.    schema: of its parameters,
    that field's name.    ignored: fields beside those that are read, which ask for nothing.
    """

    kind: str
    kind_is_due: bool
    schema: str
    ignored: frozenset[str] = frozenset()

    @property
    def example(self) -> str:
        kind = f'"type": "{self.kind}", ' if self.kind_is_due else ""
        return f'an object, {{{kind}"name": "...", "{self.schema}": {{...}}}}'


RESPONSES = ToolShape("function", True, "parameters")
ANTHROPIC = ToolShape("custom", False, "input_schema", frozenset({"cache_control"}))


def nested(tools: Any, shape: ToolShape) -> tuple[Any, tuple[str, ...]]:
    """Chat's tools, and the names of fields that nobody reads. What is no list is left to chat's reader."""
    if not isinstance(tools, list):
        return tools, ()
    names = {"name": "name", "description": "description", shape.schema: "parameters", "strict": "strict"}
    found: list[Tool] = []
    unknown: list[str] = []
    for position, tool in enumerate(tools):
        path = f"tools[{position}]"
        _check_kind(tool, path, shape)
        function = {own: tool[name] for name, own in names.items() if tool.get(name) is not None}
        found.append({"type": "function", "function": function})
        known = names.keys() | {"type"} | shape.ignored
        unknown += [f"{path}.{name}" for name, value in tool.items() if name not in known and value is not None]
    return found, tuple(unknown)


def _check_kind(tool: Any, path: str, shape: ToolShape) -> None:
    """Only functions are tools here; those that a server would carry out itself are refused by name."""
    if not isinstance(tool, dict):
        raise invalid(path, shape.example, tool)
    kind = tool.get("type")
    if kind == shape.kind or (kind is None and not shape.kind_is_due):
        return
    if not isinstance(kind, str):
        raise invalid(f"{path}.type", shape.kind, kind)
    cure = f'send functions of your own, with "type": "{shape.kind}"'
    raise unsupported(f"{path}.type {show(kind)}", cure=cure, param=f"{path}.type")


def flat(tools: list[Tool]) -> list[Tool]:
    """Chat's tools as a response repeats them, all fields there."""
    functions = [tool["function"] for tool in tools]
    return [
        {
            "type": "function",
            "name": function["name"],
            "description": function.get("description"),
            "parameters": function.get("parameters"),
            "strict": bool(function.get("strict")),
        }
        for function in functions
    ]


def named(name: str) -> dict[str, Any]:
    """Chat's choice of one tool."""
    return {"type": "function", "function": {"name": name}}


def nested_choice(choice: Any, tools: Any) -> Any:
    """Chat's tool_choice of a response's. Without tools, what asks for no call asks for nothing."""
    if choice is None or (isinstance(choice, str) and choice in CHOICES):
        return None if not tools and choice != "required" else choice
    if isinstance(choice, dict):
        kind, name = choice.get("type"), choice.get("name")
        if kind == "function" and isinstance(name, str):
            if tools in (None, []):  # refused here, in the words of this API
                raise invalid("tool_choice", "left out without tools", choice, cure="send tools or leave it out")
            return named(name)
        if isinstance(kind, str) and kind != "function":
            raise unsupported(f"tool_choice of type {show(kind)}", cure="name a function", param="tool_choice")
    raise invalid("tool_choice", f'{", ".join(CHOICES)} or {{"type": "function", "name": ...}}', choice)
