"""LLM over a real engine: what a notebook cell sees."""

import asyncio

import pytest
from msgspec.structs import replace

from jaxinfer.errors import EngineError, InvalidRequest
from jaxinfer.llm.llm import LLM
from jaxinfer.llm.outputs import SHOWN, Results
from jaxinfer.protocol.chat import read_chat
from jaxinfer.protocol.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def llm(engine):
    return LLM.over(*engine)


def test_every_form_of_a_prompt_gives_the_same_answer(llm, engine, tokenizer):
    ids = tokenizer.encode("hello")
    outputs = llm.generate(["hello", ids, {"prompt": "hello"}, {"prompt_token_ids": ids}], GREEDY)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert [output.prompt_token_ids for output in outputs] == [ids] * 4
    assert [output.prompt for output in outputs] == ["hello", None, "hello", None]


def test_a_single_prompt_may_be_given_bare(llm, engine, tokenizer):
    ids = tokenizer.encode("hello")
    assert llm.generate("hello", GREEDY)[0].outputs[0].text == llm.generate(ids, GREEDY)[0].outputs[0].text


def test_generate_stops_at_16_tokens_unless_told_otherwise(llm):
    output = llm.generate("hello", SamplingParams(temperature=0, ignore_eos=True))[0].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (16, "length")


def test_chat_may_use_the_rest_of_the_context(llm):
    params = SamplingParams(temperature=0, ignore_eos=True)
    output = llm.chat([{"role": "user", "content": "hi"}], params)[0]
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == llm.info.max_model_len


def test_each_prompt_may_have_its_own_params(llm):
    outputs = llm.generate(["a", "b"], [SamplingParams(max_tokens=2), SamplingParams(max_tokens=5)])
    assert [len(output.outputs[0].token_ids) for output in outputs] <= [2, 5]
    with pytest.raises(InvalidRequest, match="one for each, got 1 for 2"):
        llm.generate(["a", "b"], [GREEDY])


@pytest.mark.parametrize("params", [{"temperature": 0}, [{"temperature": 0}], 3])
def test_params_that_are_none_are_refused_by_name(llm, params):
    with pytest.raises(InvalidRequest, match="sampling_params must be a SamplingParams or a list of them, got"):
        llm.generate(["a"], params)


def test_a_closed_llm_computes_nothing(engine, monkeypatch):
    llm = LLM.over(*engine)
    monkeypatch.setattr(llm._core, "close", lambda: None)  # others use the engine
    with llm:
        pass
    for call in (
        lambda: llm.generate("a", GREEDY),
        lambda: llm.chat([{"role": "user", "content": "hi"}]),
        lambda: next(llm.stream("a")),
        lambda: llm.embed("a"),
        lambda: llm.keep("s", [1]),
        lambda: llm.import_prefix(b""),
    ):
        with pytest.raises(EngineError, match="this one has been closed; make another"):
            call()


def test_a_refused_prompt_starts_none_of_its_batch(llm):
    with pytest.raises(InvalidRequest, match="maximum context length is"):
        llm.generate(["fine", [5] * 300], GREEDY)
    assert llm.stats().running == 0


@pytest.mark.parametrize("ids", [[-1], [10**6], [True], []])
def test_ids_that_cannot_be_computed_are_refused(llm, ids):
    with pytest.raises(InvalidRequest):
        llm.generate({"prompt_token_ids": ids}, GREEDY)


def test_the_text_is_the_tokens_decoded(llm, engine, tokenizer):
    output = llm.generate("hello world", SamplingParams(temperature=1, seed=3, max_tokens=60, ignore_eos=True))[0]
    assert output.outputs[0].text == tokenizer.decode(output.outputs[0].token_ids)


def test_without_detokenize_the_tokens_are_the_same_and_the_text_is_empty(llm):
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    (whole,), (bare,) = (llm.generate("hello there", replace(params, detokenize=wanted)) for wanted in (True, False))
    assert bare.outputs[0].token_ids == whole.outputs[0].token_ids
    assert (bare.outputs[0].text, bare.outputs[0].finish_reason) == ("", "length")
    assert whole.outputs[0].text


def test_a_stream_says_what_a_call_says(llm):
    params = SamplingParams(temperature=1, seed=9, max_tokens=40)
    whole = llm.generate("hello world", params)[0].outputs[0]
    deltas = list(llm.stream("hello world", params))
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [token for delta in deltas for token in delta.token_ids] == whole.token_ids
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [whole.finish_reason]


def test_leaving_a_stream_early_frees_its_pages(llm):
    stream = llm.stream("hello", SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))
    next(stream)
    assert llm.stats().running == 1
    stream.close()
    assert llm.stats().running == 0


def test_a_stop_string_cuts_text_and_tokens_where_it_begins(llm):
    params = SamplingParams(temperature=1, seed=11, max_tokens=80, ignore_eos=True)
    whole = llm.generate("tell me", params)[0].outputs[0]
    for start in (5, 17, 30):
        stop = whole.text[start : start + 2]
        cut = llm.generate("tell me", replace(params, stop=stop))[0].outputs[0]
        assert cut.text == whole.text[: whole.text.index(stop)]
        assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
        assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
        kept = llm.generate("tell me", replace(params, stop=stop, include_stop_str_in_output=True))
        assert kept[0].outputs[0].text == cut.text + stop


def test_a_stop_token_ends_the_answer_and_is_counted_but_not_shown(llm, engine, tokenizer):
    params = SamplingParams(temperature=1, seed=11, max_tokens=80, ignore_eos=True)
    whole = llm.generate("tell me", params)[0].outputs[0]
    stop = whole.token_ids[7]
    first = whole.token_ids.index(stop)
    cut = llm.generate("tell me", replace(params, stop_token_ids=[stop]))[0].outputs[0]
    assert cut.token_ids == whole.token_ids[: first + 1]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.text == tokenizer.decode(whole.token_ids[:first])


def test_seeded_choices_differ_from_each_other_and_repeat(llm):
    params = SamplingParams(temperature=1, seed=5, n=8, max_tokens=12)
    first, again = (llm.generate("hello world", params)[0] for _ in range(2))
    texts = [tuple(choice.token_ids) for choice in first.outputs]
    assert len(set(texts)) == 8
    assert texts == [tuple(choice.token_ids) for choice in again.outputs]


def test_unseeded_calls_differ(llm):
    params = SamplingParams(temperature=1, max_tokens=12)
    first, second = (llm.generate("hello world", params)[0].outputs[0].token_ids for _ in range(2))
    assert first != second


def test_eight_choices_cost_less_than_a_third_of_a_prefill_more_than_one(llm, engine, tokenizer):
    prompt = [(7 * i) % 300 for i in range(200)]
    before = engine[1].engine.stats().computed_tokens
    llm.generate({"prompt_token_ids": prompt}, SamplingParams(temperature=1, seed=1, n=8, max_tokens=1))
    assert engine[1].engine.stats().computed_tokens - before < 1.3 * len(prompt)


def test_a_second_call_finds_its_prompt_in_the_cache(llm):
    prompt = {"prompt_token_ids": [(11 * i) % 300 for i in range(100)]}
    first, second = (llm.generate(prompt, GREEDY)[0] for _ in range(2))
    assert (first.metrics.cached_tokens, second.metrics.cached_tokens) == (0, 96)
    others = {"prompt_token_ids": [(13 * i) % 300 for i in range(100)]}
    siblings = llm.generate(others, SamplingParams(temperature=1, max_tokens=2, n=4))[0]
    assert siblings.metrics.cached_tokens == 0, "what the first one computes is none of the cache's"
    assert first.outputs[0].token_ids == second.outputs[0].token_ids


def test_batched_with_others_is_the_same_as_alone(llm):
    prompts = [f"prompt number {i} " * (i % 5 + 1) for i in range(20)]
    params = [SamplingParams(temperature=i % 3 / 2, seed=i, max_tokens=5 + i) for i in range(20)]
    together = llm.generate(prompts, params)
    for prompt, own, output in zip(prompts, params, together, strict=True):
        assert llm.generate(prompt, own)[0].outputs[0].token_ids == output.outputs[0].token_ids


def test_it_works_inside_a_running_event_loop(llm):
    async def cell():
        return llm.generate("hello", GREEDY)[0].outputs[0].text

    assert asyncio.run(cell()) == llm.generate("hello", GREEDY)[0].outputs[0].text


def test_results_show_themselves_escaped(llm):
    output = llm.generate("<b>hi</b>", GREEDY)[0]
    assert "&lt;b&gt;hi&lt;/b&gt;" in output._repr_html_()
    assert "<b>hi" not in output._repr_html_()


def test_lists_of_results_embeddings_and_scores_show_themselves_escaped(llm):
    hostile = "<script>x</script>"
    answers, embeddings = llm.generate([hostile, "hello"], GREEDY), llm.embed([hostile, "hello"])
    for shown in (answers._repr_html_(), embeddings._repr_html_(), embeddings[0]._repr_html_()):
        assert "&lt;script&gt;x&lt;/script&gt;" in shown and "<script" not in shown
    first = embeddings[0].outputs
    assert first._repr_html_().startswith(f"<div>{len(first.embedding)} numbers: {first.embedding[0]:.4f}, ")
    assert answers._repr_html_() == "".join(answer._repr_html_() for answer in answers)
    scores = llm.score("hello", ["hello", hostile])
    assert scores._repr_html_().count("<div>") == 2 and "<b>1.0000</b>" in scores._repr_html_()
    assert isinstance(answers, list) and answers == list(answers)
    many = Results(answers * 30)._repr_html_()
    assert many.count("<table>") == SHOWN and many.endswith("<p>and 10 more</p>")


def test_messages_are_read_as_the_server_reads_them(llm, monkeypatch, caplog):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    thought = {"type": "thinking", "thinking": "Hm."}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be."}, {"type": "input_text", "text": "Brief."}]},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "So:"}], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": []},
    ]
    seen = []

    def encode(tokenizer, template, messages, **fields):
        seen.append(messages)
        return [5]

    monkeypatch.setattr("jaxinfer.llm.llm.encode_chat", encode)
    llm.chat(messages, SamplingParams(max_tokens=1))
    assert seen[0] == read_chat({"messages": messages}).messages
    assert (seen[0][2]["content"], seen[0][2]["reasoning_content"]) == ("So:", "Hm.")
    llm.chat([*messages[:3], {"role": "tool", "name": "f", "content": "x", "speling": 1}], SamplingParams(max_tokens=1))
    assert seen[1][3] == {"role": "tool", "name": "f", "content": "x"}, "as transformers has it"
    assert caplog.messages == ["ignored: messages[3].speling"]
    with pytest.raises(InvalidRequest, match=r"messages\[0\].content\[0\] of type image_url is not supported"):
        llm.chat([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])


@pytest.mark.parametrize("wrong", [b"x", {1}, {1: 2}, float("nan"), 10**400, "\ud800"], ids=str)
def test_a_chat_in_python_takes_what_a_body_can_hold(llm, wrong):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": wrong}}}
    user = {"role": "user", "content": "hi"}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"default": wrong}}}
    for place, messages, fields in (
        ("messages[1].tool_calls[0].function.arguments.a", [user, {"role": "assistant", "tool_calls": [call]}], {}),
        ("messages[0].content", [{"role": "user", "content": wrong}], {}),
        ("tools[0].function.parameters.default", [user], {"tools": [tool]}),
        ("template_kwargs.documents", [user], {"template_kwargs": {"documents": wrong}}),
    ):
        with pytest.raises(InvalidRequest, match="must be") as refusal:
            llm.chat(messages, GREEDY, **fields)
        assert refusal.value.param == place


@pytest.mark.parametrize(
    "prompt", [b"hi", [b"hi"], {1, 2}, {"prompt": b"hi"}, {"prompt_token_ids": b"12"}, [1.0], 5], ids=str
)
def test_a_prompt_is_a_string_or_a_list_of_ids(llm, prompt):
    with pytest.raises(InvalidRequest, match="prompt must be a string"):
        llm.generate(prompt, GREEDY)
