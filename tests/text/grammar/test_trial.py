"""Grammars that strangers wrote: each is compiled or refused, in time, in a process that can be killed."""

import json
import os
import signal
import threading
import time

import pytest
import tokenizers

from jaxinfer.errors import EngineError, InvalidRequest
from jaxinfer.text.grammar import trial
from jaxinfer.text.grammar.source import Constraint
from jaxinfer.text.grammar.trial import MEMORY_BYTES, Trial, TrialSetting
from jaxinfer.text.tools.formats import FORMATS
from jaxinfer.text.tools.grammar import tool_grammar
from jaxinfer.text.tools.reader import ToolUse
from tests.support.attempts import Stopwatch
from tests.support.checkpoints import write_checkpoint
from tests.support.processes import children_of

GOOD = Constraint("regex", "a[0-9]+", param="regex")


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = write_checkpoint(tmp_path_factory.mktemp("grammars") / "tiny")
    return TrialSetting(str(folder / "tokenizer.json"), 352, [322], {"<tool_call>": 323}, MEMORY_BYTES)


@pytest.fixture(scope="module")
def tried(setting):
    trial = Trial(setting)
    yield trial
    trial.close()


@pytest.fixture
def started(monkeypatch):
    """The children that are started meanwhile."""
    start, found = trial.subprocess.Popen, []

    def listed(*args, **fields):
        found.append(start(*args, **fields))
        return found[-1]

    monkeypatch.setattr(trial.subprocess, "Popen", listed)
    return found


def schema(value, **fields):
    return Constraint("json_schema", value if isinstance(value, str) else json.dumps(value), param="x", **fields)


def an_object(**properties):
    return {"type": "object", "properties": properties}


def nested(depth):
    return '{"items":' * depth + "{}" + "}" * depth


BAD = {
    "a lookbehind without an end": Constraint("regex", "(?<=x)*", param="x"),
    "an unclosed group": Constraint("regex", "(" * 1000, param="x"),
    "a schema of 10,000 levels": schema(nested(10_000)),
    "an unknown type": schema({"type": "foo"}),
    "a pattern that is none": schema({"type": "string", "pattern": "("}),
    "another document": schema({"$ref": "http://127.0.0.1:9/x.json"}),
    "what can never be": schema({"type": "integer", "minimum": 3, "maximum": 2}, strict=True),
    "a Lark of 20,000 parentheses": Constraint("grammar", "start: " + "(" * 20_000, param="x"),
    "EBNF of 20,000 parentheses": Constraint("grammar", "root ::= " + "(" * 20_000, param="x"),
    "a rule that is itself": Constraint("grammar", "start: start", param="x"),
    "rules that ask for each other without end": Constraint("grammar", 'start: x\nx: "b" x | "c" x', param="x"),
    "EBNF of a rule without an end": Constraint("grammar", 'root ::= "a" x\nx ::= "b" x | "c" x', param="x"),
    "a token that is not there": Constraint("grammar", "start: <[99999]>", param="x"),
}
EITHER = {
    "a repetition of repetitions": Constraint("regex", "(a{1,300}){300}", param="x"),
    "plus on plus on plus": Constraint("regex", "((a+)+)+", param="x"),
    "100 kB of pattern": Constraint("regex", "ab|" * 33_000 + "c", param="x"),
    "a schema that is itself": schema({"$ref": "#"}),
    "70,000 options": schema({"enum": [f"x{i}" for i in range(70_000)]}),
    "a billion items": schema({"type": "array", "items": {"type": "null"}, "minItems": 10**9}),
    "a string of a billion characters": schema({"type": "string", "minLength": 10**9}),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_compiled_is_refused(tried, name):
    """A24, A25"""
    tried.check(GOOD)
    watch = Stopwatch()
    with pytest.raises(InvalidRequest) as refusal:
        tried.check(BAD[name])
    assert (refusal.value.param, refusal.value.code) == ("x", "invalid_grammar")
    assert len(str(refusal.value)) < 700
    assert watch.seconds() < 3 * trial.TIMEOUT_S
    assert tried.check(GOOD).text


def test_a_grammar_that_does_not_lex_is_refused_in_our_words(tried):
    with pytest.raises(InvalidRequest, match=r'must end with " on its line .*, got "x in line 2, column 4; close it'):
        tried.check(Constraint("grammar", 'start: x\nx: "x', param="x"))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"type": "foo"}, "Invalid type: foo, at '#'"),
        ({"type": []}, "no value can be of an empty type, enum or anyOf; allow one, at '#'"),
        ({"properties": {"a": {"items": {"minLength": "a"}}}}, "got \"a\", at '#/properties/a/items'"),
        (an_object(**{f"p{i}": {"type": "integer"} for i in range(1300)}), "smaller repetitions, alternatives and opt"),
        ({"anyOf": [{"items": {"const": i}} for i in range(1500)]}, "must take few steps, it takes too many; use"),
    ],
)
def test_a_schema_is_refused_for_a_true_reason_at_its_place(tried, value, said):
    with pytest.raises(InvalidRequest) as refusal:
        tried.check(schema(value))
    assert said in str(refusal.value)


@pytest.mark.parametrize("name", EITHER)
def test_what_is_large_is_compiled_in_time_or_refused(tried, name):
    """A24, A25"""
    tried.check(GOOD)
    watch = Stopwatch()
    try:
        tried.check(EITHER[name])
    except InvalidRequest as refusal:
        assert refusal.code == "invalid_grammar"
    assert watch.seconds() < 3 * trial.TIMEOUT_S
    assert tried.check(GOOD).text


HEAVY = "(x{1,280}){320}"
BEHIND = {
    "a prefix": Constraint("regex", f"[0-9]{{20}} {HEAVY}", param="x"),
    "a longer prefix": Constraint("regex", f"([a-z]{{40}} )?(?:[0-9]{{400}}{HEAVY}|y)", param="x"),
    "a terminal": Constraint("grammar", f"start: A B // ( /\nA: /[0-9]{{30}}/\nB: /{HEAVY}/", param="x"),
    "a terminal repeated in another": Constraint("grammar", "start: /[0-9]{30}/ B\nB: A~320\nA: /x{1,280}/", param="x"),
    "a terminal repeated in a rule": Constraint("grammar", "start: /[0-9]{30}/ b\nb: A{320}\nA: /x{1,280}/", param="x"),
    "another property": schema(
        {
            "type": "object",
            "properties": {"b": {"type": "string", "minLength": 30}, "a": {"type": "string", "pattern": f"^{HEAVY}$"}},
            "required": ["b", "a"],
        }
    ),
    "a name": schema(
        {
            "type": "object",
            "properties": {"before": {"type": "string", "minLength": 30}},
            "patternProperties": {f"^{HEAVY}$": {}},
            "required": ["before"],
        }
    ),
    "an array": schema({"prefixItems": [{"minimum": 5}] * 9 + [{"type": "string", "pattern": f"a{{9}}{HEAVY}"}]}),
}


@pytest.mark.parametrize("name", BEHIND)
def test_a_repetition_that_is_too_much_is_refused_wherever_an_answer_comes_to_it(tried, name):
    with pytest.raises(InvalidRequest, match="its repetitions must be small enough to be followed token by token, "):
        tried.check(BEHIND[name])


@pytest.mark.parametrize(
    ("grammar", "named"),
    {
        "start: A{320}\nA: /(x{1,280})/": "A{320} has up to 89600 parts",
        "start: B\nB: A{320}\nA: /(x{1,280})/": "A{320} has up to 89600 parts",
        "start: a~320\na: /x{1,280}/": "a~320 has up to 89600 parts",
        'start: a{4000000}\na: "x"': "a{4000000} has up to 4000000 parts",
        "start: B{100}\nB: A{100}\nA: C{100}\nC: /x{1,100}/": "B{100} has up to 100000000 parts",
        'start: "x"{99999999999999999999}': "a repetition must be of at most 2147483647 times, in line 1 it is of more",
        'start: A{3,2}\nA: "x"': "a repetition must not end before it begins, got {3,2}; write {2,3}",
    }.items(),
)
def test_a_repetition_that_is_too_large_is_named_as_it_is_written(tried, grammar, named):
    with pytest.raises(InvalidRequest) as refusal:
        tried.check(Constraint("grammar", grammar, param="x"))
    assert named in str(refusal.value)


@pytest.mark.parametrize("tool", ["a", "f"])
def test_a_tool_s_repetition_that_is_too_much_is_refused_for_the_tools(tried, tool):
    heavy = {"type": "object", "properties": {"a": {"type": "string", "pattern": f"^{HEAVY}$"}}, "required": ["a"]}
    calls = tool_grammar("hermes", ToolUse({"b": an_object(), tool: heavy}), due=True, control_tokens={})
    with pytest.raises(
        InvalidRequest, match="its repetitions must be small enough to be followed token by token, "
    ) as refusal:
        tried.check(Constraint("tools", calls=calls, param="tools"))
    assert refusal.value.param == "tools"


def test_large_repetitions_that_are_none_too_much_are_taken(tried):
    for pattern in ("([a-z]{1,9} ){100}", "[0-9]{9}(a{300}){3}", "([(){}]{1000}\\({9}){4}", "(?P<x>[^\\]]{99}){20}"):
        assert tried.check(schema({"items": {"type": "string", "pattern": pattern}})).text


def test_a_child_that_takes_too_long_is_killed_and_replaced(setting):
    slow = Trial(setting, timeout_s=30)
    slow.check(GOOD)
    child = slow._child.pid
    slow._timeout_s = 0.2
    os.kill(child, signal.SIGSTOP)
    with pytest.raises(InvalidRequest, match=r"more than 0\.2 s"):
        slow.check(Constraint("regex", "b", param="regex"))
    slow._timeout_s = 30
    assert slow.check(Constraint("regex", "c", param="regex")).text
    again = slow._child.pid
    slow.close()
    assert not {str(child), str(again)} & children_of(os.getpid())


def test_a_child_that_dies_refuses_one_grammar_and_no_other(setting):
    own = Trial(setting, timeout_s=30)
    own.check(GOOD)
    os.kill(own._child.pid, signal.SIGKILL)
    with pytest.raises(InvalidRequest, match="too much"):
        own.check(Constraint("regex", "b", param="regex"))
    assert own.check(Constraint("regex", "c", param="regex")).text
    own.close()


def test_what_was_tried_is_not_tried_again(setting):
    own = Trial(setting, timeout_s=30)
    first = own.check(GOOD)
    with pytest.raises(InvalidRequest):
        own.check(BAD["an unclosed group"])
    own.close()
    assert own.check(GOOD) is first
    with pytest.raises(InvalidRequest):
        own.check(BAD["an unclosed group"])


def test_what_is_kept_is_bounded(tried):
    threads = [
        threading.Thread(target=lambda n=n: [tried.check(schema({"const": f"{n} {i}"})) for i in range(100)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tried._known) == trial.MAX_KNOWN and tried._known_bytes < trial.MAX_KNOWN_BYTES


def test_what_is_left_out_of_a_schema_is_named_unless_it_is_strict(tried):
    unusual = {"type": "array", "uniqueItems": True}
    assert "uniqueItems" in " ".join(tried.check(schema(unusual)).warnings)
    with pytest.raises(InvalidRequest, match=r"uniqueItems.*set strict to false"):
        tried.check(schema(unusual, strict=True))


def test_a_tokenizer_that_cannot_be_used_is_read_once_and_refuses_every_grammar(started, tmp_path):
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    own = Trial(TrialSetting(str(tmp_path / "tokenizer.json"), 352, [322], {}, MEMORY_BYTES))
    for constraint in (GOOD, free_calls({"f": an_object()}), GOOD):
        with pytest.raises(InvalidRequest, match="needs a tokenizer that fits its model and spells every text"):
            own.check(constraint)
    assert len(started) == 1
    own.close()


def test_where_no_child_can_start_the_next_is_tried_after_a_while_and_then_later_still(started, tmp_path, monkeypatch):
    """Meanwhile that is said at once, and a start that succeeds ends it."""
    place = tmp_path / "tokenizer.json"
    own, now_s = Trial(TrialSetting(str(place), 352, [322], {}, MEMORY_BYTES)), 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    counts = []
    for seconds in (0, 0.5, 0.6, 1.5, 0.6, 3.9, 0.2):
        now_s += seconds
        with pytest.raises(EngineError, match="a grammar's trial must start, it did not: the other end is gone"):
            own.check(GOOD)
        counts.append(len(started))
    assert counts == [1, 1, 2, 2, 3, 3, 4]
    write_checkpoint(tmp_path / "tiny")
    (tmp_path / "tiny" / "tokenizer.json").rename(place)
    with pytest.raises(EngineError):
        own.check(GOOD)
    now_s += 9
    assert own.check(GOOD).text
    assert own._pause_s == trial.FIRST_PAUSE_S
    own.close()


def test_a_machine_that_lets_no_child_start_is_said_so(setting, monkeypatch):
    def refuse(*args, **fields):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(trial.subprocess, "Popen", refuse)
    own = Trial(setting)
    with pytest.raises(EngineError, match="must start, it did not: .*temporarily unavailable"):
        own.check(GOOD)
    own.close()


def test_a_text_that_grows_as_it_is_written_is_refused_by_its_size(setting):
    own = Trial(setting, timeout_s=30)  # a slow machine takes more than the two seconds of a server
    triggers = ["<" * (i + 1) for i in range(40)]
    schema = {"type": "string", "description": "x" * 20_000}
    structures = [{"begin": "<" * 40, "schema": schema, "end": ">"}] * 40
    asked = Constraint("structural_tag", json.dumps({"triggers": triggers, "structures": structures}), param="x")
    with pytest.raises(InvalidRequest, match=f"may have {trial.MAX_TEXT_CHARS} characters"):
        own.check(asked)
    own.close()


def test_a_character_that_json_leaves_alone_may_be_chosen(tried):
    assert tried.check(Constraint("choice", json.dumps(["a\x7fb"]), param="x")).text


def free_calls(schemas, form="hermes", **fields):
    """Calls that need not be made."""
    use = ToolUse(schemas, **fields)
    calls = tool_grammar(form, use, due=False, control_tokens={"<tool_call>": 323}, begun=True)
    return Constraint("tools", calls=calls, param="tools", after=323, strict=bool(use.strict), frees=True)


WRONG = {"type": "array", "items": {"type": "string", "pattern": "("}}


ODD = ["a\u2028b", "a\u2029b", "a\x85b", "z\u2028tool_x", "z\u2028tool_x: 5", "value_0: %json {}"]


@pytest.mark.parametrize("form", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize("text", ODD)
def test_a_bad_schema_is_left_free_alone_whatever_the_others_say(tried, form, text):
    good = an_object(kept={"type": "integer", "description": text})
    bad = {"type": "object", "description": text, "properties": {"wrong": WRONG}}
    found = tried.check(free_calls({"good": good, "bad": bad}, form))
    (warning,) = found.warnings
    assert "unclosed group" in warning and ("of bad are" in warning or 'of "bad" are' in warning)
    assert '"type": "integer"' in found.text and '"pattern"' not in found.text


@pytest.mark.parametrize("form", FORMATS)
def test_a_strict_tool_changes_nothing_for_its_neighbours(tried, form):
    good, bad = an_object(kept={"type": "integer"}), an_object(wrong=WRONG)
    found = tried.check(free_calls({"good": good, "bad": bad}, form, strict=frozenset({"good"})))
    (warning,) = found.warnings
    assert "unclosed group" in warning and ("of bad are" in warning or 'of "bad" are' in warning)
    assert '"type": "integer"' in found.text and '"pattern"' not in found.text and found.strict
    with pytest.raises(InvalidRequest, match=r'tools must be .*: arguments of "?bad"?: .*unclosed group') as refused:
        tried.check(free_calls({"good": good, "bad": bad}, form, strict=frozenset({"bad"})))
    assert refused.value.param == "tools"


@pytest.mark.parametrize("form", FORMATS)
def test_beside_a_schema_for_the_answer_each_is_blamed_for_its_own(tried, form):
    good, bad = an_object(kept={"type": "integer"}), an_object(wrong=WRONG)

    def beside(value, schemas, **fields):
        calls = tool_grammar(form, ToolUse(schemas, **fields), due=True, control_tokens={})
        return Constraint("json_schema", json.dumps(value), True, calls, "response_format", frees=True)

    found = tried.check(beside(good, {"good": good, "bad": bad}))
    (warning,) = found.warnings
    assert "unclosed group" in warning and '"type": "integer"' in found.text
    cure = "; leave that out, or set strict to false"
    with pytest.raises(InvalidRequest, match=f'arguments of "?odd"?: .*Unimplemented keys.*not.*{cure}') as refused:
        tried.check(beside(good, {"odd": an_object(x={"type": "integer", "not": {}})}, strict=frozenset({"odd"})))
    assert refused.value.param == "tools"
    with pytest.raises(InvalidRequest, match="response_format must be .* Unimplemented keys.*not") as refused:
        tried.check(beside(an_object(x={"not": {}}), {"bad": bad}))
    assert refused.value.param == "response_format"


def test_a_property_may_be_named_like_a_rule(tried):
    odd = an_object(**{"x: %json {}": {"type": "string"}, "kept": {"type": "integer"}})
    found = tried.check(free_calls({"odd": odd, "bad": an_object(wrong=WRONG)}, "qwen3_coder"))
    (warning,) = found.warnings
    assert "of bad are" in warning and '"type": "integer"' in found.text


@pytest.mark.parametrize(("fault", "said"), [(signal.SIGSTOP, "more than 0.2 s"), (signal.SIGKILL, "too much")])
def test_silence_is_kept_of_calls_that_are_left_free_alone(setting, fault, said):
    own = Trial(setting, timeout_s=30)
    for constraint in (free_calls({"f": an_object()}), Constraint("regex", "b", param="regex")):
        own.check(Constraint("regex", f"{constraint.kind}+", param="regex"))  # so that there is a child
        own._timeout_s = 0.2
        os.kill(own._child.pid, fault)
        if constraint.after is None:
            with pytest.raises(InvalidRequest, match=said):
                own.check(constraint)
            assert own.known(constraint) is None
        else:
            first = own.check(constraint)
            assert first.text == "" and said in first.warnings[0]
            assert own.check(constraint) == own.known(constraint) == first
            assert own._child is None, "the second time nobody was asked"
        own._timeout_s = 30
    own.close()


@pytest.mark.parametrize("form", FORMATS)
def test_a_tool_with_a_pattern_of_no_automaton_may_be_required(tried, form):
    held = an_object(a={"type": "array", "items": {"type": "string", "pattern": "^(?!x)a"}}, kept={"type": "integer"})
    calls = tool_grammar(form, ToolUse({"f": held}), due=True, control_tokens={})
    found = tried.check(Constraint("tools", calls=calls, param="tools"))
    (warning,) = found.warnings
    assert "is left out, since it needs look-around" in warning and '"type": "integer"' in found.text
