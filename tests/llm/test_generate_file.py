"""LLM.generate_file: a batch over the engine that the notebook has, which is idle before and after."""

import asyncio
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from jaxinfer.llm.llm import LLM
from jaxinfer.protocol.sampling import SamplingParams

PROMPTS = [f"row {number}" for number in range(30)]


@pytest.fixture
def llm(engine) -> LLM:
    return LLM.over(*engine)


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return path


def texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def test_a_file_is_answered_as_its_prompts_are(llm, source, tmp_path):
    tally = llm.generate_file(source, tmp_path / "out.jsonl", defaults={"temperature": 0, "max_tokens": 6})
    expected = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=6))
    assert texts(tmp_path / "out.jsonl") == [output.outputs[0].text for output in expected]
    assert (tally.num_rows, tally.num_errors) == (30, 0)


def test_drawn_answers_are_the_same_in_every_run_and_inside_a_running_loop(llm, source, tmp_path):
    async def notebook() -> None:
        llm.generate_file(source, tmp_path / "second.jsonl", ordered=False)

    llm.generate_file(source, tmp_path / "first.jsonl")
    asyncio.run(notebook())
    first, second = ((tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ("first", "second"))
    assert sorted(first) == sorted(second)
    assert len(set(texts(tmp_path / "first.jsonl"))) > 20


@pytest.mark.slow
def test_an_interrupted_call_leaves_the_engine_idle_and_is_resumed(llm, source, tmp_path):
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    journal = tmp_path / "out.jsonl.partial"
    source.write_text(source.read_text() * 20)

    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.001):
            if journal.exists() and journal.read_bytes().count(b"\n") >= 10:
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            llm.generate_file(source, output)
    finally:
        over.set()
        thread.join()
    assert not output.exists()
    assert llm.generate("and on", SamplingParams(max_tokens=2))[0].outputs[0].finish_reason
    assert llm.generate_file(source, output, resume=True).num_before >= 9
    llm.generate_file(source, whole)
    assert output.read_bytes() == whole.read_bytes()
