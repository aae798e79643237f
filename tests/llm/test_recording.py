"""What LLM.record notes is what the engine did."""

import itertools

import pytest

from jaxinfer.llm.llm import LLM
from jaxinfer.llm.recording import BLANK, CACHED, SHARED
from jaxinfer.protocol.sampling import SamplingParams
from tests.support.engines import build

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def test_every_position_is_noted_once_and_by_whom(engine):
    llm = LLM.over(*engine)
    prompts = [[7, i, *range(30, 30 + 40 * i)] for i in range(1, 4)]
    with llm.record() as recording:
        llm.generate(prompts, GREEDY)
    for number, prompt in enumerate(prompts):
        rows = [row for step in recording for row in step.rows if row.name == f"{number}.0"]
        places = [place for row in rows for place in range(row.start, row.start + row.count)]
        assert places[: len(prompt) + 11] == list(range(len(prompt) + 11)), "the last token is drawn, not computed"
        assert all(row.count == 1 for row in rows if row.is_decode)
    assert all(step.prompt_tokens <= 64 for step in recording)
    assert max(step.decode_rows for step in recording) == 3
    assert [step.at_s for step in recording] == sorted(step.at_s for step in recording)
    noted = len(recording)
    llm.generate(prompts, GREEDY)
    assert len(recording) == noted, "it was over"


def test_pages_say_who_has_them_what_is_shared_and_what_is_kept(engine):
    llm = LLM.over(*engine)
    prompt = [9, 8, 7] * 20
    with llm.record() as first:
        llm.generate([prompt], GREEDY)
    assert {page for step in first for page in step.pages} >= {BLANK, "0.0"}
    with llm.record() as again:
        llm.generate([[*prompt, 5], [*prompt, 6]], GREEDY)
    assert again.steps[0].pages.count(SHARED) == 3, "three pages of 16 hold the prompt's first 48 tokens"
    assert again.steps[-1].pages.count(CACHED) > 0
    assert all(len(step.pages) == llm.stats().pages_total for step in again)


@pytest.mark.slow
def test_a_pool_that_is_too_small_shows_its_preemptions(folder, executables):
    llm = LLM.over(*build(folder, executables, num_pages=11))
    with llm.record() as recording:
        llm.generate([[i, 3] for i in range(8)], SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    counts = [step.preemptions for step in recording]
    assert counts[0] == 0 and counts[-1] > 0 and counts == sorted(counts)
    assert all(
        later.waiting for earlier, later in itertools.pairwise(recording) if later.preemptions > earlier.preemptions
    )


@pytest.mark.slow
def test_what_a_session_keeps_is_seen_to_go_to_host_memory_and_to_come_back(folder, executables):
    llm = LLM.over(*build(folder, executables, num_pages=11, num_host_pages=20))
    said = llm.generate([list(range(30, 130))], GREEDY)[0]
    talk = said.prompt_token_ids + said.outputs[0].token_ids
    llm.keep("talk", talk)
    assert llm.stats().pages_kept == 5, "half of the pool, of six full pages of 16"
    others = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with llm.record() as recording:
        llm.generate([[i, 3] for i in range(2)], others)
        assert recording.steps[-1].host_pages == llm.stats().host_pages > 0
        back = llm.generate([[*talk, 7, 8]], GREEDY)[0]
    assert back.metrics.cached_tokens == 96 and recording.steps[-1].host_pages == 0
    llm.generate([[i, 4] for i in range(2)], others)
    assert llm.stats().host_pages > 0
    llm.forget("talk")
    assert (llm.stats().host_pages, llm.stats().pages_kept) == (0, 0)


def test_it_shows_itself_in_a_notebook(engine):
    with LLM.over(*engine).record() as recording:
        LLM.over(*engine).generate([[1, 2, 3]], SamplingParams(max_tokens=60, ignore_eos=True))
    shown = recording._repr_html_()
    assert shown.startswith("<table><tr><th>step</th>")
    assert "<td>0.0+3 from 0</td>" in shown
    assert f"<p>and {len(recording) - 40} more</p>" in shown


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_call_that_ends_early_ends_the_recording(engine, error):
    llm = LLM.over(*engine)
    with pytest.raises(error), llm.record():
        raise error
    assert llm._engine.on_step is None
