"""The grammar of answers with tool calls, in llguidance's Lark: from the tools' schemas, for each format.

Where a call is due, the answer is calls and nothing else; otherwise text is free, and what follows a call's opening is
a call of one of the tools with arguments of its schema.
"""

import re
from collections.abc import Mapping
from typing import Any

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.grammar.source import ANY_TEXT, MAX_TEXT_CHARS, guided, quoted
from jaxinfer.text.tools.arguments import TOO_MUCH, Shape, Unheld, Unwritable, alone, by_name, shapes
from jaxinfer.text.tools.formats import (
    AROUND,
    CALL,
    END_CALL,
    FUNCTOOLS,
    LAYOUTS,
    RECIPIENT,
    SEPARATOR,
    XML_TAGS,
    Format,
)
from jaxinfer.text.tools.python_calls import KEY
from jaxinfer.text.tools.reader import ToolUse
from jaxinfer.text.tools.schema_types import Values
from jaxinfer.text.tools.xml_call import Parameters, is_read_back
from jaxinfer.text.tools.xml_tags import CDATA, END_CDATA, XmlTags

_LISTS_OF_CALLS: dict[Format, tuple[str, str, str]] = {
    "llama3_json": ("", "; ", ""),
    "pythonic": ("[", ", ", "]"),
    "xlam": ("[", ", ", "]"),
    "llama_nemotron_json": ("[", ", ", "]"),
    "deepseek_v3": ("", "\n", ""),
    "functionary_v3_2": ("", RECIPIENT, ""),
    "firefunction_v2": (f" {FUNCTOOLS}", ", ", "]"),
}  # forms that write several calls at once: what stands before, between and behind these
_OTHER_KEYS: dict[Format, tuple[str, str]] = {"llama3_json": ('"parameters": ', '"arguments": ')}  # a call's, or this
BY_NAME = (*XML_TAGS, "pythonic")  # forms that write each argument by itself
_OF_TEXTS = frozenset({"pattern", "format", "minLength", "maxLength", "not", "if", "$dynamicRef"})
_LISTS = frozenset({"const", "enum"})
_KEYS = {
    "pythonic": KEY,
    **{form: tags.key for form, tags in XML_TAGS.items()},
}  # names of arguments that can be written
_BARE, _CDATA = "bare: /[^<]+/", rf"cdata[lazy]: /{re.escape(CDATA)}(.|\n)*{re.escape(END_CDATA)}/"
_TOKENS: dict[Format, tuple[str, ...]] = {
    "deepseek_v3": (CALL, SEPARATOR, END_CALL),
    "minicpm5": ("<param", "</param>"),
}  # within calls


def tool_grammar(
    form: Format, use: ToolUse, *, due: bool, control_tokens: Mapping[str, int], begun: bool = False
) -> str | None:
    """due: the answer must be calls.    control_tokens: strings that are one token each.    begun: only of what follows
    the first opening (opening_of); where that is the answer's beginning, of the calls as a whole.

    None where nothing can be said: a format without tags is free text unless a call is due or has begun.
    """
    layout = LAYOUTS.get(form)
    is_tagged = layout is not None and bool(layout.closing)
    if not (due or begun or is_tagged):
        return None
    rules = _Rules(control_tokens, use)
    try:
        calls = [rules.call(form, name, schema, strict=name in use.strict) for name, schema in use.schemas.items()]
    except RecursionError as error:
        message = "tools must have schemas that are nested less deeply than some of these; flatten them"
        raise InvalidRequest(message, param="tools", code="invalid_grammar") from error
    one = rules.add("call", " | ".join(calls))
    before, between, after = _LISTS_OF_CALLS.get(form, ("", "", ""))
    more = f" ({quoted(between)} {one})*" if use.parallel and between else ""
    calls_at_once = " ".join(filter(None, [before and quoted(before), one + more, after and quoted(after)]))
    if layout is not None and is_tagged:
        opening = (layout.first, layout.closing)
        rules.start(calls_at_once, opening, due=due, parallel=use.parallel, begun=begun)
    else:
        rules.lines.insert(1, f"start: {calls_at_once}")
    return "\n".join(rules.lines)


def loosened(form: Format, use: ToolUse) -> tuple[str, ...]:
    """What to warn of: the tools, none of them strict, whose arguments the form cannot hold to their schemas."""
    if form not in BY_NAME:
        return ()
    warnings = []
    for name in use.schemas.keys() - use.strict:
        try:
            held_shapes(form, use.schemas[name], strict=False)
        except Unheld as keyword:
            why = f"{keyword} cannot be, in the form in which this model writes calls"
            warnings.append(f"arguments of {name} are not held to their schema: {why}")
    return tuple(sorted(warnings))


class _Rules:
    """Lines of a grammar. Invariant: each rule's name is used once."""

    def __init__(self, control_tokens: Mapping[str, int], use: ToolUse) -> None:
        self._use = use
        self.lines = ["%llguidance {}"]
        self._control_tokens = control_tokens
        self._count = self._num_chars = 0
        self._strict = False  # the tool at hand
        self._tool = ""
        self._whole: dict[str, Any] = {}
        self._known: dict[str, Any] = {}  # its arguments, as they are read
        self._values = Values({})
        self._parameters: Parameters | None = None  # as its reader has them, once they are looked at

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
        head, tail = (text.replace("NAME", name) for text in AROUND[form])
        inner = self.arguments(form, name, schema) if form in BY_NAME else self.value(_object(schema))
        before = self.spelt(form, head)
        if form in _OTHER_KEYS:
            key, other = _OTHER_KEYS[form]
            before = f"{quoted(head.removesuffix(key))} ({quoted(key)} | {quoted(other)})"
        return self.add("tool", f"{before} {inner} {self.spelt(form, tail) if tail else ''}".rstrip())

    def arguments(self, form: Format, tool: str, schema: dict[str, Any]) -> str:
        """Each by itself, where the form can hold what the schema says; else any."""
        self._whole = schema
        self._tool = tool
        try:
            alternatives = held_shapes(form, schema, strict=self._strict)
        except Unheld as keyword:
            if self._strict:
                raise self._unkept(str(keyword)) from None
            if self._use.due and isinstance(keyword, Unwritable):
                raise self._unwritable(str(keyword)) from None
            return self.any_arguments(form)
        self._known, self._values, self._parameters = by_name(alternatives), Values(schema), None
        sequences = [self.sequence(form, shape) for shape in alternatives]
        return sequences[0] if len(sequences) == 1 else self.add("arguments", " | ".join(sequences))

    def any_arguments(self, form: Format) -> str:
        key = f"/{_KEYS[form]}/"
        if form in XML_TAGS:
            before, after = (self.spelt(form, part) for part in XML_TAGS[form].head("\0").split("\0"))
            one = self.add("argument", f"{before} {key} {after} {self.text(form)}")
            return self.add("any", f"{one}*")
        one = self.add("argument", f'{key} "=" {self.value({})}')
        return self.add("any", f'({one} (", " {one})*)?')

    def value(self, schema: Any) -> str:
        return self.add("value", f"%json {guided(schema, strict=self._strict)}")

    def text(self, form: Format) -> str:
        """As it is, up to its tag's end."""
        tags = XML_TAGS[form]
        if tags.has_cdata:
            self._once(_BARE, _CDATA)
            return f"(bare | cdata)? {self.spelt(form, tags.end_parameter)}"
        end = tags.end_parameter.replace("/", r"\/")
        self._once(rf"value[lazy]: /(.|\n)*{end}/")  # a text ends at the first
        return f"value {quoted(tags.gap)}"

    def _once(self, *lines: str) -> None:
        self.lines += (line for line in lines if line not in self.lines)

    def parameter(self, form: Format, name: str, schema: Any, *, must: bool) -> str:
        """must: there is no call without it."""
        if form == "pythonic":
            return self.add("keyword", f"{quoted(f'{name}=')} {self.value(alone(schema, self._whole))}")
        return self.xml_parameter(form, name, schema, must=must)

    def xml_parameter(self, form: Format, name: str, schema: Any, *, must: bool) -> str:
        """An argument between its tags: a text as it is, everything else as JSON."""
        tags = XML_TAGS[form]
        head, tail = self.spelt(form, tags.head(name)), self.spelt(form, f"{tags.gap}{tags.end_parameter}{tags.gap}")
        types = self._values.types(self._known[name])
        options = self._options(tags, name, schema, must=must)
        if options and all(self._stands(tags, name, option) for option in options):
            written = (quoted(tags.written(option).removeprefix(tags.gap).removesuffix(tags.gap)) for option in options)
            return self.add("parameter", f"{head} ({' | '.join(written)}) {tail}")
        if options is None and types <= {"string"}:
            self._check_text(name, schema)
            return self.add("parameter", f"{head} {self.text(form)}")
        return self.add("parameter", f"{head} {self.value(alone(schema, self._whole))} {tail}")

    def _options(self, tags: XmlTags, name: str, schema: Any, *, must: bool) -> list[Any] | None:
        """The values that a schema lists, if it does, but for texts that would end before their end."""
        options = self._values.options(schema)
        if self._strict and self._values.is_too_much:
            raise self._unkept(TOO_MUCH)
        if options is None:
            return None
        is_text = self._values.types(self._known[name]) <= {"string"}  # which has no quotes to stand in
        kept = [each for each in options if not (is_text and isinstance(each, str)) or self._stands(tags, name, each)]
        if self._strict and len(kept) < len(options):
            raise self._unkept(f"a value of {ascii(name)[:80]}")
        if self._use.due and must and options and not kept:
            raise self._unwritable(f"each value of {ascii(name)[:80]}")
        return kept or None

    def _stands(self, tags: XmlTags, name: str, option: Any) -> bool:
        """Whether a text is read as it stands there."""
        if not isinstance(option, str):
            return False
        self._parameters = self._parameters or Parameters(self._whole)
        return is_read_back(tags, self._tool, name, option, self._parameters, self._use.schemas)

    def _check_text(self, name: str, schema: Any) -> None:
        """Nothing but its end is asked of a text that stands there as it is; strict must not promise more."""
        keywords = self._values.keywords(schema)
        asked = _OF_TEXTS
        if keywords & {"allOf", "oneOf"}:  # beside anyOf, a list asks nothing where another part asks nothing
            asked |= _LISTS
        if self._strict and (unkept := sorted(asked & keywords)):
            raise self._unkept(f"{unkept[0]} of {ascii(name)[:80]}")

    def _unkept(self, what: str) -> InvalidRequest:
        fact = f"{what} in {ascii(self._tool)} is not, in the form in which this model writes calls"
        message = f"a strict tool's schema must be one that can be enforced, {fact}; leave it out"
        return InvalidRequest(message, param="tools", code="invalid_grammar")

    def _unwritable(self, what: str) -> InvalidRequest:
        law = "tool_choice must ask for calls that can be written in the form in which this model writes them"
        fact = f"{what}, which {ascii(self._tool)} requires, cannot be"
        message = f'{law}, and {fact}; change the schema, or send tool_choice "auto"'
        return InvalidRequest(message, param="tools", code="invalid_grammar")

    def sequence(self, form: Format, shape: Shape) -> str:
        """The properties in their order, those that are not required or left out."""
        # of the properties from here on: `first` when none stands before them, `later` when one does
        first = later = self.add("end", '""')
        for name, schema in reversed(shape.properties.items()):
            one = self.parameter(form, name, schema, must=name in shape.required)
            mark = '", " ' if form == "pythonic" else ""
            skipped_first, skipped_later = ("", "") if name in shape.required else (f" | {first}", f" | {later}")
            first, later = (
                self.add("first", f"{one} {later}{skipped_first}"),
                self.add("later", f"{mark}{one} {later}{skipped_later}"),
            )
        return first

    def start(self, calls: str, tags: tuple[str, str], *, due: bool, parallel: bool, begun: bool) -> None:
        """Calls between tags, with free text around them unless they are due."""
        opening, close = tags[0], self.token(tags[1])
        if due:
            tagged = self.add("tagged", f"{self.token(opening)} {calls} {close}")
            more = f' ("\\n" {tagged})*' if parallel else ""
            self.lines.insert(1, f"start: {tagged}{more}")
            return
        self.lines.append(ANY_TEXT)
        if opening in self._control_tokens:
            tagged = self.add("tagged", f"TEXT {self.token(opening)} {calls} {close}")
        else:
            self.lines.append(f"opening[lazy]: TEXT {quoted(opening)}")
            tagged = self.add("tagged", f"opening {calls} {close}")
        first = f"{calls} {close} " if begun else ""
        more = f"{tagged}* " if parallel else "" if begun else f"{tagged}? "
        self.lines[1:1] = [f"start: {first}{more}tail", "tail: TEXT"]

    def spelt(self, form: Format, text: str) -> str:
        """A text in which control tokens of the form are themselves."""
        tokens = [token for token in _TOKENS.get(form, ()) if token in self._control_tokens]
        parts = re.split(f"({'|'.join(map(re.escape, tokens))})", text) if tokens else [text]
        return " ".join(self.token(part) for part in parts if part)

    def token(self, text: str) -> str:
        return f"<[{self._control_tokens[text]}]>" if text in self._control_tokens else quoted(text)


def held_shapes(form: Format, schema: dict[str, Any], *, strict: bool) -> list[Shape]:
    """Of a form that writes each argument by itself. Raises Unheld."""
    found = shapes(schema, strict=strict)
    values = Values(schema)
    for name, value in by_name(found).items():
        if not re.fullmatch(_KEYS[form], name):
            is_due = all(name in shape.required for shape in found)
            raise (Unwritable if is_due else Unheld)(f"the name {ascii(name)[:80]}")
        if form in XML_TAGS:  # what an argument's types are is looked for there
            values.types(value)
        if values.is_too_much:
            raise Unheld(TOO_MUCH)
    if not strict and any(shape.asks and shape.other is not False for shape in found):
        raise Unheld("additionalProperties")
    return found


def _object(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", **schema}
