"""Texts of tokenizers whose rules may take long are encoded as ever, and no longer than they may be."""

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jaxinfer.errors import EngineError, InvalidRequest
from jaxinfer.text import encoder
from jaxinfer.text.chat_template import ChatTemplate, encode_chat
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.attempts import Stopwatch
from tests.support.checkpoints import tokenizer_json
from tests.support.processes import family
from tests.text.samples import HARD_TEXTS, NONLINEAR, replace, split

TEMPLATE = ChatTemplate("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}")
THERE_AND_BACK = [replace({"String": "ab"}, "bc"), replace({"String": "bc"}, "ab")] * 1000
WORD_PIECE = {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1, "##a": 2, "[PAD]": 3}, "unk_token": "[UNK]"}
WORD_PIECE |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 10**9}
SLOW = [
    ({"pre_tokenizer": NONLINEAR["deepseek-llm"]}, " " * 60_000 + "1", r"pattern '\s+$'"),
    ({"pre_tokenizer": NONLINEAR["superbpe"]}, "1" * 60_000, r"pattern '(?=(\d{3})+(?!\d))'"),
    ({"pre_tokenizer": NONLINEAR["tiny-aya"]}, "1" * 60_000 + "x", r"pattern '\d{1,3}(?=(?:\d{3})*\b)'"),
    ({"pre_tokenizer": split("(?:abcd)+(?:abcd)+w")}, "abcd" * 10_000 + " w", "pattern '(?:abcd)+(?:abcd)+w'"),
    ({"pre_tokenizer": split("a*a*a*b")}, "a" * 60_000 + " b", "pattern 'a*a*a*b'"),
    ({"normalizer": {"type": "Sequence", "normalizers": THERE_AND_BACK}}, "ab" * 10_000, "row of 2002 steps"),
    ({"model": WORD_PIECE, "pre_tokenizer": None}, "a" * 60_000 + "b", "max_input_chars_per_word of 1000000000"),
]


def tokenizer_with(**rules: object) -> Tokenizer:
    return Tokenizer(json.dumps(json.loads(tokenizer_json()) | rules).encode())


@pytest.fixture
def deepseek() -> Iterator[Tokenizer]:
    text = tokenizer_with(pre_tokenizer=NONLINEAR["deepseek-llm"])
    yield text
    text.close()


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "TEXT_S", 0.1)


@pytest.mark.parametrize("name", NONLINEAR)
def test_texts_get_the_ids_of_the_library(name: str) -> None:
    text = tokenizer_with(pre_tokenizer=NONLINEAR[name])
    here = Tokenizer(text.backend.to_str().encode(), secret="here")
    assert not text.is_linear and here.is_linear
    for given in (*HARD_TEXTS, "", "12345 1234567", "a  \n b  ", "<|im_start|>x<think>" * 3, "the end   "):
        assert text.encode(given) == text.backend.encode(given).ids
        assert text.encode(given, plain=True) == here.encode(given, plain=True)
        message = [{"role": "user", "content": given}]
        assert encode_chat(text, TEMPLATE, message) == encode_chat(here, TEMPLATE, message)


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize(("rules", "slow", "named"), SLOW, ids=[named for *_, named in SLOW])
def test_a_text_that_takes_long_is_refused_in_time_and_no_other_is(rules: dict, slow: str, named: str) -> None:
    text = tokenizer_with(**rules)
    assert text.encode("a")
    watch = Stopwatch()
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(text.encode, slow)
        while not late.done():
            assert text.encode("a", plain=True) is not None
        with pytest.raises(
            InvalidRequest, match=f"and this one takes longer, .*{re.escape(named)}. Shorten what repeats"
        ):
            late.result()
    assert watch.seconds() < 3
    assert text.encode("a") == text.backend.encode("a").ids


def test_what_a_request_may_not_ask_for_is_told_as_ever(deepseek: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="must be valid Unicode"):
        deepseek.encode("\ud800")
    failing = tokenizer_with(pre_tokenizer=split("(a+)+b"))
    with pytest.raises(InvalidRequest, match="the model's tokenizer can encode") as refusal:
        failing.encode("a" * 50)
    assert refusal.value.param == "prompt"


def test_many_threads_get_what_one_gets(deepseek: Tokenizer) -> None:
    texts = [f"{hard} {i}   " for i in range(20) for hard in HARD_TEXTS]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(deepseek.encode, texts)) == [deepseek.backend.encode(text).ids for text in texts]


def test_a_process_that_has_died_is_replaced(deepseek: Tokenizer) -> None:
    ids = deepseek.encode("a b")
    process = deepseek._process
    assert process is not None and process._process is not None
    process._process.kill()
    process._process.wait()
    process._idle.pop().close()
    assert deepseek.encode("a b") == ids


def test_a_process_that_cannot_start_is_no_fault_of_the_request(deepseek: Tokenizer, monkeypatch) -> None:
    monkeypatch.setattr("jaxinfer.children.python", lambda *arguments: ["/bin/false"])
    with pytest.raises(EngineError, match="the process that encodes texts must start, it did not"):
        deepseek.encode("a b")


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "with a text"])
def test_a_worker_that_something_else_has_ended_is_replaced(deepseek: Tokenizer, is_idle: bool) -> None:
    ids = deepseek.encode("a b")
    (worker,) = workers_of(deepseek)
    os.kill(worker, signal.SIGKILL if is_idle else signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(deepseek.encode, "a b")
        if not is_idle:
            wait_until_busy(deepseek)
            os.kill(worker, signal.SIGKILL)
        assert again.result(10) == ids


def test_a_text_whose_workers_are_all_ended_is_given_up_and_not_refused(deepseek: Tokenizer, monkeypatch) -> None:
    process, made = deepseek._process, []
    assert process is not None
    new = process._worker

    def killed() -> socket.socket:
        made.append(new())
        for worker in workers_of(deepseek):
            os.kill(worker, signal.SIGKILL)
        return made[-1]

    monkeypatch.setattr(process, "_worker", killed)
    with pytest.raises(EngineError, match=f"{encoder.ATTEMPTS} in a row were ended from outside"):
        deepseek.encode("a b")
    assert len(made) == encoder.ATTEMPTS


def test_closing_ends_the_process_a_worker_that_has_a_text_and_who_waits_for_it(monkeypatch) -> None:
    monkeypatch.setattr(encoder, "TEXT_S", 1000.0)
    text = tokenizer_with(pre_tokenizer=split("a*a*a*b"))
    text.encode("a b")
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(text.encode, "a" * 60_000 + " b")
        wait_until_busy(text)
        pids = family_of(text)
        assert len(pids) == 2
        text.close()
        assert isinstance(late.exception(10), EngineError)
    wait_until_ended(pids)
    with pytest.raises(EngineError, match="a model must be open to encode a text"):
        text.encode("a b")
    text.close()


def test_all_processes_end_at_once_when_the_server_is_gone(monkeypatch) -> None:
    monkeypatch.setattr(encoder, "TEXT_S", 1000.0)
    text = tokenizer_with(pre_tokenizer=split("a*a*a*b"))
    text.encode("a b")
    assert text._process is not None
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(text.encode, "a" * 60_000 + " b")
        wait_until_busy(text)
        pids = family_of(text)
        text._process._end.close()  # as the system does for a server that was killed
        wait_until_ended(pids[1:])
        text.close()
        assert isinstance(late.exception(10), EngineError)
    wait_until_ended(pids)


def test_processes_end_with_their_tokenizer() -> None:
    text = tokenizer_with(pre_tokenizer=NONLINEAR["deepseek-llm"])
    text.encode("a b")
    pids = family_of(text)
    del text
    wait_until_ended(pids)


def workers_of(text: Tokenizer) -> list[int]:
    return family_of(text)[1:]


def family_of(text: Tokenizer) -> list[int]:
    assert text._process is not None and text._process._process is not None
    return family(text._process._process.pid)


def wait_until_busy(text: Tokenizer) -> None:
    """Its only worker has a text."""
    assert text._process is not None
    end_s = time.monotonic() + 10
    while text._process._idle:
        assert time.monotonic() < end_s
        time.sleep(0.001)


def wait_until_ended(pids: list[int]) -> None:
    end_s = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_linear_tokenizer_has_no_process() -> None:
    text = tokenizer_with()
    text.start()
    assert text.is_linear and text._process is None
