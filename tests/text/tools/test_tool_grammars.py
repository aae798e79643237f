"""The grammars of tool calls as llguidance reads them: each form lets through calls of the tools' schemas, and no
others; what it lets through its reader reads as the same arguments.
"""

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import InvalidRequest
from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.tools.arguments import shapes
from jaxinfer.text.tools.formats import CALL, END_CALL, SEPARATOR, XML_TAGS
from jaxinfer.text.tools.formats import FORMATS as FORMS
from jaxinfer.text.tools.grammar import loosened, tool_grammar
from jaxinfer.text.tools.reader import ToolReader, ToolUse
from jaxinfer.text.tools.schema_types import Values
from tests.support.grammars import takes
from tests.support.schemas.tools import TOOLS

BY_NAME = (*XML_TAGS, "pythonic")  # forms that write each argument by itself, of those that the schema names
# whose schemas ask something of a text beside its being one, which those of XML write as it is
OF_TEXTS = {
    name
    for name, (schema, *_) in TOOLS.items()
    for inner in schema.get("properties", {}).values()
    if inner.keys() & {"pattern", "format", "minLength", "maxLength"}
}


def written(form: str, name: str, arguments: dict[str, Any]) -> str:
    """A call as a model of that form writes it."""
    match form:
        case "hermes":
            return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
        case "llama3_json":
            return f'{{"name": "{name}", "parameters": {json.dumps(arguments)}}}'
        case "functionary":
            return f"<function={name}>{json.dumps(arguments)}</function>"
        case "deepseek_v3":
            inner = f"{CALL}function{SEPARATOR}{name}\n```json\n{json.dumps(arguments)}\n```{END_CALL}"
            return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"
        case "functionary_v3_2":
            return f"{name}\n{json.dumps(arguments)}"
        case "firefunction_v2":
            return f' functools[{{"name": "{name}", "arguments": {json.dumps(arguments)}}}]'
        case "xlam":
            return f'[{{"name": "{name}", "arguments": {json.dumps(arguments)}}}]'
        case "llama_nemotron_json":
            return f'<TOOLCALL>[{{"name": "{name}", "arguments": {json.dumps(arguments)}}}]</TOOLCALL>'
        case "qwen2_5_coder":
            return f'<tools>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tools>'
        case "qwen3_coder":
            texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
            inner = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
            return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"
        case "minicpm5":
            texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
            inner = "".join(f'<param name="{k}">{in_cdata(v, arguments[k])}</param>' for k, v in texts.items())
            return f'<function name="{name}">{inner}</function>'
    return f"[{name}({', '.join(f'{key}={json.dumps(value)}' for key, value in arguments.items())})]"


def in_cdata(text: str, value: Any) -> str:
    """A text that XML could not hold as it is."""
    return f"<![CDATA[{text}]]>" if isinstance(value, str) and re.search(r"[<&\n]", text) else text


def in_order(schema: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: arguments[key] for key in schema.get("properties", {}) if key in arguments}


def read(form: str, use: ToolUse, text: str) -> list[tuple[str, Any]]:
    reader = ToolReader(form, use)
    calls: dict[int, list[str]] = {}
    names: dict[int, str] = {}
    for _, deltas in (reader.feed(text), reader.finish()):
        for delta in deltas:
            calls.setdefault(delta.index, []).append(delta.arguments)
            names.setdefault(delta.index, delta.name or "")
    return [(names[index], json.loads("".join(parts))) for index, parts in calls.items()]


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", TOOLS)
def test_calls_of_the_schema_pass_and_are_read_again_and_others_do_not(form, name, strict, vocabulary, tokenizer):
    schema, valid, invalid = TOOLS[name]
    use = ToolUse({name: schema}, due=True, strict=frozenset([name] if strict else ()))
    if form in XML_TAGS and name in OF_TEXTS and strict:
        with pytest.raises(InvalidRequest, match="must be one that can be enforced"):
            tool_grammar(form, use, due=True, control_tokens=tokenizer.control_tokens)
        return
    matcher = new_matcher(vocabulary, tool_grammar(form, use, due=True, control_tokens=tokenizer.control_tokens))
    properties = schema.get("properties", {})

    def can_be_written(arguments: Any) -> bool:
        return isinstance(arguments, dict) and (form not in BY_NAME or arguments.keys() <= properties.keys())

    for arguments in filter(can_be_written, valid):
        ordered = in_order(schema, arguments) if form in BY_NAME else arguments
        text = written(form, name, ordered)
        assert takes(matcher, tokenizer, text), text
        assert read(form, use, text) == [(name, arguments)]
    for arguments in filter(can_be_written, invalid):
        ordered = in_order(schema, arguments) if form in BY_NAME else arguments
        text = written(form, name, ordered)
        if read(form, use, text) == [(name, ordered)] and not (form in XML_TAGS and name in OF_TEXTS):
            assert not takes(matcher, tokenizer, text), text


@pytest.mark.parametrize("form", BY_NAME)
def test_definitions_that_stand_with_each_argument_are_not_written_without_end(form):
    """Tools of 250 KB would be a grammar of half a gigabyte."""
    properties = {f"p{i}": {"$ref": "#/$defs/x"} for i in range(4000)}
    schema = {"type": "object", "properties": properties, "$defs": {"x": {"type": "object", "title": "x" * 130_000}}}
    with pytest.raises(InvalidRequest, match="written as a grammar of at most"):
        tool_grammar(form, ToolUse({"f": schema}, due=True), due=True, control_tokens={})


def test_alternatives_that_refer_to_themselves_are_looked_at_once():
    own = {"$ref": "#/$defs/x"}
    whole = {"$defs": {"x": {"anyOf": [*[own] * 9, {"type": "integer"}, {"const": "a"}]}}}
    assert Values(whole).types(own) == {"integer", "string"}


NOT_PYTHON = {
    "type": "object",
    "properties": {"from": {"type": "string"}, "user-id": {"type": "integer"}, "$top": {"type": "number"}},
    "required": ["from", "user-id", "$top"],
}


@pytest.mark.parametrize("form", FORMS)
def test_a_call_that_is_due_is_read_whatever_its_names(form, vocabulary, tokenizer):
    use = ToolUse({"get-weather": NOT_PYTHON, "7.up": {}}, due=True)
    matcher = new_matcher(vocabulary, tool_grammar(form, use, due=True, control_tokens=tokenizer.control_tokens))
    for name, arguments in (("get-weather", {"from": "e/\n", "user-id": 1, "$top": 2.5}), ("7.up", {})):
        text = written(form, name, arguments)
        assert takes(matcher, tokenizer, text), text
        assert read(form, use, text) == [(name, arguments)]


REF = {"$ref": "#/$defs/Args"}
NODE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "kids": {"type": "array", "items": REF}},
    "required": ["name"],
    "additionalProperties": False,
}
ALTERNATIVES = [
    {"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind", "x"]},
    {"properties": {"kind": {"const": "b"}, "x": {"type": "string"}}, "required": ["kind"]},
    {"type": "null"},
]
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
# what stands at a schema's root beside its properties, and in what they refer to: some of its values, and of no values
ROOTS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "a reference, as pydantic writes what is recursive": (
        REF | {"$defs": {"Args": NODE}},
        [{"name": "a"}, {"name": "a", "kids": [{"name": "b", "kids": []}]}],
        [{}, {"name": "a", "kids": [{}]}, {"kids": []}],
    ),
    "a name that is required alone": (
        {"properties": {"a": {"type": "integer"}}, "required": ["b"], "additionalProperties": {"type": "boolean"}},
        [{"a": 1, "b": True}, {"b": False}],
        [{"a": 1}, {"b": 1}],
    ),
    "alternatives": (
        {"anyOf": ALTERNATIVES},
        [{"kind": "a", "x": 1}, {"kind": "b", "x": "1"}, {"kind": "b"}],
        [{"kind": "a", "x": "1"}, {"kind": "b", "x": 1}, {"kind": "a"}, {}],
    ),
    "what is required by turns": (
        {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "anyOf": [
            {"required": ["a"]}, {"required": ["b"]}
        ]},
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 2}],
        [{}],
    ),
    "parts that are all to hold": (
        {"allOf": [POINT | {"additionalProperties": True}, {"properties": {"y": {"$ref": "#/allOf/0/properties/x"}}}]},
        [{"x": 1}, {"x": 1, "y": 2}],
        [{"y": 2}, {"x": 1, "y": [2]}],
    ),
    "a reference to the whole": (
        POINT | {"properties": {"x": {"type": "integer"}, "more": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
        [{"x": 1, "more": {"x": 2, "more": None}}, {"x": 1}],
        [{"x": 1, "more": {}}, {"x": 1, "more": {"x": 2, "more": 5}}],
    ),
    "a reference to another property": (
        POINT | {"properties": {"x": {"type": "integer"}, "y": {"items": {"$ref": "#/properties/x"}, "type": "array"}}},
        [{"x": 1, "y": [2]}],
        [{"x": 1, "y": ["2"]}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", BY_NAME)
@pytest.mark.parametrize("root", ROOTS)
def test_a_schema_s_root_is_held_to(form, root, vocabulary, tokenizer):
    schema, valid, invalid = ROOTS[root]
    use = ToolUse({"f": schema}, due=True, strict=frozenset({"f"}))
    matcher = new_matcher(vocabulary, tool_grammar(form, use, due=True, control_tokens=tokenizer.control_tokens))
    for arguments in [*valid, *invalid]:
        assert jsonschema_rs.is_valid({"type": "object"} | schema, arguments) == (arguments in valid)
        text = form_of(form, schema, arguments)
        assert takes(matcher, tokenizer, text) == (arguments in valid), text
        assert arguments in invalid or read(form, use, text) == [("f", arguments)]


def form_of(form: str, schema: dict[str, Any], arguments: dict[str, Any]) -> str:
    """With JSON's quotes around a text where other types may stand in its place."""
    by_kind = form in XML_TAGS and "anyOf" in schema
    return written(form, "f", {k: json.dumps(v) if by_kind and k == "x" else v for k, v in arguments.items()})


UNHELD: dict[str, tuple[dict[str, Any], Any]] = {
    "minProperties": ({"minProperties": 1}, {"a": 1}),
    "patternProperties": ({"patternProperties": {"^a": {"type": "integer"}}, "minProperties": 1}, {"a": 1}),
    "if": ({"if": {}, "then": {"required": ["b"]}}, {"b": 2}),
    "const": ({"const": {"a": 1}}, {"a": 1}),
    "$ref": ({"$ref": "https://example.com/args.json"}, {"a": 1}),
    "anyOf": ({"anyOf": [{"$ref": "#/anyOf/0"}]}, {"a": 1}),
    "the name": ({"properties": {"a": {"type": "integer"}, "b>,": {}}}, {"a": 1}),
    "a contradiction": ({"required": ["a"], "additionalProperties": False}, {"a": 1}),
}


@pytest.mark.parametrize("form", BY_NAME)
@pytest.mark.parametrize("keyword", UNHELD)
def test_what_a_form_cannot_hold_is_left_free_with_a_warning_or_refused_by_name(form, keyword, vocabulary, tokenizer):
    schema, arguments = UNHELD[keyword]
    loose, strict = ToolUse({"f": schema}, due=True), ToolUse({"f": schema}, due=True, strict=frozenset("f"))
    control_tokens = tokenizer.control_tokens
    law = "must be one that can be enforced, " + re.escape({"anyOf": "$ref"}.get(keyword, keyword))
    with pytest.raises(InvalidRequest, match=rf"{law}.* in 'f' is not"):
        tool_grammar(form, strict, due=True, control_tokens=control_tokens)
    matcher = new_matcher(vocabulary, tool_grammar(form, loose, due=True, control_tokens=control_tokens))
    for texts in (arguments, {}, {"x-y": "a", "from": [1]}):
        text = written(form, "f", texts)
        assert takes(matcher, tokenizer, text), text
        assert [name for name, _ in read(form, loose, text)] == ["f"]
    (warning,) = loosened(form, loose)
    assert warning.startswith("arguments of f are not held to their schema: ") and not loosened(form, strict)


OPEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "of texts": ({"type": "object", "additionalProperties": {"type": "string"}}, {"A": "b", "C": ""}),
    "of anything": ({"additionalProperties": True, "properties": {"a": {"type": "integer"}}}, {"a": 1, "B": "c"}),
    "of numbers, one of which is named": (
        {"additionalProperties": {"type": "integer"}, "properties": {"a": {"type": "string"}}, "required": ["a"]},
        {"a": "1", "B": 2},
    ),
    "of what stands elsewhere": (
        {"$ref": "#/$defs/x", "$defs": {"x": {"additionalProperties": {"$ref": "#/$defs/y"}}, "y": {"type": "number"}}},
        {"A": 1.5},
    ),
    "of all alternatives": (
        {"anyOf": [{"properties": {"a": {}}}, {"unevaluatedProperties": {"type": "boolean"}}]},
        {"B": True},
    ),
}


@pytest.mark.parametrize("form", BY_NAME)
@pytest.mark.parametrize("schema", OPEN)
def test_a_tool_of_open_arguments_may_get_them(form, schema, vocabulary, tokenizer):
    schema, arguments = OPEN[schema]
    use = ToolUse({"f": schema}, due=True)
    matcher = new_matcher(vocabulary, tool_grammar(form, use, due=True, control_tokens=tokenizer.control_tokens))
    text = written(form, "f", arguments)
    assert takes(matcher, tokenizer, text)
    assert read(form, use, text) == [("f", arguments)]
    assert ["additionalProperties" in warning for warning in loosened(form, use)] == [True]


@pytest.mark.parametrize("form", BY_NAME)
@pytest.mark.parametrize(
    "schema", [{"properties": {"a": {}}}, {"properties": {"a": {}}, "additionalProperties": False}]
)
def test_a_tool_that_asks_for_no_other_arguments_is_held_to_those_it_names(form, schema, vocabulary, tokenizer):
    use = ToolUse({"f": schema}, due=True)
    matcher = new_matcher(vocabulary, tool_grammar(form, use, due=True, control_tokens=tokenizer.control_tokens))
    assert takes(matcher, tokenizer, written(form, "f", {"a": 1}))
    assert not takes(matcher, tokenizer, written(form, "f", {"B": 1})) and not loosened(form, use)


def test_a_text_s_keywords_are_seen_wherever_they_stand():
    inner = {"allOf": [{"type": "string"}, {"$ref": "#/$defs/x"}]}
    schema = {"properties": {"a": inner}, "$defs": {"x": {"maxLength": 2}}}
    use = ToolUse({"f": schema}, due=True, strict=frozenset("f"))
    with pytest.raises(InvalidRequest, match="maxLength of 'a' in 'f' is not"):
        tool_grammar("qwen3_coder", use, due=True, control_tokens={})


@pytest.mark.parametrize("keyword", ["not", "if"])
def test_a_strict_text_promises_nothing_that_is_not_kept(keyword):
    use = ToolUse({"f": {"properties": {"a": {keyword: {}}}}}, due=True, strict=frozenset("f"))
    with pytest.raises(InvalidRequest, match=f"{keyword} of 'a' in 'f' is not"):
        tool_grammar("qwen3_coder", use, due=True, control_tokens={})


def test_references_that_multiply_are_followed_once():
    chain = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 9} for i in range(7)}
    schema = {"$ref": "#/$defs/d0", "$defs": chain | {"d7": POINT}}
    (shape,) = shapes(schema, strict=True)
    assert shape.properties == {"x": {"type": "integer"}} and shape.required == {"x"}


NO_SCHEMAS = [None, 5, "string", [], [5], {"a": 5}, -1, True, [[]], {"a": {"type": None}}, "a" * 9]
KEYWORDS = ["type", "properties", "required", "enum", "const", "anyOf", "allOf", "oneOf", "$ref", "$defs", "pattern"]
LIMITS = ["minProperties", "maxProperties", "additionalProperties", "unevaluatedProperties", "items", "definitions"]


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("form", FORMS)
def test_a_schema_that_is_none_is_refused_or_left_to_the_compiler(form, strict):
    """Whatever stands in it, at its root, in what that refers to or in an argument."""
    deep: Any = {"type": "integer"}
    for _ in range(300):
        deep = {"anyOf": [deep]}
    inner = [{keyword: given} for keyword in KEYWORDS + LIMITS for given in NO_SCHEMAS] + [deep, deep | {"$ref": "#"}]
    args = {"$ref": "#/$defs/a"}
    placed = [
        schema | {"$defs": {"a": each}}
        for each in inner
        for schema in ({"properties": {"a": each, "b": args}, "required": ["a"]}, args)
    ]
    for schema in [*inner, *placed]:
        use = ToolUse({"f": schema}, due=True, strict=frozenset("f" if strict else ""))
        try:
            text = tool_grammar(form, use, due=True, control_tokens={})
        except InvalidRequest as refusal:
            too_deep = "nested less deeply" in str(refusal) and "anyOf" in str(schema)
            assert too_deep or (strict and "in 'f' is not" in str(refusal)), (schema, refusal)
        else:
            assert text is not None
        assert read(form, use, "<function=f><parameter=a>1</parameter></function>") or form != "qwen3_coder"


TAGS: dict[str, Any] = {
    "a text": {"type": "string"},
    "a list of texts": {"type": "array", "items": {"type": "string"}},
    "a text or none": {"type": ["string", "null"]},
    "a choice": {"enum": ["</parameter>", "b"]},
}


@pytest.mark.parametrize("value", ["x</parameter>", "</parameter>\n", "x\n</parameter>\ny", '\\"</parameter>', "b"])
@pytest.mark.parametrize("kind", TAGS)
def test_grammar_and_reader_end_an_argument_at_the_same_tag(kind, value, vocabulary, tokenizer):
    """What the grammar takes is read as it was meant."""
    schema = {"properties": {"a": TAGS[kind]}, "required": ["a"]}
    use = ToolUse({"f": schema}, due=True)
    matcher = new_matcher(
        vocabulary, tool_grammar("qwen3_coder", use, due=True, control_tokens=tokenizer.control_tokens)
    )
    meant = [value] if kind == "a list of texts" else value
    raw = meant if kind in ("a text", "a choice") else json.dumps(meant)
    text = written("qwen3_coder", "f", {"a": raw})
    assert takes(matcher, tokenizer, text) == (value == "b" or kind in ("a list of texts", "a text or none"))
    if takes(matcher, tokenizer, text):
        assert read("qwen3_coder", use, text) == [("f", {"a": meant})]


def test_a_strict_choice_must_be_one_that_can_be_written():
    use = ToolUse({"f": {"properties": {"a": TAGS["a choice"]}}}, due=True, strict=frozenset("f"))
    with pytest.raises(InvalidRequest, match="a value of 'a' in 'f' is not"):
        tool_grammar("qwen3_coder", use, due=True, control_tokens={})


COLORS = {"color": {"enum": ["red", "dark blue"]}}
CHOICES: dict[str, Any] = {
    "the only part of all": {"allOf": [{"$ref": "#/$defs/color"}], "default": "red"},
    "constants with titles": {"oneOf": [{"const": "red", "title": "Red"}, {"const": "dark blue", "title": "Blue"}]},
    "lists that share a value": {"anyOf": [{"enum": ["red"]}, {"$ref": "#/$defs/color"}]},
}


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("kind", CHOICES)
def test_a_choice_is_held_wherever_its_values_are_listed(kind, strict, vocabulary, tokenizer):
    schema = {"properties": {"a": CHOICES[kind]}, "required": ["a"], "$defs": COLORS}
    use = ToolUse({"f": schema}, due=True, strict=frozenset("f" if strict else ""))
    grammar = tool_grammar("qwen3_coder", use, due=True, control_tokens=tokenizer.control_tokens)
    for value, fits in (("red", True), ("dark blue", True), ("green", False), ("red or so", False)):
        text = written("qwen3_coder", "f", {"a": value})
        assert takes(new_matcher(vocabulary, grammar), tokenizer, text) == fits
        assert read("qwen3_coder", use, text) == [("f", {"a": value})]


@pytest.mark.parametrize("keyword", ["allOf", "oneOf"])
def test_values_that_several_lists_decide_on_are_refused_if_strict_else_left_free(keyword, vocabulary, tokenizer):
    schema = {"properties": {"a": {keyword: [{"enum": ["red", "blue"]}, {"enum": ["red", "green"]}]}}}
    strict = ToolUse({"f": schema}, due=True, strict=frozenset("f"))
    with pytest.raises(InvalidRequest, match="enum of 'a' in 'f' is not"):
        tool_grammar("qwen3_coder", strict, due=True, control_tokens={})
    loose = ToolUse({"f": schema}, due=True)
    grammar = tool_grammar("qwen3_coder", loose, due=True, control_tokens=tokenizer.control_tokens)
    assert takes(new_matcher(vocabulary, grammar), tokenizer, written("qwen3_coder", "f", {"a": "another"}))


@pytest.mark.parametrize("form", BY_NAME)
@pytest.mark.parametrize("name", ["n" * 200, "$a/b.c:d"])
def test_long_and_odd_names_are_read_as_they_are_written(form, name, vocabulary, tokenizer):
    use = ToolUse({"f": {"properties": {name: {"type": "integer"}}, "required": [name]}}, due=True)
    matcher = new_matcher(vocabulary, tool_grammar(form, use, due=True, control_tokens=tokenizer.control_tokens))
    text = written(form, "f", {name: 1})
    assert takes(matcher, tokenizer, text) and read(form, use, text) == [("f", {name: 1})]


@pytest.mark.parametrize("form", BY_NAME)
@pytest.mark.parametrize("name", ["n" * 300, "a>b", "a, b"])
def test_a_name_that_cannot_be_written_is_refused_or_frees_its_tool(form, name):
    use = ToolUse({"f": {"properties": {name: {}}}}, due=True)
    can = ["a>b"] if form == "pythonic" else ["a, b"]
    assert bool(loosened(form, use)) == (name not in can)


NAMES = ["", " ", "\n", "\t", "\x1c", "a", "=", ",", "<", ">", '"', "'", "(", "]", "{", "\u00a0", "é", ".", "/"]
VALUES = [*NAMES, "</parameter>", "<parameter=b>", "</function>", "<tool_call>", "<function=f>", "1", "null", "[", "\\"]
CONSTS: dict[str, Any] = {
    "const": lambda text: {"const": text},
    "a typed const": lambda text: {"type": "string", "const": text},
    "an alternative": lambda text: {"anyOf": [{"const": text}]},
    "an enum": lambda text: {"type": "string", "enum": [text]},
    "of two types": lambda text: {"type": ["string", "null"], "const": text},
    "a text or a number": lambda text: {"type": ["string", "integer"], "const": text},
}


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("form", BY_NAME)
@settings(max_examples=25)
@given(data=st.data())
def test_what_a_form_is_made_to_write_its_reader_reads_or_it_is_refused(form, strict, vocabulary, data):
    """Whatever the names of arguments and their only values are."""
    name = data.draw(st.lists(st.sampled_from(NAMES), max_size=3).map("".join))
    value = data.draw(st.lists(st.sampled_from(VALUES), max_size=3).map("".join))
    schema = data.draw(st.sampled_from(sorted(CONSTS)).map(CONSTS.__getitem__))(value)
    properties = {name: schema, "b": {"type": "integer"}} if data.draw(st.booleans()) else {name: schema}
    whole = {"type": "object", "properties": properties, "required": [name], "additionalProperties": False}
    use = ToolUse({"f": whole}, parallel=False, due=True, strict=frozenset("f" if strict else ""))
    try:
        matcher = new_matcher(vocabulary, tool_grammar(form, use, due=True, control_tokens={}))
    except InvalidRequest as refusal:
        assert re.search("the name|value of", str(refusal)) and (set(name) - set("aé./") or "<" in value or not name)
        return
    forced = matcher.compute_ff_bytes().decode()
    as_json = json.dumps(value, ensure_ascii=False)
    spelt = [written(form, "f", {name: each}) for each in (value, as_json)]
    texts = spelt if form in XML_TAGS else [f"[f({name}={as_json})]"]
    text = next(text for text in texts if text.startswith(forced))
    assert read(form, use, text) == [("f", {name: value})]


UNWRITABLE = [
    *(("pythonic", name, {}) for name in ("a b", "a=b", "a,b", "")),
    *((form, name, {}) for form in XML_TAGS for name in ("a>", "a<b", "", "a\n", " a", '"a"')),
    *(("minicpm5", name, schema("x")) for name in ('a"b',) for schema in (CONSTS["const"],)),
    ("minicpm5", "a", CONSTS["const"]("x]]></param>y")),
    *(("qwen3_coder", "a", schema("x</parameter>y")) for schema in (CONSTS["const"], CONSTS["an enum"])),
]


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize(("form", "name", "schema"), UNWRITABLE)
def test_a_call_that_is_due_and_cannot_be_written_is_refused(form, name, schema, strict):
    whole = {"type": "object", "properties": {name: schema}, "required": [name]}
    for due in (True, False):
        use = ToolUse({"f": whole}, due=due, strict=frozenset("f" if strict else ""))
        if not due and not strict:
            assert tool_grammar(form, use, due=True, control_tokens={})
            continue
        with pytest.raises(InvalidRequest, match="the name|value of 'a'") as refusal:
            tool_grammar(form, use, due=True, control_tokens={})
        assert ("tool_choice" in str(refusal.value)) == (not strict)


def test_a_choice_of_which_a_value_can_be_written_has_the_others_left_out(vocabulary, tokenizer):
    use = ToolUse({"f": {"properties": {"a": TAGS["a choice"]}, "required": ["a"]}}, due=True)
    grammar = tool_grammar("qwen3_coder", use, due=True, control_tokens=tokenizer.control_tokens)
    assert takes(new_matcher(vocabulary, grammar), tokenizer, written("qwen3_coder", "f", {"a": "b"}))
