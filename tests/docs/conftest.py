"""The reader of tests/docs: what it has on its machine before it reads."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, pages
from tests.docs.reader import Reader, program, with_path
from tests.support.fake_hub import running_hub

DEMO = ROOT / "jaxinfer" / "demo" / "checkpoint"
CLIENTS = ROOT / ".clients"
HUB_ID = re.compile(r"\b(?:Qwen|deepseek-ai|meta-llama)/[\w.-]+")


@pytest.fixture
def reader(tmp_path, executables) -> Iterator[Reader]:
    """With files such as the pages speak of, and a hub where the demo has every name that they mention."""
    (tmp_path / "home").mkdir()
    _write_rows(tmp_path / "home")
    (tmp_path / "home" / "benchmarks").symlink_to(ROOT / "benchmarks")  # as in a checkout
    for name, code in (("python", ""), ("jaxinfer", " -c 'from jaxinfer.cli import main; main()'")):
        bin_folder = program(tmp_path / "bin", name, f'"{sys.executable}"{code}').parent
    presence = tmp_path / "run"
    presence.mkdir(mode=0o700)
    packages = [ROOT, ROOT / "kernels", CLIENTS / "pyarrow"]
    with running_hub() as hub:
        hub.folders = {name: DEMO for page in pages() for name in HUB_ID.findall((ROOT / page).read_text())}
        environment = with_path(
            bin_folder,
            PYTHONPATH=os.pathsep.join(map(str, packages)),
            JAX_PLATFORMS="cpu",
            JAXINFER_COMPILE_CACHE_DIR=str(executables),
            HF_ENDPOINT=hub.url,
            HF_HOME=str(tmp_path / "hub"),
            XDG_RUNTIME_DIR=str(presence),
        )
        found = Reader(tmp_path / "home", environment)
        try:
            yield found
        finally:
            found.kill()


@pytest.fixture
def checkout(tmp_path) -> Path:
    """What git tracks, as a clone has it, with this environment as its .venv: make has nothing to install."""
    stamp = Path(sys.prefix) / ".installed"
    assert stamp.exists(), f"{stamp} is not there; make installs what it stands for"
    folder = tmp_path / "checkout"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
            os.utime(folder / name, (0, 0))  # older than the stamp: there is nothing to install
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


def _write_rows(folder: Path) -> None:
    rows = [{"prompt": "7 plus 5 is", "max_tokens": 8}, {"prompt": "8 plus 5 is", "max_tokens": 8}]
    for name in ("questions.jsonl", "rows.jsonl"):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rows.csv").write_text("prompt\n7 plus 5 is\n8 plus 5 is\n")
    table = "pyarrow.table({'prompt': ['7 plus 5 is']})"
    script = f"import pyarrow, pyarrow.parquet; pyarrow.parquet.write_table({table}, 'rows.parquet')"
    environment = os.environ | {"PYTHONPATH": str(CLIENTS / "pyarrow")}
    subprocess.run([sys.executable, "-c", script], cwd=folder, env=environment, check=True)
