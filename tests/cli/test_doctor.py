"""`jaxinfer doctor`: facts without secrets, and what stands in the way of a GPU."""

import shutil
import sys

import jax
import pytest

from jaxinfer.cli.doctor import bytecode_fact, folder_fact
from jaxinfer.errors import DeviceError
from jaxinfer.runtime import device
from jaxinfer.version import __version__


def facts(outcome) -> dict[str, str]:
    pairs = [line.split("  ", 1) for line in outcome.out.splitlines()]
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def test_the_facts_of_a_bug_report_are_there(cli):
    outcome = cli("doctor")
    found = facts(outcome)
    assert outcome.code == 0
    assert (found["jaxinfer"], found["jax"]) == (__version__, jax.__version__)
    names = "python", "system", "bytecode", "host memory", "driver", "jax cuda plugin", "compile cache", "downloads"
    for name in names:
        assert found[name], name
    assert outcome.out.splitlines()[-1] == "ready: --device auto runs on cpu (cpu)"


def test_packages_that_are_compiled_anew_at_each_start_are_told_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "kept_by_python.py").touch()
    assert bytecode_fact("kept_by_python") == "kept"
    shutil.rmtree(tmp_path / "__pycache__")
    said = f"not kept, {tmp_path}/__pycache__ cannot be written: each start compiles the packages anew, for seconds"
    assert bytecode_fact("kept_by_python").startswith(said)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert bytecode_fact("kept_by_python").startswith("not kept, PYTHONDONTWRITEBYTECODE is set: each start compiles")


@pytest.mark.parametrize(("token", "shown"), [("hf_secret", "yes"), ("", "no")])
def test_a_token_is_there_or_not_and_never_shown(cli, monkeypatch, tmp_path, token, shown):
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    outcome = cli("doctor")
    assert facts(outcome)["hub token"] == shown
    assert "hf_secret" not in outcome.out + outcome.err


def test_a_gpu_that_jax_cannot_use_is_a_problem_with_its_cure(cli, monkeypatch):
    def broken(name: str, memory_utilization: float) -> None:
        raise DeviceError("JAX must be able to use the GPU; run `this command`")

    monkeypatch.setattr(device, "select_device", broken)
    outcome = cli("doctor")
    assert outcome.code == 4
    assert outcome.out.splitlines()[-1] == "problem: JAX must be able to use the GPU; run `this command`"


def test_a_misspelt_variable_is_a_problem(cli, monkeypatch):
    monkeypatch.setenv("JAXINFER_MAX_NUM_SQS", "3")
    outcome = cli("doctor")
    assert outcome.code == 2
    assert outcome.out.splitlines()[-1].startswith(
        "problem: unknown environment variable 'JAXINFER_MAX_NUM_SQS', did you"
    )


def test_a_folder_is_measured_or_not_there_yet(tmp_path):
    (tmp_path / "file").write_bytes(bytes(2**20))
    assert folder_fact(tmp_path).startswith(f"{tmp_path} (0.00 GiB), ")
    assert folder_fact(tmp_path / "a" / "b").startswith(f"{tmp_path / 'a' / 'b'} (not there yet), ")


def test_a_folder_that_nothing_can_be_written_to_is_told(tmp_path, monkeypatch):
    assert "written" not in folder_fact(tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    for folder in (tmp_path, tmp_path / "a"):
        assert folder_fact(folder).endswith(" free, but nothing can be written there")
