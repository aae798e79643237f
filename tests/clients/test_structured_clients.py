"""instructor and langchain ask the bundled model for models of their own (wanted.py) and get them, filled in right.

Each is a program with packages of its own, as in test_clients.py. It is given one JSON object: base, key and model. It
prints one with what each of its ways to ask has given: the models' types, and what the one that the demo knows says.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.server.app import create_app
from tests.server.http import live
from tests.support.engines import DEMO

HERE = Path(__file__).parent
CLIENTS = HERE.parents[1] / ".clients"
SENTENCE = {"name": "Anna", "color": "red", "object": "ball"}
GIVEN = ["Sentence", SENTENCE, ["Scene", "Thing", "Thing", "Thing"]]
CASES = [
    ("instructor", "ask_instructor.py", {"version": "1", "json_schema": GIVEN, "tools": GIVEN}),
    (
        "langchain-openai",
        "ask_langchain_structured.py",
        {"version": "1", "json_schema": GIVEN, "function_calling": GIVEN},
    ),
]


@pytest.fixture(scope="module")
def base(executables) -> Iterator[str]:
    llm = AsyncLLM(EngineConfig(**DEMO, compile_cache_dir=str(executables)))
    with live(create_app(llm), llm.start, llm.close) as port:
        yield f"http://127.0.0.1:{port}/v1"


@pytest.mark.slow
@pytest.mark.parametrize(("client", "program", "given"), CASES, ids=[client for client, _, _ in CASES])
def test_a_client_gets_the_models_that_it_asks_for(base, client, program, given):
    folder = CLIENTS / client
    assert (folder / ".installed").exists(), f"there is no {folder}; run make clients"
    asked = json.dumps({"base": base, "key": "none", "model": "demo"})
    done = subprocess.run(
        [sys.executable, "-S", program, asked],  # none of our own packages
        cwd=HERE,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == given
