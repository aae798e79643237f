"""What else is asked of an LLM while a stream of its is open: neither takes anything from the other."""

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.errors import BatchError
from jaxinfer.llm.dry_run import start_dry_run
from jaxinfer.llm.events import ignore
from jaxinfer.llm.llm import LLM
from jaxinfer.protocol.sampling import SamplingParams

PARAMS = SamplingParams(temperature=1, seed=4, max_tokens=40, ignore_eos=True)
FIRST, SECOND = list(range(5, 40)), [9, 8, 7]


@pytest.fixture(scope="module")
def llm(engine):
    return LLM.over(*engine)


def ids(llm, prompt, params=PARAMS):
    return llm.generate({"prompt_token_ids": prompt}, params)[0].outputs[0].token_ids


def joined(deltas):
    return [token for delta in deltas for token in delta.token_ids]


def test_two_streams_read_in_turns_say_what_each_says_alone(llm):
    expected = ids(llm, FIRST), ids(llm, SECOND)
    pairs = list(zip(llm.stream(FIRST, PARAMS), llm.stream(SECOND, PARAMS), strict=True))
    assert tuple(joined(deltas) for deltas in zip(*pairs, strict=True)) == expected


def test_what_is_kept_or_forgotten_takes_no_token_from_a_stream(llm):
    expected, found = ids(llm, FIRST), []
    for delta in llm.stream(FIRST, PARAMS):
        found.append(delta)
        llm.keep("s", FIRST)
        llm.forget("s")
    assert joined(found) == expected


@pytest.mark.parametrize("stop", [None, "never said"], ids=["", "the engine waits for its text"])
def test_a_whole_answer_asked_for_inside_a_stream_leaves_both_as_they_are_alone(llm, stop):
    params = SamplingParams(temperature=1, seed=4, max_tokens=80, ignore_eos=True, stop=stop)
    expected, other = ids(llm, FIRST, params), ids(llm, SECOND, params)
    stream = llm.stream(FIRST, params)
    found = [next(stream)]
    assert ids(llm, SECOND, params) == other
    assert llm.embed({"prompt_token_ids": SECOND})[0].outputs.embedding
    assert joined([*found, *stream]) == expected


def test_with_one_place_the_one_who_waits_gets_it_when_the_stream_has_ended():
    config = EngineConfig(model="demo", max_num_seqs=1)
    with LLM.over(config, start_dry_run(config, ignore)) as llm:
        params = SamplingParams(temperature=1, seed=4, max_tokens=80, ignore_eos=True, stop="never said")
        expected, other = ids(llm, FIRST, params), ids(llm, SECOND, params)
        stream = llm.stream(FIRST, params)
        found = [next(stream)]
        assert ids(llm, SECOND, params) == other
        assert joined([*found, *stream]) == expected


def test_a_stream_that_nobody_reads_computes_nothing(llm):
    llm.stream(FIRST, PARAMS)
    stream = llm.stream(FIRST, PARAMS)
    before = llm.stats().generated_tokens
    assert len(ids(llm, SECOND)) == 40
    stats = llm.stats()
    assert (stats.running, stats.waiting, stats.generated_tokens - before) == (0, 0, 40)
    assert len(joined(stream)) == 40


def test_leaving_a_stream_leaves_another_one_open(llm):
    expected = ids(llm, SECOND)
    first, second = llm.stream(FIRST, PARAMS), llm.stream(SECOND, PARAMS)
    found = [next(first), next(second)][1:]
    first.close()
    assert llm.stats().running == 1
    assert joined([*found, *second]) == expected


def test_every_choice_of_a_stream_is_told_whole_though_another_call_computed_it(llm):
    params = SamplingParams(temperature=1, seed=4, max_tokens=30, ignore_eos=True, n=3)
    choices = llm.generate({"prompt_token_ids": FIRST}, params)[0].outputs
    stream = llm.stream(FIRST, params)
    found = [next(stream)]
    ids(llm, SECOND, SamplingParams(max_tokens=100, ignore_eos=True))
    found += stream
    for choice in choices:
        assert joined(delta for delta in found if delta.index == choice.index) == choice.token_ids


def test_a_batch_of_a_file_is_refused_while_a_stream_is_open(llm, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "x"}\n')
    stream = llm.stream(FIRST, PARAMS)
    next(stream)
    with pytest.raises(BatchError, match=r"1 stream is open.*close"):
        llm.generate_file(source, tmp_path / "out.jsonl")
    assert list(tmp_path.iterdir()) == [source]
    assert len(joined(stream)) == 39
