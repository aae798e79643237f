"""The demo with weights in 8 and 4 bits: its answers, alone and together, by our kernels and by XLA."""

import json
import shutil

import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.checkpoint.resolve import DEMO_FOLDER
from jaxinfer.checkpoint.weights import Weights
from tests.support.checkpoints import write_safetensors
from tests.support.published import FORMATS, ONE_OF_EACH_FORM, pack_all

QUESTIONS = {f"What is {a} plus {b}?": f"{a} + {b} = {a + b}." for a, b in ((7, 5), (3, 4), (8, 6), (2, 9), (6, 6))}
SOME = ("fp8 block", "int8 channel", "nvfp4 compressed")  # each compiles programs of its own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantization", "dtype", "device"),
    [
        ("int8", "bfloat16", "cpu"),
        ("int4", "bfloat16", "cpu"),
        ("int8", "float32", "cpu"),
        pytest.param("int8", "float32", "cuda", marks=pytest.mark.gpu),
        pytest.param("int4", "bfloat16", "cuda", marks=pytest.mark.gpu),
    ],
)
def test_the_quantized_demo_answers_as_it_should_alone_and_together(quantization, dtype, device, executables):
    sizes = dict(device=device, max_num_seqs=4, max_num_batched_tokens=64, compile_cache_dir=str(executables))
    llm = LLM("demo", quantization=quantization, dtype=dtype, enable_prefix_caching=False, **sizes)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    params = SamplingParams(temperature=0, max_tokens=16)
    together = [output.outputs[0] for output in llm.chat(chats, params)]
    alone = [llm.chat([chat], params)[0].outputs[0] for chat in chats]
    llm.close()
    assert [answer.text for answer in together] == list(QUESTIONS.values())
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "device"),
    [
        ("awq", "auto", "cpu"),
        ("fp8 block", "float32", "cpu"),
        *((name, "bfloat16", "cpu") for name in SOME),
        *(pytest.param(name, "auto", "cuda", marks=pytest.mark.gpu) for name in (*ONE_OF_EACH_FORM, "awq")),
    ],
)
def test_the_demo_answers_as_it_should_from_a_checkpoint_that_is_quantized(name, dtype, device, executables, tmp_path):
    folder = tmp_path / "demo"
    shutil.copytree(DEMO_FOLDER, folder)
    section, pack = FORMATS[name]
    scales = {"torch_dtype": "float32" if name.startswith("int4") else "float16"}
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": section} | scales
    (folder / "config.json").write_text(json.dumps(config))
    weights = Weights(tuple(DEMO_FOLDER.glob("*.safetensors")))
    stored, _ = pack_all({tensor: weights.view(tensor) for tensor in weights}, pack)
    write_safetensors(folder / "model.safetensors", stored)
    sizes = dict(device=device, max_num_seqs=4, max_num_batched_tokens=64, compile_cache_dir=str(executables))
    llm = LLM(str(folder), dtype=dtype, enable_prefix_caching=False, **sizes)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    answers = [output.outputs[0].text for output in llm.chat(chats, SamplingParams(temperature=0, max_tokens=16))]
    llm.close()
    assert answers == list(QUESTIONS.values())
