"""Check A20: whatever is wrong with a checkpoint, it is refused by name in seconds and none of its code runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxinfer.errors import CheckpointError
from tests.support.attempts import Stopwatch
from tests.support.checkpoints import write_checkpoint
from tests.support.hostile_checkpoints import SENTINEL, VARIANTS, write_hostile_checkpoint
from tests.support.loading import open_checkpoint

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_spoiled_checkpoint_is_refused_by_name_within_five_seconds(name: str, tmp_path: Path) -> None:
    variant = write_hostile_checkpoint(tmp_path, name)
    watch = Stopwatch()
    with pytest.raises(CheckpointError) as refusal:
        open_checkpoint(tmp_path)
    assert watch.seconds() < 5
    message = str(refusal.value)
    assert [word for word in variant.words if word not in message] == []
    assert len(message) < 2000
    assert not (tmp_path / SENTINEL).exists()


def test_a_sound_checkpoint_with_python_files_beside_it_loads_and_runs_none_of_them(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_qwen3.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for module in ("modeling_qwen3", "__init__", "conftest", "numpy", "jax"):
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / SENTINEL)!r}, 'w').close()\n")
    open_checkpoint(tmp_path)
    assert not (tmp_path / SENTINEL).exists()


@pytest.mark.slow
def test_every_spoiled_checkpoint_is_refused_alike_without_assertions(tmp_path: Path) -> None:
    script = """
import sys, tempfile
from pathlib import Path
from jaxinfer.errors import CheckpointError
from tests.support.hostile_checkpoints import SENTINEL, VARIANTS, write_hostile_checkpoint
from tests.support.loading import open_checkpoint
for name in VARIANTS:
    with tempfile.TemporaryDirectory() as folder:
        write_hostile_checkpoint(Path(folder), name)
        try:
            open_checkpoint(Path(folder))
            print(name, "was loaded")
        except CheckpointError:
            pass
        if (Path(folder) / SENTINEL).exists():
            print(name, "ran its code")
print("debug is", __debug__)
"""
    result = subprocess.run(
        [sys.executable, "-O", "-c", script],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'kernels'}", "JAX_PLATFORMS": "cpu"},
        timeout=120,
        check=False,
    )
    assert (result.stdout, result.returncode) == ("debug is False\n", 0), result.stderr
