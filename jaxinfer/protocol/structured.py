"""What a request says of its answer's form, under all the names that clients know, as one Constraint."""

import json
from collections.abc import Callable
from typing import Any, get_origin

import msgspec

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.doubles import check_json, check_odd, read_json
from jaxinfer.protocol.null_keywords import without_nulls
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.validate import Verbatim, check_unicode, invalid, show, unsupported
from jaxinfer.text.grammar.source import Constraint, Kind

MAX_GRAMMAR_BYTES = 1048576
MAX_CHOICES = 1024
MAX_TAGS = 128  # structures, and triggers, each of which is looked for in each of those
FIELDS: tuple[Kind, ...] = ("json_schema", "regex", "choice", "grammar", "structural_tag")
ANY_OBJECT = {"type": "object"}
# vLLM's older names and SGLang's
OTHER_NAMES: dict[str, Kind] = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "ebnf": "grammar",
}
_INNER = {"json": "json_schema"} | {name: str(name) for name in FIELDS[1:]}  # of structured_outputs
STRUCTURED = frozenset({"response_format", "structured_outputs", "guided_json_object", *OTHER_NAMES})


def read_structured(body: dict[str, Any]) -> dict[str, Any]:
    """A body's fields of SamplingParams, whatever they are called in it. Raises InvalidRequest."""
    given = {name: body[name] for name in STRUCTURED if body.get(name) is not None}
    found: dict[str, Any] = {name: body[name] for name in FIELDS if body.get(name) is not None}
    named = dict.fromkeys(found, found)
    for name, value in given.items():
        if read := _read(name, value):
            named[name] = read
            found |= read
    if len(named) > 1:
        raise InvalidRequest(
            f"a request may constrain its answer in one way, got {', '.join(sorted(named))}; keep one of them",
            param=sorted(named)[0],
            code="invalid_value",
        )
    for name, read in named.items():
        for kind in FIELDS:
            if kind in read:
                _value(kind, read[kind], _place(name, kind, body.get(name)))  # refused under the client's name for it
                found["form_field"] = name
    return found


def _read(name: str, value: Any) -> dict[str, Any]:
    if name in OTHER_NAMES:
        return {OTHER_NAMES[name]: value}
    if name == "guided_json_object":
        return {"json_schema": ANY_OBJECT} if _flag(name, value) else {}
    if not isinstance(value, dict):
        raise invalid(name, "an object", value, cure="send one, or leave it out")
    return _read_format(value) if name == "response_format" else _read_outputs(value)


def _place(name: str, kind: Kind, value: Any) -> str:
    """Where in the body the client has put a schema, so that what is wrong within it goes by its path."""
    if kind != "json_schema" or not isinstance(value, dict):
        return name
    if name == "structured_outputs":
        return f"{name}.json"
    if name != "response_format":
        return name
    return f"{name}.json_schema.schema" if isinstance(value.get("json_schema"), dict) else f"{name}.schema"


def _read_format(value: dict[str, Any]) -> dict[str, Any]:
    kind = value.get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": ANY_OBJECT if value.get("schema") is None else value["schema"]}
    if kind == "json_schema":
        inner = value if value.get("json_schema") is None else value["json_schema"]  # flat, as the Responses API has it
        if not isinstance(inner, dict):
            raise invalid("response_format.json_schema", "an object with a schema", inner, cure="send its schema in it")
        is_flat = inner is value and value.keys() & {"name", "schema", "strict"}
        place = "response_format" if is_flat else "response_format.json_schema"
        schema = inner.get("schema")
        if schema is None:
            raise invalid(f"{place}.schema", "a JSON schema", schema, cure="send one")
        strict = inner.get("strict")
        return {"json_schema": schema, "strict_schema": strict is not None and _flag(f"{place}.strict", strict)}
    if kind == "structural_tag":
        return {"structural_tag": value}
    if kind in ("regex", "choice", "grammar"):
        return {kind: value.get(kind, value.get("pattern"))}
    raise invalid(
        "response_format.type",
        "text, json_object, json_schema, structural_tag, regex, choice or grammar",
        kind,
        cure="leave response_format out for text",
    )


def _read_outputs(value: dict[str, Any]) -> dict[str, Any]:
    """vLLM's structured_outputs."""
    given = {name: inner for name, inner in value.items() if inner is not None}
    for name in given.keys() - _INNER.keys() - {"json_object", "whitespace_pattern", "disable_any_whitespace"}:
        raise unsupported(f"structured_outputs.{name[:40]}")
    for name in given.keys() & {"whitespace_pattern", "disable_any_whitespace"}:
        if given[name]:
            raise unsupported(f"structured_outputs.{name}")
    found = {ours: given[theirs] for theirs, ours in _INNER.items() if theirs in given}
    if "json_object" in given and _flag("structured_outputs.json_object", given["json_object"]):
        found = {**found, "json_schema": ANY_OBJECT} if "json_schema" not in found else {**found, "json_object": True}
    if len(found) != 1:
        got = Verbatim(f"{len(found)} of them")
        raise invalid(
            "structured_outputs",
            f"an object with one of {', '.join(_INNER)} or json_object",
            got,
            cure="keep one of them",
        )
    return found


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise invalid(name, "true or false", value, cure="leave it out")
    return value


def constraint_of(params: SamplingParams) -> Constraint | None:
    """What the answer must be; None: anything. Raises InvalidRequest."""
    given = [name for name in FIELDS if getattr(params, name) is not None]
    if not given:
        return None
    if len(given) > 1:
        message = f"an answer may be constrained in one way, got {', '.join(given)}; keep one of them"
        raise InvalidRequest(message, param=given[1], code="invalid_value")
    (kind,) = given
    name = params.form_field or kind
    return Constraint(kind, _value(kind, getattr(params, kind), name), params.strict_schema, param=name)


def _value(kind: Kind, given: Any, name: str) -> str:
    """Constraint.value of a field that the client calls `name`."""
    check_unicode(given, name)
    return _bounded(_READERS[kind](given, name), name)


def _bounded(value: str, name: str) -> str:
    check_unicode(value, name)
    size = len(value.encode())
    if size > MAX_GRAMMAR_BYTES:
        raise invalid(name, f"at most {MAX_GRAMMAR_BYTES} bytes", Verbatim(f"{size}"), cure="send a smaller one")
    return value


def _schema(given: Any, name: str) -> str:
    """JSON of a schema: an object, its JSON, a pydantic model, or a type that msgspec knows."""
    if isinstance(given, str):
        given = _decoded(given, name, "a JSON schema")
    elif (make := getattr(given, "model_json_schema", None) or getattr(given, "json_schema", None)) is not None:
        given = make()
    elif isinstance(given, type) or get_origin(given) is not None:
        try:
            given = msgspec.json.schema(given)
        except TypeError as error:
            raise invalid(
                name, f"a schema or a type that has one ({error})", Verbatim(repr(given)), cure="give its schema"
            ) from error
    if not isinstance(given, dict) and given is not True:
        raise invalid(name, "a JSON schema, an object", given, cure="send one")
    check_json(given, name)
    return msgspec.json.encode(without_nulls(given)).decode()


def _decoded(text: str, name: str, what: str) -> Any:
    try:
        value, odd = read_json(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise invalid(name, f"{what} ({error})", text, cure="mend it") from error
    check_odd(value, odd, name)
    return value


def _choice(given: Any, name: str) -> str:
    if not isinstance(given, list | tuple) or not 1 <= len(given) <= MAX_CHOICES:
        raise invalid(name, f"a list of 1 to {MAX_CHOICES} texts", Verbatim(show(given)), cure="send some")
    for option in given:
        if not isinstance(option, str):
            raise invalid(name, "a list of texts", option, cure="send texts alone")
    return msgspec.json.encode(list(given)).decode()


def _text(given: Any, name: str) -> str:
    if not isinstance(given, str) or not given:
        raise invalid(name, "a text of at least one character", given, cure="send one, or leave it out")
    return given


class _Tag(msgspec.Struct):
    """One structure: JSON of a schema between two texts."""

    begin: str
    schema: dict[str, Any]
    end: str


class _Tags(msgspec.Struct):
    """SGLang's and vLLM's structural tags."""

    structures: list[_Tag]
    triggers: list[str]


def _structural_tag(given: Any, name: str) -> str:
    if isinstance(given, str):
        given = _decoded(given, name, "JSON")
    if isinstance(given, dict) and "format" in given:
        raise unsupported("structural_tag.format", cure="send structures and triggers", param=name)
    check_json(given, name)
    try:
        tags = msgspec.convert(given, _Tags)
    except msgspec.ValidationError as error:
        raise invalid(
            name, f"an object with structures and triggers ({error})", given, cure="add what is missing"
        ) from error
    if not tags.triggers or not all(tags.triggers) or not tags.structures:
        raise invalid(name, "made of at least one structure and trigger, none empty", given, cure="add one")
    if max(len(tags.triggers), len(tags.structures)) > MAX_TAGS:
        got = Verbatim(f"{len(tags.structures)} and {len(tags.triggers)}")
        raise invalid(name, f"made of at most {MAX_TAGS} structures and as many triggers", got, cure="leave some out")
    for tag in tags.structures:
        tag.schema = without_nulls(tag.schema)
    text = _bounded(msgspec.json.encode(tags).decode(), name)
    for tag in tags.structures:
        if not any(tag.begin.startswith(trigger) for trigger in tags.triggers):
            raise invalid(name, "made of structures that begin with a trigger", tag.begin, cure="add a trigger for it")
    for trigger in tags.triggers:
        if not any(tag.begin.startswith(trigger) for tag in tags.structures):
            raise invalid(name, "made of triggers that begin a structure", trigger, cure="leave that one out")
    return text


_READERS: dict[str, Callable[[Any, str], str]] = {
    "json_schema": _schema,
    "regex": _text,
    "choice": _choice,
    "grammar": _text,
    "structural_tag": _structural_tag,
}
