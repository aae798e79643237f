"""benchmarks/: the targets' rows, their verdicts, the model folders without weights, files against the server."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from jaxinfer.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PATH = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
GROUPS = tomllib.loads((BENCHMARKS / "targets.toml").read_text())["group"]


def program(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=PATH)


@pytest.fixture
def judge(tmp_path):
    """The verdicts of section 0.6b over a report with these figures."""

    def run(rate: float, slowest_ms: float, compiles: str) -> tuple[dict[str, str], int]:
        step = {"steps after ready": "decode, 1 row", "slowest ms": slowest_ms, "limit ms": 3.0}
        tables = {"speed": [{"batch x prompt": "1x128", "decode tok/s": rate}], "first steps": [step]}
        report = {"facts": {"compiles after ready": compiles}, "tables": tables}
        (tmp_path / "0.6b-latency.json").write_text(json.dumps(report))
        (tmp_path / "out").mkdir(exist_ok=True)
        done = program("h200_report.py", "0.6b", str(tmp_path), str(tmp_path / "out"))
        found = json.loads((tmp_path / "out" / "0.6b.json").read_text())["targets"]["tables"]["targets"]
        return {row["row"]: row[""] for row in found}, done.returncode

    return run


def test_figures_reach_the_aim_the_bar_or_neither(judge):
    rows = "decode b1, context 128", "slowest of the first 1,000 steps, ms", "compiles after ready"
    assert judge(2400.0, 2.9, "0") == (dict(zip(rows[1:] + rows[:1], ("bar", "aim", "aim"), strict=True)), 0)
    assert judge(1500.0, 3.1, "0")[0] == {rows[0]: "bar", rows[1]: "MISSED", rows[2]: "aim"}
    assert judge(1100.0, 1.0, "2") == ({rows[0]: "MISSED", rows[1]: "bar", rows[2]: "MISSED"}, 1)


def test_every_group_reads_a_report_that_its_section_writes():
    script = (BENCHMARKS / "h200.sh").read_text()
    sections = set(re.search(r"SECTION: (.*)", script)[1].split())
    assert {section for group in GROUPS for section in group["sections"]} == sections
    loads = set(re.findall(r'load (?:"\$1"|8b) (\S+)', script))
    for group in GROUPS:
        model, _, name = group["file"].partition("-")
        assert name in {"latency", "throughput", "file", ""} | loads, group["file"]
        assert all(len(row) == 4 for row in group["rows"])


@pytest.mark.slow
def test_a_section_runs_to_its_verdict_on_any_machine(tmp_path):
    flags = "--dtype bfloat16 --load-format dummy --device cpu --max-num-seqs 2 --max-num-batched-tokens 64"
    settings = {
        "PYTHON": sys.executable,
        "TINY": "1",
        "FLAGS": flags,
        "JAXINFER_COMPILE_CACHE_DIR": str(tmp_path / "c"),
    }
    command = [str(BENCHMARKS / "h200.sh"), "0.6b", "out"]
    done = subprocess.run(command, cwd=tmp_path, env=PATH | settings, capture_output=True, text=True)
    assert "| decode b1, context 128 | 1,200 | 2,300 |" in done.stdout, done.stderr
    assert (tmp_path / "out" / "0.6b.md").read_text().startswith("## h200 0.6b")
    found = json.loads((tmp_path / "out" / "0.6b.json").read_text())
    assert found["targets"]["facts"]["compiles after ready"] == "0"
    assert done.returncode == ("MISSED" in done.stdout)


def test_the_shapes_have_a_text_for_every_token(tmp_path):
    program("shapes.py", str(tmp_path), "--tiny", "--zeros", "8b").check_returncode()
    assert {path.name for path in tmp_path.iterdir()} == {"1.5b", "8b", "8b-fp8", "8b-awq", "0.6b"}
    tokenizer = Tokenizer.from_folder(tmp_path / "8b")
    assert tokenizer.vocab_size == 2048
    assert all(tokenizer.decode([token_id]) for token_id in range(2048))
    assert tokenizer.decode(tokenizer.encode("hi there")) == "hi there"
    assert (tmp_path / "8b" / "model.safetensors").stat().st_size > 2 * 2048 * 64


@pytest.mark.slow
def test_files_and_the_server_are_held_against_each_other():
    done = program("batch_file.py", "--dry-run", "--rows", "20", "--rounds", "1")
    assert re.search(r"^seconds: 20 rows, batch [\d.]+, server [\d.]+, ratio [\d.]+$", done.stdout, re.MULTILINE), (
        done.stderr
    )
    assert re.search(r"^cpu_s: 20 rows, .* ratio [\d.]+$", done.stdout, re.MULTILINE)
