"""docs/suites.md names what there is. Its commands are run by tests/docs/test_commands.py, as those of every page."""

import re
from pathlib import Path

import pytest

from jaxinfer.bench.suite import SUITES as MADE
from jaxinfer.cli.bench_suite import SUITES

PAGE = (Path(__file__).parents[2] / "docs" / "suites.md").read_text()


def test_the_page_and_the_command_name_every_suite():
    assert list(SUITES) == list(MADE)
    assert re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE) == list(SUITES)


# What the research asks of a suite and no table has (sections 3.1 to 3.6), in words of the page
NOT_MADE = {
    "ZedInfer": ("llama.cpp", "SGLang", "load client", "FlashInfer"),
    "Paladin": ("memory", "without a KV cache", "speculation", "FP8", "record of each request"),
    "mini-infer": (
        *("acceptance", "tensor parallelism", "replicas", "PD split", "MLA", "W8A8", "expert parallelism"),
        *("transformers at 8 x 128", "CUDA graphs at batch", "slo_aware", "peak GB"),
    ),
    "vLLM": ("burstiness", "ramp-up", "warm-up", "JSONL"),
    "our toggles": ("padding",),
}


def reasons() -> dict[str, dict[str, str]]:
    """By suite, what is not made and why."""
    found: dict[str, dict[str, str]] = {}
    section = PAGE.partition("### What is left out, and why")[2].partition("\n## ")[0]
    for line in re.findall(r"^\| (.*) \|$", section, re.MULTILINE)[1:]:
        suite, what, why = line.split("|") if line.startswith("|") else line.split(" | ")
        name = suite.strip() or list(found)[-1]
        found.setdefault(name, {})[what.strip()] = why.strip()
    return found


@pytest.mark.parametrize("suite", NOT_MADE)
def test_what_is_asked_for_and_not_made_is_named_with_its_reason(suite):
    named = reasons()[suite]
    assert all(named.values())
    missing = [word for word in NOT_MADE[suite] if not any(word in what for what in named)]
    assert missing == []
