"""Calls that need not be made, from where they begin: each form lets through calls of the tools' schemas, and no
others, whatever tokens they are spelt in and however a model writes their beginning.
"""

import json

import pytest

from jaxinfer.engine.sequence import Structure
from jaxinfer.engine.watch import Watch
from jaxinfer.text.grammar.compiler import Compiler
from jaxinfer.text.tokenizer import Tokenizer
from jaxinfer.text.tools.formats import CALL, END_CALL, SEPARATOR, XML_TAGS
from jaxinfer.text.tools.grammar import tool_grammar
from jaxinfer.text.tools.opening import opening_of
from jaxinfer.text.tools.reader import ToolUse
from tests.support.schemas.tools import TOOLS
from tests.text.tools.test_tool_grammars import BY_NAME, FORMS, OF_TEXTS, in_order, read, written

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
USE = ToolUse({"weather": CITY, "now": {"type": "object", "properties": {}, "additionalProperties": False}})


@pytest.fixture(scope="module")
def compiler(folder):
    compiler = Compiler(lambda: Tokenizer.from_folder(folder), 352, [322])
    yield compiler
    compiler.close()


def held(compiler, form, use, tokens, control_tokens):
    """The grammar as it stands after the answer's tokens, and where it has begun; None: it has not."""
    text = tool_grammar(form, use, due=False, control_tokens=control_tokens, begun=True)
    after = opening_of(form, use.schemas, control_tokens)
    grammar = compiler.compile(text).result().copy()
    watch = Watch(Structure(text, frozenset({322}), after=after), grammar, 0)
    for length in range(1, len(tokens) + 1):
        if (found := watch.look(tokens[:length])) is not None:
            at, head = found
            assert at == length
            grammar.accept_text(head)
            for token in tokens[at:]:
                grammar.accept(token)
            return grammar, at
    return None


def spellings(tokenizer, text):
    """As a tokenizer without control tokens has it, and letter by letter."""
    yield tokenizer.encode(text, add_special_tokens=False, plain=True)
    yield [token for char in text for token in tokenizer.encode(char, add_special_tokens=False, plain=True)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", TOOLS)
def test_what_has_begun_is_held_to_its_schema(form, name, compiler, tokenizer):
    schema, valid, invalid = TOOLS[name]
    use, properties = ToolUse({name: schema}), schema.get("properties", {})

    def can_be_written(arguments):
        return isinstance(arguments, dict) and (form not in BY_NAME or arguments.keys() <= properties.keys())

    for arguments in filter(can_be_written, [*valid, *invalid]):
        ordered = in_order(schema, arguments) if form in BY_NAME else arguments
        text = written(form, name, ordered)
        if arguments in invalid and (
            read(form, use, text) != [(name, ordered)] or form in XML_TAGS and name in OF_TEXTS
        ):
            continue
        for tokens in spellings(tokenizer, text):
            grammar, _ = held(compiler, form, use, tokens, {})
            assert (not grammar.error and bool(grammar.matcher.is_accepting())) == (arguments in valid), text


HEADS = {
    "hermes": ["<tool_call>", "Hm. <tool_call>", "<<tool_call>"],
    "qwen3_coder": ["<tool_call>", "I look: <tool_call>", "<function=", "so <tool_cal <function="],
    "minicpm5": ['<function name="', 'I look: <function name="', '<<function name="'],
    "llama3_json": [
        '{"name": "weather", "parameters": ',
        '\n {"name":"weather","arguments": ',
        '{ "name" : "weather" , "parameters"  : ',
    ],
    "pythonic": ["[weather(", " [ weather ("],
    "xlam": ['[{"name": "weather", "arguments": ', '```json\n[\n {"name":"weather", "arguments" : '],
    "llama_nemotron_json": ["<TOOLCALL>", "Hm. <TOOLCALL>"],
    "qwen2_5_coder": ["<tools>", "So: <tools>"],
    "functionary": ["<function=", "I look: <function="],
    "functionary_v3_2": ["weather\n", "all\nI look.>>>weather\n", "all\n>>> x\n>>>weather\n"],
    "firefunction_v2": [" functools[", "functools[", "I look.\n functools["],
    "deepseek_v3": ["<｜tool▁calls▁begin｜>", f"So. {CALL}", CALL],
}
BODIES = {
    "hermes": '\n{"name": "weather", "arguments": %s}\n</tool_call>',
    "qwen3_coder": "\n<function=weather>\n<parameter=city>\n%s\n</parameter>\n</function>\n</tool_call>",
    "minicpm5": 'weather"><param name="city">%s</param></function>',
    "llama3_json": "%s}",
    "pythonic": "city=%s)]",
    "xlam": "%s}]",
    "llama_nemotron_json": '[{"name": "weather", "arguments": %s}]</TOOLCALL>',
    "qwen2_5_coder": '\n{"name": "weather", "arguments": %s}\n</tools>',
    "functionary": "weather>%s</function>",
    "functionary_v3_2": "%s",
    "firefunction_v2": '{"name": "weather", "arguments": %s}]',
    "deepseek_v3": f"{CALL}function{SEPARATOR}weather\n```json\n%s\n```{END_CALL}<｜tool▁calls▁end｜>",
}
VALUES = dict.fromkeys(FORMS, '{"city": "%s"}') | {"qwen3_coder": "%s", "minicpm5": "%s", "pythonic": '"%s"'}


@pytest.mark.parametrize(("form", "head"), [(form, head) for form in FORMS for head in HEADS[form]])
def test_a_call_begins_as_its_reader_has_it(form, head, compiler, tokenizer):
    for city, is_valid in (("Rome", True), ("Paris", False)):
        body = BODIES[form] % (VALUES[form] % city)
        begun = next((start for start in ("\n<function=", CALL) if head.endswith(start.strip())), "")
        text = head + (body.removeprefix(begun) if body.startswith(begun) else body)
        assert [name for name, _ in read(form, USE, text)] == ["weather"]
        for tokens in spellings(tokenizer, text):
            grammar, at = held(compiler, form, USE, tokens, {})
            assert tokenizer.decode(tokens[:at]).startswith(head.rstrip())
            assert (not grammar.error) == is_valid


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", "<tool_cal> l>"),
        ("llama3_json", '{"name": "Anna", "parameters": {"city": "Paris"}}'),
        ("llama3_json", '{"city": "Paris"}'),
        ("llama3_json", 'Well: {"name": "weather", "parameters": {"city": "Paris"}}'),
        ("pythonic", "[weather, now]"),
        ("pythonic", "[other(city=1)]"),
        ("pythonic", "x [weather(city=1)]"),
    ],
)
def test_what_is_no_call_is_let_alone(form, text, compiler, tokenizer):
    assert read(form, USE, text) == []
    for tokens in spellings(tokenizer, text):
        assert held(compiler, form, USE, tokens, {}) is None


def test_one_token_opens_calls_where_the_tokenizer_has_it(compiler, tokenizer):
    control_tokens = tokenizer.control_tokens
    assert opening_of("hermes", USE.schemas, control_tokens) == control_tokens["<tool_call>"]
    tokens = tokenizer.encode("Hm. <tool_call>", add_special_tokens=False)
    grammar, at = held(compiler, "hermes", USE, tokens, control_tokens)
    assert (at, bytes(grammar.spell(grammar.forced()[0]))) == (len(tokens), b"\n")


@pytest.mark.parametrize("form", ["llama3_json", "pythonic"])
def test_several_calls_are_several_where_they_may_be(form, compiler, tokenizer):
    calls = {"llama3_json": '{"name": "now", "parameters": {}}; {"name": "weather", "parameters": {"city": %s}}'}
    text = calls.get(form, "[now(), weather(city=%s)]")
    for city, is_valid in (("Oslo", True), ("Bonn", False)):
        tokens = tokenizer.encode(text % json.dumps(city), add_special_tokens=False)
        assert (not held(compiler, form, USE, tokens, {})[0].error) == is_valid
        one = ToolUse(USE.schemas, parallel=False)
        assert held(compiler, form, one, tokens, {})[0].error
