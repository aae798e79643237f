"""Which format a model writes its calls in, read off its chat template, and the parser of each."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Literal, get_args

from jaxinfer.text.tools.events import Arguments, Begin, End, Parser
from jaxinfer.text.tools.form import Body, Layout, OnLine
from jaxinfer.text.tools.json_call import InnerCall, JsonCall, NamedCall
from jaxinfer.text.tools.layout import CallParser
from jaxinfer.text.tools.line_calls import LineCalls
from jaxinfer.text.tools.lone_call import ANY_SPACE, JSON_SPACE, Head, LoneCall, begins
from jaxinfer.text.tools.marks import FENCE, is_closing
from jaxinfer.text.tools.python_list import PythonList
from jaxinfer.text.tools.python_object import PythonObject
from jaxinfer.text.tools.xml_call import Parameters, XmlCall
from jaxinfer.text.tools.xml_nesting import Torn
from jaxinfer.text.tools.xml_tags import (
    CDATA,
    CLOSING,
    END_CDATA,
    END_FUNCTION,
    MINICPM5,
    OPENING,
    QWEN3_CODER,
    XmlTags,
)

Format = Literal[  # in this order a template's call is tried: qwen3_coder takes functionary's too
    "hermes",
    "functionary",
    "qwen3_coder",
    "minicpm5",
    "pythonic",
    "xlam",
    "llama3_json",
    "llama_nemotron_json",
    "qwen2_5_coder",
    "deepseek_v3",
    "functionary_v3_2",
    "firefunction_v2",
]
FORMATS: tuple[Format, ...] = get_args(Format)

PYTHON_TAG = "<|python_tag|>"  # special tokens: seen only where these are shown
PYTHON_START, PYTHON_END = "<|python_start|>", "<|python_end|>"
CALL, SEPARATOR, END_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"  # DeepSeek's
TOOLS, END_TOOLS = "<tools>", "</tools>"
RECIPIENT, ALL = ">>>", "all\n"  # Functionary's: a tool's name or that of the text comes between the two
FUNCTOOLS = "functools["  # Firefunction's
XML_TAGS: dict[Format, XmlTags] = {"qwen3_coder": QWEN3_CODER, "minicpm5": MINICPM5}
FUNCTION = QWEN3_CODER.function
_NAME_CHAR = r"[A-Za-z0-9_.-]"
LAYOUTS: dict[Format, Layout] = {
    "hermes": Layout("{", OPENING, CLOSING),
    "qwen3_coder": Layout(
        FUNCTION,
        OPENING,
        CLOSING,
        others=(END_FUNCTION, QWEN3_CODER.end_parameter),
        is_bare=True,
        inner="{",
        named=r"<(?:function|parameter)=([^<>\n]*)(?:>|\n|\Z)",
    ),
    "minicpm5": Layout(
        MINICPM5.function,
        closing=END_FUNCTION,
        others=(MINICPM5.end_parameter, OPENING, CLOSING),
        is_bare=True,
        inner="{",
        named=r"<(?:function|param) name=[\"']?([^<>\n\"']*)[^<>\n]*(?:>|\n|\Z)"
        rf"|{re.escape(CDATA)}|{re.escape(END_CDATA)}",
        token="<function",
    ),
    "pythonic": Layout("[", others=(PYTHON_START, PYTHON_END), named=r"\A\[()|\]\Z"),
    "xlam": Layout("{", needs="["),
    "llama3_json": Layout("{", others=(PYTHON_TAG,)),
    "llama_nemotron_json": Layout("{", "<TOOLCALL>", "</TOOLCALL>"),
    "qwen2_5_coder": Layout("{", TOOLS, END_TOOLS, others=(OPENING, CLOSING)),
    "functionary": Layout(
        FUNCTION, closing=END_FUNCTION, is_bare=True, inner="{", named=rf"{FUNCTION}([^<>\n]*)(?:>|\n|\Z)"
    ),
    "deepseek_v3": Layout(
        CALL,
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        others=(END_CALL,),
        is_bare=True,
        is_fenced=True,
        inner="{",
        named=rf"{CALL}\s*\w*\s*{SEPARATOR}\s*([^\s<]*)\s*(?:{FENCE}(?:json)?)?|{FENCE}(?=\s*{END_CALL})"
        rf"|{CALL}(?:\s*function(?=\s*(?:{CALL}|\Z)))?",
    ),
    "functionary_v3_2": Layout(
        RECIPIENT,
        is_bare=True,
        inner="{",
        named=rf"{RECIPIENT}({_NAME_CHAR}*)(?:\n|\Z)",
        head=rf"{_NAME_CHAR}{{1,128}}[ \t]{{0,16}}\n\s{{0,16}}\{{",
        open_head=rf"{_NAME_CHAR}{{0,128}}[ \t]{{0,16}}(?:\n\s{{0,16}})?",
        text=RECIPIENT + ALL,
        is_begun=True,
    ),
    "firefunction_v2": Layout("{", FUNCTOOLS),
}
_SLIPS = tuple(
    f"<{slash}{name}>"
    for name in (
        *("tool_calls", "tool_response", "tool_responses", "tool", "tools_call", "function", "functions", "parameters"),
        *("function_call", "function_calls", "param", "arguments"),
    )
    for slash in ("", "/")
) + ("<tool_call/>", "<tool_calls/>", "<tools/>", "<TOOLCALL/>", "<function/>", "<parameter/>")
_OWN_TAGS = tuple({tag: None for layout in LAYOUTS.values() for tag in layout.tags})
# tags of all forms that models write for those of their form; the others may be words, or a prompt of Python's
TAGS = tuple({tag: None for tag in (*_OWN_TAGS, *_SLIPS) if tag.startswith("<")})
_AGAIN = {"{": "(?!)", "[": r"(?<!=)(?<!= )\[\s*[A-Za-z0-9_.-]+\s*\("}  # within an object none does
AROUND: dict[Format, tuple[str, str]] = {
    "hermes": ('\n{"name": "NAME", "arguments": ', "}\n"),
    "qwen2_5_coder": ('\n{"name": "NAME", "arguments": ', "}\n"),
    "xlam": ('{"name": "NAME", "arguments": ', "}"),
    "llama_nemotron_json": ('{"name": "NAME", "arguments": ', "}"),
    "llama3_json": ('{"name": "NAME", "parameters": ', "}"),
    "functionary": ("NAME>", ""),
    "deepseek_v3": (f"{CALL}function{SEPARATOR}NAME\n```json\n", f"\n```{END_CALL}"),
    "qwen3_coder": (f"\n{FUNCTION}NAME>\n", f"{END_FUNCTION}\n"),
    "minicpm5": (' name="NAME">', ""),
    "pythonic": ("NAME(", ")"),
    "functionary_v3_2": ("NAME\n", ""),
    "firefunction_v2": ('{"name": "NAME", "arguments": ', "}"),
}  # what models write before and behind a call's arguments
_NAME = rf"({_NAME_CHAR}+)"
_HEADS: dict[Format, re.Pattern[str]] = {
    "functionary": re.compile(rf"{FUNCTION}\s*{_NAME}\s*>([^{{<]*)(?=\{{)"),
    "deepseek_v3": re.compile(rf"{CALL}\s*\w*\s*{SEPARATOR}\s*{_NAME}\s([^{{<`]*)(?:{FENCE}(?:json)?\s*)?(?=\{{)"),
    "functionary_v3_2": re.compile(rf"{RECIPIENT}{_NAME}(\s*)(?=\{{)"),
}  # with the text that may come between the name and the arguments
_AFTER = re.compile(r"(?:\s*<(?!/)[^<>]*>)+\s*$")  # tokens that end a turn, of which a call may have its own
PROBE = ("jaxinfer_probe", {"jaxinfer_a": 41, "jaxinfer_b": 43})  # what no template writes of itself
_GAP = r"(?:\\n|\s)*"  # a line end of the prompt stands in a template as itself or escaped
_SAID: dict[Format, re.Pattern[str]] = {
    "qwen3_coder": re.compile(rf"<tool_call>{_GAP}<function="),
    "hermes": re.compile(rf"<tool_call>{_GAP}\[?{_GAP}\{{{_GAP}\\?[\"'](?:name|arguments)\\?[\"']"),
    "minicpm5": re.compile(r'<function name=\\?"[^"<>]*"><param name=\\?"'),
    "pythonic": re.compile(r"\[func_name1\("),  # Llama 4's example, which other templates repeat
    "llama3_json": re.compile(r'\{"name": function name, "parameters": dictionary of argument name'),
    "xlam": re.compile(rf'(?:\\n|\s|`)\[{_GAP}\{{\\?"name\\?": \\?"\w+\\?", \\?"arguments\\?": \{{'),
}  # examples that templates give
_SEAM = re.compile(r"""["']\s*-?\}\}\s*\{\{-?\s*["']""")  # between two parts of a text that a template writes


def format_of(template: str, shown: str | None) -> Format | None:
    """The format that a chat template teaches; None when it teaches none of ours.

    shown: how it shows the call PROBE in a conversation, which decides. Where it shows none, a list of calls whose
    values nobody could read, or a broken call that begins as its example, that example does.
    """
    if shown is not None and (read := next((form for form in FORMATS if _reads(form, shown)), None)):
        return read
    said = _SEAM.sub("", template)
    example = next((form for form, pattern in _SAID.items() if pattern.search(said)), None)
    if shown is None or shown.startswith(f"[{PROBE[0]}("):
        return example
    return example if example is not None and _SAID[example].match(shown.lstrip()) else None


def new_parser(form: Format, schemas: Mapping[str, dict[str, Any]], *, alone: bool = False) -> Parser:
    """schemas: of the parameters of the tools offered, by their names.    alone: an answer that is one JSON object with
    a tool's name and arguments and nothing else is a call, whatever the form.
    """
    parser = _parser_of(form, schemas)
    return LoneCall(parser, schemas, TAGS) if alone and form != "llama3_json" else parser


def _parser_of(form: Format, schemas: Mapping[str, dict[str, Any]]) -> CallParser:
    layout = LAYOUTS[form]
    start = _AGAIN.get(layout.start, re.escape(layout.start))
    again = re.compile("|".join((*map(re.escape, layout.openings), start)))
    ends = tuple(dict.fromkeys((*TAGS, *layout.tags, *layout.openings)))  # at which a call lacks its last brackets
    torn = Torn()
    parameters_of = cache(lambda name: Parameters(schemas.get(name, {})))  # which calls of one tool share

    def new_body(start: str, tool: str) -> Body:
        if form == "pythonic":
            return PythonList(schemas, TAGS, is_further=not start)
        if start != layout.start:
            return InnerCall(schemas, ends, tool if form in _HEADS else "")
        if form in XML_TAGS:
            return XmlCall(XML_TAGS[form], schemas, parameters_of, torn)
        if form in _HEADS:
            return NamedCall(schemas, ends, _HEADS[form])
        return PythonObject(schemas, JsonCall(schemas, ends))

    further = tuple(f"{name}(" for name in schemas) if form == "pythonic" else ()
    closings = tuple(filter(is_closing, layout.tags))
    heads = list(_heads_on_line(form, schemas)) if closings or layout.begins_with_calls else []
    space = ANY_SPACE if form == "pythonic" else JSON_SPACE

    def new_line_body() -> Body:
        if form == "pythonic":
            return LineCalls(PythonList(schemas, TAGS), following=("[", *further))
        value = JsonCall(schemas, TAGS)
        if layout.begins_with_calls:
            return LineCalls(value, following=("[", "{"))
        return LineCalls(value, closings=closings)

    signs = tuple({str(head[0]): None for head in heads})
    on_line = OnLine(signs, lambda text, at: begins(text, at, heads, space), new_line_body)
    return CallParser(layout, new_body, TAGS, again, further, on_line)


def _heads_on_line(form: Format, names: Iterable[str]) -> Iterator[Head]:
    """What calls behind text begin with."""
    if form == "pythonic":
        yield "[", tuple(names), "("
        return
    spelt = tuple(map(json.dumps, names))
    for lead in [("[", "{")] if form == "xlam" else [("{",), ("[", "{")]:
        for key in ("arguments", "parameters"):
            for between in ("", ",", ",,", ",}", "},", "}", "}{", "},{", "};{"):  # its bracket may come too early
                yield (*lead, '"name"', ":", spelt, *between, f'"{key}"', ":", ("{", '"'))
            yield (*lead, f'"{key}"', ":", ("{", '"'))


def _reads(form: Format, shown: str) -> bool:
    """Whether this text is the call of PROBE in that format, and nothing else."""
    name, arguments = PROBE
    layout = LAYOUTS[form]
    if any(tag in shown for tag in (*TAGS, *_OWN_TAGS) if not is_closing(tag) and tag not in layout.tags):
        return False  # of another form, which beside a call is passed over
    if layout.is_begun and not shown.startswith(layout.start):
        return False
    parser = new_parser(form, {name: {}})
    events = [*parser.feed(_AFTER.sub("", shown)), *parser.finish()]
    match [event for event in events if not isinstance(event, str) or event.strip()]:
        case [Begin(called), *pieces, End()] if called == name:
            found = json.loads("".join(piece.text for piece in pieces if isinstance(piece, Arguments)))
            return {key: str(value) for key, value in found.items()} == {key: str(arguments[key]) for key in arguments}
    return False
