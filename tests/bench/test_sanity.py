"""`sanity` over small models: what is well, and each check on a model that is not."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from jaxinfer.bench import sanity
from jaxinfer.bench.report import Report
from jaxinfer.config import EngineConfig, Resolved
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
    fine = report_on(dataclasses.replace(config, load_format="dummy"))
    assert fine.holds
    (row,) = rows_of(fine.tables[0]).values()
    assert row["checks"] == "finite, repeats itself, rests, compiles nothing"
    assert row["prefill tok/s"] == pytest.approx(sanity.PREFILL / row["prefill ms"] * 1e3)
    bad = report_on(config)
    assert not bad.holds
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
    assert not report.holds
    assert checks_of(report, config.model).startswith("**finite: ")
    assert rows_of(report.tables[0])[config.model]["decode tok/s"] is None


def test_a_model_that_cannot_be_read_is_a_row_and_the_others_go_on(config):
    report = report_on(dataclasses.replace(config, load_format="dummy"), "/nowhere/at/all", config.model)
    assert not report.holds
    assert checks_of(report, "/nowhere/at/all").startswith("**runs: the model must be an existing folder")
    assert checks_of(report, config.model).startswith("finite, repeats")
