"""Reasons: what is wrong with a grammar or with an answer's place in it, from llguidance's words to a client's."""

import logging
import re

log = logging.getLogger(__name__)
NOTHING = "there is no text of it; leave it an end that a text can come to"
DEAD_END = "no token can come next; leave the grammar an end that every text can come to"
TOO_COMPLEX = (
    "it must take few steps for each token, it takes too many; "
    "use fewer or smaller repetitions, alternatives and optional properties"
)
FORCED = (
    "what must come next must take few steps, it takes too many; "
    "use fewer alternatives and repetitions, and leave it an end that a text can come to"
)
TOO_LARGE = (
    "written as a grammar it must have at most 65000 symbols, it has more; use fewer properties, alternatives and tags"
)
TOO_NESTED = (
    "an expression must nest at most 250 parentheses and classes, one nests more; "
    "use fewer of them, or a bound with fewer places"
)
STRAYED = "what reads it failed, the server's log says how; write it in another way"
UNCOUNTED = (  # of counts
    "min/maxProperties only count where all names of properties are in required, or one more must come or may",
    "minProperties asks for names that are not in required; put them there, or leave minProperties out",
)
NO_SIGN = "): lexer error"  # with which the library ends where a text is none of its signs, behind a place near there
CIRCLE = "a $ref that leads back to itself must stand alone, and one has other keys or parts beside it; leave those out"
_NESTED = "exceed the maximum number of nested"
_NO_TOKEN = "NoExtensionBias"
_INSIDE = re.compile(  # of a bug: a panic, and what its state or a token that its mask forbids lead to
    r"(?:Parser Error|panic|Internal error): |parser stopped in |prefix mismatch: |unexpected backtracking|"
    r"token id \d+ out of range|process_prompt\(\) not called"
)
_TOO_LARGE = re.compile(r"panic: (?:assertion failed: grammar\.symbols\.len\(\)|CSymIdx out of range|class too large)")
_TOO_COMPLEX = re.compile(  # the library's limits
    r"^Parser Error: Current row has |(?:^|: )(?:lexer error: |parser error: |lexer precomputation failed|"
    r"DNF too large|fuel exhausted|schema too large|initial lexer configuration|grammar size |"
    r"Schema intersection stack level exceeded|[Tt]oo many (?:states|items))"
)
_FORCED = re.compile(r"[Tt]oo many items \(limit \d+; ff_tokens\)")  # while it spells what must come next
_IN_WORDS = (  # where the library shows its own trees, types and parts
    (re.compile(r"Regex is empty: .*"), "no text is of all its patterns and bounds"),
    (re.compile(r"unrecognized escape sequence: (?=.*\\k<)"), "backreferences are not supported: "),
    (
        re.compile(r"lookarounds not supported yet; Word\w+ in regex "),
        r"the ends of words (\\b, \\B) are not supported in a regular expression, here in ",
    ),
    (
        re.compile(r"lookarounds not supported yet; \w+ in regex "),
        "^ or $ within an expression is not supported, but at its begin and end, here in ",
    ),
    (re.compile(r"integer interval .* contains no integer values"), "no integer is between its bounds"),
    (re.compile(r"Failed to generate regex for .*"), "its numbers' bounds are too far from 0; bring them nearer"),
    (
        re.compile(r"Resource '(?:json-schema:///)?(.*)' is not present in a registry.*"),
        r"$ref must name a part of this schema (#/...), got \1; put that part here",
    ),
    (
        re.compile(r"Value for 'multipleOf' has too many digits: .*"),
        "multipleOf must be at most 4294967295 without its point, it is more; use fewer digits",
    ),
    (
        re.compile(r"^(\d+)\(\d+\): error parsing (?:un)?signed integer: number too large.*"),
        r"a repetition must be of at most 2147483647 times, in line \1 it is of more; repeat less often",
    ),
    (
        re.compile(r"regex parse error: decimal literal invalid: .*"),
        "a repetition must be of at most 4294967295 times, one is of more; repeat less often",
    ),
    (
        re.compile(r"range end must be >= start, got \((\d+), (\d+)\)"),
        r"a repetition must not end before it begins, got {\1,\2}; write {\2,\1}",
    ),
    (
        re.compile(r'min/maxProperties only supported when all keys listed in "properties" are required'),
        UNCOUNTED[0],
    ),
    (  # said of objects that there are, where what it cannot count is left out
        re.compile(r"Unsatisfiable schema: minProperties \(\d+\) is greater than number of properties \(\d+\)"),
        UNCOUNTED[1],
    ),
    (re.compile(r"circular references with sibling keys are not supported: .*"), CIRCLE),
    (re.compile(r"Unsatisfiable schema: anyOf is empty"), "no value can be of an empty type, enum or anyOf; allow one"),
    (re.compile(r"invalid multiple of$"), "multipleOf must be more than 0; use another, or leave it out"),
    (re.compile(r"Expected f64 for "), "Expected a number for "),
)


def reason_of(error: str) -> str:
    """What of llguidance's error says what is wrong, without the place in a text that is ours."""
    if _NESTED in error:
        return TOO_NESTED
    line, *more = [line for line in error.splitlines() if line.strip()] or ["it cannot be compiled"]
    if line == _NO_TOKEN:
        return DEAD_END
    if _TOO_LARGE.match(line):
        return TOO_LARGE
    reason = line.removeprefix("at ").partition(": ")[2] if line.startswith("at ") else line
    if _FORCED.search(reason):
        return FORCED
    if _TOO_COMPLEX.search(reason):
        return TOO_COMPLEX
    if _INSIDE.match(line):
        log.error("llguidance: %s", line)
        return STRAYED
    why = next((line.removeprefix("error: ") for line in more if line.startswith("error: ")), "")
    if why and reason.endswith(":"):  # of a regular expression, which comes between
        reason = f"{reason} {why}: {more[0].strip()}"
    for inside, words in _IN_WORDS:
        reason = inside.sub(words, reason)
    return reason.partition(". Enable 'coerce_one_of'")[0]  # which clients call strict
