"""Sentences of refusals: requirement, value, cure, before anything is listened on or loaded."""

import ast
import os
import re
from pathlib import Path

import click
import pytest

import jaxinfer
from jaxinfer.bench.http_client import sentence_of
from jaxinfer.cli import plan
from jaxinfer.cli.conversation import read_saved
from jaxinfer.cli.options import as_given
from jaxinfer.config import SETTINGS, config_from_sources, flag_of, size_words
from jaxinfer.errors import ConfigError, file_fault
from jaxinfer.runtime import nvidia
from tests.cli.test_main import COMMANDS

NAME = "max_model_len"
NOUNS = ("FILE", "FILE.toml|NAME", "DIR", "FOLDER", "NAME", "URL", "ADDRESS", "ORIGIN", "KEY", "CARD")
ROOT = Path(jaxinfer.__path__[0])
LONG = (
    "error: --max-model-len must be at most what the model can address, 2048, got 102400; "
    "lower it, or leave it out for what fits"
)


@pytest.mark.parametrize(
    ("arguments", "code", "last_line"),
    [
        (
            ["run", "demo", "hi", "--temperature", "abc"],
            2,
            "error: --temperature must be a number, got 'abc'; leave it out for ",
        ),
        (["run", "demo", "hi", "--top-k", "x"], 2, "error: --top-k must be an integer, got 'x'; leave it out for "),
        (
            ["run", "demo", "hi", "--max-tokens", "0"],
            2,
            "error: --max-tokens must be an integer of at least 1 and below 2^63, got 0; leave it out for its default",
        ),
        (["connect", "nosuch"], 2, "error: CLIENT must be one of curl, openai-python, "),
        (["bench", "suite", "nosuch"], 2, "error: SUITE must be one of zedinfer, paladin, mini-infer, vllm, toggles, "),
        (["bench", "suite"], 2, "error: SUITE must be one of zedinfer, paladin, mini-infer, vllm, toggles, got none; "),
        (["run", "3/4"], 2, "error: run needs a prompt, got none beside the model '3/4'; write it last: jaxinfer run "),
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
        (["stop", "nothere"], 2, "error: no server of yours is 'nothere', running: none; there is nothing to stop"),
        (
            ["run", "demo", "hi", "--temperature", "-1"],
            2,
            "error: --temperature must be a number from 0 (greedy) to 2, ",
        ),
        (["batch", "rows.jsonl", "-o", "-", "--top-p", "3"], 2, "error: --top-p must be a number from 0 (the likelies"),
        (
            ["serve", "demo", "--enable-prefix-caching", "--kv-layout", "contiguous"],
            2,
            "error: --enable-prefix-caching must be false with --kv-layout contiguous, whose pages belong to one ",
        ),
        (["serve", "--port", "99999"], 2, "error: --port must be an integer in 0 .. 65535, got '99999'; leave it out "),
        (
            ["serve", "--max-body-bytes", "x"],
            2,
            "error: --max-body-bytes must be a number of bytes of at least 1, got ",
        ),
        (
            ["run", "--tokenizer", "/nope", "hi"],
            3,
            "error: --tokenizer must be an existing folder, a hub id or 'demo', ",
        ),
        (["run", "--tokenizer", os.fspath(ROOT), "hi"], 3, f"error: --tokenizer: {ROOT}: tokenizer.json is missing; "),
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


BOUNDED = [
    (path, param)
    for path, command in COMMANDS
    for param in command.params
    if isinstance(param, click.Option) and isinstance(param.type, click.IntRange | click.FloatRange)
]


@pytest.mark.parametrize(("path", "option"), BOUNDED, ids=[f"{path} {option.opts[0]}" for path, option in BOUNDED])
def test_a_number_beyond_its_range_is_told_as_requirement_value_and_cure(cli, monkeypatch, path, option):
    """Of every option that has a range, by its flag and by its variable."""
    kind, flag = option.type, option.opts[0]
    assert isinstance(kind, click.IntRange | click.FloatRange) and kind.min is not None and kind.max is None
    noun = "an integer" if isinstance(kind, click.IntRange) else "a number"
    law = f"must be {noun} {'above' if kind.min_open else 'of at least'} {kind.min:g}, got "
    arguments = [*path.split()[1:], *(["-o", "-"] if path == "jaxinfer batch" else [])]
    for value in ("-1", "many", *(() if isinstance(kind, click.IntRange) else ("nan", "inf"))):
        outcome = cli(*arguments, flag, value)
        assert (outcome.code, outcome.last_line.startswith(f"error: {flag} {law}")) == (2, True), outcome.err
        assert outcome.last_line.endswith("; leave it out for its default")
        if option.envvar:
            with monkeypatch.context() as patched:
                patched.setenv(option.envvar, value)
                said = cli(*arguments).last_line
            assert said.startswith(f"error: {option.envvar} {law}") and said.endswith("; unset it for its default")


NEEDED = {
    "jaxinfer batch": ["x.jsonl", "-o", "-"],
    "jaxinfer bench compare": ["--a", "", "--b", ""],
    "jaxinfer bench suite": ["vllm"],
    "jaxinfer bench show": ["x.json"],
    **dict.fromkeys(("jaxinfer pull", "jaxinfer show", "jaxinfer rm"), ["x"]),
    "jaxinfer ppl": ["x.txt"],
}
NAMING = [
    (path, param)
    for path, command in COMMANDS
    for param in command.params
    if isinstance(param, click.Option) and str(param.metavar).rstrip("S") in NOUNS
]


@pytest.mark.parametrize(("path", "option"), NAMING, ids=[f"{path} {option.opts[0]}" for path, option in NAMING])
def test_an_empty_path_or_name_is_refused(cli, monkeypatch, model, path, option):
    """Of every option that takes one; its variable may be empty, which is none."""
    outcome = cli(*path.split()[1:], *NEEDED.get(path, ()), option.opts[-1], "", stdin="")
    assert outcome.code == 2 and not model.made, outcome.err
    assert re.match(
        rf"error: {option.opts[-1]} must be (texts that are not empty|\w+ \w+).*, got ''; ", outcome.last_line
    )
    assert ("leave it out" in outcome.last_line) != option.required


WRITTEN = [
    (path, param)
    for path, command in COMMANDS
    for param in command.params
    if isinstance(param, click.Option) and re.search("[Ww]rite .* to FILE|in FOLDER", param.help or "")
]


@pytest.mark.parametrize(("path", "option"), WRITTEN, ids=[f"{path} {option.opts[0]}" for path, option in WRITTEN])
def test_what_cannot_be_written_is_told_before_anything_else(cli, model, path, option):
    outcome = cli(*path.split()[1:], *option.opts[-1:], "/proc/x")
    assert (outcome.code, model.made) == (2, [])
    assert re.match(rf"error: cannot \w+ /proc/x \({option.opts[-1]}\): its folder takes no new ", outcome.err)


@pytest.mark.parametrize("name", [name for name, setting in SETTINGS.items() if setting.type is str])
def test_a_setting_that_is_a_text_is_not_empty(name):
    fault = SETTINGS[name].fault("", name)
    assert (fault is None) == (name == "compile_cache_dir")


def test_a_fault_names_a_setting_as_it_was_given(cli, monkeypatch, model, tmp_path):
    monkeypatch.setenv("JAXINFER_MAX_MODEL_LEN", "100K")
    assert cli("serve", "demo").last_line == LONG.replace("--max-model-len", "JAXINFER_MAX_MODEL_LEN")
    monkeypatch.delenv("JAXINFER_MAX_MODEL_LEN")
    file = tmp_path / "long.toml"
    file.write_text("max_model_len = 102400")
    assert cli("serve", "demo", "--config", os.fspath(file)).last_line == LONG.replace("--max-model-len", NAME)
    file.write_text('enable_prefix_caching = true\nkv_layout = "contiguous"')
    said = cli("serve", "demo", "--config", os.fspath(file)).last_line
    assert said.startswith("error: enable_prefix_caching must be false with kv_layout contiguous")
    assert said.endswith("; set enable_prefix_caching to false, or set kv_layout to paged")
    others = "not /x/num_pages, generation_config.json or 'run_ahead'"
    said = as_given(f"max_num_seqs 4 of page_size (--page-size), {others}", {})
    assert said == f"--max-num-seqs 4 of --page-size, {others}"


@pytest.mark.parametrize("name", ["--quantization", "JAXINFER_QUANTIZATION"])
def test_quantization_is_named_as_it_was_given(cli, monkeypatch, name):
    flags = [name, "int8"] if name.startswith("--") else []
    if not flags:
        monkeypatch.setenv(name, "int8")
    said = cli("plan", "Qwen/Qwen3-8B-FP8", "--for", "h100", *flags).last_line
    assert said.startswith(f"error: {name} must be auto for weights that are quantized already")


SWITCHES = [name for name, setting in SETTINGS.items() if setting.type is bool]


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("name", SWITCHES)
def test_the_cure_of_a_switch_is_what_can_be_typed(name, value):
    """Whoever has set it: a flag without a value, the variable's value, the key's."""
    said, variable = f"set {name} to {str(value).lower()}", f"JAXINFER_{name.upper()}"
    for sources in ({}, {name: flag_of(name)}, {name: flag_of(name, off=True)}):
        verb, flag = as_given(said, sources).split()
        context = plan.command.make_context("plan", [flag])
        assert (verb, context.params[name]) == ("pass", value)
    assert as_given(said, {name: variable}) == said.replace(name, variable)
    assert getattr(config_from_sources(env={variable: str(value).lower()}).config, name) is value
    assert as_given(said, {name: "settings.toml"}) == said


def test_no_text_gives_a_switch_a_value():
    options = (param for _, command in COMMANDS for param in command.params if isinstance(param, click.Option))
    flags = {flag for option in options if option.is_flag for flag in option.opts + option.secondary_opts}
    assert {flag_of(name, off=True) for name in SWITCHES} <= flags
    listed = "|".join(map(re.escape, sorted(flags)))
    valued = re.compile(rf"(?<![\w-])(?:{listed})(?: to |=| )(?:true|false|on|off|1|0)\b")
    for path in sorted(ROOT.rglob("*.py")):
        assert not valued.search(texts_in(ast.parse(path.read_text("utf-8")))), path


def texts_in(node: ast.AST) -> str:
    values = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    return " ".join(value for value in values if isinstance(value, str))


def said_by(fault: ast.Call, scopes: list[ast.AST]) -> str:
    """The words of a refusal, those of the names that it is made of included."""
    assigned = [node for scope in scopes for node in ast.walk(scope) if isinstance(node, ast.Assign)]
    names = {node.id for node in ast.walk(fault) if isinstance(node, ast.Name)}
    own = [node.value for node in assigned if isinstance(node.targets[0], ast.Name) and node.targets[0].id in names]
    return " ".join(map(texts_in, (fault, *own)))


REFUSALS = {"ConfigError", "CheckpointError", "BatchError", "EngineError", "PortInUse"}
CURED = {"unknown_name", "unknown", "silence", "NO_DRIVER"}  # what makes the whole sentence, or its end
OF_USERS = ("cli", "offline", "server/tenants.py", "server/tls.py", "bench/report.py", "files.py")
NOT_OF_THE_USER = {"the start was interrupted", "the engine was stopped while it answered row "}  # they are told of


def test_every_refusal_of_the_command_line_ends_with_a_cure():
    found = []
    for path in (each for room in OF_USERS for each in sorted((ROOT / room).rglob("*.py")) or [ROOT / room]):
        module = ast.parse(path.read_text("utf-8"))
        for function in (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                fault = node.exc if isinstance(node, ast.Raise) else None
                if not isinstance(fault, ast.Call) or getattr(fault.func, "id", "") not in REFUSALS:
                    continue
                words = {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(fault)}
                said = said_by(fault, [function, *(each for each in module.body if isinstance(each, ast.Assign))])
                if said.strip() and not words & CURED and not set(";?`") & set(said) and said not in NOT_OF_THE_USER:
                    found.append(f"{path.name}:{node.lineno}: {said}")
    assert found == []


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


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ("plan demo --for l4 --block-size 48", "--block-size"),
        ("plan demo --for l4 --block-size=48", "--block-size"),
        ("plan demo --for l4 --page-size 48", "--page-size"),
        ("plan demo --for l4 --mem-fraction-static 7", "--mem-fraction-static"),
        ("plan demo --for l4 --context-length 9999", "--context-length"),
        ("plan Qwen/Qwen3-8B --for l4 --context-length 40960", "--context-length"),
    ],
)
def test_a_setting_is_told_by_the_flag_that_was_typed(cli, given, flag):
    said = cli(*given.split()).last_line
    setting = next(option for option in plan.command.params if flag in option.opts)
    assert flag in said and not any(other in said for other in setting.opts if other not in (flag, setting.name)), said


@pytest.mark.parametrize(("size", "said"), [(0, "0 bytes"), (1, "1 byte"), (2, "2 bytes"), (2**20, "1.0 MiB")])
def test_one_byte_is_no_plural(size, said):
    assert size_words(size) == said


VERBS_OF_A_MODEL = (
    "run,M,hi;chat,M;serve,M;show,M;plan,M;batch,M,F,-o,O;ppl,M,F;sanity,M;sanity,demo,M;profile,M;warmup,M;bench,latency,M;"
    "bench,throughput,M;pull,M;rm,M"
)


@pytest.mark.parametrize("words", VERBS_OF_A_MODEL.split(";"))
def test_a_model_that_is_not_there_has_one_exit_code_in_every_verb(cli, tmp_path, monkeypatch, words):
    monkeypatch.setattr("jaxinfer.bench.sanity.measure", _measured)
    (tmp_path / "rows.jsonl").write_text("hello\n")
    names = {"M": str(tmp_path / "nope"), "F": str(tmp_path / "rows.jsonl"), "O": str(tmp_path / "out.jsonl")}
    outcome = cli(*(names.get(word, word) for word in words.split(",")))
    assert outcome.code == 3, outcome.last_line


def _measured(config, *_):
    """What measures is made up, as the demo takes seconds."""
    from jaxinfer.bench.sanity import NOTHING
    from jaxinfer.checkpoint.resolve import local_folder

    if config.model != "demo":
        local_folder(config.model)
    return NOTHING, []
