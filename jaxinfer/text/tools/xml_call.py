"""XmlCall: a call as Qwen3-Coder writes it: <function=name>, <parameter=name>value</parameter> ..., </function>.

Values stand there as plain text; the tool's schema says what they are. Each parameter is passed on when it is whole.
"""

from collections.abc import Mapping
from typing import Any

from jaxinfer.text.tools.events import Arguments, Begin, Dropped, End, Event
from jaxinfer.text.tools.strict_json import dumped, loaded

FUNCTION, PARAMETER = "<function=", "<parameter="
END_FUNCTION, END_PARAMETER = "</function>", "</parameter>"
MAX_NAME_CHARS = 256
MAX_REFERENCES = 16  # of one to the next that are followed


class XmlCall:
    """One call, a tagged.Body. opening: what stood before it and is content again if it is none.
    schemas: of the parameters of the tools offered, by their names.
    """

    def __init__(self, opening: str, schemas: Mapping[str, dict[str, Any]]) -> None:
        self.is_open, self.failed = True, False
        self._schemas = schemas
        self._raw = [opening]
        self._tool = ""
        self._parameter = ""
        self._stage = "tag"  # of the function or a parameter, then "value"
        self._held = ""  # of a tag, or the end of a value that may be in its closing tag
        self._value: list[str] = []
        self._num_parameters = 0

    def feed(self, text: str) -> tuple[list[Event], str]:
        events: list[Event] = []
        text, self._held = self._held + text, ""
        while text and self.is_open:
            text = self._take_value(text, events) if self._stage == "value" else self._take_tag(text, events)
        return events, text

    def finish(self) -> list[Event]:
        raw = "".join([*self._raw, *(self._value if self._stage == "value" else ()), self._held])
        return [Dropped(raw) if self._tool else raw]

    def _take_tag(self, text: str, events: list[Event]) -> str:
        """A function's tag, then parameters' tags up to the function's end."""
        bare = text.lstrip()
        if len(text) - len(bare) > MAX_NAME_CHARS:
            return self._fail(text, events)
        for tag in (PARAMETER, END_FUNCTION) if self._tool else (FUNCTION,):
            if len(bare) < len(tag) and tag.startswith(bare):
                self._held = text
                return ""
            if bare.startswith(tag):
                return self._take_whole_tag(text, bare, tag, events)
        return self._fail(text, events)

    def _take_whole_tag(self, text: str, bare: str, tag: str, events: list[Event]) -> str:
        if tag == END_FUNCTION:
            events += [Arguments("}" if self._num_parameters else "{}"), End()]
            self.is_open = False
            return bare.removeprefix(tag)
        end = bare.find(">", len(tag), len(tag) + MAX_NAME_CHARS)
        name = bare[len(tag) : end]
        if end < 0 and len(bare) < len(tag) + MAX_NAME_CHARS:
            self._held = text
            return ""
        if end < 0 or (tag == FUNCTION and name not in self._schemas):
            return self._fail(text, events)
        left = bare[end + 1 :]
        self._raw.append(text[: len(text) - len(left)])
        if tag == FUNCTION:
            self._tool = name
            events.append(Begin(name))
        else:
            self._parameter, self._stage = name, "value"
        return left

    def _take_value(self, text: str, events: list[Event]) -> str:
        at = text.find(END_PARAMETER)
        if at < 0:
            most = min(len(END_PARAMETER) - 1, len(text))
            keep = next((n for n in range(most, 0, -1) if END_PARAMETER.startswith(text[-n:])), 0)
            self._value.append(text[: len(text) - keep])
            self._held = text[len(text) - keep :]
            return ""
        value = "".join([*self._value, text[:at]])
        self._raw += [value, END_PARAMETER]
        self._value, self._stage = [], "tag"
        whole = self._schemas[self._tool]
        properties = whole.get("properties")
        schema = properties.get(self._parameter) if isinstance(properties, dict) else None
        key = dumped(self._parameter)
        typed = dumped(typed_value(value, schema, whole))
        events.append(Arguments(f"{', ' if self._num_parameters else '{'}{key}: {typed}"))
        self._num_parameters += 1
        return text[at + len(END_PARAMETER) :]

    def _fail(self, text: str, events: list[Event]) -> str:
        raw = "".join(self._raw)
        self.is_open, self.failed = False, True
        if self._tool:
            events.append(Dropped(raw))
            return text
        taken = 0 if raw else 1  # without a tag before it, it would be taken for a beginning again
        events.append(raw + text[:taken])
        return text[taken:]


def typed_value(text: str, schema: Any, whole: Any = None) -> Any:
    """What a parameter's text stands for: a string, unless the schema allows other types and the text is one.

    whole: the schema that it is a part of.
    """
    text = text.removeprefix("\n").removesuffix("\n")
    types = types_of(schema, whole)
    if types <= {"string"}:
        return text
    spelt = {"True": "true", "False": "false", "None": "null"}.get(text.strip(), text)
    try:
        value = loaded(spelt)
        dumped(value)  # what cannot be is no such value
    except (ValueError, RecursionError):
        return text
    return value if _type_of(value) in types or (_type_of(value) == "integer" and "number" in types) else text


def types_of(schema: Any, whole: Any = None) -> set[str]:
    """The types that a schema names, itself, in its alternatives or where it refers to; none where it names none."""
    types: set[str] = set()
    seen: set[int] = set()  # alternatives may refer to each other, and to themselves
    left = [schema]
    while left:
        each = referred(left.pop(), whole)
        if not isinstance(each, dict) or id(each) in seen:
            continue
        seen.add(id(each))
        named = each.get("type", [])
        types |= {named} if isinstance(named, str) else {kind for kind in named if isinstance(kind, str)}
        for key in ("anyOf", "oneOf", "allOf"):
            alternatives = each.get(key)
            left += alternatives if isinstance(alternatives, list) else ()
        if isinstance(values := each.get("enum"), list):
            types |= {_type_of(value) for value in values}
        if "const" in each:
            types.add(_type_of(each["const"]))
    return types


def referred(schema: Any, whole: Any) -> Any:
    """What a schema refers to within the one that it is a part of, else itself."""
    for _ in range(MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found = whole
        for step in reference[2:].split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if found is None:
            break
        schema = found
    return schema


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
