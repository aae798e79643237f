"""Sentences of refusals: requirement, value, cure, before anything is listened on or loaded."""

import os

import pytest

from jaxinfer.bench.http_client import sentence_of
from jaxinfer.cli.conversation import read_saved
from jaxinfer.errors import ConfigError, file_fault
from jaxinfer.runtime import nvidia

LONG = "error: max_model_len must be at most what the model can address, 2048, got 102400; lower it to 2048"


@pytest.mark.parametrize(
    ("arguments", "code", "last_line"),
    [
        (["run", "demo", "hi", "--temperature", "abc"], 2, "error: --temperature must be a number, got 'abc'; see "),
        (["run", "demo", "hi", "--top-k", "x"], 2, "error: --top-k must be an integer, got 'x'; see "),
        (
            ["run", "demo", "hi", "--max-tokens", "0"],
            2,
            "error: max_tokens must be an integer of at least 1 and below 2^63, got 0; leave it out for its default",
        ),
        (["connect", "nosuch"], 2, "error: CLIENT must be one of curl, openai-python, "),
        (["bench", "serve", "--requests", "0"], 2, "error: --requests must be in x>=1, got 0; see "),
        (["serve", "--served-model-name", ""], 2, "error: --served-model-name must be texts that are not empty, got "),
        (["list", "--download-dir", "/nope"], 3, "error: folder not found: /nope (--download-dir); name one that is "),
        (["rm", "x", "--download-dir", "/nope"], 3, "error: folder not found: /nope (--download-dir); name one "),
        (
            ["chat", "--url", "http://127.0.0.1:1", "--device", "cpu", "--dtype", "float32"],
            2,
            "error: a server that --url names has its own settings, got --dtype, --device; leave it out, or leave ",
        ),
        (["bench", "serve", "-v"], 2, "error: unknown option of jaxinfer bench serve '-v'"),
        (["stop", ""], 2, "error: no server of yours is '', running: "),
        (["nosuch"], 2, "error: unknown command 'nosuch', known are batch, bench, chat, "),
        (["serv"], 2, "error: unknown command 'serv', did you mean 'serve'?"),
        (["serve", "demo", "--max-model-len", "100K"], 2, LONG),
        (["serve", "demo", "--device", "cuda"], 4, f"error: {nvidia.NO_DRIVER}"),
    ],
)
def test_a_wrong_value_is_told_as_requirement_value_and_cure(cli, monkeypatch, model, arguments, code, last_line):
    monkeypatch.setattr(nvidia, "driver_present", lambda: False)
    monkeypatch.setattr(nvidia, "list_gpus", list)
    outcome = cli(*arguments)
    assert (outcome.code, outcome.last_line[: len(last_line)]) == (code, last_line)
    assert "listen" not in outcome.err and not model.made


def test_a_broken_template_of_the_user_s_is_named_before_anything_is_loaded(cli, model, tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("{% for x in y %}")
    for verb in ("serve", "chat", "run"):
        outcome = cli(verb, "demo", "--chat-template", os.fspath(file), stdin="hi")
        assert (outcome.code, model.made) == (2, [])
        assert outcome.err.startswith(
            f"error: {file} (--chat-template) must be valid Jinja2: Unexpected end of template"
        )
        assert outcome.last_line.endswith("; mend it, or name another file") and "model" not in outcome.last_line


def test_a_page_of_html_is_not_shown():
    assert sentence_of(b"\n<!DOCTYPE HTML><html>") == "a page of HTML, which no OpenAI-compatible server sends"
    assert sentence_of(b"busy") == "busy"


def test_a_folder_that_exists_is_not_called_missing(tmp_path):
    error = FileNotFoundError(2, "No such file or directory")
    assert file_fault("write", tmp_path / "x", error) == f"cannot write {tmp_path / 'x'}: its folder takes no new files"
    assert file_fault("write", tmp_path / "x" / "y", error) == f"folder not found: {tmp_path / 'x'}"


def test_a_saved_conversation_with_a_bad_setting_names_the_setting(tmp_path):
    path = tmp_path / "talk.json"
    path.write_text('{"messages": [{"role": "user", "content": "x"}], "settings": {"temperature": -1}}')
    with pytest.raises(ConfigError, match="temperature must be"):
        read_saved(path)


def test_a_cache_entry_without_config_names_the_verb_that_fetches_it(cli, tmp_path):
    folder = tmp_path / "models--org--x"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / "README.md").write_text("x")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    outcome = cli("show", "org/x", "--download-dir", os.fspath(tmp_path))
    assert (outcome.code, "`jaxinfer pull org/x`" in outcome.last_line) == (3, True), outcome.err
