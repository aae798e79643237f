"""The official clients of the other two APIs let the bundled model call a tool and tell it what came of that.

Each is a program with packages of its own, as in test_clients.py. It is given one JSON object: base, model, tool (a
function), question and result. It prints one with the calls that it saw, whole and streamed, without thoughts and with
them, and what the model made of the result.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.server.app import create_app
from tests.server.http import live
from tests.server.test_demo_tools import WEATHER

HERE = Path(__file__).parent
CLIENTS = HERE.parents[1] / ".clients"
ASKED = {
    "model": "demo",
    "tool": WEATHER,
    "question": "What is the weather in Paris?",
    "result": '{"weather": "sunny"}',
}
RESPONSES_CASES = [("openai-1", ["-S"]), ("openai-2", ["-S"]), ("openai-3", [])]


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    llm = AsyncLLM(EngineConfig(device="cpu", max_model_len=1024, max_num_seqs=2, max_num_batched_tokens=256))
    with live(create_app(llm), llm.start, llm.close) as port:
        yield f"http://127.0.0.1:{port}"


def seen_by(client: str, program: str, options: list[str], base: str) -> dict[str, Any]:
    """What the program prints, run with its own packages alone; openai-3 is among ours."""
    folder = CLIENTS / client
    assert not options or (folder / ".installed").exists(), f"there is no {folder}; run make clients"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder) if options else ""}
    command = [sys.executable, *options, program, json.dumps(ASKED | {"base": base})]
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(("client", "options"), RESPONSES_CASES, ids=[client for client, _ in RESPONSES_CASES])
def test_openai_s_client_calls_a_tool_over_responses_and_tells_what_it_said(base, client, options):
    seen = seen_by(client, "ask_tools_responses.py", options, base)
    assert seen.pop("must") == ["get_weather"] * 2
    for found in seen.values():
        (((name, arguments),), status) = found["calls"]
        assert (name, json.loads(arguments), status) == ("get_weather", {"city": "Paris"}, "completed")
        assert found["streamed"] == found["calls"] and found["deltas"] == arguments and found["kinds"]
        assert "sunny" in found["stateless"][0] and found["stateless"][1:] == [[], "completed"]
        assert found["stored"] == found["stateless"]


@pytest.mark.slow
def test_anthropic_s_client_calls_a_tool_and_tells_what_it_said(base):
    seen = seen_by("anthropic", "ask_tools_anthropic.py", ["-S"], base)
    assert seen.pop("must") == [["get_weather", "tool_use"]] * 2
    assert seen.pop("counted") is True
    for found in seen.values():
        assert found["calls"] == found["streamed"] == [[["get_weather", {"city": "Paris"}]], "tool_use"]
        assert found["kinds"]
        for text, calls, reason in found["after"]:
            assert "sunny" in text and (calls, reason) == ([], "end_turn")
