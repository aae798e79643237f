"""Answers that must be of a grammar, over an engine with random weights: at temperature 1 each draws what it may."""

import json
import random
import re
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from msgspec.structs import replace

from jaxinfer.engine.scheduler import Scheduler
from jaxinfer.engine.sequence import Sequence
from jaxinfer.errors import InvalidRequest
from jaxinfer.llm.llm import LLM
from jaxinfer.llm.structure import check_here, constraint_for
from jaxinfer.protocol.sampling import SamplingParams
from tests.llm.test_async_llm import collect
from tests.llm.test_equalities import WAYS
from tests.support import grammars
from tests.support.engines import build
from tests.support.spelt import TEXTS

pytestmark = pytest.mark.usefixtures("forward_always")
PROMPT = [5, 6, 7, 5, 6, 7, 8]
DRAWN = SamplingParams(temperature=1, max_tokens=60, seed=1)
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
KINDS = {
    "json_schema": lambda draw: grammars.root_schema(draw),
    "regex": lambda draw: grammars.pattern(draw),
    "grammar": lambda draw: grammars.grammar(draw),
}


@pytest.fixture(scope="module")
def llm(engine):
    return LLM.over(*engine)


def answer(llm, prompt=PROMPT, **fields):
    return llm.generate([prompt], replace(DRAWN, **fields))[0].outputs[0]


def check_answers(llm, kind, count, seed, **fields):
    """Each answer that stops is of its grammar, each that is cut off begins one; returns how many stopped."""
    draw = random.Random(seed)
    made = [KINDS[kind](draw) for _ in range(count)]
    params = [replace(DRAWN, **{kind: source}, n=4, seed=i, **fields) for i, (source, _) in enumerate(made)]
    stopped = 0
    for (source, judge), own, output in zip(made, params, llm.generate([PROMPT] * count, params), strict=True):
        for choice in output.outputs:
            assert choice.finish_reason in ("stop", "length"), (source, choice)
            if choice.finish_reason == "stop":
                stopped += 1
                assert judge(choice.text), (source, choice.text)
            else:
                assert is_prefix(llm, own, choice.token_ids), (source, choice.text)
    return stopped


def is_prefix(llm, params, token_ids):
    compiler = llm._core.grammars
    text = check_here(compiler, constraint_for(params, None, {}), {}).text
    grammar = compiler.compile(text).result().copy()
    for token_id in token_ids:
        grammar.accept(token_id)
    return not grammar.error


@pytest.mark.parametrize("kind", KINDS)
def test_what_stops_is_of_its_grammar(llm, kind):
    """A37"""
    assert check_answers(llm, kind, 8, seed=3) > 16


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "count"), [("json_schema", 90), ("regex", 50), ("grammar", 20)])
def test_many_answers_are_of_their_grammars(llm, kind, count):
    """A37"""
    assert check_answers(llm, kind, count, seed=11) > 3 * count


CUT = [
    *(name for name in TEXTS if name.startswith("letters")),
    "singletons",
    "names of control tokens",
    "beyond the first plane",
]


@pytest.mark.parametrize("name", CUT)
def test_a_text_comes_as_it_was_sent_cut_anywhere(llm, name):
    """Its tokenizer brings what users write to NFC."""
    whole = TEXTS[name]
    params = [replace(DRAWN, choice=[whole], max_tokens=length) for length in (*range(1, 24), 200)]
    for output in llm.generate([PROMPT] * len(params), params):
        (choice,) = output.outputs
        assert whole.startswith(choice.text)
        assert choice.text == whole or choice.finish_reason == "length"
    assert choice.text == whole


def test_a_sign_for_what_cannot_be_read_is_kept_where_it_is_asked_for(llm):
    assert answer(llm, choice=["a\ufffd"], max_tokens=40).text == "a\ufffd"


@pytest.mark.parametrize("form", [{"regex": "(x{1,280}){320}"}, {"json_schema": {"$ref": "#"}}], ids=str)
def test_what_can_have_no_answer_is_refused_before_any_is_begun(llm, form):
    with pytest.raises(InvalidRequest, match="must be something that an answer can be held to: "):
        answer(llm, **form)


def test_an_answer_that_no_token_is_left_for_says_why(llm):
    (letter,) = llm._text.tokenizer.encode("a", add_special_tokens=False)
    choice = answer(llm, regex="[ab]{3}x", allowed_token_ids=[letter])
    assert (choice.text, choice.finish_reason) == ("aaa", "error")
    assert choice.error.startswith("a grammar and allowed_token_ids, bad_words and min_tokens must leave a token")


# so few that many answers, left alone, are cut off
FEW_TOKENS = {"json_schema": 24, "regex": 20, "grammar": 20}


def check_closing(llm, kind, count, seed):
    """Led to their ends, nearly all answers stop, and each that does is of its grammar; returns how many more."""
    free = check_answers(llm, kind, count, seed, max_tokens=FEW_TOKENS[kind])
    closed = check_answers(llm, kind, count, seed, max_tokens=FEW_TOKENS[kind], close_within_max_tokens=True)
    assert closed >= 0.95 * 4 * count, (closed, free)
    return closed - free


@pytest.mark.parametrize("kind", KINDS)
def test_answers_close_within_max_tokens(llm, kind):
    check_closing(llm, kind, 12, seed=11)  # of so few, all may fit by themselves


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "count"), [("json_schema", 90), ("regex", 50), ("grammar", 20)])
def test_many_answers_close_within_max_tokens(llm, kind, count):
    assert check_closing(llm, kind, count, seed=11) > 0


def test_closing_goes_with_what_else_narrows_an_answer(llm):
    """A37"""
    closing = replace(DRAWN, close_within_max_tokens=True)
    most, texts = 24, {}
    for name, fields in {
        "nothing": {},
        "min_tokens": {"min_tokens": 20},
        "min_tokens of all": {"min_tokens": most},
        "ignore_eos": {"ignore_eos": True},
        "bad_words": {"bad_words": ["yz"]},
        "logit_bias": {"logit_bias": {llm._text.tokenizer.encode("x")[0]: 100.0}},
        "a bias against the end": {"logit_bias": {llm._text.tokenizer.encode(end)[0]: -100.0 for end in "xz"}},
        "penalties": {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 1.5},
        "logprobs": {"logprobs": 3},
        "no temperature": {"temperature": 0.0},
    }.items():
        params = replace(closing, regex="[a-z0-9 ]*(x|yz)", max_tokens=most, n=8, **fields)
        for choice in llm.generate([PROMPT], params)[0].outputs:
            assert choice.finish_reason == "stop" and len(choice.token_ids) <= most, (name, choice)
            assert re.fullmatch("[a-z0-9 ]*(x|yz)", choice.text), (name, choice)
            texts.setdefault(name, []).append(choice)
    assert all(len(choice.token_ids) > 20 for choice in texts["min_tokens"])
    assert all(len(choice.token_ids) == most for choice in texts["ignore_eos"] + texts["min_tokens of all"])
    assert not any("yz" in choice.text for choice in texts["bad_words"])
    assert all(len(choice.logprobs) == len(choice.token_ids) for choice in texts["logprobs"])


@pytest.mark.parametrize("budget", [None, 5])
def test_thoughts_end_in_time_for_the_shortest_answer(llm, budget):
    """Of a model that wants to think for ever; a budget of its own leaves the answer more room."""
    opens, closes, x = (llm._text.tokenizer.encode(text)[0] for text in ("<think>", "</think>", "x"))
    params = replace(
        DRAWN,
        regex="[a-z0-9 ]*(x|yz)",
        max_tokens=30,
        n=8,
        close_within_max_tokens=True,
        logit_bias={opens: 100.0, closes: -100.0, x: -100.0},
        thinking_token_budget=budget,
    )
    for choice in llm.chat([{"role": "user", "content": "hi"}], params)[0].outputs:
        assert choice.finish_reason == "stop" and re.fullmatch("[a-z0-9 ]*(x|yz)", choice.text), choice
        assert choice.token_ids[0] == opens and len(choice.token_ids) <= 30
        if budget is None:
            assert choice.token_ids[27:-1] == [closes, x]
        else:
            assert choice.token_ids.index(closes) < 15 and len(choice.text) > 1


def test_thoughts_go_on_where_no_answer_is_known_that_fits(llm):
    opens, closes = (llm._text.tokenizer.encode(text)[0] for text in ("<think>", "</think>"))
    bias = {opens: 100.0, closes: -100.0}
    fields = {"regex": "[a-z]{60}", "max_tokens": 20, "logit_bias": bias, "close_within_max_tokens": True}
    choice = llm.chat([{"role": "user", "content": "hi"}], replace(DRAWN, **fields))[0].outputs[0]
    assert (choice.finish_reason, choice.text) == ("length", "") and closes not in choice.token_ids


def test_what_cannot_be_closed_is_cut_off_as_ever(llm):
    fields = {"regex": "[a-z]{60}", "max_tokens": 8, "n": 4}
    free, closed = (answer(llm, **fields, close_within_max_tokens=closes) for closes in (False, True))
    assert closed.finish_reason == "length" and closed.token_ids == free.token_ids


def test_an_answer_without_a_form_is_not_closed(llm):
    assert answer(llm, close_within_max_tokens=True).token_ids == answer(llm).token_ids


def test_a_choice_is_one_of_the_texts(llm):
    texts = ["red", "green and blue", "", "é\n\"'"]
    outputs = llm.generate([PROMPT], replace(DRAWN, choice=texts, n=16))[0].outputs
    assert {choice.finish_reason for choice in outputs} == {"stop"}
    assert len({choice.text for choice in outputs}) > 1
    assert {choice.text for choice in outputs} <= set(texts)


def test_ebnf_is_taken_as_lark_is(llm):
    choice = answer(llm, grammar='root ::= "a" [0-9]{2} tail\ntail ::= "x" | "yz"')
    assert choice.finish_reason == "stop" and re.fullmatch("a[0-9][0-9](x|yz)", choice.text)


def test_free_text_may_hold_structures_between_tags(llm):
    tags = {
        "triggers": ["~"],
        "structures": [{"begin": "~f>", "schema": {"type": "integer", "maximum": 9, "minimum": 0}, "end": "</f>"}],
    }
    (tilde,) = llm._text.tokenizer.encode("~")
    choice = answer(llm, structural_tag=tags, logit_bias={tilde: 5.0}, max_tokens=80)
    begun = choice.text.count("~")
    assert begun > 1 and choice.text.replace("~", ""), choice.text
    assert len(re.findall(r"~f>[0-9]</f>", choice.text)) >= begun - 1, choice.text


def test_python_types_are_schemas(llm):
    class Person(msgspec.Struct, forbid_unknown_fields=True):
        name: str
        is_old: bool

    class Model:
        @staticmethod
        def model_json_schema():
            return PERSON

    for form in (Person, Model, json.dumps(PERSON)):
        begun = answer(llm, json_schema=form, max_tokens=40).text
        assert begun.lstrip("{ \n\r\t").startswith('"name"'), begun


FAULTS = {
    "a lookbehind": {"regex": "(?<=x)y"},
    "an unclosed group": {"regex": "(a"},
    "a rule that is not there": {"grammar": "start: nobody"},
    "a keyword that cannot be enforced": {"json_schema": {"not": {"type": "null"}}, "strict_schema": True},
    "another document": {"json_schema": {"$ref": "http://127.0.0.1:9/x"}},
    "an unknown type": {"json_schema": {"type": "foo"}},
    "no schema": {"json_schema": 7},
    "no choice": {"choice": []},
    "two ways": {"regex": "a", "choice": ["a"]},
    "a tag without a trigger": {"structural_tag": {"triggers": ["x"], "structures": []}},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_held_to_is_refused_by_name(llm, fault):
    fields = FAULTS[fault]
    with pytest.raises(InvalidRequest) as refusal:
        answer(llm, **fields)
    assert refusal.value.param in fields
    if "strict_schema" in fields:
        assert '"not"' in str(refusal.value)


def test_what_is_not_strict_is_kept_as_far_as_it_can_be(llm, caplog):
    choice = answer(llm, json_schema={**PERSON, "not": {"type": "null"}}, max_tokens=100)
    assert choice.text.lstrip().startswith("{")
    assert 'Unimplemented keys: ["not"]' in caplog.text


def workload():
    draw = random.Random(5)
    prompts, params = [], []
    for i in range(10):
        prompts.append([draw.randrange(320) for _ in range(draw.randint(1, 60))])
        kind = draw.choice(["json_schema", "regex", None])
        source = {} if kind is None else {kind: KINDS[kind](draw)[0]}
        own = replace(DRAWN, seed=i, max_tokens=40, n=3 if i == 4 else 1, **source)
        own = replace(own, close_within_max_tokens=i % 2 == 0)
        params.append(replace(own, presence_penalty=1.0, logit_bias={17: 3.0}) if i % 3 == 0 else own)
    return prompts, params


def tokens_of(llm, prompts, params):
    return [[choice.token_ids for choice in output.outputs] for output in llm.generate(prompts, params)]


@pytest.fixture(scope="module")
def alone(engine):
    llm = LLM.over(*engine)
    return [tokens_of(llm, [prompt], [own])[0] for prompt, own in zip(*workload(), strict=True)]


BY_STEPS = "each token by a step"


@pytest.mark.parametrize(
    "way",
    [
        "together",
        "read before the next step",
        BY_STEPS,
        pytest.param("in a pool that is too small", marks=pytest.mark.slow),
    ],
)
def test_tokens_are_the_same_however_they_are_scheduled(engine, folder, executables, alone, way):
    """A31 with grammars, seeds, penalties and n."""
    changes = {**WAYS, BY_STEPS: {"enable_fast_forward": False}}[way] | ({"num_pages": 11} if "small" in way else {})
    config, core = build(folder, executables, **changes) if changes else engine
    llm, compiled = LLM.over(config, core), core.stats().compiles_after_ready
    forwarded = core.stats().forwarded_tokens
    assert tokens_of(llm, *workload()) == alone
    assert (core.stats().forwarded_tokens > forwarded) == (way != BY_STEPS)
    if "small" in way:
        assert core.stats().preemptions > 0
    assert core.stats().compiles_after_ready == compiled
    if core is not engine[1]:
        llm.close()


class Sweep:
    """In the place of _must_yield: every few steps, all who run are put back. seen: the sequences that ran."""

    def __init__(self) -> None:
        self.seen: set[Sequence] = set()
        self._next_step = 0

    def __call__(self, scheduler: Scheduler) -> bool:
        self.seen |= {*scheduler.running}
        if scheduler.counters.steps < self._next_step:
            return False
        if scheduler.running:
            return True
        self._next_step = scheduler.counters.steps + 3
        return False


def test_tokens_are_the_same_though_all_are_preempted_again_and_again(engine, monkeypatch):
    """A31: every request twice at least, streams of forms and of none, with seeds, penalties, stop strings and n."""
    prompts = [[(i * 37 + k * 11) % 320 for k in range(3 + 9 * i)] for i in range(8)]
    params = [replace(DRAWN, seed=i, max_tokens=40, ignore_eos=True, stop=["zqx"], n=1 + (i == 4)) for i in range(8)]
    for i in range(0, 8, 2):
        params[i] = replace(params[i], regex="([a-z ]|known){30,60}", presence_penalty=i / 4)
    llm, sweep = LLM.over(*engine), Sweep()
    expected = [tokens_of(llm, [prompt], [own])[0] for prompt, own in zip(prompts, params, strict=True)]
    monkeypatch.setattr(Scheduler, "_must_yield", lambda scheduler: sweep(scheduler))
    assert tokens_of(llm, prompts, params) == expected
    assert len(sweep.seen) == 9 and all(sequence.preemptions >= 2 for sequence in sweep.seen)


def test_a_stop_string_ends_an_answer_wherever_it_lies_among_forced_tokens(llm):
    """A38: of a text that is known beforehand, every stop string of one to five characters, streamed and whole."""
    told = "the quick brown fox jumps"
    stops = sorted({told[i : i + size] for i in range(len(told)) for size in range(1, 6)})
    before = llm.stats().forwarded_tokens
    held = replace(DRAWN, regex=told)
    params = [
        replace(held, stop=[stop], include_stop_str_in_output=include) for stop in stops for include in (False, True)
    ]
    outputs = llm.generate([PROMPT] * len(params), params)
    assert llm.stats().forwarded_tokens > before + len(stops), "tokens were forced"
    for own, output in zip(params, outputs, strict=True):
        (stop,), (choice,) = own.stop, output.outputs
        end = told.index(stop) + len(stop) * own.include_stop_str_in_output
        assert (choice.text, choice.finish_reason, choice.stop_reason) == (told[:end], "stop", stop)
        assert "".join(delta.text for delta in llm.stream(PROMPT, own)) == choice.text


@pytest.mark.slow
@pytest.mark.parametrize("caching", [True, False])
def test_the_prefix_cache_changes_no_answer_of_a_form(engine, folder, executables, caching):
    """A30: sixteen with one beginning and four forms, submitted together; alone, first and again from the cache."""
    draw = random.Random(30)
    shared = [draw.randrange(320) for _ in range(70)]
    prompts = [[*shared, *(draw.randrange(320) for _ in range(1 + i))] for i in range(16)]
    forms = [{kind: KINDS[kind](draw)[0]} for kind in ("json_schema", "regex", "grammar", "regex")]
    params = [replace(DRAWN, seed=i, max_tokens=30, **forms[i % 4]) for i in range(16)]
    alone = [tokens_of(LLM.over(*engine), [one], [own])[0] for one, own in zip(prompts, params, strict=True)]
    config, core = engine if caching else build(folder, executables, enable_prefix_caching=False)
    llm, before = LLM.over(config, core), core.stats().cached_tokens
    for _ in range(2):
        assert tokens_of(llm, prompts, params) == alone
    assert (core.stats().cached_tokens - before > 16 * 64) == caching
    if not caching:
        llm.close()


def test_names_and_constants_of_a_schema_take_no_steps(llm):
    names = ["first_name", "family_name", "date_of_birth"]
    schema = {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in names} | {"kind": {"const": "one known beforehand"}},
        "required": [*names, "kind"],
        "additionalProperties": False,
    }
    for fields in ({}, {"temperature": 0}, {"presence_penalty": 1.0, "min_tokens": 10}, {"stop": ["zz"]}):
        before = llm.stats()
        choice = answer(llm, json_schema=schema, max_tokens=200, **fields)
        after, num_tokens = llm.stats(), len(choice.token_ids)
        assert choice.finish_reason == "stop" and list(json.loads(choice.text)) == [*names, "kind"], fields
        forwarded = after.forwarded_tokens - before.forwarded_tokens
        assert after.masked_tokens - before.masked_tokens == num_tokens
        assert forwarded > 30
        # one more is in flight when the last is read
        assert num_tokens - forwarded <= after.steps - before.steps <= num_tokens - forwarded + 1
    told = answer(llm, json_schema=schema, max_tokens=200, logprobs=1)
    assert len(told.logprobs) == len(told.token_ids)
    assert llm.stats().forwarded_tokens == after.forwarded_tokens


def test_a_grammars_end_wins_over_min_tokens_and_ignore_eos(llm):
    for fields in ({"min_tokens": 30}, {"ignore_eos": True}, {"ignore_eos": True, "min_tokens": 30}):
        choice = answer(llm, choice=["red"], **fields)
        assert (choice.text, choice.finish_reason) == ("red", "stop")
    longer = answer(llm, regex="[ab]+", min_tokens=20)
    assert len(longer.token_ids) > 20
    endless = answer(llm, regex="[ab]+", ignore_eos=True, max_tokens=40)
    assert (len(endless.token_ids), endless.finish_reason) == (40, "length")


def test_a_request_with_nothing_left_to_draw_fails_alone(llm):
    prompts = [PROMPT] * 3
    params = [replace(DRAWN, choice=["red"], allowed_token_ids=[5]), replace(DRAWN, choice=["red"]), DRAWN]
    first, second, third = (output.outputs[0] for output in llm.generate(prompts, params))
    assert first.finish_reason == "error" and "allowed_token_ids" in first.error
    assert (second.text, second.finish_reason) == ("red", "stop")
    assert third.token_ids == answer(llm).token_ids


def test_controls_narrow_a_grammar_further(llm):
    letters = llm._text.tokenizer.encode("a")
    only = answer(llm, regex="[a-z]{3}", allowed_token_ids=[*letters, *llm.info.eos_token_ids])
    assert (only.text, only.finish_reason) == ("aaa", "stop")
    for seed in range(4):
        assert "ab" not in answer(llm, regex="[ab]{12}", bad_words=["ab"], seed=seed).text


def test_logprobs_are_the_models_own(llm):
    free = answer(llm, logprobs=3, max_tokens=1)
    held = answer(llm, regex="[0-9]+", logprobs=3, max_tokens=4)
    assert len(held.logprobs) == len(held.token_ids)
    tops = [set(position) - {token} for position, token in zip(held.logprobs, held.token_ids, strict=True)]
    assert tops[0] & set(free.logprobs[0])


def test_a_stop_string_ends_an_answer_early(llm):
    choice = answer(llm, regex="[a-z]{50}", stop=["e", "a"], max_tokens=60)
    assert choice.finish_reason == "stop" and not set("ea") & set(choice.text)


def test_streams_of_both_transports_join_to_what_the_grammar_allows(served):
    async def test(llm):
        params = replace(DRAWN, json_schema=PERSON, max_tokens=120, n=4)
        return await collect(llm, PROMPT, params)

    deltas = served.run(test)
    for index in range(4):
        own = [delta for delta in deltas if delta.index == index]
        assert own[-1].finish_reason in ("stop", "length")
        if own[-1].finish_reason == "stop":
            assert jsonschema_rs.is_valid(PERSON, json.loads("".join(delta.text for delta in own)))


def test_streams_of_both_transports_close(served):
    async def test(llm):
        params = replace(DRAWN, json_schema=PERSON, max_tokens=22, n=8, close_within_max_tokens=True)
        return await collect(llm, PROMPT, params)

    deltas = served.run(test)
    for index in range(8):
        own = [delta for delta in deltas if delta.index == index]
        assert own[-1].finish_reason == "stop"
        assert jsonschema_rs.is_valid(PERSON, json.loads("".join(delta.text for delta in own)))


def test_a_request_that_waits_for_its_grammar_can_be_aborted(served):
    async def test(llm):
        stream = await llm.generate(PROMPT, replace(DRAWN, json_schema=PERSON), request_id="a")
        await llm.abort("a")
        return [delta async for delta in stream]

    assert served.run(test)[-1].finish_reason in ("abort", "stop", "length")
