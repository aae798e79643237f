"""A dry run needs config.json and a tokenizer, and answers alike in process and in a process of its own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.errors import CheckpointError, ConfigError, EngineError
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import MODULE, NOTE, start_dry_run
from jaxinfer.llm.events import ignore
from jaxinfer.llm.llm import LLM
from jaxinfer.llm.process import EngineProcess
from jaxinfer.llm.thread import EngineThread
from jaxinfer.protocol.sampling import SamplingParams
from tests.llm.conftest import Served
from tests.support.checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def outline(tmp_path_factory):
    """A checkpoint without weights."""
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "outline")
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    return folder


def test_what_a_schema_forces_takes_no_steps_here_either(outline):
    schema = {"type": "object", "properties": {"kind": {"const": "known " * 9}}, "required": ["kind"]}
    params = SamplingParams(
        temperature=1, seed=1, max_tokens=200, json_schema={**schema, "additionalProperties": False}
    )
    found = []
    for forwards in (True, False):
        config = EngineConfig(model=str(outline), enable_fast_forward=forwards)
        llm = LLM.over(config, start_dry_run(config, ignore))
        (choice,) = llm.generate(["one"], params)[0].outputs
        found.append((choice.token_ids, llm.stats().steps))
        llm.close()
    (tokens, few), (same, many) = found
    assert tokens == same and json.loads(choice.text) == {"kind": "known " * 9}
    assert few < len(tokens) // 2 < many


def test_a_model_whose_text_cannot_be_had_is_closed(outline, monkeypatch):
    (outline / "no.jinja").write_text("{{ messages | no_filter }}")
    closed = []

    def start(config, on_event):
        core = start_dry_run(config, on_event)
        monkeypatch.setattr(core.runner, "close", lambda: closed.append(core))
        return core

    monkeypatch.setattr("jaxinfer.llm.llm.start_core", start)
    with pytest.raises(CheckpointError, match="chat_template"):
        LLM(str(outline), chat_template=str(outline / "no.jinja"))
    assert len(closed) == 1


TRANSPORTS = {
    "thread": partial(EngineThread, start_core=start_dry_run),
    "process": partial(EngineProcess, child=(MODULE, "0")),
}


def answers(outline, transport: str) -> list[str]:
    served = Served(AsyncLLM(EngineConfig(model=str(outline)), new_transport=TRANSPORTS[transport]))

    async def one(llm: AsyncLLM, text: str) -> str:
        params = SamplingParams(max_tokens=30, temperature=1, seed=1, stop=["zz"], frequency_penalty=1)
        stream = await llm.generate(await llm.encode(text), params, request_id="r")
        return "".join([delta.text async for delta in stream])

    async def test(llm: AsyncLLM) -> list[str]:
        assert llm.info.note == NOTE and llm.info.fingerprint.endswith("-dry-run")
        return await asyncio.gather(*(one(llm, text) for text in ("one", "two", "three")))

    try:
        return served.run(test)
    finally:
        served.close()


def test_both_transports_make_up_the_same_answers(outline):
    first, second = answers(outline, "thread"), answers(outline, "process")
    assert first == second
    assert len(set(first)) == 3


def test_it_never_loads_jax(outline):
    code = "import sys; sys.modules.update(jax=None, jaxlib=None, flax=None); import jaxinfer.llm.dry_run as d\n"
    code += "from jaxinfer.config import EngineConfig; from jaxinfer.llm.async_llm import AsyncLLM\n"
    code += f"print(d.start_dry_run(EngineConfig(model={str(outline)!r}), print).limits.max_num_seqs)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1:] == ["256"], done.stderr


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"model": "/no/such/folder"}, CheckpointError, "existing folder"),
        ({"max_model_len": 10**6}, ConfigError, "lower it to 1024"),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, ConfigError, "at least max_num_seqs"),
    ],
)
def test_what_cannot_be_is_refused(outline, settings, error, message):
    with pytest.raises(error, match=message):
        start_dry_run(EngineConfig(**{"model": str(outline), **settings}), ignore)


def test_settings_of_the_host_are_kept(outline):
    config = EngineConfig(
        model=str(outline), max_model_len=100, page_size=8, kv_layout="contiguous", enable_prefix_caching=False,
        scheduling="static", max_num_seqs=4, run_ahead=0, max_num_queued_seqs=7,
    )  # fmt: skip
    limits = start_dry_run(config, ignore).limits
    assert (limits.num_pages, limits.max_num_queued_seqs, limits.run_ahead) == (4 * 13 + 1, 7, 0)
    assert (limits.scheduling, limits.kv_layout, limits.max_model_len) == ("static", "contiguous", 100)
    assert limits.num_host_pages == 0, "contiguous pages are not found again"


@pytest.mark.parametrize(("size", "most"), [(None, 21), (2**30, 21), (0, 0)])
def test_a_dry_run_has_host_memory_for_as_many_pages_as_its_pool(outline, size, most):
    config = EngineConfig(model=str(outline), max_model_len=100, num_pages=21, kv_offloading_bytes=size)
    assert start_dry_run(config, ignore).limits.num_host_pages == most


def test_there_is_no_device_to_trace(outline, tmp_path):
    served = Served(AsyncLLM(EngineConfig(model=str(outline)), new_transport=TRANSPORTS["process"]))

    async def test(llm: AsyncLLM) -> None:
        with pytest.raises(EngineError, match="a dry run has none"):
            await llm.profile(str(tmp_path))
        os.kill(llm.replicas.transports[0].pid, signal.SIGKILL)
        with pytest.raises(EngineError):  # at once, or from the engine that follows
            await llm.profile(str(tmp_path))

    served.run(test)
    served.close()


@pytest.mark.parametrize("ids", [384, [0, 384], -1, "<|im_end|>"])
def test_an_end_token_beyond_the_vocabulary_is_refused_at_start(tmp_path, ids):
    folder = write_checkpoint(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    with pytest.raises(CheckpointError, match="generation_config.json: eos_token_id must be"):
        start_dry_run(EngineConfig(model=str(folder)), ignore)


def test_overrides_are_what_the_model_is_read_from(outline):
    config = EngineConfig(model=str(outline), hf_overrides={"max_position_embeddings": 48, "eos_token_id": 7})
    core = start_dry_run(config, ignore)
    assert core.limits.max_model_len == 48
    assert 7 in core.info.eos_token_ids
