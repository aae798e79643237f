"""A family of every kind of layer (tests/support/toy.py) is loaded, planned and served as any other."""

import dataclasses
import json

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.config import EngineConfig
from jaxinfer.models import registry
from jaxinfer.models.parameters import ParamSpec
from jaxinfer.runtime.memory import plan_for
from tests.support.checkpoints import write_safetensors, write_tokenizer
from tests.support.toy import RAW, TOY, config_from_hf, parameters

CONFIG = RAW | {"architectures": ["ToyForCausalLM"], "vocab_size": 384}
MODEL = config_from_hf(CONFIG)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A checkpoint of its random weights, each leaf in the file's own order."""
    monkeypatch.setattr(registry, "MODELS", registry.MODELS | {"ToyForCausalLM": TOY})
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_tokenizer(tmp_path)
    specs = parameters(MODEL)
    leaves = jax.tree.leaves(specs, is_leaf=lambda node: isinstance(node, ParamSpec))
    arrays = jax.tree.leaves(dummy_params(specs, "float32", 0, jax.devices("cpu")[0]))
    tensors = {}
    for spec, array in zip(leaves, arrays, strict=True):
        ((name,),) = spec.sources
        tensors[name] = np.asarray(array)
        if spec.layout.order:
            tensors[name] = np.empty_like(tensors[name])
            tensors[name][spec.layout.file_rows(range(len(array)))] = array
    assert tensors["0.rate"].dtype == ml_dtypes.bfloat16
    write_safetensors(tmp_path / "model.safetensors", tensors)
    return tmp_path


def test_its_states_are_part_of_the_memory_plan():
    config = EngineConfig(model="toy", max_num_seqs=4, max_num_batched_tokens=64)
    sizes = dict(platform="cpu", free=2**24)
    found = plan_for(config, MODEL, TOY, **sizes)
    memory, inputs = 4 * 4 * 8 * 8, 4 * (2 * 4 * 8 + 4)  # bytes of two recurrent layers' one row
    assert found.states == 2 * ((5 + 25) * memory + 5 * inputs)
    assert ("states", "64,160 bytes: 4 sequences, 24 snapshots") in found.rows()
    none = plan_for(config, dataclasses.replace(MODEL, snapshots=0), TOY, **sizes)
    assert none.states == 2 * ((5 + 1) * memory + 5 * inputs)


@pytest.mark.slow
def test_it_answers_alike_from_its_file_and_from_random_weights_cold_and_cached(folder):
    settings = dict(device="cpu", max_num_seqs=2, max_num_batched_tokens=64, compile_cache_dir=str(folder / "programs"))
    prompts = [[(7 * i) % 320 for i in range(200)], [(3 * i) % 320 for i in range(90)]]
    answers = []
    for source in ("auto", "dummy"):
        llm = LLM(str(folder), load_format=source, dtype="float32", **settings)
        params = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True)
        for _ in range(2):
            answers.append([output.outputs[0].token_ids for output in llm.generate(prompts, params)])
        assert llm.stats().cached_tokens >= 128 + 64
        llm.close()
    assert answers == [answers[0]] * 4
