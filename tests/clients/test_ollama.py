"""Ollama's own Python package, as it comes, walks through the API."""

import json
import os
import subprocess

import httpx2
import pytest

from tests.clients.test_clients import CLIENTS, HERE, KEY, PYTHON, QUESTION, base

__all__ = ["base"]


@pytest.mark.slow
def test_the_ollama_package_walks_through(base):
    packages = CLIENTS / "ollama"
    assert (packages / ".installed").exists(), f"there is no {packages}; run make clients"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(packages)}
    command = [*PYTHON, str(HERE / "ask_ollama.py"), base, KEY.secret]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    headers = {"authorization": f"Bearer {KEY.secret}"}
    body = {"messages": [{"role": "user", "content": QUESTION}]}
    choice = httpx2.post(f"{base}/v1/chat/completions", json=body, headers=headers).json()["choices"][0]
    assert {seen[name] for name in ("chat", "streamed", "generated")} == {choice["message"]["content"]}
    assert seen["models"] == ["demo:latest"] and seen["loaded"] == [2048]
    assert seen["capabilities"][:3] == ["completion", "embedding", "tools"]
    assert seen["durations"] == [True] * 3 and seen["tools"] and seen["loads"] == "load"
    assert seen["embedded"][0] == 2 and seen["refused"] == [404, 404, 404, 404, 400]
