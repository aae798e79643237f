"""Calls that a request forces, over the real engine: a form that may be written in two ways is taken in both."""

import dataclasses
import json
from functools import partial

import httpx2
import pytest

from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.thread import EngineThread
from jaxinfer.server.app import create_app
from tests.server.http import CHAT, USER, live
from tests.support.checkpoints import write_checkpoint
from tests.support.engines import build, built_before

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("weather", "map")]
NAMED = {"type": "function", "function": {"name": "map"}}


@pytest.fixture(scope="module")
def port(tmp_path_factory, executables):
    config, core = build(write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny"), executables)
    folder = tmp_path_factory.mktemp("templates")
    (folder / "short.jinja").write_text("{{ tools|length }}")
    config = dataclasses.replace(config, tool_call_parser="llama3_json", chat_template=str(folder / "short.jinja"))
    llm = AsyncLLM(config, new_transport=partial(EngineThread, start_core=built_before(core)))
    with live(create_app(llm), llm.start, llm.close) as port:
        yield port


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["any", "one"])
@pytest.mark.parametrize("key", ["parameters", "arguments"])
def test_a_forced_call_of_llama_takes_both_keys_of_its_arguments(port, choice, key):
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
        letter = client.post("/tokenize", json={"prompt": key[0], "add_special_tokens": False}).json()["tokens"]
        body = {
            "messages": USER,
            "tools": TOOLS,
            "tool_choice": choice,
            "max_tokens": 120,
            "temperature": 0,
            "logit_bias": {str(letter[0]): 50},
            "logprobs": True,
        }
        answer = client.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    (said,) = answer.json()["choices"]
    written = "".join(token["token"] for token in said["logprobs"]["content"])
    assert f'"{key}": {{' in written.replace("\n", "").replace("\t", "")
    message = said["message"]
    (call,) = message["tool_calls"]
    assert call["function"]["name"] in ("weather", "map") and not message["content"]
    assert json.loads(call["function"]["arguments"])["city"] in ("Oslo", "Rome")
