"""Penalties, bias, masks, min_tokens, bad words, logprobs through both transports and LLM: each changes the answer."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from msgspec.structs import replace

from jaxinfer.errors import InvalidRequest
from jaxinfer.llm.llm import LLM
from jaxinfer.protocol.sampling import GenerationDefaults, SamplingParams
from tests.llm.test_async_llm import collect

PROMPT = [5, 6, 7, 5, 6, 7, 8]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(engine):
    return LLM.over(*engine)


def answer(llm, prompt=PROMPT, **fields):
    return llm.generate([prompt], replace(GREEDY, **fields))[0].outputs[0]


def test_each_penalty_takes_repetition_away(llm):
    plain = answer(llm, max_tokens=40).token_ids
    found = {
        name: answer(llm, max_tokens=40, **{name: value}).token_ids
        for name, value in (("presence_penalty", 2.0), ("frequency_penalty", 0.3), ("repetition_penalty", 1.5))
    }
    for name, tokens in found.items():
        assert len(set(tokens)) > len(set(plain)), name
    assert len(set(map(tuple, found.values()))) == 3
    assert len(set(answer(llm, max_tokens=40, frequency_penalty=-2.0).token_ids)) <= len(set(plain))


def test_a_repetition_penalty_counts_the_prompt_and_the_others_do_not(llm):
    first = answer(llm, max_tokens=1).token_ids
    prompt = [*PROMPT[:-1], first[0], PROMPT[-1]]  # what comes is in the prompt now
    first = answer(llm, prompt, max_tokens=1).token_ids
    if first[0] not in prompt:
        prompt.insert(1, first[0])
    after = {name: answer(llm, prompt, max_tokens=1, **{name: 2.0}).token_ids for name in
             ("presence_penalty", "frequency_penalty")}  # fmt: skip
    assert set(map(tuple, after.values())) == {tuple(answer(llm, prompt, max_tokens=1).token_ids)}


def test_a_bias_raises_and_forbids(llm):
    first = answer(llm, max_tokens=1).token_ids[0]
    other = (first + 1) % 300
    assert answer(llm, max_tokens=3, logit_bias={other: 100}).token_ids == [other] * 3
    assert answer(llm, logit_bias={first: -100}).token_ids[0] != first
    assert answer(llm, logit_bias={str(other): 100.0}).token_ids == [other] * 12


def test_only_allowed_ids_are_drawn(llm):
    for temperature in (0, 2):
        tokens = answer(llm, allowed_token_ids=[3, 31, 32, 200], temperature=temperature, seed=1).token_ids
        assert set(tokens) <= {3, 31, 32, 200}
    assert answer(llm, allowed_token_ids=[9]).token_ids == [9] * 12


def test_no_end_comes_before_min_tokens(llm):
    plain = answer(llm).token_ids
    ended = answer(llm, stop_token_ids=[plain[2]])
    assert (len(ended.token_ids), ended.finish_reason) == (plain.index(plain[2]) + 1, "stop")
    later = answer(llm, stop_token_ids=[plain[2]], min_tokens=8)
    assert plain[2] not in later.token_ids[:8]
    eos = answer(llm, ignore_eos=False, min_tokens=6, logit_bias={token: 100 for token in llm.info.eos_token_ids})
    assert len(eos.token_ids) == 7 and eos.finish_reason == "stop"


def test_a_stop_string_is_not_matched_before_min_tokens(llm):
    letters = SamplingParams(temperature=1, seed=3, max_tokens=30, ignore_eos=True, stop=["e", " "])
    early = llm.generate([PROMPT], letters)[0].outputs[0]
    late = llm.generate([PROMPT], replace(letters, min_tokens=20))[0].outputs[0]
    assert early.stop_reason in ("e", " ") and len(early.token_ids) < 20 <= len(late.token_ids)
    assert late.token_ids[: len(early.token_ids)] == early.token_ids


def test_a_bad_word_of_one_token_or_several_is_never_said(llm, tokenizer):
    plain = answer(llm, max_tokens=30)
    one = tokenizer.decode(plain.token_ids[:1])
    several = tokenizer.decode(plain.token_ids[1:4])
    for word in (one, several):
        ids = tokenizer.encode(word, add_special_tokens=False)
        assert ids
        tokens = answer(llm, max_tokens=30, bad_words=[word]).token_ids
        windows = zip(*(itertools.islice(tokens, i, None) for i in range(len(ids))), strict=False)
        assert tuple(ids) not in set(windows)
    assert answer(llm, max_tokens=30, bad_words=[one]).token_ids != plain.token_ids


def test_logprobs_of_a_step_that_bans_several_tokens_are_those_of_what_came(llm, tokenizer):
    plain = answer(llm, max_tokens=3).token_ids
    words = [tokenizer.decode([*plain[:2], last]) for last in (plain[2], *range(16, 20))]
    assert all(tokenizer.encode(word, add_special_tokens=False)[:-1] == plain[:2] for word in words)
    found = answer(llm, bad_words=words, logprobs=2)
    assert found.token_ids[:2] == plain[:2]
    assert found.token_ids == answer(llm, bad_words=words).token_ids
    assert found.token_ids[2] not in (plain[2], *range(16, 20))
    assert [found.token_ids[i] in one for i, one in enumerate(found.logprobs)] == [True] * 12


def test_what_leaves_nothing_to_draw_is_refused(llm, tokenizer):
    word = tokenizer.decode([50])
    ids = tokenizer.encode(word, add_special_tokens=False)
    with pytest.raises(InvalidRequest, match="leave at least one token") as caught:
        answer(llm, bad_words=[word], allowed_token_ids=ids)
    assert caught.value.param == "allowed_token_ids"
    with pytest.raises(InvalidRequest, match="leave at least one token"):
        answer(llm, stop_token_ids=[9], allowed_token_ids=[9], min_tokens=1)
    with pytest.raises(InvalidRequest, match="min_tokens must be at most max_tokens, 16 unless it is set"):
        llm.generate([PROMPT], SamplingParams(min_tokens=17))


def test_logprobs_change_no_token_and_name_as_many_as_asked(llm):
    params = replace(GREEDY, temperature=1.0, seed=8, n=3)
    plain = llm.generate([PROMPT], params)[0]
    named = llm.generate([PROMPT], replace(params, logprobs=4))[0]
    for before, after in zip(plain.outputs, named.outputs, strict=True):
        assert before.token_ids == after.token_ids and before.logprobs is None
        assert len(after.logprobs) == len(after.token_ids)
        for token, found in zip(after.token_ids, after.logprobs, strict=True):
            ranks = {entry.rank for entry in found.values()}
            assert len(found) == (4 if found[token].rank <= 4 else 5) and ranks >= {1, 2, 3, 4}
            assert found[token].logprob <= max(entry.logprob for entry in found.values()) < 0
            assert sum(math.exp(entry.logprob) for entry in found.values()) < 1


def test_logprobs_zero_names_the_token_alone(llm):
    found = answer(llm, logprobs=0)
    assert [list(entry) for entry in found.logprobs] == [[token] for token in found.token_ids]


def test_logprobs_are_the_models_own_whatever_shapes_the_draw(llm):
    free = answer(llm, logprobs=2)
    shaped = answer(llm, logprobs=2, logit_bias={9: 100}, presence_penalty=1, temperature=2)
    assert shaped.token_ids == [9] * 12
    assert max(shaped.logprobs[0], key=lambda i: shaped.logprobs[0][i].logprob) == free.token_ids[0]


def test_prompt_logprobs_are_those_that_the_tokens_would_have_as_an_answer(llm):
    output = llm.generate([PROMPT], replace(GREEDY, logprobs=3, max_tokens=6))[0]
    whole = [*PROMPT, *output.outputs[0].token_ids]
    scored = llm.generate([whole], replace(GREEDY, prompt_logprobs=3, max_tokens=1, n=2))[0]
    assert scored.prompt_logprobs[0] is None and len(scored.prompt_logprobs) == len(whole)
    for answered, given in zip(output.outputs[0].logprobs, scored.prompt_logprobs[len(PROMPT) :], strict=True):
        assert list(answered) == list(given)
        values = [[entry.logprob for entry in found.values()] for found in (answered, given)]
        np.testing.assert_allclose(*values, atol=1e-4)


def test_prompt_logprobs_are_whole_where_the_prefix_is_cached_and_longer_than_a_step(llm):
    prompt = [3 + i % 250 for i in range(150)]
    outputs = [llm.generate([prompt], replace(GREEDY, prompt_logprobs=0, max_tokens=1))[0] for _ in range(2)]
    assert outputs[1].metrics.cached_tokens == 0
    assert [len(output.prompt_logprobs) for output in outputs] == [150, 150]
    assert outputs[0].prompt_logprobs == outputs[1].prompt_logprobs
    assert llm.generate([[4]], replace(GREEDY, prompt_logprobs=0))[0].prompt_logprobs == [None]


def test_a_plain_neighbour_has_the_tokens_it_has_alone(llm):
    plain = SamplingParams(temperature=1, seed=5, max_tokens=20, ignore_eos=True)
    shaped = replace(plain, frequency_penalty=1.0, logit_bias={7: 5}, bad_words=["ab"], min_tokens=3, logprobs=1)
    alone = [llm.generate([[11, 12]], params)[0].outputs[0].token_ids for params in (plain, shaped)]
    together = llm.generate([[11, 12]] * 4, [plain, shaped, plain, shaped])
    assert [output.outputs[0].token_ids for output in together] == [*alone, *alone]


def test_both_transports_stream_what_llm_returns(served, engine):
    params = replace(GREEDY, logprobs=2, prompt_logprobs=1, frequency_penalty=1.0, n=2, bad_words=["the cat"], stop="q")
    expected = LLM.over(*engine).generate([PROMPT], params)[0]

    async def test(llm):
        return await collect(llm, PROMPT, params)

    deltas = served.run(test)
    for choice in expected.outputs:
        own = [delta for delta in deltas if delta.index == choice.index]
        entries = [entry for delta in own for entry in delta.logprobs or ()]
        assert [entry.token_id for entry in entries] == choice.token_ids
        assert [len(delta.prompt_logprobs or ()) for delta in own][0] == len(PROMPT)
        assert not any(delta.prompt_logprobs for delta in own[1:])
        assert [entry.logprob for entry in entries] == pytest.approx([
            found[token].logprob for found, token in zip(choice.logprobs, choice.token_ids, strict=True)
        ], abs=1e-4)  # fmt: skip


def test_a_seed_gives_the_same_ids_alone_in_a_crowd_and_again_and_none_gives_others(llm):
    params = replace(GREEDY, temperature=1.2, n=3, frequency_penalty=0.5, logit_bias={40: 3.0}, min_tokens=2)
    seeded = replace(params, seed=77)
    alone = [choice.token_ids for choice in llm.generate([PROMPT], seeded)[0].outputs]
    crowd = llm.generate([PROMPT, [9, 9], PROMPT], [seeded, params, seeded])
    assert [choice.token_ids for choice in crowd[0].outputs] == alone
    assert [choice.token_ids for choice in crowd[2].outputs] == alone
    assert len(set(map(tuple, alone))) == 3
    unseeded = [tuple(llm.generate([PROMPT], params)[0].outputs[0].token_ids) for _ in range(3)]
    assert len(set(unseeded)) == 3


def test_a_models_own_repetition_penalty_is_applied_unless_the_request_says_otherwise(llm):
    plain = answer(llm, max_tokens=40).token_ids
    llm.info = dataclasses.replace(llm.info, defaults=GenerationDefaults(repetition_penalty=1.5, min_tokens=3))
    assert answer(llm, max_tokens=40).token_ids != plain
    assert answer(llm, max_tokens=40, repetition_penalty=1.0).token_ids == plain
    assert len(answer(llm, stop_token_ids=[plain[0]], repetition_penalty=1.0).token_ids) > 3
