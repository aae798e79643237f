"""What an object of JSON says of a call: its name and its arguments, or what it lacks of them."""

import re
from collections.abc import Container, Mapping
from typing import Any

from jaxinfer.text.tools.arguments import arguments_of
from jaxinfer.text.tools.json_scanner import mended
from jaxinfer.text.tools.strict_json import dumped, entries_of, loaded

Schemas = Mapping[str, dict[str, Any]]  # of the parameters of tools, by their names
Entries = list[tuple[str, Any]]
OF_ARGUMENTS = ("arguments", "parameters")
BESIDE = frozenset({"name", "type", "id", "index", "function"})  # keys of a call that are none of its arguments
EMPTY = "{} \t\r\n"  # characters of arguments that are none
_STRING = re.compile(r'"([^"\\]{1,64})"')


def has_name(text: str, names: Container[str] | None = None) -> bool:
    """Whether a JSON object names a tool, of these or any."""
    try:
        name = loaded(text).get("name")
    except (ValueError, RecursionError):
        return False
    return isinstance(name, str) and (names is None or name in names)


def entries_behind(tail: str) -> Entries:
    """Behind the first of an object. Where it breaks off, each string may be a name, whose value is not known."""
    try:
        return entries_of(f'{{"": 0{tail}')[1:]
    except (ValueError, RecursionError):
        return [(key, ...) for key in _STRING.findall(tail)]


def has_further(entries: Entries, known: Container[str]) -> bool:
    """Whether arguments of a tool stand beside those of its call."""
    keys = {key for key, _ in entries}
    return "name" in keys and any(key in known for key in keys - {*BESIDE, *OF_ARGUMENTS})


def lacking(text: str) -> tuple[str, ...]:
    """The keys of which an object lacks one that has a call's name or its arguments, but not both."""
    try:
        keys = loaded(text).keys()
    except (ValueError, RecursionError):
        return ()
    has_arguments = "arguments" in keys or "parameters" in keys
    if ("name" in keys) == has_arguments:
        return ()
    return ('"name"',) if has_arguments else ('"arguments"', '"parameters"')


def joined_call(first: str, second: str, schemas: Schemas) -> str | None:
    """The call that two objects are, of which one has what the other lacks; the second may be the arguments alone."""
    try:
        one, other = loaded(first), loaded(second)
        missing = lacking(second)
        begun = first.rstrip()[:-1]  # without its bracket
        if missing and missing != lacking(first):
            return f"{begun}, {second.lstrip()[1:]}"
        known, _ = arguments_of(schemas[one["name"]])
        are_arguments = other and not missing and other.keys() <= known.keys()
        return f'{begun}, "arguments": {second}}}' if are_arguments else None
    except (ValueError, RecursionError, KeyError, TypeError):
        return None  # of no tool that is offered


def call_of(text: str, names: Container[str]) -> tuple[str, str] | None:
    """The name and the arguments of a whole call as JSON text, None if it is no call of these tools."""
    try:
        entries = entries_of(text)
    except (ValueError, RecursionError):
        return None
    spelt = [value for key, value in entries if key == "name"]
    name = spelt[0] if spelt else None
    if not isinstance(name, str) or name not in names or any(each != name for each in spelt):
        return None
    arguments = arguments_in(entries)
    return None if arguments is None else (name, arguments)


def arguments_in(entries: Entries) -> str | None:
    """The arguments among a call's entries as JSON text; None where there are two that are filled, or none that is and
    another key may hold them.
    """
    given = [value for key, value in entries if key in OF_ARGUMENTS]
    filled = [value for value in given if not _is_empty(value)]
    others = [value for key, value in entries if key not in OF_ARGUMENTS and (key not in BESIDE or _is_nested(value))]
    if len(filled) > 1 or (others and not filled):
        return None
    try:
        return _text_of((filled or given or [None])[0])
    except (ValueError, RecursionError):
        return None


def _is_empty(value: Any) -> bool:
    return value is None or value == {} or (isinstance(value, str) and not value.strip(EMPTY))


def _is_nested(value: Any) -> bool:
    """Whether it is an object or a list, or the text of one."""
    return isinstance(value, dict | list) or (isinstance(value, str) and value.lstrip().startswith(("{", "[")))


def _text_of(arguments: Any) -> str | None:
    """As JSON, of an object or its text."""
    if isinstance(arguments, str):
        arguments = mended(arguments)
        arguments.encode()  # raises for a lone surrogate
        return arguments if isinstance(loaded(arguments), dict) else None
    if arguments is None:
        return "{}"
    return dumped(arguments) if isinstance(arguments, dict) else None
