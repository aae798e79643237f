"""The bundled checkpoint through the engine: paged attention, batching and the prefix cache give the goldens too."""

import json

import pytest

from jaxinfer.errors import InvalidRequest
from jaxinfer.llm.llm import LLM
from jaxinfer.protocol.sampling import SamplingParams
from tests.demo.goldens import GOLDENS
from tests.support.engines import DEMO


@pytest.fixture(scope="module")
def llm(executables) -> LLM:
    return LLM("demo", **DEMO, compile_cache_dir=str(executables))


@pytest.mark.slow
@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.user)
def test_the_engine_gives_the_golden_answer(llm, golden):
    params = SamplingParams(max_tokens=128)  # greedy by the checkpoint's generation_config.json
    (result,) = llm.chat(
        golden.messages, params, tools=list(golden.tools), template_kwargs={"enable_thinking": golden.thinking}
    )
    output = result.outputs[0]
    calls = [
        f'<tool_call>\n{{"name": "{c.name}", "arguments": {c.arguments}}}\n</tool_call>' for c in output.tool_calls
    ]
    thoughts = f"<think>\n{output.reasoning}\n</think>\n\n" if golden.thinking else ""
    assert thoughts + "\n".join(filter(None, [output.text, *calls])) == golden.answer
    assert output.finish_reason == ("tool_calls" if calls else "stop")


@pytest.mark.slow
def test_a_conversation_extends_its_own_tokens_so_that_a_turn_computes_what_is_new(llm):
    """What the model drew is what its template and tokenizer make of the answer in the next turn's prompt."""
    messages, told = [], []
    for said in ("What is 7 plus 5?", "Tell me a story.", "Who are you?", "Spell cat backwards.", "Thank you."):
        messages.append({"role": "user", "content": said})
        (result,) = llm.chat(messages, SamplingParams(max_tokens=40, temperature=0.8, seed=len(messages)))
        prompt = result.prompt_token_ids
        assert prompt[: len(told)] == told
        assert len(prompt) - result.metrics.cached_tokens <= len(prompt) - len(told) + 16
        told = prompt + result.outputs[0].token_ids
        messages.append({"role": "assistant", "content": result.outputs[0].text})


@pytest.mark.slow
def test_goldens_asked_together_give_the_same_answers(llm):
    plain = [golden for golden in GOLDENS if not golden.tools and not golden.thinking]
    results = llm.chat([golden.messages for golden in plain], SamplingParams(max_tokens=128))
    assert [result.outputs[0].text for result in results] == [golden.answer for golden in plain]


WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]


def called(llm, **fields):
    (result,) = llm.chat(ASKED, SamplingParams(max_tokens=64), template_kwargs={"enable_thinking": False}, **fields)
    output = result.outputs[0]
    return [(call.name, json.loads(call.arguments)) for call in output.tool_calls], output.finish_reason


@pytest.mark.slow
def test_a_call_is_taken_made_or_left_as_the_choice_says(llm):
    city = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
    rome = {"type": "function", "function": {"name": "in_rome", "parameters": city}}
    calls, reason = called(llm, tools=[rome], tool_choice="required")
    assert (calls[0], reason) == (("in_rome", {"city": "Rome"}), "tool_calls")
    named = {"type": "function", "function": {"name": "in_rome"}}
    assert called(llm, tools=[WEATHER, rome], tool_choice=named) == ([("in_rome", {"city": "Rome"})], "stop")
    calls, reason = called(llm, tools=[rome], tool_choice="required", parallel_tool_calls=False)
    assert len(calls) == 1
    assert called(llm, tools=[WEATHER], tool_choice="none")[0] == []


@pytest.mark.slow
def test_a_choice_of_a_tool_that_is_not_there_is_refused(llm):
    with pytest.raises(InvalidRequest, match="tool_choice must name one of tools"):
        called(llm, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "other"}})
