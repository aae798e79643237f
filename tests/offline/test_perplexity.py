"""Texts read in windows: what is scored, and that transformers says the same."""

import asyncio
import itertools
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.errors import ConfigError, EngineError
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.thread import EngineThread
from jaxinfer.llm.types import Delta
from jaxinfer.offline.perplexity import Fit, Reader, windows
from jaxinfer.offline.texts import check_text_file, read_texts
from tests.server.fakes import FakeLLM
from tests.support.checkpoints import write_golden
from tests.support.engines import build, built_before
from tests.support.golden_models import GOLDEN, LONG, MODELS, STRIDE, WINDOW
from tests.support.parity import BOUND


@given(st.integers(0, 300), st.integers(2, 40), st.data())
def test_each_token_but_the_first_is_scored_once_with_a_windows_past(num_tokens, width, data):
    stride = data.draw(st.integers(1, width - 1))
    found = list(windows(num_tokens, width, stride))
    scored = [token for window in found for token in range(window.scored, window.end)]
    assert scored == list(range(1, num_tokens))
    for before, window in itertools.pairwise(found):
        assert window.end - window.begin <= width
        assert window.scored - window.begin >= width - stride, "what a token knows of its past"
        assert window.begin == before.begin + stride


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_windows_of_600_tokens_are_foretold_as_by_transformers(tmp_path, executables, name):
    model = next(model for model in MODELS if model.name == name)
    config, core = build(write_golden(tmp_path, model), executables, max_model_len=WINDOW)
    tokens = np.load(GOLDEN / "long.npz")[f"{name}_prompt"].tolist()

    async def read() -> list[float]:
        llm = AsyncLLM(config, new_transport=partial(EngineThread, start_core=built_before(core)))
        await llm.start()
        try:
            return [entry.logprob for entry in await Reader(llm, WINDOW, STRIDE, at_once=16).read(tokens)]
        finally:
            await llm.close()

    expected = np.load(GOLDEN / "windows.npz")[name].astype(np.float64)
    found = asyncio.run(read())
    assert np.abs(found - expected).max() < BOUND
    fit = Fit.of(found, 0)
    assert math.isclose(fit.perplexity, math.exp(-expected.mean()), rel_tol=BOUND)
    assert math.isclose(fit.standard_error, expected.std(ddof=1) / math.sqrt(599), rel_tol=BOUND)


@given(st.lists(st.floats(-20, 0), min_size=2), st.data())
def test_fits_of_parts_add_up_to_the_fit_of_the_whole(logprobs, data):
    cut = data.draw(st.integers(0, len(logprobs)))
    whole, parts = Fit.of(logprobs, 7), Fit.of(logprobs[:cut], 3) + Fit.of(logprobs[cut:], 4)
    assert (parts.num_tokens, parts.num_bytes) == (whole.num_tokens, 7)
    assert math.isclose(parts.mean, whole.mean, rel_tol=1e-9, abs_tol=1e-12)
    assert math.isclose(parts.standard_error, whole.standard_error, rel_tol=1e-3, abs_tol=1e-6)
    assert math.isclose(parts.bits_per_byte, -sum(logprobs) / math.log(2) / 7, rel_tol=1e-9, abs_tol=1e-12)


def test_nothing_scored_is_said_as_not_a_number():
    nothing = Fit.of([], 5)
    assert all(math.isnan(value) for value in (nothing.mean, nothing.standard_error, nothing.perplexity))
    assert math.isnan(Fit.of([-1.0], 1).standard_error)


def test_a_window_that_fails_ends_the_reading():
    failing = FakeLLM(lambda *_: [Delta(0, "", [], "error", error="the device is gone")])
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(Reader(failing, 8, 4, at_once=2).read([1, 2, 3]))
    assert caught.group_contains(EngineError, match="tokens 0 to 3 were not: the device is gone")


def test_texts_come_from_whole_files_and_from_rows(tmp_path):
    (tmp_path / "a.txt").write_text("one\r\ntwo\n", newline="")
    (tmp_path / "b.jsonl").write_text('{"text": "x"}\n\n{"id": 3, "text": "ü"}\n')
    (tmp_path / "c.CSV").write_text('\ufeffid,story\n1,"two\nlines"\n2,' + "y" * 200_000 + "\n")
    assert list(read_texts(tmp_path / "a.txt", "text")) == ["one\r\ntwo\n"]
    assert list(read_texts(tmp_path / "b.jsonl", "text")) == ["x", "ü"]
    assert list(read_texts(tmp_path / "c.CSV", "story")) == ["two\nlines", "y" * 200_000]
    assert list(read_texts(tmp_path / "c.CSV", "id")) == ["1", "2"], "a byte order mark is none of its name"
    with pytest.raises(ConfigError, match="must be in a file that can be read, .*: Is a directory"):
        list(read_texts(tmp_path, "text"))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"body": 1}\n', "line 2: .* under 'text', this one has body; --column"),
        ("a.jsonl", b"[1]\n", "line 1: .* this one is no object"),
        ("a.jsonl", b'{"text": "x"\n', "must be jsonl in UTF-8"),
        ("a.csv", b"a,b\n1,2\n", "line 2: .* under 'text', this one has a, b"),
        ("a.txt", b"\xff", "must be txt in UTF-8"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        list(read_texts(tmp_path / name, "text"))


def test_a_file_that_is_no_text_is_refused_before_anything_starts(tmp_path):
    for name in ("a.pdf", "a.txt"):
        with pytest.raises(ConfigError, match="file not found: "):
            check_text_file(tmp_path / name)
    (tmp_path / "a.pdf").touch()
    with pytest.raises(ConfigError, match=r"must be in \.txt, \.jsonl or \.csv files"):
        check_text_file(tmp_path / "a.pdf")
