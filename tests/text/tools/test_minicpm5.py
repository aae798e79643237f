"""MiniCPM5's form: names in attributes, texts in CDATA or with XML's entities, tags that are special tokens."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from jaxinfer.text.grammar.compiler import new_matcher, new_vocabulary
from jaxinfer.text.reading import Reading
from jaxinfer.text.tokenizer import Tokenizer
from jaxinfer.text.tools.formats import XML_TAGS
from jaxinfer.text.tools.grammar import tool_grammar
from jaxinfer.text.tools.opening import opening_of
from jaxinfer.text.tools.reader import ToolUse, WholeCalls
from tests.support.grammars import takes
from tests.text.samples import byte_level_backend
from tests.text.tools.test_mutated_calls import read

WEATHER = {
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "all": {"type": ["array", "object"]}}
}
SCHEMAS: dict[str, Any] = {"weather": WEATHER, "now": {}}


def call(**values: str) -> str:
    inner = "".join(f'<param name="{key}">{value}</param>' for key, value in values.items())
    return f'<function name="weather">{inner}</function>'


CALLS: list[tuple[str, dict[str, Any]]] = [
    (call(city="<![CDATA[<a>\n</param></function> ]]> &amp;\n]]>"), {"city": "<a>\n</param></function> ]]> &amp;\n"}),
    (call(city="\n<![CDATA[a]]>\n", days="<![CDATA[2]]>"), {"city": "a", "days": 2}),
    (call(city="<![CDATA[a]]>", days="2").replace("]]></param>", "]]>"), {"city": "a", "days": 2}),
    (call(city="<![CDATA[a\n<b>"), {"city": "a\n<b>"}),
    (call(city="<![CDATA[a\n", days="2"), {"city": "a", "days": 2}),
    (call(city="&lt;b&gt; &amp;amp; AT&T; &#x41; &copy;"), {"city": "<b> &amp; AT&T; A &copy;"}),
    (call(city="<b>1 < 2</b>"), {"city": "<b>1 < 2</b>"}),
    (call(all="['a', \"&lt;\", True, None]", days="-1"), {"all": ["a", "&lt;", True, None], "days": -1}),
    (call(all="{'a': {'b': (1, 2)}}"), {"all": {"a": {"b": [1, 2]}}}),
    (call(all='{"a": "</param>\\"&lt;"}'), {"all": {"a": '</param>"&lt;'}}),
    (call(all="[&quot;a&quot;]"), {"all": ["a"]}),
    (call(city="'a'", days="many"), {"city": "'a'", "days": "many"}),
    (call(city="a").replace('"', "'"), {"city": "a"}),
    (call(city="a").replace("><", ">\n  <"), {"city": "a"}),
    (call(city="a").replace("<param", "<arguments><param"), {"city": "a"}),
]


@pytest.mark.parametrize(("text", "arguments"), CALLS)
def test_a_call_is_read_however_its_values_are_written(text, arguments):
    for cuts in ([], list(range(len(text)))):
        _, calls, has_calls = read("minicpm5", text, cuts, SCHEMAS)
        assert (calls, has_calls) == ([("weather", arguments)], True)


@pytest.mark.parametrize("types", [["string", "integer"], ["string", "null"], ["string", "array"]])
@settings(max_examples=30)
@given(value=st.lists(st.sampled_from(['"', "a", " ", "\\", "'", ":", "5"]), min_size=1).map("".join))
def test_quotes_of_a_text_that_may_be_another_value_are_its_own(types, value):
    with contextlib.suppress(ValueError):
        if type(json.loads(value)) in (int, str):
            return
    text = call(city=value)
    schemas = {"weather": {"properties": {"city": {"type": types}}}}
    for cuts in ([], list(range(len(text)))):
        (found,) = read("minicpm5", text, cuts, schemas)[1]
        assert found[1]["city"].strip() == value.strip()


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["a", "<", "&", "\n", "</param>", "&lt;", "<![CDATA[", "]]", ">", " ", '"', "]"])),
    st.data(),
)
def test_a_text_as_the_template_writes_it_is_read_back(parts, data):
    value = "".join(parts)
    if "]]>" in value:  # where CDATA ends for XML; a tag behind it would be one
        return
    text = call(city=XML_TAGS["minicpm5"].written(value))
    for cuts in ([], list(range(len(text))), data.draw(st.lists(st.integers(0, 300), max_size=5))):
        assert read("minicpm5", text, cuts, SCHEMAS) == ("", [("weather", {"city": value})], True)


@pytest.fixture(scope="module")
def special():
    """A tokenizer that has the beginnings and ends of the tags as special tokens, as MiniCPM5's has."""
    backend = byte_level_backend()
    tags = ("<function", "</function>", "<param", "</param>")
    backend.add_special_tokens([AddedToken(tag, normalized=False, special=True) for tag in tags])
    return Tokenizer(backend.to_str().encode())


STRICT = {
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "a<b"]}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
USE = ToolUse({"weather": STRICT, "any": {"minProperties": 1}})
FORCED = [
    (call(city="Oslo", unit="C", days="2"), True),
    (call(city="<![CDATA[1 < 2\n]]>", unit="<![CDATA[a<b]]>") + "\n" + call(city=""), True),
    ('<function name="any"><param name="x y">a &amp; b</param></function>', True),
    (call(city="1 < 2"), False),
    (call(unit="C"), False),
    (call(city="Oslo", unit="F"), False),
    (call(city="Oslo", days="two"), False),
    (call(town="Oslo"), False),
]


@pytest.mark.parametrize(("text", "fits"), FORCED)
def test_masks_hold_a_call_to_its_schema_and_to_the_tokens_of_its_tags(text, fits, special):
    vocabulary = new_vocabulary(special, special.vocab_size, [min(special.special_ids)])
    grammar = tool_grammar("minicpm5", USE, due=True, control_tokens=special.control_tokens)
    assert takes(new_matcher(vocabulary, grammar), special, text) == fits
    spelt = special.encode(text, add_special_tokens=False, plain=True)
    assert new_matcher(vocabulary, grammar).try_consume_tokens(spelt) < len(spelt)
    token = opening_of("minicpm5", USE.schemas, special.control_tokens)
    assert token == special.control_tokens["<function"]
    begun = tool_grammar("minicpm5", USE, due=False, control_tokens=special.control_tokens, begun=True)
    ids = special.encode(text, add_special_tokens=False)
    assert (new_matcher(vocabulary, begun).try_consume_tokens(ids[1:]) == len(ids) - 1) == fits
    assert ids[0] == token


def test_special_tokens_around_calls_are_seen_by_the_reader_alone(special):
    ids = special.encode(f"I look.\n{call(city='Oslo')}", add_special_tokens=False)
    options: dict[str, Any] = {"stop": (), "include_stop": False, "start_after": 0, "verbatim": False, "whole": False}
    for reading, expected in (
        (Reading(form="minicpm5", tools=USE), ("I look.", [("weather", {"city": "Oslo"})])),
        (Reading(form="minicpm5"), ('I look.\n name="weather"> name="city">Oslo', [])),
    ):
        text, calls = reading.new_text(special, skip=True, **options), WholeCalls()
        content = [calls.add(text.take().calls, shown) for shown in (text.feed(ids).text, text.finish())]
        found = [(each.name, json.loads(each.arguments)) for each in calls.calls]
        assert ("".join(content), found) == expected
