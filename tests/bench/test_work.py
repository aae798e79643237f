"""What a model must read and multiply is counted as the plan counts it."""

import jax
import pytest

from jaxinfer.bench.work import work_of
from jaxinfer.checkpoint.resolve import resolve
from jaxinfer.config import EngineConfig
from jaxinfer.models.registry import dense
from jaxinfer.runtime.backends import as_computed, as_held
from jaxinfer.runtime.memory import backends_for, plan_for
from jaxinfer_kernels import cpu
from jaxinfer_kernels.cpu import Isa
from tests.support.published import write_published

HELD = [
    ("fp8 block", Isa.AVX2, "int8"),
    ("fp8 block", None, "fp8 with a scale per 128 x 128 weights"),
    ("awq", Isa.AVX2, "int8"),
    ("awq", None, "int4 with a scale and a zero per 64 weights (awq)"),
]


@pytest.mark.parametrize(("name", "isa", "held"), HELD)
def test_what_is_quantized_already_counts_as_it_is_held(
    name: str, isa: Isa | None, held: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "best", lambda: isa)
    write_published(tmp_path, name, torch_dtype="float16" if name == "awq" else "bfloat16")
    config = EngineConfig(model=str(tmp_path))
    work = work_of(config)
    model = as_computed(config, dense.model(resolve(config.model).config), jax.devices("cpu")[0])
    model = as_held(model, backends_for(config, model, jax.devices("cpu")[0]))
    plan = plan_for(config, model, dense, platform="cpu", free=2**30)
    assert work.outline[-1] == held
    assert work.read_bytes == plan.weights - 2 * model.vocab_size * model.hidden_size
