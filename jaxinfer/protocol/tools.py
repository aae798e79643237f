"""Tools of a chat request: which functions the model may call, and whether it may."""

import dataclasses
import re
from typing import Any

import msgspec

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.null_keywords import without_nulls
from jaxinfer.protocol.validate import Verbatim, invalid, unsupported
from jaxinfer.text.tools.reader import ToolUse

MAX_TOOL_BYTES = 2**20  # some 250,000 tokens: what a long context holds
MAX_TOOL_NAME_CHARS = 128  # as Anthropic allows; agents name a tool by its server too: mcp__server__tool
TOOL_NAME_CHAR = r"[A-Za-z0-9_.-]"  # as JSON Schema writes it too
TOOL_NAME = re.compile(f"{TOOL_NAME_CHAR}{{1,{MAX_TOOL_NAME_CHARS}}}")
CHOICES = ("none", "auto", "required")
ALLOWED = "allowed_tools"  # a choice among some of the tools
MODES = ("auto", "required")


@dataclasses.dataclass(frozen=True, slots=True)
class Tools:
    """What a request offers. shown: for the template.    use: what is a call in the answer; None: nothing is."""

    shown: list[dict[str, Any]]
    use: ToolUse | None


def read_tools(tools: Any, choice: Any, parallel: bool) -> Tools | None:
    """The fields tools, tool_choice and parallel_tool_calls; None without tools, which an empty list is too: frameworks
    send one, and tool_choice auto beside it. Raises InvalidRequest.
    """
    if tools is None or tools == []:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice", "left out without tools", choice, cure="send tools or leave it out")
        return None
    tools = _read_list(tools)
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
    strict = frozenset(name for name, tool in zip(schemas, tools, strict=True) if tool["function"].get("strict"))
    wanted = "auto" if choice is None else choice
    if isinstance(wanted, str) and wanted in CHOICES:
        use = ToolUse(schemas, parallel, due=wanted == "required", strict=strict)
        return Tools(tools, None if wanted == "none" else use)
    if isinstance(choice, dict) and choice.get("type") == ALLOWED:
        due, names = _read_allowed(choice.get(ALLOWED), schemas)
        allowed = {name: schema for name, schema in schemas.items() if name in names}
        return Tools(tools, ToolUse(allowed, parallel, due=due, strict=strict & names))
    name = _read_name(choice, schemas)
    return Tools(tools, ToolUse({name: schemas[name]}, False, named=True, due=True, strict=strict & {name}))


def unknown_form(model: str) -> InvalidRequest:
    """What there is to say where a model's calls could not be told from its text."""
    cure = "leave them out, or set tool_call_parser (--tool-call-parser) where the chat template shows tools"
    message = f"tools need a model that is known to write tool calls, {model} is not; {cure}"
    return InvalidRequest(message, param="tools", code="unsupported_parameter")


def _read_list(tools: Any) -> list[dict[str, Any]]:
    """The tools as a template is shown them, in which nothing is null that could be left out. Raises InvalidRequest."""
    if not isinstance(tools, list):
        raise invalid("tools", "a list of tools", tools, cure="leave it out to offer none")
    found: dict[str, dict[str, Any]] = {}
    for position, tool in enumerate(tools):
        read = _read_tool(tool, f"tools[{position}]")
        name = read["function"]["name"]
        if name in found:
            raise invalid(f"tools[{position}].function.name", "the name of one tool alone", name)
        found[name] = read
    size = len(msgspec.json.encode(tools))
    if size > MAX_TOOL_BYTES:
        raise invalid("tools", f"at most {MAX_TOOL_BYTES} bytes of JSON", Verbatim(f"{size}"), cure="send fewer tools")
    return [*found.values()]


def _read_tool(tool: Any, path: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise invalid(path, 'an object, {"type": "function", "function": {"name": ...}}', tool)
    if tool.get("type") != "function":
        if isinstance(kind := tool.get("type"), str):
            raise unsupported(f"{path}.type {ascii(kind[:40])[1:-1]}", cure="tools are functions", param=f"{path}.type")
        raise invalid(f"{path}.type", "function", kind)
    if not isinstance(tool.get("function"), dict):
        raise invalid(f"{path}.function", "an object with a name", tool.get("function"))
    function = {name: value for name, value in tool["function"].items() if value is not None}
    name = function.get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        law = f"1 to {MAX_TOOL_NAME_CHARS} letters, digits, underscores, dots and dashes"
        raise invalid(f"{path}.function.name", law, name)
    if not isinstance(function.get("description", ""), str):
        raise invalid(f"{path}.function.description", "a string", function["description"])
    if not isinstance(function.get("strict", False), bool):
        raise invalid(f"{path}.function.strict", "true or false", function["strict"])
    if "parameters" in function:
        function["parameters"] = _read_parameters(function["parameters"], f"{path}.function.parameters")
    return tool | {"function": function}


def _read_parameters(given: Any, path: str) -> dict[str, Any]:
    """A tool's arguments are a JSON object, so that is what their schema must describe."""
    if not isinstance(given, dict):
        raise invalid(path, "a JSON schema, an object", given)
    schema: dict[str, Any] = without_nulls(given)
    if schema.get("type", "object") != "object":
        raise invalid(f"{path}.type", "object: arguments have names", schema["type"])
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        raise invalid(f"{path}.properties", "an object of schemas by name", properties)
    for name, inner in properties.items():
        if not isinstance(inner, dict | bool):
            raise invalid(f"{path}.properties.{name[:80]}", "a JSON schema, an object", inner)
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise invalid(f"{path}.required", "a list of names", required)
    return schema


def read_mode(mode: Any, path: str) -> str:
    """Of allowed tools: whether one of them must be called. Raises InvalidRequest."""
    if mode not in MODES:
        raise invalid(f"{path}.mode", " or ".join(MODES), mode)
    return str(mode)


def _read_allowed(allowed: Any, schemas: dict[str, Any]) -> tuple[bool, frozenset[str]]:
    """Whether one of them must be called, and the tools that may be; all are shown, so that beginnings are shared."""
    path = f"tool_choice.{ALLOWED}"
    if not isinstance(allowed, dict):
        raise invalid(path, 'an object, {"mode": "auto", "tools": [...]}', allowed)
    due, entries = read_mode(allowed.get("mode"), path) == "required", allowed.get("tools")
    if not isinstance(entries, list) or not entries:
        raise invalid(f"{path}.tools", "a list of at least one tool", entries, cure='or send "none"')
    return due, frozenset(_read_name(entry, schemas, f"{path}.tools[{i}]") for i, entry in enumerate(entries))


def _read_name(choice: Any, schemas: dict[str, Any], path: str = "tool_choice") -> str:
    """Of a tool that must, or may, be called. path: where it is named."""
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        named = '{"type": "function", "function": {"name": ...}}'
        raise invalid(path, f"{', '.join(CHOICES)} or {named}" if path == "tool_choice" else named, choice)
    if name not in schemas:
        raise InvalidRequest(
            f"{path} must name one of tools, got {ascii(name)[:80]}; they are {', '.join(schemas)[:400]}",
            param=path,
            code="invalid_value",
        )
    return name
