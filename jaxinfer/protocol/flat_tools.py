"""Tools as /v1/responses and /v1/messages write them, without chat's level of `function`, translated into chat's."""

import dataclasses
from typing import Any

from jaxinfer.protocol.tools import ALLOWED, CHOICES, read_mode
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


@dataclasses.dataclass(frozen=True, slots=True)
class Offered:
    """What a request offers that a model can be shown. tools: chat's.    places: where each stood in the request.

    unread: fields that nobody reads, and tools that are left out.    left_out: their names, or types if they have none,
    and where each stands.
    """

    tools: Any
    places: tuple[int, ...] = ()
    unread: tuple[str, ...] = ()
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)

    def check_name(self, name: str) -> None:
        """Raise InvalidRequest if a tool is to be called that is left out."""
        if name in self.left_out and all(tool["function"].get("name") != name for tool in self.tools):
            cure = "choose a tool that you carry out yourself, or leave it out"
            raise unsupported(f"tool_choice {show(name)}, {self.left_out[name]},", cure=cure, param="tool_choice")


def nested(tools: Any, shape: ToolShape) -> Offered:
    """Chat's tools. What is no list is left to chat's reader. Those that a server would carry out itself, or whose form
    only another server's models know, cannot be offered; nobody has to call them, so agents that send them by habit are
    answered without.
    """
    if not isinstance(tools, list):
        return Offered(tools)
    names = {"name": "name", "description": "description", shape.schema: "parameters", "strict": "strict"}
    known = names.keys() | {"type"} | shape.ignored
    found: dict[int, Tool] = {}
    unread: list[str] = []
    left_out: dict[str, str] = {}
    for position, tool in enumerate(tools):
        path = f"tools[{position}]"
        if not _can_be_offered(tool, path, shape):
            kind, name = tool["type"], tool.get("name")
            unread.append(f"{path} of type {kind}")
            left_out[name if isinstance(name, str) else kind] = f"{path} of type {show(kind)}"
            continue
        function = {own: tool[name] for name, own in names.items() if tool.get(name) is not None}
        found[position] = {"type": "function", "function": function}
        unread += [f"{path}.{name}" for name, value in tool.items() if name not in known and value is not None]
    return Offered([*found.values()], tuple(found), tuple(unread), left_out)


def _can_be_offered(tool: Any, path: str, shape: ToolShape) -> bool:
    """Raises InvalidRequest for what is no tool, and for a function written as another API has it."""
    if not isinstance(tool, dict):
        raise invalid(path, shape.example, tool)
    kind = tool.get("type")
    if kind == shape.kind or (kind is None and not shape.kind_is_due):
        return True
    if not isinstance(kind, str):
        raise invalid(f"{path}.type", shape.kind, kind)
    if kind == "function":
        raise unsupported(f"{path}.type {show(kind)}", cure=f"send {shape.example}", param=f"{path}.type")
    return False


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


def nested_choice(choice: Any, offered: Offered) -> Any:
    """Chat's tool_choice of a response's."""
    if choice is None or (isinstance(choice, str) and choice in CHOICES):
        return choice
    if isinstance(choice, dict):
        kind, name = choice.get("type"), choice.get("name")
        if kind == ALLOWED:
            return _nested_allowed(choice, offered)
        if kind == "function" and isinstance(name, str):
            offered.check_name(name)
            if offered.tools in (None, []):  # refused here, in the words of this API
                raise invalid("tool_choice", "left out without tools", choice, cure="send tools or leave it out")
            return named(name)
        if isinstance(kind, str) and kind != "function":
            raise unsupported(f"tool_choice of type {show(kind)}", cure="name a function", param="tool_choice")
    raise invalid("tool_choice", f'{", ".join(CHOICES)} or {{"type": "function", "name": ...}}', choice)


def _nested_allowed(choice: dict[str, Any], offered: Offered) -> Any:
    """Chat's choice among some tools. Those that are left out of what is offered are left out of it as well."""
    mode, entries = read_mode(choice.get("mode"), "tool_choice"), choice.get("tools")
    if not isinstance(entries, list) or not entries:
        raise invalid("tool_choice.tools", "a list of at least one tool", entries, cure='or send "none"')
    tools = offered.tools if isinstance(offered.tools, list) else []
    known = {name for tool in tools if isinstance(name := tool["function"].get("name"), str)}
    found = [
        named(_name_of(entry, f"tool_choice.tools[{position}]", known))
        for position, entry in enumerate(entries)
        if not _is_left_out(entry, offered)
    ]
    if found:
        return {"type": ALLOWED, ALLOWED: {"mode": mode, "tools": found}}
    if mode == "required":
        cure = "allow a tool that you carry out yourself"
        raise unsupported("tool_choice of tools that are left out", cure=cure, param="tool_choice.tools")
    return "none" if offered.tools else None


def _is_left_out(entry: Any, offered: Offered) -> bool:
    if not isinstance(entry, dict) or entry.get("type") == "function":
        return False
    name = entry.get("name", entry.get("type"))
    return isinstance(name, str) and name in offered.left_out


def _name_of(entry: Any, path: str, known: set[str]) -> str:
    name = entry.get("name") if isinstance(entry, dict) and entry.get("type") == "function" else None
    if not isinstance(name, str):
        raise invalid(path, 'an object, {"type": "function", "name": "..."}', entry)
    if name not in known:
        raise invalid(f"{path}.name", "that of one of tools", name)
    return name
