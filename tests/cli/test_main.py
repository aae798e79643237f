"""`jaxinfer`: fast help, errors whose last line is the cause, exit codes."""

import importlib
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from jaxinfer.cli import VERBS, VERBS_OF_OTHERS, _near, main
from jaxinfer.cli import jaxinfer as program
from jaxinfer.cli.options import FLAGS
from jaxinfer.cli.verbs import ENDING, is_one_slip
from jaxinfer.config import SETTINGS
from jaxinfer.errors import CheckpointError, ConfigError, DeviceError, EngineError
from jaxinfer.version import __version__

ROOT = Path(__file__).parents[2]
PATH = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
CALL = "from jaxinfer.cli import main; main()"


def cpu_seconds_of_children() -> float:
    """Of the processor: the clock on the wall would also count our neighbours."""
    times = os.times()
    return times.children_user + times.children_system


def test_help_takes_less_than_150_ms():
    quickest = float("inf")
    for _ in range(20):  # a machine that is busy with other tests makes single runs slow
        before = cpu_seconds_of_children()
        subprocess.run([sys.executable, "-c", CALL, "--help"], check=True, capture_output=True, env=PATH)
        quickest = min(quickest, cpu_seconds_of_children() - before)
        if quickest < 0.150:
            break
    assert quickest < 0.150


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_imports_no_jax(verb):
    arguments = [verb, "--help"] if verb else ["--help"]
    check = f"import sys; sys.argv[1:] = {arguments!r}\ntry:\n    from jaxinfer.cli import main; main()\n"
    check += "finally:\n    assert not {'jax', 'numpy', 'flax'} & set(sys.modules), sorted(sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, env=PATH, check=True)
    assert done.stdout.startswith("Usage: jaxinfer")


def test_without_a_verb_it_shows_how_to_begin(cli):
    outcome = cli()
    assert outcome.code == 0
    assert outcome.out.splitlines()[0].startswith("jaxinfer serve ")


def test_the_version_is_the_package_s(cli):
    assert cli("--version").out == f"jaxinfer {__version__}\n"


def test_every_setting_has_a_flag_with_help():
    assert set(FLAGS) == set(SETTINGS)


@pytest.mark.parametrize("verb", ["serve", "chat", "run", "warmup", "plan"])
def test_help_all_lists_every_setting_under_a_heading(cli, verb):
    help_text = cli(verb, "--help-all").out
    for heading in ("Options:", "Model:", "Device and memory:", "Scheduling:"):
        assert f"\n{heading}\n" in help_text
    for name in SETTINGS:
        assert f"--{name.replace('_', '-')}" in help_text


@pytest.mark.parametrize(
    ("arguments", "last_line"),
    [
        (
            ["serve", "--max-modl-len", "3"],
            "error: unknown option of jaxinfer serve '--max-modl-len', did you mean '--max-model-len'?",
        ),
        (["srve"], "error: unknown command 'srve', did you mean 'serve'?"),
        (
            ["serve", "--tensor-paralel-size", "2"],
            "error: unknown option of jaxinfer serve '--tensor-paralel-size', did you mean '--tensor-parallel-size'? "
            "--tensor-parallel-size: not yet: jaxinfer runs on one GPU; drop it",
        ),
        (["demo"], "error: the first word must be a verb, got the model 'demo'; write `jaxinfer run demo`"),
        (["org/x"], "error: the first word must be a verb, got the model 'org/x'; write `jaxinfer run org/x`"),
        (
            ["What is 7 plus 5?"],
            "error: the first word must be a verb, got the prompt 'What is 7 plus 5?'; "
            "write `jaxinfer run 'What is 7 plus 5?'`",
        ),
        (
            ["serve", "--served-model-name", "A", "B"],
            "error: --served-model-name must have one name, got several; give it again for each: "
            "--served-model-name A --served-model-name B; where 'B' is the model, write it first",
        ),
        (
            ["ppl", "demo"],
            "error: ppl needs a file of texts, got none beside the model 'demo'; name one: "
            "jaxinfer ppl [MODEL] text.txt",
        ),
        (
            ["serve", "a", "b"],
            "error: jaxinfer serve takes one MODEL, got 'b' too; leave it out, see `jaxinfer serve --help`",
        ),
        (
            ["run", "a", "b", "c", "d"],
            "error: jaxinfer run takes one MODEL and one PROMPT, got 'c d' too; "
            "put a prompt of several words in quotes",
        ),
        (
            ["bench", "serve", "a", "b"],
            "error: jaxinfer bench serve takes only options, got 'a b'; leave it out or name a model with --model, "
            "see `jaxinfer bench serve --help`",
        ),
        (["serve", "a", "-m", "b"], "error: there must be one model, got 'a' and --model 'b'; drop one"),
        (
            ["serve", "--port", "70000"],
            "error: --port must be an integer in 0 .. 65535, got '70000'; leave it out for 8000",
        ),
        (
            ["run", "hi", "--max-num-seqs", "many"],
            "error: --max-num-seqs must be an integer in 1 .. 4096 or auto, got 'many'; leave it out for its default",
        ),
        (["run", "hi", "--temperature", "hot"], None),
        (["-V"], "error: unknown option of jaxinfer '-V', did you mean '--version'?"),
        (["-v"], "error: unknown option of jaxinfer '-v', did you mean '--version'?"),
        (["--nosuch"], "error: unknown option of jaxinfer '--nosuch', see `jaxinfer --help`"),
        (["bench", "--nosuch"], "error: unknown option of jaxinfer bench '--nosuch', see `jaxinfer bench --help`"),
        (["run", "hi", "--max-tokens"], "error: --max-tokens needs a value, got none; see `jaxinfer run --help`"),
        (
            ["bench", "serve", "--url"],
            "error: --url needs a value, got none; see `jaxinfer bench serve --help`",
        ),
        (["rum", "demo", "hi"], "error: unknown command 'rum', did you mean 'run'?"),
    ],
)
def test_a_wrong_command_line_ends_in_its_cure_and_code_2(cli, model, arguments, last_line):
    outcome = cli(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    assert outcome.last_line == last_line if last_line else outcome.last_line.startswith("error: ")


def test_a_wrong_key_of_a_config_file_names_the_file(cli, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("max_seqs = 3")
    outcome = cli("serve", "--config", str(file))
    assert outcome.last_line == f"error: {file}: unknown key 'max_seqs', did you mean 'max_num_seqs'?"


def test_a_key_that_is_a_flag_of_the_server_is_told_where_it_goes(cli, tmp_path):
    file = tmp_path / "mine.toml"
    for key, fault in [("port", "'port' is no key of this file"), ("prot", "unknown key 'prot', did you mean 'port'?")]:
        file.write_text(f"{key} = 3")
        said = cli("serve", "--config", str(file)).last_line
        assert said.startswith(f"error: {file}: {fault}") and said.endswith("; pass --port or set JAXINFER_PORT")


@pytest.mark.parametrize("verb", ["chat", "serve", "plan", "warmup"])
def test_a_prompt_in_the_place_of_a_model_is_told_the_verb_that_answers_it(cli, model, verb):
    outcome = cli(verb, "What is 7/5 plus 5?")
    assert (outcome.code, model.made) == (3, [])
    text = "'What is 7/5 plus 5?'"
    assert outcome.last_line.endswith(f"got the text {text}; ask it with `jaxinfer run {text}`")


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigError, 2), (CheckpointError, 3), (DeviceError, 4), (EngineError, 5)]
)
def test_an_error_of_ours_is_the_last_line_without_a_traceback(cli, model, error, code):
    model.start_error = error("the law, the fact; the cure")
    outcome = cli("run", "hi")
    assert (outcome.code, outcome.last_line) == (code, "error: the law, the fact; the cure")
    assert "Traceback" not in outcome.err
    assert outcome.out == ""


def test_debug_shows_the_traceback_too(cli, model):
    model.start_error = EngineError("it broke")
    outcome = cli("run", "hi", "--debug")
    assert "Traceback" in outcome.err
    assert outcome.last_line == "error: it broke"


def test_ctrl_c_ends_without_a_traceback_and_closes_the_model(cli, model):
    model.start_error = KeyboardInterrupt()
    outcome = cli("run", "hi")
    assert outcome.code == 130
    assert "Traceback" not in outcome.err
    assert model.closed == 1


def test_what_fails_because_of_a_ctrl_c_is_no_fault_of_its_own(cli, monkeypatch):
    def fail(interrupt: BaseException | None) -> None:
        try:
            if interrupt is not None:
                raise interrupt
        finally:
            raise RuntimeError("Event loop stopped before Future completed.")

    monkeypatch.setattr(program, "main", lambda **given: fail(KeyboardInterrupt()))
    outcome = cli("list")
    assert outcome.code == 130 and outcome.err == ""
    monkeypatch.setattr(program, "main", lambda **given: fail(None))
    with pytest.raises(RuntimeError, match="Event loop"):
        main(["list"])


def commands_below(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    yield context.command_path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            yield from commands_below(below, click.Context(below, parent=context, info_name=name))


COMMANDS = list(commands_below(program, click.Context(program, info_name="jaxinfer")))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_help_fits_a_screen_and_help_all_has_every_option(cli, monkeypatch, path, command):
    """As a terminal of 80 columns shows it, on which click leaves two free."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli(*path.split()[1:], "--help").out.splitlines()
    everything = cli(*path.split()[1:], "--help-all").out
    assert [line for line in [*shown, *everything.splitlines()] if len(line) > 80] == []
    assert shown[0].startswith(f"Usage: {path} ") and len(shown) <= 40, "\n".join(shown)
    if isinstance(command, click.Group):
        assert everything.splitlines() == shown
    else:
        for param in command.params:
            if isinstance(param, click.Option):
                assert all(name in everything for name in param.opts), param.name


FRAGMENT = re.compile(
    r"^(Of|For|Its|It|So|Instead|What they|When to|How many|More of them|In place)\b|; else\b|, else\b|\bthere\.( |$)"
)


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_each_help_text_names_its_thing(path, command):
    """No fragment that begins with a preposition or a pronoun, and no "else" that leaves its other case out."""
    texts = {param.opts[0]: param.help or "" for param in command.params if isinstance(param, click.Option)}
    texts["the verb"] = command.help or ""
    found = {name: text for name, text in texts.items() if FRAGMENT.search(text) or not text}
    assert found == {}


def test_a_word_that_a_verb_has_no_place_for_is_told_with_what_it_takes(cli):
    for path, command in COMMANDS:
        places = [param for param in command.params if isinstance(param, click.Argument)]
        if isinstance(command, click.Group) or any(param.nargs == -1 for param in places):
            continue
        chosen = [param.type.choices[0] if isinstance(param.type, click.Choice) else "x" for param in places]
        options = [param for param in command.params if param.required and isinstance(param, click.Option)]
        needed = [word for param in options for word in (param.opts[0], __file__)]
        outcome = cli(*path.split()[1:], *needed, *chosen, "beyond this")
        assert (outcome.code, outcome.out) == (2, ""), path
        assert outcome.last_line.startswith(f"error: {path} takes "), outcome.last_line
        assert ", got 'beyond this'" in outcome.last_line, outcome.last_line


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_a_verb_that_shows_progress_can_be_quiet(path, command):
    verb = "_".join(path.split()[1:]) or "__init__"
    source = (ROOT / "jaxinfer" / "cli" / f"{verb}.py").read_text()
    flags = {name for param in command.params for name in param.opts}
    assert "screen_for(sys.stderr)" not in source
    shows_progress = "screen_for(" in source or "publish(" in source
    assert "-q" in flags or not shows_progress or isinstance(command, click.Group)


def test_a_verb_of_verbs_alone_shows_its_help(cli):
    assert cli("bench") == cli("bench", "--help")


def test_help_verb_shows_the_help_of_a_verb_and_version_the_version(cli):
    assert cli("help", "bench", "latency").out == cli("bench", "latency", "--help").out
    assert cli("help").out == cli("--help").out
    assert "did you mean 'serve'?" in cli("help", "srve").last_line
    assert cli("version").out == cli("--version").out


def test_a_shell_can_complete_verbs_and_flags(tmp_path):
    def completed(words: str, place: int) -> list[str]:
        asked = {"_JAXINFER_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(place)}
        program = "from jaxinfer.cli import main; main()"
        done = subprocess.run([sys.executable, "-c", program], env=PATH | asked, capture_output=True, text=True)
        return done.stdout.split()

    assert completed("jaxinfer ser", 1) == ["plain,serve"]
    assert "plain,--max-model-len" in completed("jaxinfer serve --max", 2)
    folder = tmp_path / "traces"
    assert completed(f"jaxinfer profile --trace {folder} --js", 4) == ["plain,--json"] and not folder.exists()


def typos(word: str) -> Iterator[str]:
    """Every word that is one letter away."""
    letters = "mnoprst"  # those of rm and stop, and two more
    for at in range(len(word)):
        yield word[:at] + word[at + 1 :]
        yield from (word[:at] + letter + word[at + 1 :] for letter in letters)
    for at in range(len(word) + 1):
        yield from (word[:at] + letter + word[at:] for letter in letters)


def test_a_typo_of_another_verb_is_never_told_one_that_removes_or_ends():
    def told(word: str) -> str:
        with pytest.raises(click.UsageError) as error:
            program.get_command(click.Context(program), word)
        return error.value.message

    for verb in set(VERBS) - set(ENDING) - {"ps"}:  # two letters: with another one they are nobody's
        for typo in {*typos(verb)} - set(VERBS):
            assert not any(f"did you mean '{ending}'" in told(typo) for ending in ENDING), typo
    assert "did you mean 'stop'?" in told("stopp") and "did you mean 'rm'?" in told("rmm")


@pytest.mark.parametrize("word", ["create", "push", "launch", "convert", "cp", "login", "update", "start", "train"])
def test_a_word_that_is_near_no_verb_gets_no_hint_at_one(cli, word):
    outcome = cli(word)
    assert outcome.code == 2 and "did you mean" not in outcome.last_line
    answer = VERBS_OF_OTHERS.get(word)
    known = f"known are {', '.join(sorted(VERBS))}"
    assert outcome.last_line.startswith(
        f"error: jaxinfer has no command {word!r}; {answer}" if answer else f"error: unknown command {word!r}, {known}"
    )


@pytest.mark.parametrize(
    ("word", "verb"), [("vers", "version"), ("RUN", "run"), ("benhc", "bench"), ("conect", "connect")]
)
def test_a_slip_or_a_beginning_of_a_verb_is_told_the_verb(cli, word, verb):
    assert cli(word).last_line == f"error: unknown command {word!r}, did you mean {verb!r}?"


@pytest.mark.parametrize(
    ("word", "verb"),
    [
        *(("kill", "stop"), ("restart", "stop"), ("logs", "serve"), ("start", "serve"), ("models", "list")),
        *(("search", "plan"), ("status", "ps"), ("info", "show"), ("install", "pull"), ("remove", "rm")),
    ],
)
def test_a_verb_that_others_have_is_answered_with_ours(cli, word, verb):
    outcome = cli(word, "x")
    assert (outcome.code, f"`jaxinfer {verb}" in outcome.last_line) == (2, True), outcome.last_line


def test_what_is_said_of_other_programs_verbs_names_verbs_that_there_are():
    for said in VERBS_OF_OTHERS.values():
        assert set(re.findall(r"jaxinfer ([a-z]+) [A-Z]", said)) <= set(VERBS)
    assert not set(VERBS_OF_OTHERS) & set(VERBS)


HELP_ALL = "see `jaxinfer serve --help-all`"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["serve", "--prot", "1"], "did you mean '--port'?"),
        (["serve", "--max-len", "9"], "did you mean '--max-model-len'?"),
        (["serve", "--template", "x"], "did you mean '--chat-template'?"),
        (["serve", "--no-hf-overrides"], "leave --hf-overrides out instead"),
        (["serve", "--enable-cuda-graph"], "did you mean '--cuda-graphs'?"),
        (["serve", "--disable-prefix-cache"], "did you mean '--no-enable-prefix-caching'?"),
        *((["serve", flag], HELP_ALL) for flag in ("--max-file-size", "--block-len", "--mask", "--enable-port")),
        (["bench", "serve", "--prot", "9"], "did you mean '--port'? --port: use --url"),
    ],
)
def test_a_hint_names_an_option_of_the_verb_or_a_flag_one_slip_away(cli, words, hint):
    outcome = cli(*words)
    assert (outcome.code, outcome.last_line.rpartition(", ")[2]) == (2, hint)


@pytest.mark.parametrize("verb", ["serve", "run", "bench_serve", "bench_latency"])
def test_one_slip_in_an_option_is_a_hint_at_it_or_at_another_as_near(verb):
    command = importlib.import_module(f"jaxinfer.cli.{verb}").command
    context, draw = click.Context(command, info_name=verb), random.Random(7)
    own = {flag for param in command.params for flag in param.opts if len(flag) > 5}
    for flag in draw.sample(sorted(own), 12):
        at = draw.randrange(2, len(flag) - 1)
        swapped = flag[:at] + flag[at + 1] + flag[at] + flag[at + 2 :]
        for slip in {flag[:at] + flag[at + 1 :], flag[:at] + flag[at:].replace(flag[at], "q", 1), swapped} - own:
            hinted = _near(slip, context).partition("'")[2].partition("'")[0]
            assert hinted == flag or (hinted in own and is_one_slip(slip, hinted)), slip
