"""The grammar of answers with tool calls, in llguidance's Lark: from the tools' schemas, for each format.

Where a call is due, the answer is calls and nothing else; otherwise text is free, and what follows a call's opening is
a call of one of the tools with arguments of its schema.
"""

import json
from collections.abc import Mapping
from typing import Any

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.grammar.source import ANY_TEXT, MAX_TEXT_CHARS, guided, quoted
from jaxinfer.text.tools.formats import Format
from jaxinfer.text.tools.reader import ToolUse
from jaxinfer.text.tools.tagged import CLOSE, OPEN
from jaxinfer.text.tools.xml_call import END_FUNCTION, END_PARAMETER, FUNCTION, PARAMETER, referred, types_of

_OF_TEXTS = frozenset({"pattern", "format", "minLength", "maxLength"})
_VALUE = f"value[lazy]: /(.|\\n)*\\n{END_PARAMETER.replace('/', chr(92) + '/')}\\n/"


def opening_id(form: Format, control_tokens: Mapping[str, int]) -> int | None:
    """The token after which there is nothing but a call, where a format has one."""
    return control_tokens.get(OPEN) if form in ("hermes", "qwen3_coder") else None


def tool_grammar(
    form: Format, use: ToolUse, *, due: bool, control_tokens: Mapping[str, int], begun: bool = False
) -> str | None:
    """due: the answer must be calls.    control_tokens: strings that are one token each.    begun: only of what follows
    the first opening_id.

    None where nothing can be said: a format without an opening of its own is free text unless a call is due.
    """
    tagged = form in ("hermes", "qwen3_coder")
    if not due and not tagged:
        return None
    rules = _Rules(control_tokens)
    calls = [rules.call(form, name, schema, strict=name in use.strict) for name, schema in use.schemas.items()]
    one = rules.add("call", " | ".join(calls))
    parallel = use.parallel
    match form:
        case "hermes" | "qwen3_coder":
            rules.start(one, due=due, parallel=parallel, begun=begun)
        case "llama3_json":
            more = f' ("; " {one})*' if parallel else ""
            rules.lines.insert(1, f"start: {one}{more}")
        case "pythonic":
            more = f' (", " {one})*' if parallel else ""
            rules.lines.insert(1, f'start: "[" {one}{more} "]"')
    return "\n".join(rules.lines)


class _Rules:
    """Lines of a grammar. Invariant: each rule's name is used once."""

    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        self.lines = ["%llguidance {}"]
        self._control_tokens = control_tokens
        self._count = self._num_chars = 0
        self._strict = False  # the tool at hand

    def add(self, kind: str, body: str) -> str:
        """A new rule; returns its name."""
        name = f"{kind}_{self._count}"
        self._count += 1
        self._num_chars += len(body)
        if self._num_chars > MAX_TEXT_CHARS:  # a tool's definitions stand with each argument that refers to them
            law = f"written as a grammar of at most {MAX_TEXT_CHARS} characters"
            message = f"tools must be {law}, these need more; shorten their schemas"
            raise InvalidRequest(message, param="tools", code="invalid_grammar")
        self.lines.append(f"{name}: {body}")
        return name

    def call(self, form: Format, name: str, schema: dict[str, Any], *, strict: bool) -> str:
        self._strict = strict
        spelt = json.dumps(name)
        match form:
            case "hermes":
                head, tail = f'\n{{"name": {spelt}, "arguments": ', "}\n"
                return self.add("tool", f"{quoted(head)} {self.value(_object(schema))} {quoted(tail)}")
            case "llama3_json":
                head = f'{{"name": {spelt}, "parameters": '
                return self.add("tool", f'{quoted(head)} {self.value(_object(schema))} "}}"')
            case "qwen3_coder":
                parameters = self.sequence(schema, self.xml_parameter, separator="")
                head, tail = f"\n{FUNCTION}{name}>\n", f"{END_FUNCTION}\n"
                return self.add("tool", f"{quoted(head)} {parameters} {quoted(tail)}")
            case "pythonic":
                parameters = self.sequence(schema, self.keyword, separator=", ")
                return self.add("tool", f'{quoted(f"{name}(")} {parameters} ")"')

    def value(self, schema: Any) -> str:
        return self.add("value", f"%json {guided(schema, strict=self._strict)}")

    def keyword(self, name: str, schema: Any) -> str:
        """An argument, name=value."""
        return self.add("keyword", f"{quoted(f'{name}=')} {self.value(schema)}")

    def xml_parameter(self, name: str, schema: Any) -> str:
        """An argument between its tags: a text as it is, everything else as JSON."""
        head = quoted(f"{PARAMETER}{name}>\n")
        known = referred(schema, schema)  # it has the definitions of the whole
        options = _options(known)
        if types_of(schema, schema) <= {"string"} and options is None:
            self._check_text(name, known)
            if _VALUE not in self.lines:
                self.lines.append(_VALUE)
            return self.add("parameter", f"{head} value")
        tail = quoted(f"\n{END_PARAMETER}\n")
        if isinstance(options, list) and options and all(isinstance(option, str) for option in options):
            return self.add("parameter", f"{head} ({' | '.join(map(quoted, options))}) {tail}")
        return self.add("parameter", f"{head} {self.value(schema)} {tail}")

    def _check_text(self, name: str, schema: Any) -> None:
        """Nothing but its end is asked of a text that stands there as it is; strict must not promise more."""
        unkept = sorted(_OF_TEXTS & schema.keys()) if isinstance(schema, dict) else []
        if self._strict and unkept:
            fact = f"{unkept[0]} of {ascii(name)[:80]} is not, in the form in which this model writes calls"
            message = f"a strict tool's schema must be one that can be enforced, {fact}; leave it out"
            raise InvalidRequest(message, param="tools", code="invalid_grammar")

    def sequence(self, schema: dict[str, Any], parameter: Any, *, separator: str) -> str:
        """The schema's properties in their order, those that are not required or left out."""
        properties = schema.get("properties") or {}
        definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        required = schema.get("required") or ()
        # of the properties from here on: `first` when none stands before them, `later` when one does
        first = later = self.add("end", '""')
        for name, inner in reversed(properties.items()):
            refers = isinstance(inner, dict) and '"$ref"' in json.dumps(inner)
            one = parameter(name, {**definitions, **inner} if refers else inner)
            mark = f"{quoted(separator)} " if separator else ""
            skipped_first, skipped_later = ("", "") if name in required else (f" | {first}", f" | {later}")
            first, later = (
                self.add("first", f"{one} {later}{skipped_first}"),
                self.add("later", f"{mark}{one} {later}{skipped_later}"),
            )
        return first

    def start(self, call: str, *, due: bool, parallel: bool, begun: bool) -> None:
        """Calls between tags, with free text around them unless they are due."""
        close = self.token(CLOSE)
        if due:
            tagged = self.add("tagged", f"{self.token(OPEN)} {call} {close}")
            more = f' ("\\n" {tagged})*' if parallel else ""
            self.lines.insert(1, f"start: {tagged}{more}")
            return
        self.lines.append(ANY_TEXT)
        if OPEN in self._control_tokens:
            tagged = self.add("tagged", f"TEXT {self.token(OPEN)} {call} {close}")
        else:
            self.lines.append(f"opening[lazy]: TEXT {quoted(OPEN)}")
            tagged = self.add("tagged", f"opening {call} {close}")
        first = f"{call} {close} " if begun else ""
        more = f"{tagged}* " if parallel else "" if begun else f"{tagged}? "
        self.lines[1:1] = [f"start: {first}{more}tail", "tail: TEXT"]

    def token(self, text: str) -> str:
        return f"<[{self._control_tokens[text]}]>" if text in self._control_tokens else quoted(text)


def _options(schema: Any) -> list[Any] | None:
    """The values that a schema lists, if it does."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]]
    options = schema.get("enum")
    return options if isinstance(options, list) else None


def _object(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", **schema}
