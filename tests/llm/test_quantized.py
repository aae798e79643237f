"""The demo with weights in 8 and 4 bits: its answers, alone and together, by our kernels and by XLA."""

import pytest

from jaxinfer import LLM, SamplingParams

QUESTIONS = {f"What is {a} plus {b}?": f"{a} + {b} = {a + b}." for a, b in ((7, 5), (3, 4), (8, 6), (2, 9), (6, 6))}


@pytest.mark.slow
@pytest.mark.parametrize(("quantization", "dtype"), [("int8", "bfloat16"), ("int4", "bfloat16"), ("int8", "float32")])
def test_the_quantized_demo_answers_as_it_should_alone_and_together(quantization, dtype, tmp_path):
    sizes = dict(device="cpu", max_num_seqs=8, max_num_batched_tokens=256, compile_cache_dir=str(tmp_path))
    llm = LLM("demo", quantization=quantization, dtype=dtype, enable_prefix_caching=False, **sizes)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    params = SamplingParams(temperature=0, max_tokens=16)
    together = [output.outputs[0] for output in llm.chat(chats, params)]
    alone = [llm.chat([chat], params)[0].outputs[0] for chat in chats]
    llm.close()
    assert [answer.text for answer in together] == list(QUESTIONS.values())
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
