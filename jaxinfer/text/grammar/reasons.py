"""Reasons: what is wrong with a grammar or with an answer's place in it, from llguidance's words to a client's."""

import re

NOTHING = "there is no text of it; leave it an end that a text can come to"
DEAD_END = "no token can come next; leave the grammar an end that every text can come to"
TOO_COMPLEX = (
    "it must take few steps for each token, it takes too many; use fewer or smaller repetitions and alternatives"
)
STRAYED = "it has left it by a fault of the server's"
_NO_TOKEN = "NoExtensionBias"
_INSIDE = "Parser Error: ", "panic: "  # of a token that its mask forbids; of a bug
_TOO_COMPLEX = re.compile(  # the library's limits
    r"(?:^|: )(?:lexer error: |parser error: |lexer precomputation failed|DNF too large|fuel exhausted|"
    r"schema too large|initial lexer configuration|grammar size |Schema intersection stack level exceeded|"
    r"[Tt]oo many (?:states|items))"
)
_EXPRESSION = re.compile(r"Regex is empty: .*")  # which comes as the library's own tree


def reason_of(error: str) -> str:
    """What of llguidance's error says what is wrong, without the place in a text that is ours."""
    line, *more = [line for line in error.splitlines() if line.strip()] or ["it cannot be compiled"]
    if line == _NO_TOKEN:
        return DEAD_END
    if line.startswith(_INSIDE):
        return STRAYED
    reason = line.removeprefix("at ").partition(": ")[2] if line.startswith("at ") else line
    if _TOO_COMPLEX.search(reason):
        return TOO_COMPLEX
    why = next((line.removeprefix("error: ") for line in more if line.startswith("error: ")), "")
    if why and reason.endswith(":"):  # of a regular expression, which comes between
        return f"{reason} {why}: {more[0].strip()}"
    reason = _EXPRESSION.sub("no text is of all its patterns and bounds", reason)
    return reason.partition(". Enable 'coerce_one_of'")[0]  # which clients call strict
