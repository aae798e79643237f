"""`sanity` over small models: what is well, and each check on a model that is not."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from jaxinfer.bench import sanity
from jaxinfer.bench.report import Report
from jaxinfer.config import EngineConfig, Resolved
from jaxinfer.errors import CheckpointError
from tests.bench.conftest import rows_of
from tests.support.checkpoints import model_config, random_tensors, write_checkpoint, write_shards
from tests.support.engines import small_config


@pytest.fixture
def config(tmp_path, executables) -> EngineConfig:
    return small_config(write_checkpoint(tmp_path / "tiny"), executables)


def report_on(config: EngineConfig, *models: str) -> Report:
    return sanity.run(Resolved(config, {}), models or (config.model,), "hi", lambda event: None, lambda line: None)


def checks_of(report: Report, name: str) -> str:
    return str(rows_of(report.tables[0])[name]["checks"])


@pytest.mark.slow
def test_a_model_with_random_weights_on_purpose_is_well_and_one_that_has_them_by_accident_is_not(config):
    """A model before it that cannot be read is a row too."""
    found = report_on(dataclasses.replace(config, load_format="dummy"), "/nowhere/at/all", config.model)
    assert checks_of(found, "/nowhere/at/all").startswith("**runs: the model must be an existing folder")
    row = rows_of(found.tables[0])[config.model]
    assert row["checks"] == "finite, repeats itself, rests, compiles nothing"
    assert row["prefill tok/s"] == pytest.approx(sanity.PREFILL / row["prefill ms"] * 1e3)
    bad = report_on(config)
    assert bad.exit_code == 1
    assert "finite, **knows English: " in checks_of(bad, config.model)
    assert "nats a token, guessing has 5.95**, repeats itself, rests" in checks_of(bad, config.model)


@pytest.mark.slow
def test_numbers_that_are_not_finite_end_the_questions(config):
    tensors = random_tensors(model_config("qwen3"))
    tensors["model.norm.weight"][0] = np.nan
    for path in Path(config.model).glob("*.safetensors*"):
        path.unlink()
    write_shards(Path(config.model), tensors)
    report = report_on(config)
    assert report.exit_code
    assert checks_of(report, config.model).startswith("**finite: ")
    assert rows_of(report.tables[0])[config.model]["decode tok/s"] is None


def test_a_report_holds_where_each_model_can_be_read_and_every_check_holds(config, monkeypatch):
    """What measures is made up: to compile a model takes 15 s of a processor."""
    figures = (1.0,) * len(sanity.NOTHING)
    checks = {"well": True, "ill": False}

    def measure(config: EngineConfig, prompt: str, on_event: object) -> tuple[object, list[sanity.Check]]:
        if config.model not in checks:
            raise CheckpointError("it cannot be read")
        return figures, [sanity.Check("finite", checks[config.model], "it is not")]

    monkeypatch.setattr(sanity, "measure", measure)
    assert report_on(config, "well", "well").exit_code == 0
    assert report_on(config, "well", "ill").exit_code == 1
    report = report_on(config, "nowhere", "well")
    assert report.exit_code == 3, "as of every other verb"
    assert checks_of(report, "nowhere") == "**runs: it cannot be read**" and checks_of(report, "well") == "finite"
