"""A checkpoint's tokenizer and template are tried in a child with limits: a hostile one costs a message and no more."""

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders
from tokenizers.models import WordLevel

from jaxinfer.errors import CheckpointError
from jaxinfer.text.rust import panics_unprinted
from jaxinfer.text.tokenizer import Tokenizer
from jaxinfer.text.trial import _try_decoder, _try_tokenizer, try_text
from tests.support.attempts import Stopwatch
from tests.support.checkpoints import tokenizer_json
from tests.text.samples import BACKENDS, PRE_TOKENIZERS, replace

GOLDEN = Path(__file__).parent / "golden"


def folder_with(tmp_path: Path, source: str) -> Path:
    (tmp_path / "chat_template.jinja").write_text(source, "utf-8")
    return tmp_path


@pytest.mark.parametrize("name", ["headers", "alternating"])
def test_an_honest_template_passes_even_when_it_refuses_some_chats(tmp_path: Path, name: str) -> None:
    try_text(folder_with(tmp_path, (GOLDEN / f"{name}.jinja").read_text("utf-8")))


def test_what_was_found_stands_though_the_limit_of_time_strikes_behind_it(tmp_path, monkeypatch):
    """Python's own end counts too: of a child that has told its verdict."""
    verdict = json.dumps({"reason": "took too long", "is_sentence": False})
    code = f"import os, signal; print({f'template\n{verdict}'!r}, flush=True); os.kill(os.getpid(), signal.SIGXCPU)"
    monkeypatch.setattr("jaxinfer.children.python", lambda *arguments: [sys.executable, "-c", code])
    with pytest.raises(CheckpointError, match="a chat template must render within its limits, .*: took too long"):
        try_text(tmp_path)


def test_a_folder_without_a_template_passes(tmp_path: Path) -> None:
    try_text(tmp_path)


def test_what_lies_beside_the_template_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("json", "jinja2", "jaxinfer", "sitecustomize"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('code of a checkpoint ran')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    try_text(folder_with(tmp_path, (GOLDEN / "headers.jinja").read_text("utf-8")))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "more than 1 s of processor time|took too long",  # the clock, where others keep the processor busy
        ),
        (
            "{% for a in range(9999) %}{% if loop.last %}{{ 'A' * 10**10 }}{% endif %}{% endfor %}",
            "made a value of size",
        ),
        ("{{ 'a' | center(10000000000) }}", "needs more than"),
        ("{% set x = 'a' | center(100000000) %}{{ x | replace('a', x) }}{{ x | replace(' ', x) }}", ""),
        ("{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1] }}", "unsafe"),
        ("{% if %}", "valid Jinja2"),
    ],
)
def test_a_hostile_template_is_refused_within_its_limits(tmp_path: Path, source: str, reason: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    watch = Stopwatch()
    with pytest.raises(CheckpointError, match="must (render within its limits|be valid)") as refusal:
        try_text(folder_with(tmp_path, source), timeout_s=1)
    assert re.search(reason, str(refusal.value)) and ".." not in str(refusal.value)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 5
    assert watch.seconds() < 12


def test_the_child_cannot_take_more_memory_than_it_was_given() -> None:
    code = "from jaxinfer.text.trial import limit_memory; limit_memory(64 << 20); bytearray({} << 20)"
    run = [subprocess.run([sys.executable, "-c", code.format(mib)], capture_output=True) for mib in (32, 80)]
    assert run[0].returncode == 0, run[0].stderr
    assert b"MemoryError" in run[1].stderr


def test_the_trial_never_imports_jax() -> None:
    code = "import jaxinfer.text.trial, sys; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def tokenizer_with(tmp_path: Path, **rules: object) -> Path:
    file = json.loads(tokenizer_json()) | rules
    (tmp_path / "tokenizer.json").write_text(json.dumps(file), "utf-8")
    return tmp_path


STRIP = {"type": "Strip", "content": "x", "start": 0, "stop": 0}


@pytest.mark.parametrize("kind", BACKENDS)
def test_an_honest_tokenizer_passes(tmp_path: Path, kind: str) -> None:
    (tmp_path / "tokenizer.json").write_text(BACKENDS[kind]().to_str(), "utf-8")
    assert _try_tokenizer(tmp_path) == ""


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_a_published_pre_tokenizer_passes(tmp_path: Path, name: str) -> None:
    """Also one that takes the square of some texts: the server ends what takes long."""
    assert _try_tokenizer(tokenizer_with(tmp_path, pre_tokenizer=PRE_TOKENIZERS[name])) == ""


def test_two_hundred_rules_that_replace_a_letter_each_pass(tmp_path: Path) -> None:
    rules = [replace({"String": chr(0x400 + i)}, chr(0x600 + i)) for i in range(200)]
    normalizer = {"type": "Sequence", "normalizers": rules}
    assert _try_tokenizer(tokenizer_with(tmp_path, normalizer=normalizer)) == ""


@pytest.mark.parametrize(
    ("decoder", "reason"),
    [
        (replace({"Regex": r"(q+)+$"}, ""), r"its decoder has a pattern '\(q\+\)\+\$', which may take longer"),
        ({"type": "Sequence", "decoders": [replace({"String": "a"}, "b"), STRIP] * 20}, "a row of 40 steps, which may"),
    ],
)
def test_a_decoder_that_may_take_long_is_refused(tmp_path: Path, decoder: dict, reason: str) -> None:
    assert re.search(reason, _try_tokenizer(tokenizer_with(tmp_path, decoder=decoder)))


@pytest.mark.parametrize(
    "decoder",
    [replace({"Regex": "\u2581+"}, " "), {"type": "Sequence", "decoders": [replace({"String": "a"}, "b")] * 40}],
)
def test_a_decoder_that_works_on_each_token_or_cannot_take_long_passes(tmp_path: Path, decoder: dict) -> None:
    assert _try_tokenizer(tokenizer_with(tmp_path, decoder=decoder)) == ""


def test_an_added_token_that_hangs_the_normalizer_is_refused_within_its_limits(tmp_path: Path) -> None:
    added = {"id": 352, "content": "a" * 20_000 + " b", "special": False, "normalized": True}
    file = {"added_tokens": [added | dict.fromkeys(["single_word", "lstrip", "rstrip"], False)]}
    folder = tokenizer_with(tmp_path, normalizer=replace({"Regex": "a*a*[by]"}, ""), **file)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with pytest.raises(CheckpointError, match="a tokenizer must split and decode a text within its limits"):
        try_text(folder, timeout_s=1)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 5


def test_a_template_is_still_tried_after_its_tokenizer(tmp_path: Path) -> None:
    tokenizer_with(tmp_path)
    with pytest.raises(CheckpointError, match="a chat template must render within its limits"):
        try_text(folder_with(tmp_path, "{{ 'a' | center(10000000000) }}"))


@pytest.mark.parametrize("content", ["y", "yy"])
def test_rules_at_which_the_library_fails_are_the_files_fault(tmp_path: Path, content: str, capfd) -> None:
    folder = tokenizer_with(tmp_path, normalizer=replace({"Regex": "z*"}, content))
    with pytest.raises(CheckpointError, match="the tokenizers library failed"):
        try_text(folder)
    assert capfd.readouterr().err == ""
    with pytest.raises(CheckpointError, match=r"tokenizer.json must have rules"):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"model": json.loads(tokenizer_json())["model"] | {"continuing_subword_prefix": "##"}},
    ],
    ids=["charsmap", "prefix"],
)
def test_a_file_at_which_the_library_panics_is_refused_by_its_trial(tmp_path: Path, change: dict) -> None:
    assert "the tokenizers library failed on this input: " in _try_tokenizer(tokenizer_with(tmp_path, **change))


def strip(content: str, start: int, stop: int) -> dict[str, object]:
    return {"type": "Strip", "content": content, "start": start, "stop": stop}


@pytest.mark.parametrize(
    "decoder",
    [
        strip("a", 100_000, 1_000_000),
        strip("\u0120", 1, 5),
        strip("\u0120", 2, 1),
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, strip("a", 1, 1)]},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, strip("e", 0, 3)]},
    ],
    ids=str,
)
def test_a_decoder_that_fails_on_a_text_of_the_vocabulary_is_refused_by_its_trial(tmp_path, decoder: dict) -> None:
    assert "it cannot decode " in _try_tokenizer(tokenizer_with(tmp_path, decoder=decoder))


def test_a_decoder_is_tried_on_added_tokens(tmp_path: Path) -> None:
    added = {"id": 352, "content": "\u2603", "special": False, "normalized": False}
    file = {"added_tokens": [added | dict.fromkeys(["single_word", "lstrip", "rstrip"], False)]}
    folder = tokenizer_with(tmp_path, decoder=strip("\u2603", 0, 2), **file)
    assert "it cannot decode '\u2603'" in _try_tokenizer(folder)


def test_a_decoder_is_tried_on_runs_of_tokens_and_on_no_token() -> None:
    backend = tokenizers.Tokenizer(WordLevel({"##": 0}, unk_token="##"))
    backend.decoder = decoders.Sequence(
        [decoders.WordPiece("##"), decoders.Strip("a", 0, 1)]
    )  # nothing is left of "##"
    assert _try_decoder(backend, ["##"]).startswith("it cannot decode '## ##")
    backend.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip("a", 0, 1)])
    assert _try_decoder(backend, ["##"]).startswith("it cannot decode '': ")


STRINGS = st.sampled_from(["a", "b", " ", "##", "ab", "</w>"])
CONTENTS, COUNTS = st.sampled_from(["a", "b", " ", "#"]), st.integers(0, 3)
STEPS = st.one_of(
    st.builds(decoders.Strip, CONTENTS, COUNTS, COUNTS),
    st.builds(decoders.Replace, STRINGS, st.sampled_from(["", "a", " "])),
    st.builds(decoders.WordPiece, STRINGS, st.booleans()),
    st.builds(decoders.BPEDecoder, STRINGS),
    st.builds(decoders.CTC, STRINGS, STRINGS, st.booleans()),
    st.just(decoders.Fuse()),
)
SPELT = ["a", "b", " ", "##a", "##", "ab", "a</w>", "</w>", "  "]


@settings(max_examples=60)
@given(st.lists(STEPS, min_size=1, max_size=3), st.lists(st.lists(st.sampled_from(SPELT), max_size=6), max_size=40))
def test_a_decoder_that_passes_its_trial_decodes_what_a_model_may_answer(steps, runs) -> None:
    backend = tokenizers.Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoders.Sequence(steps)
    with panics_unprinted():
        if _try_decoder(backend, SPELT) == "":
            for run in runs:
                backend.decoder.decode(run)
