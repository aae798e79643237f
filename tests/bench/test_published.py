"""Others' figures stand beside ours where card, shape and dtype are the same, and nowhere else."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxinfer.bench.report import Table
from jaxinfer.bench.suites import published
from jaxinfer.bench.suites.job import SuiteJob
from jaxinfer.bench.suites.published import B1_5, B8
from jaxinfer.bench.work import ModelWork, work_of
from jaxinfer.config import EngineConfig
from tests.bench.conftest import LIMITS, rows_of

ROOT = Path(__file__).parents[2]

TABLE = Table("single request", ("length", "tok/s"), [("128", 1.0), ("512", 2.0), ("300", 3.0)])
SHAPES = [(1, 128), (1, 512), (1, 300)]


def beside(card: str, outline: tuple[int | str, ...], table: Table = TABLE, shapes=SHAPES) -> Table:
    work = ModelWork(1, 1, 1, 1, 1, 100, outline)
    limits = dataclasses.replace(LIMITS, kind=card)
    return published.beside(SuiteJob(EngineConfig(), 100, work, limits, lambda line: None), table, shapes)


@pytest.mark.parametrize("card", ["cpu", "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 5080"])
def test_no_figures_of_another_card_or_shape_stand_beside_ours(card):
    assert beside(card, B8) == TABLE
    assert beside("NVIDIA H200", (*B8[:-1], "float16")) == beside("NVIDIA H200", ()) == TABLE


def test_the_best_of_each_shape_comes_with_its_engine():
    rows = rows_of(beside("NVIDIA GeForce RTX 4090", B1_5))
    assert rows["128"]["prefill tok/s published"] == "15,076 (llama.cpp e4832e3)"
    assert rows["128"]["decode tok/s published"] == "247.4 (SGLang 0.5.7)"
    assert rows["300"]["prefill tok/s published"] is rows["300"]["decode tok/s published"] is None
    assert (rows["512"]["length"], rows["512"]["tok/s"]) == ("512", 2.0)
    rows = rows_of(beside("NVIDIA H200", B8))
    assert rows["512"]["prefill tok/s published"] == "32,201 (vLLM 0.26.0)"  # 512 tokens in 15.9 ms
    assert (rows["128"]["decode tok/s published"], rows["512"]["decode tok/s published"]) == (
        "193.0 (vLLM 0.26.0)",
        None,
    )


def test_those_of_several_together_are_theirs():
    table = Table("requests together", ("batch x length", "tok/s"), [("4 x 128", 1.0), ("32 x 128", 2.0)])
    ours = {card: rows_of(beside(card, B1_5, table, [(4, 128), (32, 128)])) for card in ("RTX 4090", "NVIDIA H200")}
    decode = {card: [row["decode tok/s published"] for row in rows.values()] for card, rows in ours.items()}
    assert decode["RTX 4090"] == ["513.7 (ZedInfer 0.1.0)", None]
    assert decode["NVIDIA H200"] == ["1,959 (vLLM 0.26.0)", "15,005 (vLLM 0.26.0)"]


def test_the_shapes_of_the_targets_are_those_that_were_published(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
    subprocess.run([sys.executable, ROOT / "benchmarks" / "shapes.py", tmp_path], check=True, env=environment)
    outlines = {name: work_of(EngineConfig(model=str(tmp_path / name))).outline for name in ("1.5b", "8b", "0.6b")}
    assert (outlines["1.5b"], outlines["8b"]) == (B1_5, B8)
    assert outlines["0.6b"] not in (B1_5, B8)
    assert work_of(EngineConfig(model=str(tmp_path / "8b"), dtype="float32")).outline[-1] == "float32"
