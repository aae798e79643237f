"""What a model must read and multiply is counted as the plan counts it."""

import jax
import pytest

from jaxinfer.bench.work import work_of
from jaxinfer.checkpoint.resolve import resolve
from jaxinfer.config import EngineConfig
from jaxinfer.models.registry import dense
from jaxinfer.runtime.backends import as_held
from jaxinfer.runtime.memory import backends_for, plan_for
from jaxinfer_kernels import cpu
from jaxinfer_kernels.cpu import Isa
from tests.support.published import write_published


@pytest.mark.parametrize(("isa", "held"), [(Isa.AVX2, "int8"), (None, "fp8 with a scale per 128 x 128 weights")])
def test_what_is_quantized_already_counts_as_it_is_held(
    isa: Isa | None, held: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "best", lambda: isa)
    write_published(tmp_path, "fp8 block", torch_dtype="bfloat16")
    config = EngineConfig(model=str(tmp_path))
    work = work_of(config)
    model = dense.model(resolve(config.model).config)
    model = as_held(model, backends_for(config, model, jax.devices("cpu")[0]))
    plan = plan_for(config, model, dense, platform="cpu", free=2**30)
    assert work.outline[-1] == held
    assert work.read_bytes == plan.weights - 2 * model.vocab_size * model.hidden_size
