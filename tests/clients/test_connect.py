"""What `jaxinfer connect` prints for the clients of .clients is run as it is printed, and gets the server's answer."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.test_clients import CLIENTS, KEY, NODE, PYTHON, base

__all__ = ["base"]  # the fixture: a server with a key
VARIABLE = "CONNECT_KEY"
CONNECT = "from jaxinfer.cli import main; main()"
# a client's name here, and where its packages are
CASES: list[tuple[str, str, Callable[[Path], list[str]]]] = [
    ("openai-python", "openai-1", lambda file: [*PYTHON, str(file)]),
    ("openai-python", "openai-2", lambda file: [*PYTHON, str(file)]),
    ("openai-node", "openai-node", lambda file: [*NODE, str(file)]),
    ("anthropic-python", "anthropic", lambda file: [*PYTHON, str(file)]),
    ("ollama-python", "ollama", lambda file: [*PYTHON, str(file)]),
    ("langchain", "langchain-openai", lambda file: [*PYTHON, str(file)]),
    ("litellm", "litellm", lambda file: [*PYTHON, str(file)]),
]


def printed(url: str, client: str) -> str:
    command = [sys.executable, "-c", CONNECT, "connect", client, "--url", url, "--api-key-env", VARIABLE]
    environment = os.environ | {VARIABLE: KEY.secret, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.slow
@pytest.mark.parametrize(("client", "folder", "command"), CASES, ids=[f"{c}-{f}" for c, f, _ in CASES])
def test_what_is_printed_runs_and_is_answered(base, tmp_path, client, folder, command):
    packages = CLIENTS / folder
    assert (packages / ".installed").exists(), f"there is no {packages}; run make clients"
    file = tmp_path / ("ask.mjs" if client == "openai-node" else "ask.py")
    file.write_text(printed(base, client))
    if client == "openai-node":  # as a project that has installed it
        (tmp_path / "node_modules").symlink_to(packages / "node_modules")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(packages), VARIABLE: KEY.secret}
    environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(command(file), env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an answer"


@pytest.mark.slow
def test_curl_streams_an_answer(base):
    environment = {"PATH": os.environ["PATH"], VARIABLE: KEY.secret}
    done = subprocess.run(["sh", "-c", printed(base, "curl")], env=environment, capture_output=True, text=True)
    assert done.stdout.endswith("data: [DONE]\n\n"), done.stdout + done.stderr
    assert re.search(r'"content":"[^"]', done.stdout)
