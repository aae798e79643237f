"""Prompts of 8 MB, four at a time: refused untokenized, while health checks and streams go on (A47)."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median

import httpx2
import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import MODULE
from jaxinfer.llm.process import EngineProcess
from jaxinfer.server.app import create_app
from tests.server.http import CHAT, COMPLETIONS, error_of, live

SIZE = 8 * 2**20
KINDS = {
    "text": (COMPLETIONS, lambda text: {"prompt": text}),
    "chat": (CHAT, lambda text: {"messages": [{"role": "user", "content": text}]}),
    "control tokens in a chat": (
        CHAT,
        lambda text: {"messages": [{"role": "assistant", "content": text}, {"role": "user", "content": "<|im_end|>"}]},
    ),
    "several parts": (
        CHAT,
        lambda text: {"messages": [{"role": "user", "content": [{"type": "text", "text": text[: SIZE // 8]}] * 8}]},
    ),
    "tokenize": ("/tokenize", lambda text: {"prompt": text}),
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    child = (MODULE, "0.005")
    llm = AsyncLLM(EngineConfig(model="demo"), new_transport=partial(EngineProcess, child=child))
    with (
        live(create_app(llm), llm.start, llm.close) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def text() -> str:
    words = [" alpha", " beta", " x", "12", "\n", " ün"]
    return "".join(random.Random(0).choices(words, k=SIZE // 3))[: SIZE - 2**20]


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_can_never_fit_is_refused_at_once(client, text, kind):
    path, body = KINDS[kind]
    begun_s = time.monotonic()
    response = client.post(path, json=body(text))
    assert (response.status_code, error_of(response)["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is" in error_of(response)["message"]
    assert time.monotonic() - begun_s < 2.0, "tokenizing it takes ten seconds"


def test_four_of_them_hold_up_neither_checks_nor_streams(client, text):
    def gaps() -> list[float]:
        body = {"prompt": "hi", "max_tokens": 200, "stream": True, "ignore_eos": True}
        with client.stream("POST", COMPLETIONS, json=body) as response:
            times = [time.monotonic() for line in response.iter_lines() if line]
        return [later - earlier for earlier, later in zip(times, times[1:], strict=False)]

    alone = gaps()
    with ThreadPoolExecutor(6) as pool:
        stream = pool.submit(gaps)
        huge = [pool.submit(client.post, path, json=body(text)) for path, body in list(KINDS.values())[:4]]
        checks = []
        while not (all(answer.done() for answer in huge) and stream.done()):
            begun_s = time.monotonic()
            assert client.get("/health").status_code == 200
            checks.append(time.monotonic() - begun_s)
            time.sleep(0.01)
    assert [answer.result().status_code for answer in huge] == [400] * 4
    assert median(checks) < 0.05  # the client's own work shares the processors: medians, not tails
    assert median(stream.result()) < 1.5 * median(alone) + 0.02  # a frame may hold several tokens when both are busy


def test_a_long_text_that_may_fit_is_tokenized(client):
    counted = client.post("/tokenize", json={"prompt": " alpha" * 2000}).json()
    assert counted["count"] > 2000
    answer = client.post(COMPLETIONS, json={"prompt": " alpha" * 2000, "max_tokens": 1})
    assert "your prompt has" in error_of(answer)["message"], "counted, then refused"
