"""Commands typed inside sentences work too: each begins a command of a block that is run, is typed here by a reader,
is run by another test, or is named below with the reason why it is not run.
"""

import pytest

from tests.docs.pages import ROOT, blocks, does, notebooks, pages, sentences
from tests.docs.test_commands import NOT_RUN, reason

NEVER = {
    **NOT_RUN,
    "pytest -m gpu": "it needs an H200",
    "benchmarks/h200.sh": "it needs an H200",
    "CUDA_VISIBLE_DEVICES=1 jaxinfer serve": "it needs a second GPU",
    "kubectl get --raw": "it needs a cluster",
    "make clients": "it installs from package indexes: .ci/run does it before the slow tests",
    "make lock": "it asks package indexes for newer versions: whoever changes a dependency runs it",
    "python -m jaxinfer.demo.train --out FOLDER": "hours without a GPU: tests/demo/test_training.py takes its steps",
}

# What a reader types for a sentence's command, in order; one of these is that command with its blanks filled in
TYPED = {
    'eval "$(_JAXINFER_COMPLETE=bash_source jaxinfer)"': (
        'eval "$(_JAXINFER_COMPLETE=bash_source jaxinfer)" && complete -p jaxinfer',
        'COMP_WORDS="jaxinfer ben" COMP_CWORD=1 _JAXINFER_COMPLETE=bash_complete jaxinfer | grep bench',
        "_JAXINFER_COMPLETE=zsh_source jaxinfer | grep compdef",
        "_JAXINFER_COMPLETE=fish_source jaxinfer | grep 'complete --no-files --command jaxinfer'",
    ),
    "python benchmarks/cpu_beside.py FOLDER": (
        "python benchmarks/cpu_beside.py demo --rounds 1 --engines int8 | grep '^int8 '",
    ),
    "python benchmarks/cpu_decode.py --steps 30": (
        "python benchmarks/cpu_decode.py --steps 30 --layers 1 | grep 'ratio of the medians'",
    ),
    "jaxinfer run MODEL": ('jaxinfer run demo "What is 7 plus 5?" | grep 12',),
    "jaxinfer chat MODEL": ("jaxinfer chat demo",),
    "jaxinfer chat --url URL": ("jaxinfer serve --dry-run", "jaxinfer chat --url http://127.0.0.1:8000"),
    "jaxinfer list": ("jaxinfer list",),
    "jaxinfer show MODEL": ("jaxinfer show demo",),
    "jaxinfer show demo": ("jaxinfer show demo",),
    "jaxinfer rm MODEL": ("jaxinfer pull Qwen/Qwen3-0.6B", "jaxinfer rm Qwen/Qwen3-0.6B --yes"),
    "jaxinfer stop MODEL": ("jaxinfer serve demo --dry-run", "jaxinfer stop demo"),
    "jaxinfer serve --host 0.0.0.0 --port 11434": ("jaxinfer serve --host 0.0.0.0 --port 11434 --dry-run",),
    "jaxinfer warmup MODEL": ("jaxinfer warmup demo",),
    "jaxinfer sanity FOLDER": (f"jaxinfer sanity {ROOT}/jaxinfer/demo/checkpoint",),
    "jaxinfer --help": ("jaxinfer --help | grep bench",),
    "jaxinfer bench latency --help-all": ("jaxinfer bench latency --help-all | grep -e --cached-prefix",),
    "jaxinfer serve --help": ("jaxinfer serve --help | grep -e --max-num-seqs",),
    "jaxinfer serve --help-all": ("jaxinfer serve --help-all | grep -e --no-enable-chunked-prefill",),
    "python -m pydoc jaxinfer.LLM": ("python -m pydoc jaxinfer.LLM | grep 'Answer one conversation'",),
    "jaxinfer serve --otlp-traces-endpoint URL": ("jaxinfer serve --otlp-traces-endpoint http://127.0.0.1:9",),
    "jaxinfer serve MODEL --data-parallel-size 2": ("jaxinfer serve demo --data-parallel-size 2 --dry-run",),
    "jaxinfer serve MODEL --dry-run": ("jaxinfer serve demo --dry-run",),
    "jaxinfer bench compare --a http://127.0.0.1:8000 --b http://127.0.0.1:8001 --prompts questions.txt": (
        "jaxinfer serve --dry-run",
        "jaxinfer serve --dry-run",
        r"printf '%s\n' 'What is 7 plus 5?' 'Count from 3 to 6.' > questions.txt",
        "jaxinfer bench compare --a http://127.0.0.1:8000 --b http://127.0.0.1:8001 --prompts questions.txt",
    ),
    "python -m jaxinfer.demo.evaluate": (
        "python -m jaxinfer.demo.evaluate --share 0.001 --batch 4 --task sums | grep '| sums |'",
    ),
}

# Run by another test, which has the words that stand here
ELSEWHERE = {
    "pip wheel --no-deps .": ("tests/test_package.py", "pip wheel --no-deps ."),
    "pip install 'jaxinfer[notebook]'": ("tests/test_package.py", "pip install 'jaxinfer[notebook]'"),
    "pip install 'jaxinfer[parquet]'": ("tests/test_package.py", "pip install 'jaxinfer[parquet]'"),
    "pip install 'jaxinfer[otel]'": ("tests/test_package.py", "pip install 'jaxinfer[otel]'"),
    "python benchmarks/beside_plot.py": ("tests/bench/test_beside_plot.py", "`python benchmarks/beside_plot.py`"),
    "python benchmarks/batch_file.py": ("tests/bench/test_targets.py", '"batch_file.py"'),
    "python benchmarks/shapes.py FOLDER": ("tests/bench/test_targets.py", '"shapes.py", str(tmp_path)'),
}


def shown() -> set[str]:
    return {command for page in (*pages(), *notebooks()) for command in sentences(page)}


def why_not(command: str) -> str | None:
    return next((why for begins, why in NEVER.items() if f"{command} ".startswith(f"{begins} ")), None)


def test_every_command_in_a_sentence_is_run_somewhere_or_has_a_reason_why_not():
    in_blocks = [
        command for page in pages() for block in blocks(page) for command in block.commands if not reason(command)
    ]
    named = TYPED.keys() | ELSEWHERE.keys()
    forgotten = {
        command
        for command in shown()
        if command not in named and not why_not(command) and not any(does(typed, command) for typed in in_blocks)
    }
    assert forgotten == set()


def test_what_is_named_here_is_in_a_page_and_typed_as_it_stands_there():
    assert (TYPED.keys() | ELSEWHERE.keys()) <= shown()
    for begins in NEVER.keys() - NOT_RUN.keys():
        assert any(command.startswith(begins) for command in shown()), f"no page has {begins!r}: drop it from here"
    for command, typed in TYPED.items():
        assert any(does(line, command) for line in typed), command
    for path, words in ELSEWHERE.values():
        assert words in (ROOT / path).read_text(), (path, words)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", TYPED)
def test_a_reader_who_types_what_a_sentence_says_succeeds(command, reader):
    for typed in TYPED[command]:
        reader.does(typed)
    reader.leave()


@pytest.mark.parametrize(
    ("typed", "command", "is_it"),
    [
        ("jaxinfer plan demo | cat", "jaxinfer plan MODEL", True),
        (".venv/bin/jaxinfer serve demo --port 1", "jaxinfer serve", True),
        ("jaxinfer serve-all", "jaxinfer serve", False),
        ("jaxinfer serve", "jaxinfer serve MODEL", False),
    ],
)
def test_a_command_is_another_with_its_blanks_filled_in(typed, command, is_it):
    assert does(typed, command) is is_it
