"""Patterns of a stranger: those that take long are not tried, those that real tools write are."""

import random
import re
import time

import pytest

from jaxinfer.models.module_patterns import MOST_WAYS, ways
from tests.support.attempts import slowness

NAME = "model.layers.47.linear_attn.in_proj_qkvz"
REAL = [
    ".*lm_head",
    "lm_head",
    r"model.layers.\d+.mlp.gate$",
    ".*(q|k|v)_proj$",
    "^(?!.*experts).*",
    "(?!.*lm_head).*",
    r".*mlp\.gate$",
    "visual.*",
    ".*vision_tower.*",
    ".*shared_expert_gate$",
    r"model\.layers\.(0|1|2|3|44|45|46|47)\..*",
    r"model\.layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj",
    r".*layers\.[0-9]\..*",
    r".*\.block_sparse_moe\.gate",
    ".*(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)$",
    r".*self_attn.*(q|k)_(proj|norm).*",
    ".*(visual)?.merger.*",
]


@pytest.mark.parametrize("pattern", REAL)
def test_patterns_that_tools_write_are_tried(pattern: str) -> None:
    assert ways(pattern) <= MOST_WAYS / 3, "a list of several is tried too"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(a+)+$", "repeat no group"),
        ("(?:a|a){9}", "repeat no group"),
        ("a" * 201, "at most 200 characters"),
        ("[", "which is none: unterminated"),
        (r"(a)\1", "must not refer to a group"),
        ("(?P<n>a)(?P=n)", "must have no group but"),
        ("(?i)a", "must have no group but"),
        ("(?(1)a|b)", "which is none"),
    ],
)
def test_what_is_not_counted_is_not_tried(pattern: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        ways(pattern)


@pytest.mark.parametrize(
    "pattern", [".?" * 64 + "!", "(.|.)" * 39 + "!", "(?=.*.*.*)" * 3 + "!", ".*" * 5, "((.?.?.?)?)?" * 9]
)
def test_what_would_take_long_is_counted(pattern: str) -> None:
    assert ways(pattern) > MOST_WAYS


def test_whatever_is_tried_ends_soon() -> None:
    """Patterns drawn from what multiplies ways; of those that are let pass, the slowest would show."""
    draw, tried = random.Random(38), 0
    pieces = [
        ".",
        "[^!]",
        r"\w",
        r"\d",
        "(",
        "(?:",
        "(?!",
        "(?=",
        "(?<!.)(",
        ")",
        "|",
        "*",
        "+?",
        "?",
        "??",
        "{0,9}",
        "{",
        "*+",
    ]
    slowed = slowness()
    for _ in range(4_000):
        pattern = "".join(draw.choices(pieces, k=draw.randrange(2, 24)))
        pattern += ")" * max(0, pattern.count("(") - pattern.count(")") - pattern.count("(?<!.)")) + "!"
        try:
            found = ways(pattern)
        except ValueError:
            continue
        if found <= MOST_WAYS:
            tried += 1
            began_s = time.thread_time()
            re.match(pattern, NAME)
            assert time.thread_time() - began_s < 0.2 * slowed, pattern
    assert tried > 50
