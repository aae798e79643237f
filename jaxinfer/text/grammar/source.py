"""What an answer must be, as a client says it, and the text that llguidance compiles: its dialect of Lark."""

import copy
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.grammar.apart import leave_out_counts
from jaxinfer.text.grammar.bounds import fractions, hold_bounds
from jaxinfer.text.grammar.counts import settle_counts
from jaxinfer.text.grammar.doubles import spelling, spelling_of_integer
from jaxinfer.text.grammar.ecma import as_ecma
from jaxinfer.text.grammar.empty import with_empty_written
from jaxinfer.text.grammar.endless import may_recur, without_endless
from jaxinfer.text.grammar.finite import list_finite_names
from jaxinfer.text.grammar.flat import with_flat_counts
from jaxinfer.text.grammar.formats import narrow_format
from jaxinfer.text.grammar.misread import misread
from jaxinfer.text.grammar.parts import parts, placeless, without_unused
from jaxinfer.text.grammar.quoting import quotable
from jaxinfer.text.grammar.readable import make_readable
from jaxinfer.text.grammar.repeated import LISTS, respelt
from jaxinfer.text.tools.opening import Opening

Kind = Literal["json_schema", "regex", "choice", "grammar", "structural_tag", "tools"]
MAX_SPACES = 8  # between two signs of JSON; more, and a model that is lost fills its answer with them
_SPACE = rf"[\x20\x0A\x0D\x09]{{1,{MAX_SPACES}}}"
GUIDANCE = tuple(  # how schemas are read; strict or not
    {"whitespace_pattern": _SPACE, "coerce_one_of": not strict, "lenient": not strict} for strict in (False, True)
)
NO_CODES = {**GUIDANCE[True], "json_allowed_escapes": 'nrbtf\\"'}  # and no \\u0061, which is an a otherwise spelt
MAX_TEXT_CHARS = 2 << 20  # of a grammar as it is compiled: structural tags and definitions can be written many times
_START, _JSON = "%llguidance {}\nstart: ", "%json "
JSON_SCHEMA = _START + _JSON  # with which a grammar that is one schema begins; the schema follows
_NUMBER = re.compile(  # or a string, of what json.dumps writes; integers of 64 bits are read as they are
    r'"[^"\\]*(?:\\.[^"\\]*)*"|(?P<float>-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+))|(?P<integer>-?\d{20,})'
)
_COUNTS = {f"{end}{what}" for end in ("min", "max") for what in ("Length", "Items", "Properties")}
_MAY_CHANGE = re.compile(  # as _as_meant writes it
    r'\d{10}|\d[eE]|"format": "(?:date|time|hostname)|'
    r'"(?:pattern|exclusiveM|propertyN|m(?:in|ax)P|\$?id": "|\$ref": "[^"]+(?:[^!-~]|[#%<>[\]\\^`{|}])|'
    r'\$schema": "(?!http(?:s://json-schema\.org/draft/2020-12|://json-schema\.org/draft-07)/schema#?"))'
)
_NOTE = "as it is written here: "  # begins the comment of a part that `guided` has changed
_MAX_COUNT = (1 << 32) - 1
# Characters of a schema that is searched for parts without an end: each argument of a tool has all definitions.
_MAX_CUT = 2**16
AS_SENT = "\n# as sent"  # ends a grammar that a client wrote, which may be ambiguous as none of ours is
ANY_TEXT = r"TEXT: /(.|\n)*/"


class Constraint(msgspec.Struct, frozen=True):
    """What an answer must be.

    value: JSON for json_schema, choice (a list of texts) and structural_tag; the pattern or grammar itself otherwise.
    strict: whatever of a schema cannot be enforced is refused; otherwise it is left out with a warning.
    calls: grammar of the tool calls that the answer may be instead, or must be where the kind is tools.
    param: the client's name for it.
    after: it begins after this token or text, and only if that comes: of calls that need not be made. What cannot be
    held to is left free then, and nothing is refused, unless it is strict.
    warnings: what of it is left out already.    frees: no call is due, so that a tool which is not strict is left free
    where its schema cannot be compiled.
    lead: what a schema's, a pattern's or a choice's text stands behind, as the model writes text.
    """

    kind: Kind
    value: str = ""
    strict: bool = False
    calls: str | None = None
    param: str = ""
    after: int | Opening | None = None
    warnings: tuple[str, ...] = ()
    frees: bool = False
    lead: str = ""

    @property
    def may_be_left(self) -> bool:
        """Whether nobody has asked for it."""
        return self.after is not None and not self.strict


def source_of(constraint: Constraint, control_tokens: Mapping[str, int]) -> str:
    """The grammar's text. control_tokens: spellings that are one token each. A client's grammar is Lark here, as which
    trial.py writes llama.cpp's.

    Raises InvalidRequest (or RecursionError) for what cannot be written as one; whether it compiles is not known yet.
    """
    match constraint.kind:
        case "tools":
            assert constraint.calls is not None, "tools come as the grammar of their calls"
            return constraint.calls
        case "grammar":
            return constraint.value + AS_SENT
        case "structural_tag":
            return _tags(json.loads(constraint.value), constraint.strict, control_tokens)
    body = f"{quoted(constraint.lead)} ({_body(constraint)})" if constraint.lead else _body(constraint)
    if constraint.calls is None:
        return f"{_START}{body}"
    calls = constraint.calls.replace("\nstart: ", "\ncalls: ", 1)
    return f"{calls}\nstart: calls | answer\nanswer: {body}"


def guided(schema: Any, *, strict: bool) -> str:
    """A schema as JSON with our way of reading it: bounded white space, and unless strict what can be kept of it."""
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    written = json.dumps(schema := {**schema, "x-guidance": GUIDANCE[strict]}, ensure_ascii=False)
    if ('"$defs"' in written or '"definitions"' in written) and (read := without_unused(schema)) is not schema:
        written = json.dumps(schema := read, ensure_ascii=False)
    if strict and LISTS.search(written) and respelt(schema):
        written = json.dumps(schema := {**schema, "x-guidance": NO_CODES}, ensure_ascii=False)
    if '"$ref"' in written and len(written) <= _MAX_CUT:
        written = json.dumps(schema := with_empty_written(schema), ensure_ascii=False)
    if '"$ref"' in written and len(written) <= _MAX_CUT and may_recur(schema, written):
        written = json.dumps(schema := without_endless(schema), ensure_ascii=False)
    if _MAY_CHANGE.search(written):
        written = json.dumps(_as_meant(schema, strict=strict), ensure_ascii=False)
    return spelt_for_guidance(written)


def spelt_for_guidance(written: str) -> str:
    """A schema in JSON, with its numbers as llguidance reads them as themselves."""
    return _NUMBER.sub(_spelt_number, written)


def _as_meant(schema: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    """The same schema, written so that llguidance reads it as it is."""
    schema = copy.deepcopy(schema)
    list_finite_names(schema)
    if any("minProperties" in part or "maxProperties" in part for part in placeless(schema)):
        schema = with_flat_counts(schema)
    beside = fractions(placeless(schema))
    for part in placeless(schema):
        changes = make_readable(part, strict=strict) + hold_bounds(part, beside)
        note(part, changes + settle_counts(part, strict=strict), strict)
        if isinstance(part.get("pattern"), str):
            part["pattern"] = quotable(as_ecma(part["pattern"]))
        if isinstance(names := part.get("patternProperties"), dict):
            part["patternProperties"] = _joined((quotable(as_ecma(name)), below) for name, below in names.items())
        narrow_format(part)
        part.update(dict.fromkeys(_too_large(part), _MAX_COUNT))
    for part, changes in [] if strict else leave_out_counts(schema):
        note(part, changes, strict)
    return schema


def note(part: dict[str, Any], changes: list[str], strict: bool) -> None:
    """Write down what a part does not say any more, for `notes_of`."""
    if changes and not strict:
        before = str(part.get("$comment"))
        part["$comment"] = f"{before}; " * before.startswith(_NOTE) or _NOTE
        part["$comment"] += "; ".join(changes)


def notes_of(schema: Any) -> list[str]:
    """What a schema that `guided` wrote does not hold answers to, with its place; strict or not known: nothing."""
    found = [(part.get("$comment"), place) for part, place in parts(schema)] if isinstance(schema, dict) else []
    return [
        f"{note.removeprefix(_NOTE)}, at {ascii(place)}"[:200]
        for note, place in found
        if isinstance(note, str) and note.startswith(_NOTE)
    ]


def uncounted(schema: dict[str, Any]) -> str:
    """The first count of a strict schema that no answer can be held to, why and where; "" where none is found."""
    schema = copy.deepcopy(schema)
    for part in placeless(schema):
        note(part, settle_counts(part, strict=False), strict=False)
    for part, changes in leave_out_counts(schema):
        note(part, changes, strict=False)
    return next((note.replace("left out", "not counted", 1) for note in notes_of(schema) if "Properties" in note), "")


def _joined(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """By name; of those of one name all hold."""
    found: dict[str, Any] = {}
    for name, below in named:
        found[name] = {"allOf": [found[name], below]} if name in found else below
    return found


def _too_large(part: dict[str, Any]) -> list[str]:
    """Lengths beyond what the library counts, and any answer holds."""
    counts = ((name, part[name]) for name in part.keys() & _COUNTS)
    return [name for name, count in counts if isinstance(count, int | float) and _MAX_COUNT < count < math.inf]


def _spelt_number(found: re.Match[str]) -> str:
    """As llguidance reads it as itself. An integer where it is one: to JSON Schema 3.0 is 3, and llguidance takes no
    3.0 as a length."""
    if found["integer"] is not None:
        return spelling_of_integer(int(found["integer"])) or found[0]
    if found["float"] is None:
        return found[0]
    number = float(found["float"])
    is_integer = abs(number) < 1 << 63 and number.is_integer()
    return str(int(number)) if is_integer else spelling(number) or found[0]


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # which llguidance's lexer refuses


def _body(constraint: Constraint) -> str:
    if constraint.kind == "json_schema":
        return f"{_JSON}{guided(json.loads(constraint.value), strict=constraint.strict)}"
    if constraint.kind == "choice":
        return " | ".join(quoted(option) for option in json.loads(constraint.value))
    if why := misread(constraint.value):
        raise InvalidRequest(why)
    from llguidance import regex_to_lark

    return f"/{regex_to_lark(constraint.value, 'd')}/"


def _tags(asked: dict[str, Any], strict: bool, control_tokens: Mapping[str, int]) -> str:
    """Free text; what follows a trigger is one of the structures that begin with it. As vLLM and SGLang have it."""
    lines = ["%llguidance {}", ANY_TEXT, "tail: TEXT"]
    names = []
    for number, trigger in enumerate(asked["triggers"]):
        if trigger in control_tokens:
            opening = f"TEXT <[{control_tokens[trigger]}]>"
        else:
            lines.append(f"opening_{number}[lazy]: TEXT {quoted(trigger)}")
            opening = f"opening_{number}"
        structures = [one for one in asked["structures"] if one["begin"].startswith(trigger)]
        bodies = [
            f"{_spelt(one['begin'][len(trigger) :], control_tokens)} %json {guided(one['schema'], strict=strict)} "
            f"{_spelt(one['end'], control_tokens)}"
            for one in structures
        ]
        lines.append(f"tag_{number}: {opening} ({' | '.join(bodies)})")
        names.append(f"tag_{number}")
    lines.insert(1, f"start: ({' | '.join(names)})* tail")
    return "\n".join(lines)


def _spelt(text: str, control_tokens: Mapping[str, int]) -> str:
    if text in control_tokens:
        return f"<[{control_tokens[text]}]>"
    return quoted(text) if text else ""
