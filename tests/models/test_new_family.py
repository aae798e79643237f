"""A family as docs/notebooks/4-a-new-model.ipynb writes it, which knows of no kernel, gets ours on a Hopper GPU."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import jax
import pytest
from jax.sharding import SingleDeviceSharding

from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.cli.cards import GPUS
from jaxinfer.config import EngineConfig
from jaxinfer.models import registry
from jaxinfer.models.registry import Family
from jaxinfer.runtime import programs, step
from jaxinfer.runtime.backends import Backend, choose_backends
from jaxinfer.runtime.memory import backends_for, plan_for
from jaxinfer_kernels.launch import ffi
from jaxinfer_kernels.launch.sequence import LaunchSequence
from tests.support.hopper import gpu
from tests.support.teacher_forced import Work, all_faults, forced_logits, in_float32

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebooks" / "4-a-new-model.ipynb"
CONFIG = {
    "architectures": ["ParallelForCausalLM"],
    "vocab_size": 1536,
    "hidden_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 2048,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "eos_token_id": 0,
}


@pytest.fixture
def parallel(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The notebook's file as a module; its family is registered while the test runs."""
    cells = ("".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"])
    _, _, source = next(cell for cell in cells if cell.startswith("%%writefile parallel.py")).partition("\n")
    monkeypatch.setattr(registry, "MODELS", {**registry.MODELS})
    module = ModuleType("parallel")
    monkeypatch.setitem(sys.modules, "parallel", module)
    exec(compile(source, "parallel.py", "exec"), module.__dict__)
    yield module


@pytest.mark.parametrize(
    ("name", "sequences"),
    [
        # qkv, attention, and up, which relu closes; o, down and the next layer's three; o and down
        ("decode 8", [3, 5, 2]),
        ("decode 64", [4, 5, 2]),  # the first norm is a kernel of its own
        ("extend 128 x 8 x 8", [5, 6, 2]),  # and so is rotating
        ("extend 512 x 8 x 8", []),
    ],
)
def test_it_lowers_for_a_hopper_gpu_with_our_kernels(name, sequences, parallel, monkeypatch):
    monkeypatch.setattr(ffi, "available", lambda: True)
    family = registry.family_for(CONFIG)
    model, device, config = family.config_from_hf(CONFIG), GPUS["h100"], EngineConfig(model="parallel")
    backends = backends_for(config, model, device)
    limits = plan_for(config, model, family, platform="gpu", free=device.free_bytes, backends=backends).limits
    where = SingleDeviceSharding(jax.devices("cpu")[0])
    listed = programs.without_arrays(step.Model(model, family, backends), limits, "bfloat16", where)
    (program,) = (one for one in listed if one.name == name)
    traced = jax.jit(program.function).trace(*program.arguments)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    found = re.findall(r'chain = "([^"]*)"', text)
    assert [len(LaunchSequence.decode(one.encode()).launches) for one in found] == sequences
    # one by one: what rotates and stores, what attends, and the head's argmax
    assert sequences or text.count("mosaic_gpu_v2") == 3


def old_forward(config, params, tokens, positions, kv, attend, linears=None):
    raise AssertionError("never called")


def test_a_family_of_the_contract_before_is_told_what_changed(parallel):
    wanted = (
        r"a family's forward must take \(config, params, batch, cache\), got \(config, params, tokens, .*adding-a-model"
    )
    with pytest.raises(TypeError, match=wanted):
        Family(parallel.config_from_hf, parallel.parameters, old_forward, parallel.unembed)
    wanted = (
        r"a family's unembed must take \(config, params, hidden, products\), got \(config, params, hidden\); logits are"
    )
    with pytest.raises(TypeError, match=wanted):
        Family(parallel.config_from_hf, parallel.parameters, parallel.forward, lambda config, params, hidden: hidden)


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["decode", "pieces"])
def test_on_a_hopper_gpu_our_kernels_are_as_near_to_float32_as_xla_is(way, parallel):
    family, device = registry.family_for(CONFIG), gpu()
    model = family.config_from_hf(CONFIG)
    params = dummy_params(family.parameters(model), "bfloat16", 0, device)
    work = Work(prompts=(100, 1000) * 3, forced=64, page_size=64, budget=1024, decode=8, rows=8)
    wanted = forced_logits(step.Model(model, family), in_float32(params), work, "whole", device)
    xla = forced_logits(step.Model(model, family), params, work, way, device)
    backends = choose_backends("mosaic", model, "bfloat16", work.page_size, device)
    assert {backends.decode_attention, backends.extend_attention, backends.decode_linear} == {Backend.MOSAIC}
    ours = step.Model(model, family, backends)
    assert all_faults(forced_logits(ours, params, work, way, device), xla, wanted) == {}
