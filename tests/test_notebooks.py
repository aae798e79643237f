"""docs/notebooks run, on the demo model, and what they show is what came out."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_as_one_run_left_it(path):
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs and not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_notebook_runs():
    """`make clients` puts what they need into .clients/notebook."""
    paths = [ROOT, ROOT / "kernels", ROOT / ".clients" / "notebook"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, ROOT / "scripts" / "notebooks"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [path.name for path in NOTEBOOKS]
