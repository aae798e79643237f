"""A completion goes on from its prompt's text, so its first space is its own; a chat's message is a text by itself."""

from functools import partial

import httpx2
import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import start_dry_run
from jaxinfer.llm.events import ignore
from jaxinfer.llm.llm import LLM
from jaxinfer.llm.thread import EngineThread
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.server.app import create_app
from tests.server.http import CHAT, COMPLETIONS, USER, live
from tests.support.checkpoints import write_checkpoint
from tests.text.samples import llama2_backend

PROMPT = "the answer and"
IS = llama2_backend().token_to_id("▁is")
SAMPLING = {"n": 2, "max_tokens": 3, "temperature": 1, "ignore_eos": True, "allowed_token_ids": [IS]}


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> EngineConfig:
    """A dry run with a tokenizer whose decoder drops the space that a text begins with."""
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "spm")
    llama2_backend().save(str(folder / "tokenizer.json"))
    return EngineConfig(model=str(folder))


def test_a_completion_s_text_is_its_tokens_after_an_echo_too(config):
    llm = AsyncLLM(config, new_transport=partial(EngineThread, start_core=start_dry_run))
    with live(create_app(llm), llm.start, llm.close) as port:
        url = f"http://127.0.0.1:{port}"
        body = {"prompt": PROMPT, "echo": True, "logprobs": 0, **SAMPLING}
        choices = httpx2.post(url + COMPLETIONS, json=body).json()["choices"]
        said = httpx2.post(url + CHAT, json={"messages": USER, **SAMPLING}).json()["choices"]
    assert [choice["text"] for choice in choices] == [f"{PROMPT} is is is"] * 2
    assert [choice["logprobs"]["tokens"][-3:] for choice in choices] == [[" is"] * 3] * 2
    assert [choice["message"]["content"] for choice in said] == ["is is is"] * 2


def test_so_it_is_in_python_but_for_a_prompt_without_text(config):
    llm = LLM.over(config, start_dry_run(config, ignore))
    try:
        continued, begun = llm.generate([PROMPT, [1]], SamplingParams(**SAMPLING))
    finally:
        llm.close()
    assert [choice.text for choice in continued.outputs] == [" is is is"] * 2
    assert [choice.text for choice in begun.outputs] == ["is is is"] * 2
