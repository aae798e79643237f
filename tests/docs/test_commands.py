"""What the documentation says to type works: each command and block of Python is run, page by page, by a reader with an
empty folder; what cannot be run here is named below, with the reason, and held to what the program knows.
"""

import json
import os
import re
import tomllib

import click
import pytest
import yaml

from jaxinfer.cli.options import OTHER_ENV
from jaxinfer.config import SETTINGS, config_from_sources
from tests.docs.pages import OPERATOR, PROGRAMS, ROOT, blocks, flags, invocations, pages, parse, spans, words

LANGUAGES = {"", "sh", "python", "diff", "yaml", "toml", "json"}
DOCKER = "there is no Docker engine here: tests/test_package.py replays the Dockerfile and starts what it makes"
ITSELF = "it is what this test is a part of"

NOT_RUN = {
    "make test": ITSELF,
    "make test-full": ITSELF,
    "make lint": "the first step of .ci/run, which runs before this test",
    ".ci/run": ITSELF,
    "make sanitize": "minutes: it compiles the kernels for CPUs twice, and runs tests that run here without",
    "make soak": "an hour: tests/soak/test_soak.py runs a minute of it",
    "make site": "tests/docs/test_site.py builds it",
    "benchmarks/h200.sh 1.5b": "it needs an H200",
    "python benchmarks/beside.py": "it needs vLLM: tests/bench/test_beside.py runs it with two servers of ours",
    "docker build": DOCKER,
    "docker run": DOCKER,
}

# Typed by the reader in the place of what the page says: by one who has not a minute for each
INSTEAD = {
    "jaxinfer bench latency demo": "jaxinfer bench latency demo --prompt-lengths 64 --batch-sizes 1 --first-steps 0",
    "jaxinfer bench throughput demo": "jaxinfer bench throughput demo --loads 4:32:16",
    "jaxinfer profile demo": "jaxinfer profile demo --steps 4",
}

# Flags of other programs that the pages name
ELSEWHERE = {"--no-deps", "--no-compile", "--build-arg", "--gpus", "--host", "--python"}
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+\w")
BLANK = re.compile(r"(?:\./)?[A-Z]{3,}")
SCRIPT = re.compile(r"^(?:python )?((?:benchmarks|scripts|\.ci)/[\w/-]+(?:\.py|\.sh)?)(?= |$)")
# A page with its own test: tests/test_package.py follows it in an environment with nothing else
BY_PACKAGE = "docs/quickstart.md"


def reason(command: str) -> str | None:
    """Why a command is not run, or None when it is."""
    return next((why for begins, why in NOT_RUN.items() if f"{command} ".startswith(f"{begins} ")), None)


def commands(page: str) -> list[str]:
    return [command for block in blocks(page) for command in block.commands]


def is_runnable(page: str) -> bool:
    return any(block.language == "python" or any(not reason(line) for line in block.commands) for block in blocks(page))


READ = [page for page in pages() if is_runnable(page) and page != BY_PACKAGE]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("page", READ)
def test_a_reader_who_does_what_a_page_says_succeeds(page, reader, request):
    """`make clients` puts pyarrow into .clients. Who types `make` is in a checkout."""
    if any(command.startswith("make ") and not reason(command) for command in commands(page)):
        folder = request.getfixturevalue("checkout")
        reader.enters(folder, PYTHONPATH=os.pathsep.join(map(str, (folder, folder / "kernels"))))
    for block in blocks(page):
        if block.language == "python" or any(not reason(line) for line in block.commands):
            reader.reads(block, INSTEAD, leaving_out=reason)
    reader.leave()


def test_the_blocks_are_of_languages_that_this_test_knows_and_commands_are_in_those_of_the_shell():
    for page in pages():
        for block in blocks(page):
            assert block.language in LANGUAGES, (page, block.language)
            first = block.text.split(maxsplit=1)[0] if block.text.strip() else ""
            is_program = first in PROGRAMS
            assert block.language == "sh" or not is_program, f"{page}: a command outside of ```sh: {block.text}"


@pytest.mark.parametrize("page", pages())
def test_jaxinfer_knows_every_verb_and_option_that_a_page_gives_it(page):
    typed = [line for line in commands(page) + spans(page) if "jaxinfer" in line and not line.startswith("[")]
    for command in typed:
        try:
            given = list(invocations(command))
        except ValueError:  # a span of code with a quote in it is no command
            assert command not in commands(page), command
            continue
        for arguments in given:
            parse(arguments)


@pytest.mark.parametrize("page", pages())
def test_the_flags_variables_targets_scripts_and_extras_that_a_page_names_are_there(page):
    named = [ROOT / name for span in commands(page) + spans(page) for name in SCRIPT.findall(span)]
    known = flags() | ELSEWHERE | {flag for path in named for flag in FLAG.findall(path.read_text())}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for span in commands(page) + spans(page):
        if not span.startswith("python -m"):
            assert set(FLAG.findall(span)) <= known, (page, span)
        assert set(re.findall(r"\bJAXINFER_\w+", span)) <= {
            *OTHER_ENV,
            *(f"JAXINFER_{name.upper()}" for name in SETTINGS),
        }
        assert set(re.findall(r"jaxinfer\[(\w+)\]", span)) <= extras.keys(), (page, span)
        if made := re.match(r"make ([a-z-]+)\b", span):
            assert made[1] in targets, (page, span)
        if module := re.match(r"python -m (jaxinfer[\w.]*)", span):
            path = (ROOT / module[1].replace(".", "/")).with_suffix(".py")
            assert set(FLAG.findall(span)) <= set(FLAG.findall(path.read_text())), (page, span)


def test_what_is_not_run_or_typed_otherwise_is_in_a_page():
    shown = [f"{command} " for page in pages() for command in commands(page)]
    for begins in (*NOT_RUN, *INSTEAD):
        assert any(command.startswith(f"{begins} ") for command in shown), f"no page has {begins!r}: drop it from here"


def test_python_yaml_toml_and_json_in_the_pages_can_be_read(tmp_path):
    for block in (block for page in pages() for block in blocks(page)):
        if block.language == "python":
            compile(block.text, block.page, "exec")  # what ast.parse reads need not run: a return outside of a function
        elif block.language == "yaml":
            assert yaml.safe_load(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            (tmp_path / "settings.toml").write_text(block.text)
            config_from_sources(str(tmp_path / "settings.toml"))


def test_no_command_of_a_block_has_a_blank_to_fill_in():
    """Whoever copies one has it work. A sentence may say MODEL; the program then says what that stands for."""
    for page in pages():
        for word in (word for line in commands(page) for given in invocations(line) for word in given):
            assert not BLANK.fullmatch(word), f"{page}: {word}: name something that is there"


def test_the_quick_start_is_followed_by_the_test_of_the_package():
    assert BY_PACKAGE in pages() and is_runnable(BY_PACKAGE)
    assert BY_PACKAGE in (ROOT / "tests" / "test_package.py").read_text()


def test_the_quick_start_takes_one_command_for_each_thing():
    taken = [block.commands for block in blocks(BY_PACKAGE) if block.language == "sh"]
    assert [len(block) for block in taken] == [1] * len(taken), taken
    things = (
        "pip install --no-compile ./jaxinfer-0.1.0-py3-none-any.whl",
        "pip install --no-compile 'jaxinfer[notebook]'",
        "jaxinfer run",
        "jaxinfer chat",
        "jaxinfer serve",
        "curl",
        "jaxinfer plan",
        "jaxinfer batch",
    )
    things += ("jaxinfer notebooks", "jupyter execute", "jaxinfer bench")
    for thing in things:
        assert sum(command.startswith(f"{thing} ") or command == thing for (command,) in taken) == 1, thing
    chained = [command for (command,) in taken if OPERATOR & {*words(command)} and not command.startswith("printf")]
    assert chained == ["python3 -m venv jaxinfer-venv && . jaxinfer-venv/bin/activate"]


@pytest.mark.parametrize(
    "command",
    [
        "jaxinfer serev",
        "X=1 jaxinfer pul demo",
        "jaxinfer serve --prot 1",
        "jaxinfer bench latnecy",
        "cat x | jaxinfer batch -i - --ouput -",
    ],
)
def test_a_planted_slip_is_found(command):
    with pytest.raises(click.UsageError):
        parse(next(invocations(command)))


def test_words_are_those_of_a_shell():
    assert words("a 'b c' | d; e") == ["a", "b c", "|", "d", ";", "e"]
    assert list(invocations("X=1 .venv/bin/jaxinfer plan demo > out && docker run jaxinfer serve --port 1")) == [
        ["plan", "demo"],
        ["serve", "--port", "1"],
    ]
