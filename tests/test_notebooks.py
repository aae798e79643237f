"""docs/notebooks run, on the demo model, and what they show is what comes out."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.notebook_outputs import MEASURES, differences

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_as_one_run_left_it(path):
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs and not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_notebook_runs_and_shows_what_is_kept_of_it(tmp_path):
    """`make clients` puts what they need into .clients/notebook. scripts/notebooks docs/notebooks keeps what is new."""
    paths = [ROOT, ROOT / "kernels", ROOT / ".clients" / "notebook"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, ROOT / "scripts" / "notebooks", tmp_path]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [path.name for path in NOTEBOOKS]
    found = {path.name: differences(read(path), read(tmp_path / path.name)) for path in NOTEBOOKS}
    assert not any(found.values()), "\n".join(line for lines in found.values() for line in lines)


def changed(number: int, old: str, new: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A notebook, and what it would be if its outputs had `new` in the place of each `old`."""
    kept = read(NOTEBOOKS[number - 1])
    ran = copy.deepcopy(kept)
    outputs = [cell["outputs"] for cell in ran["cells"] if cell["cell_type"] == "code"]
    assert old in (text := json.dumps(outputs)), f"no output has {old!r}"
    left = iter(json.loads(text.replace(old, new)))
    for cell in ran["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = next(left)
    return kept, ran


@pytest.mark.parametrize(
    ("number", "old", "new"),
    [
        pytest.param(1, "7 + 5 = 12.", "7 + 5 = 13.", id="a text"),
        pytest.param(1, "220, 16, 17", "220, 17, 16", id="ids"),
        pytest.param(1, "-0.135", "-0.145", id="a likelihood"),
        pytest.param(1, "<th>finish</th>", "", id="a column"),
        pytest.param(2, "1.0+44 from 0", "1.0+45 from 0", id="what a step is made of"),
        pytest.param(2, "cached tokens: 0 192", "cached tokens: 0 176", id="what was cached"),
        pytest.param(2, "data:image/png;base64,", "data:image/png;base64,A", id="whose pages"),
        pytest.param(2, "<!-- waiting -->", "<!-- asleep -->", id="what a picture says"),
        pytest.param(3, "decode tok/s", "tok/s", id="a measured table"),
    ],
)
def test_an_output_that_is_no_longer_what_a_run_shows_is_found(number, old, new):
    assert differences(*changed(number, old, new))


@pytest.mark.parametrize(
    ("number", "old", "new"),
    [
        pytest.param(1, "_s=0.0", "_s=1.0", id="seconds"),
        pytest.param(1, "-0.135", "-0.136", id="the last digit of a decimal"),
        pytest.param(2, "<tr><td>0</td><td>", "<tr><td>0</td><td>1", id="ms of a recording"),
        pytest.param(2, "<dc:date>2", "<dc:date>3", id="the date of a picture"),
        pytest.param(3, " tokens per second'", "9 tokens per second'", id="a rate"),
        pytest.param(3, "L 1", "L 2", id="a curve of rates"),
        pytest.param(3, " %) |", " %) (limit not trusted) |", id="a limit that was measured too low"),
    ],
)
def test_times_and_dates_may_differ(number, old, new):
    assert not differences(*changed(number, old, new))


def test_few_cells_are_said_to_measure():
    """A tag too many would leave out of the comparison what it is there for."""
    tags = [[MEASURES in cell["metadata"].get("tags", ()) for cell in code_cells(path)] for path in NOTEBOOKS]
    assert [sum(cells) for cells in tags] == [0, 1, 4, 0]
