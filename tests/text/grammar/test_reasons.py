"""Reasons: llguidance's words for its limits and its inside are said in a client's."""

import pytest

from jaxinfer.text.grammar.reasons import DEAD_END, FORCED, STRAYED, TOO_COMPLEX, TOO_LARGE, reason_of

WORDS = {
    "NoExtensionBias\n<non-verbose/>": DEAD_END,
    "lexer error: too many expressions constructed\n<non-verbose/>": TOO_COMPLEX,
    "parser error: Too many items (limit 3000; ff_tokens); try avoiding single-byte/short lexemes": FORCED,
    "parser error: Too many items (limit 3000); try avoiding single-byte/short lexemes": TOO_COMPLEX,
    "Parser Error: Current row has 2022 items; max is 2000; consider making your grammar left-recursive": TOO_COMPLEX,
    "panic: assertion failed: grammar.symbols.len() < u16::MAX as usize - 10\n<backtrace>": TOO_LARGE,
    "lexer precomputation failed; either increase limits.initial_lexer_fuel or disable it": TOO_COMPLEX,
    "failed to compile JSON schema: schema too large": TOO_COMPLEX,
    'at 1(8): unknown name: "fuel exhausted"': 'unknown name: "fuel exhausted"',
    "x: Regex is empty:  (And (SearchRegex /^a$/))": "x: no text is of all its patterns and bounds",
}


@pytest.mark.parametrize(("said", "reason"), WORDS.items(), ids=range(len(WORDS)))
def test_limits_and_dead_ends_are_said_in_words(said, reason):
    assert reason_of(said) == reason


@pytest.mark.parametrize(
    "said",
    [
        "panic: index out of bounds\n<backtrace>\nat 0x1",
        'Parser Error: token "x" is wrong',
        "parser stopped in consume_token; no error message",
    ],
)
def test_a_failure_of_the_library_is_named_in_the_log_alone(said, caplog):
    assert reason_of(said) == STRAYED
    assert said.splitlines()[0] in caplog.text
