"""scripts/sass: what it installs fits the jax that lowers, and without one it says so."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SASS = Path(__file__).parents[1] / "scripts" / "sass"


def test_it_installs_once_for_each_version_of_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = importlib.machinery.SourceFileLoader("sass", str(SASS))
    spec = importlib.util.spec_from_loader("sass", loader)
    assert spec is not None
    sass = importlib.util.module_from_spec(spec)
    loader.exec_module(sass)
    installed: list[str] = []

    def run(command: tuple[str | Path, ...], **options: object) -> None:
        (tmp_path / ".sass").mkdir(exist_ok=True)
        installed.extend(str(word) for word in command if str(word).startswith("jax-cuda13-plugin"))

    monkeypatch.setattr(sass, "HERE", tmp_path / ".sass")
    monkeypatch.setattr(sass, "KEPT", tmp_path / ".sass" / "kernels")
    monkeypatch.setattr(sass.subprocess, "run", run)
    monkeypatch.setattr(sass.ctypes, "CDLL", lambda *_: None)
    monkeypatch.setattr(sass.os, "environ", dict(os.environ))
    for version in ("1.0", "1.0", "2.0", "2.0"):
        monkeypatch.setattr(sass.importlib.metadata, "version", lambda _, version=version: version)
        sass.install()
    assert installed == ["jax-cuda13-plugin==1.0", "jax-cuda13-plugin==2.0"]


def test_without_jax_it_says_so_in_a_sentence() -> None:
    done = subprocess.run([sys.executable, "-S", SASS], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("the interpreter must have jax") and done.stderr.count("\n") == 1
