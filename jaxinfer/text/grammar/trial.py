"""Tries a grammar in a process that can be killed, before the engine compiles it.

`python -m jaxinfer.text.grammar.trial FD` is that process: it reads a tokenizer, then makes each grammar that comes
into text, compiles it and asks for its first mask. It starts with the first grammar and goes on until it hangs, dies or
is closed; the next grammar then gets a new one. Imports no jax.
"""

import contextlib
import json
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from jaxinfer import children
from jaxinfer.errors import CheckpointError, EngineError, InvalidRequest
from jaxinfer.text.grammar.circles import place_of_circle, without_circles
from jaxinfer.text.grammar.compiler import new_matcher, new_vocabulary, warnings_of
from jaxinfer.text.grammar.ecma import as_sent
from jaxinfer.text.grammar.endless import endless
from jaxinfer.text.grammar.gbnf import Gbnf, is_gbnf
from jaxinfer.text.grammar.hiding import hidden_in, told
from jaxinfer.text.grammar.inexact import inexact
from jaxinfer.text.grammar.lark import Rules, fault_of_signs, rules_of, without_end
from jaxinfer.text.grammar.lexemes import heavy_lexemes, largest_repetition
from jaxinfer.text.grammar.misread import NO_CLASS, misread_in_schema
from jaxinfer.text.grammar.parts import parts
from jaxinfer.text.grammar.reasons import (
    CIRCLE,
    DEAD_END,
    FORCED,
    NO_SIGN,
    NOTHING,
    STRAYED,
    TOO_COMPLEX,
    UNCOUNTED,
    reason_of,
)
from jaxinfer.text.grammar.repeated import COUNTED_AGAIN, counted_again, uncoded
from jaxinfer.text.grammar.schemas import lets, schemas_in
from jaxinfer.text.grammar.source import (
    JSON_SCHEMA,
    MAX_TEXT_CHARS,
    NO_CODES,
    Constraint,
    guided,
    notes_of,
    source_of,
    uncounted,
)
from jaxinfer.text.rust import LibraryPanic, panics_as_exceptions
from jaxinfer.text.tokenizer import Tokenizer
from jaxinfer.text.tools.opening import Opening
from jaxinfer.text.trial import limit_memory

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

log = logging.getLogger(__name__)
TIMEOUT_S = 2.0
START_S = 60.0  # Python's start and a large vocabulary, on a busy machine
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 64.0  # after a start that failed, and twice as long after each that follows
MEMORY_BYTES = 512 << 20  # beyond what it has mapped when the vocabulary is there
MAX_KNOWN, MAX_KNOWN_BYTES = 256, 16 << 20  # of what was tried before
MAX_WALKED, WALK_S = 12, 0.25  # of an answer that is followed: choices, and what may be spent on them
MAX_SHOWN = 60  # characters of a grammar in a message
MAX_LOOKED_AT = 64  # of the tokens of one choice
_TOO_MUCH = {TOO_COMPLEX, FORCED}
_TOO_DEEP = "it must be small enough to be read, it is nested too deeply or too large; make it smaller"
_OF_A_SCHEMA = "failed to compile JSON schema: "  # begins llguidance's words for what is wrong with a part of one
_TOOL = re.compile(
    r'"name": ("(?:[^"\\]|\\.)*")|<function=(.*)>| name="([^"]*)">$|^([^"<]+)[(>]$|([\w.-]+)\n(?:```json\n)?$'
)  # as rules of calls begin
# llguidance's words, and ours, for what strict alone refuses
_LEFT_OUT = (
    *("Unimplemented keys", "Unknown format", "oneOf constraints", "min/maxProperties only", COUNTED_AGAIN),
    *("look-around", "backreferences", "the ends of words", "^ or $ within", NO_CLASS),
)


class TrialSetting(msgspec.Struct):
    """The first message: what the trial needs of a model. control_tokens: spellings that are one token each."""

    tokenizer: str
    vocab_size: int
    eos_token_ids: list[int]
    control_tokens: dict[str, int]
    memory_bytes: int


class Tried(msgspec.Struct, frozen=True):
    """The answer. text: what llguidance compiles; "": nothing.    warnings: what of a schema is left out.

    error: why it is refused.    param: the field to blame, if not the Constraint's.    after, strict: as there.
    """

    text: str = ""
    warnings: tuple[str, ...] = ()
    error: str = ""
    after: int | Opening | None = None
    strict: bool = False
    param: str = ""


def try_one(vocabulary: "LLTokenizer", constraint: Constraint, control_tokens: Mapping[str, int]) -> Tried:
    """Compile it here. Raises nothing for a grammar's faults, of which a tool's are told from the answer's."""
    tried = _try(vocabulary, constraint, control_tokens)
    if not tried.error or constraint.calls is None:
        return tried
    if constraint.kind != "tools":
        answer = _try(vocabulary, msgspec.structs.replace(constraint, calls=None), control_tokens)
        if answer.error:
            return answer
    lines, left_out = constraint.calls.split("\n"), []  # a text in a schema may hold other line ends as they are
    for i, line in enumerate(lines):
        rule, _, body = line.partition(": ")
        if body.startswith("%json ") and (error := _try(vocabulary, _alone(body), control_tokens).error):
            head = next(line for line in lines[i:] if line.startswith("tool_"))  # what belongs to a tool is before it
            if not constraint.frees or not _is_lenient(body):
                return Tried(error=f"arguments of {_name_in(head)}: {error}", param="tools")
            free = {"type": "object"} if f" {rule} " in head else {}  # all of the arguments, or one
            lines[i] = f"{rule}: %json {guided(free, strict=False)}"
            left_out.append(f"arguments of {_name_in(head)} are not held to their schema: {error}"[:200])
    if not left_out:
        return tried
    rest = msgspec.structs.replace(constraint, calls="\n".join(lines))
    tried = _try(vocabulary, rest, control_tokens)
    return msgspec.structs.replace(tried, warnings=(*left_out, *tried.warnings))


def _alone(body: str) -> Constraint:
    """One schema of a tool's, as a grammar of its own."""
    return Constraint("tools", calls=f"%llguidance {{}}\nstart: {body}")


def _is_lenient(body: str) -> bool:
    """Whether its tool is not strict."""
    return lets(json.loads(body.removeprefix("%json ")))


def _name_in(head: str) -> str:
    """The name of the tool whose rule this is, as it is spelt there, if it is."""
    text, rest = "", head.partition(": ")[2]
    while rest.startswith(('"', "<[")):  # texts and tokens, up to the rule of the arguments
        if rest.startswith('"'):
            part, end = json.JSONDecoder().raw_decode(rest)
            text, rest = text + part, rest[end:].lstrip()
        else:
            rest = rest.partition("]>")[2].lstrip()
    found = _TOOL.search(text)
    return found[found.lastindex or 0] if found is not None else "a tool"


def _try(vocabulary: "LLTokenizer", constraint: Constraint, control_tokens: Mapping[str, int]) -> Tried:
    is_llamas = constraint.kind == "grammar" and is_gbnf(constraint.value)
    tried = (_tried_gbnf if is_llamas else _compiled)(vocabulary, constraint, control_tokens)
    return msgspec.structs.replace(tried, error=as_sent(tried.error)) if tried.error else tried


def _tried_gbnf(vocabulary: "LLTokenizer", constraint: Constraint, control_tokens: Mapping[str, int]) -> Tried:
    """As lexemes, or first as a single one where some would hide others; what is too complex the other way too."""
    try:
        asked = Gbnf(constraint.value)
        hidden = hidden_in(asked)
        ways = [hidden is not None, hidden is None] if "root" in asked.plain else [False]
        texts = {is_whole: asked.lark(whole=is_whole) for is_whole in ways}
    except InvalidRequest as refusal:
        return Tried(error=str(refusal))
    except RecursionError:
        return Tried(error=_TOO_DEEP)
    found = list[Tried]()
    for is_whole, text in texts.items():
        tried = _compiled(vocabulary, msgspec.structs.replace(constraint, value=text), control_tokens, asked)
        if not tried.error:
            more = () if hidden is None or is_whole else (told(asked, hidden),)
            return msgspec.structs.replace(tried, warnings=(*tried.warnings, *more))
        found.append(tried)
    return found[0]


def _compiled(
    vocabulary: "LLTokenizer",
    constraint: Constraint,
    control_tokens: Mapping[str, int],
    asked: Gbnf | None = None,
) -> Tried:
    """asked: what the client wrote, where the constraint is a grammar that was made of it."""
    text, rules, notes = "", None, list[str]()
    try:
        with panics_as_exceptions("llguidance"):
            text = source_of(constraint, control_tokens)
        if len(text) > MAX_TEXT_CHARS:
            return Tried(error=f"written as a grammar it may have {MAX_TEXT_CHARS} characters, it has {len(text)}")
        for schema in schemas_in(text):
            if why := endless(schema) or inexact(schema) or misread_in_schema(schema, strict=not lets(schema)):
                return Tried(error=why)
            if why := _fault_of_codes(vocabulary, schema):
                return Tried(error=why)
            counted = list(counted_again(schema))
            if counted and not lets(schema):
                return Tried(error=counted[0])
            notes += counted
        rules = rules_of(text) if constraint.kind == "grammar" else None
        try:
            matcher = new_matcher(vocabulary, text)
        except InvalidRequest as refusal:
            opened = without_circles(text) if str(refusal).endswith(CIRCLE) else ""
            if not opened:
                raise
            matcher, text = new_matcher(vocabulary, opened), opened
        if rules is not None and (rule := without_end(rules)) is not None:
            name = rule if asked is None else asked.name_of(rule)
            fact = f"rule {name} of the grammar asks for another of itself without end"
            return Tried(
                error=f"each rule must have a text that ends, and {fact}; give it an alternative that does not"
            )
    except LibraryPanic as panic:
        return Tried(error=reason_of(f"panic: {panic}"))
    except InvalidRequest as refusal:
        why = str(refusal)
        if why.endswith(UNCOUNTED) and (count := _uncounted(text)):
            why = f"{why}; {count}"
        elif why.endswith(CIRCLE):
            place = next(filter(None, map(place_of_circle, schemas_in(text))), "#")
            why = f"{CIRCLE}, at {ascii(place)}"
        elif why.startswith(_OF_A_SCHEMA) and (place := _place_in_schemas(vocabulary, text, why)):
            why = f"{why}, at {ascii(place)}"
        return Tried(error=_with_its_place(why, text, rules, asked))
    except ValueError as error:  # ours, whose words are Python's and none of a client's
        log.error("a grammar: %s", error, exc_info=True)
        return Tried(error=STRAYED)
    except (RecursionError, MemoryError):
        return Tried(error=_TOO_DEEP)
    notes += [note for schema in schemas_in(text) for note in notes_of(schema)]
    warnings = (*constraint.warnings, *warnings_of(matcher), *dict.fromkeys(notes))
    if why := _fault_of_a_beginning(vocabulary, matcher) or _fault_of_a_lexeme(vocabulary, text, rules):
        return Tried(error=_with_its_place(why, text, rules, asked))
    return Tried(text, warnings, after=constraint.after, strict=constraint.strict)


def _with_its_place(why: str, text: str, rules: Rules | None, asked: Gbnf | None) -> str:
    """Of what is too complex, the repetition that makes it so, where one is large; and of what is no sign, its own."""
    if why.endswith(NO_SIGN):
        return fault_of_signs(text)
    if why not in _TOO_MUCH or (largest := largest_repetition(text, rules)) is None:
        return why
    repetition, times = largest if asked is None else asked.largest_repetition()
    shown = repetition if len(repetition) <= MAX_SHOWN else repetition[:MAX_SHOWN] + "..."
    law = "its repetitions must be small enough to be followed token by token"
    return f"{law}, {shown} has up to {times} parts; repeat less often, or leave its upper bound out"


def _uncounted(text: str) -> str:
    """The first count of a grammar's strict schemas that cannot be followed; "" where none is found."""
    strict = (schema for schema in schemas_in(text) if isinstance(schema, dict) and not lets(schema))
    return next(filter(None, map(uncounted, strict)), "")


def _place_in_schemas(vocabulary: "LLTokenizer", text: str, why: str) -> str:
    """The innermost part of a grammar's schemas that is refused with these words; "" where it is not found in time."""
    until_s, place = time.thread_time() + WALK_S, ""
    for schema in schemas_in(text):
        for part, at in parts(schema) if isinstance(schema, dict) else ():
            if time.thread_time() > until_s:
                return place
            if at.startswith(f"{place}/" if place else "#") and _fault_of_part(vocabulary, schema, part) == why:
                place = at
        if place:
            return place
    return ""


def _fault_of_part(vocabulary: "LLTokenizer", schema: dict[str, Any], part: dict[str, Any]) -> str:
    """Why it cannot be compiled alone, read as the whole is; "" where it can."""
    try:
        new_matcher(vocabulary, JSON_SCHEMA + json.dumps({**part, "x-guidance": schema.get("x-guidance", {})}))
    except InvalidRequest as refusal:
        return str(refusal)
    return ""


def _fault_of_a_beginning(vocabulary: "LLTokenizer", matcher: "LLMatcher") -> str:
    """Follow one beginning of an answer; "" where nothing is wrong. What is too complex mostly is so within a few
    tokens. A dead end behind the first is one way's of many."""
    until_s = time.thread_time() + WALK_S
    for count in range(MAX_WALKED):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            why = reason_of(matcher.get_error())
            return NOTHING if count == 0 and why == DEAD_END else why if why in _TOO_MUCH else ""
        usable = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))[:MAX_LOOKED_AT]
        token = next((token for token in usable.tolist() if _is_text(vocabulary, token)), None)
        if token is None or time.thread_time() > until_s:
            return ""
        matcher.consume_token(token)
        matcher.consume_tokens(matcher.compute_ff_tokens())
    return ""


def _fault_of_a_lexeme(vocabulary: "LLTokenizer", text: str, rules: Rules | None) -> str:
    """Follow a beginning of each large repetition alone; "" where none is too complex."""
    until_s = time.thread_time() + WALK_S
    for grammar in heavy_lexemes(text, rules):
        if time.thread_time() > until_s:
            return ""
        with contextlib.suppress(InvalidRequest):  # what stands for itself in its expression alone
            if _fault_of_a_beginning(vocabulary, new_matcher(vocabulary, grammar)) in _TOO_MUCH:
                return TOO_COMPLEX
    return ""


def _fault_of_codes(vocabulary: "LLTokenizer", schema: Any) -> str:
    """Why a schema that allows no \\uXXXX cannot do without, as far as it is found out in time; "" where it can."""
    until_s = time.thread_time() + WALK_S

    def is_empty(part: dict[str, Any]) -> bool:
        if time.thread_time() > until_s:
            return False
        try:
            matcher = new_matcher(vocabulary, JSON_SCHEMA + json.dumps({**part, "x-guidance": NO_CODES}))
        except InvalidRequest:  # which is said of the whole
            return False
        return _fault_of_a_beginning(vocabulary, matcher) == NOTHING

    return uncoded(schema, is_empty) if isinstance(schema, dict) and schema.get("x-guidance") == NO_CODES else ""


def _is_text(vocabulary: "LLTokenizer", token: int) -> bool:
    """And more than white space."""
    return bool(not vocabulary.is_special_token(token) and vocabulary.decode_bytes([token]).strip())


def left_free(constraint: Constraint, why: str, warnings: tuple[str, ...] = ()) -> Tried:
    """What nobody asked for is not held to, with one warning more."""
    return Tried(warnings=(*warnings, f"arguments of {constraint.param} are not held to their schemas: {why}"[:200]))


def refuse(tried: Tried, constraint: Constraint) -> Tried:
    """Raise InvalidRequest, in the client's words, for what cannot be enforced and must be."""
    if tried.error and constraint.may_be_left:
        return left_free(constraint, tried.error, tried.warnings)
    if tried.error:
        param = tried.param or constraint.param
        left_out = constraint.kind not in ("regex", "grammar") and any(words in tried.error for words in _LEFT_OUT)
        cure = "; leave that out, or set strict to false" if left_out else ""
        message = f"{param} must be something that an answer can be held to: {tried.error[:400]}{cure}"
        raise InvalidRequest(message, param=param, code="invalid_grammar")
    return tried


class Trial:
    """The child, and what it has said. Any thread may try; one at a time does.

    Invariant: a child that did not answer is dead before another is asked. Where none can start, that is tried again
    after a while, and until then said at once; a tokenizer that cannot be used is read by one child and no other.
    """

    def __init__(self, setting: TrialSetting, timeout_s: float = TIMEOUT_S) -> None:
        self._setting = setting
        self._timeout_s = timeout_s
        self._known: OrderedDict[Constraint, Tried] = OrderedDict()
        self._known_bytes = 0
        self._reading = threading.Lock()  # held for `_known`
        self._asking = threading.Lock()  # held for the child
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._unusable = ""  # why no grammar can ever be tried
        self._fault = ""  # why the last start failed
        self._pause_s = FIRST_PAUSE_S
        self._start_from_s = 0.0  # when one may be tried again

    def known(self, constraint: Constraint) -> Tried | None:
        """What was said of it before; raises InvalidRequest if it was refused."""
        with self._reading:
            found = self._known.get(constraint)
            if found is not None:
                self._known.move_to_end(constraint)
        return None if found is None else refuse(found, constraint)

    def check(self, constraint: Constraint) -> Tried:
        """Try a grammar, for as long as that takes. Raises InvalidRequest."""
        if (found := self.known(constraint)) is not None:
            return found
        with self._asking:
            if (found := self.known(constraint)) is None:
                found = self._ask(constraint)
                # the child has said so, or nothing: that may be the machine's fault, so that what is refused is tried
                # again; what is left free costs each turn of a chat no trial, nor those who wait for theirs
                if self._child is not None or constraint.may_be_left:
                    self._keep(constraint, found)
        return refuse(found, constraint)

    def close(self) -> None:
        """End the child."""
        with self._asking:
            self._closed = True
            self._kill()

    def _keep(self, constraint: Constraint, tried: Tried) -> None:
        with self._reading:
            self._known[constraint] = tried
            self._known_bytes += _size(constraint, tried)
            while len(self._known) > MAX_KNOWN or self._known_bytes > MAX_KNOWN_BYTES:
                self._known_bytes -= _size(*self._known.popitem(last=False))

    def _ask(self, constraint: Constraint) -> Tried:
        """The child's answer; a refusal if it gives none."""
        if self._closed:
            raise EngineError("the engine is being closed")
        if self._child is None:
            self._start()
        try:
            children.send(self._socket, msgspec.json.encode(constraint))
            self._socket.settimeout(self._timeout_s)
            answer = children.receive(self._socket)
        except OSError as error:
            self._kill()
            said = f"it takes more than {self._timeout_s:g} s" if isinstance(error, TimeoutError) else "it is too much"
            return Tried(error=f"{said} to compile; use fewer or smaller repetitions and alternatives")
        return msgspec.json.decode(answer, type=Tried)

    def _start(self) -> None:
        """Raises EngineError when the child cannot start, InvalidRequest when it cannot use the tokenizer."""
        if not self._unusable and time.monotonic() >= self._start_from_s:
            self._fault = ""
            try:
                self._unusable = self._spawn()
                self._pause_s = FIRST_PAUSE_S
            except OSError as error:
                self._fault = str(error) or type(error).__name__
                self._start_from_s = time.monotonic() + self._pause_s
                self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
            if self._unusable or self._fault:
                self._kill()
        if self._unusable:
            raise InvalidRequest(self._unusable, code="unsupported_parameter")
        if self._fault:
            raise EngineError(f"a grammar's trial must start, it did not: {self._fault}")

    def _spawn(self) -> str:
        """A new child, which has read the tokenizer; why it cannot use it. Raises OSError."""
        self._child, self._socket = children.start("jaxinfer.text.grammar.trial")
        self._socket.settimeout(START_S)
        children.send(self._socket, msgspec.json.encode(self._setting))
        return msgspec.json.decode(children.receive(self._socket), type=Tried).error

    def _kill(self) -> None:
        if self._child is not None:
            self._socket.close()
            self._child.kill()
            self._child.wait()
            self._child = None


def _size(constraint: Constraint, tried: Tried) -> int:
    return len(constraint.value) + len(constraint.calls or "") + len(tried.text)


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's to handle, which then closes the socket
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(ConnectionError):
        setting = msgspec.json.decode(children.receive(end), type=TrialSetting)
        file = Path(setting.tokenizer).read_bytes()
        try:
            vocabulary = new_vocabulary(Tokenizer(file), setting.vocab_size, setting.eos_token_ids)
        except (InvalidRequest, CheckpointError) as refusal:
            return children.send(end, msgspec.json.encode(Tried(error=str(refusal))))
        limit_memory(setting.memory_bytes)
        children.send(end, msgspec.json.encode(Tried()))
        while True:
            constraint = msgspec.json.decode(children.receive(end), type=Constraint)
            children.send(end, msgspec.json.encode(try_one(vocabulary, constraint, setting.control_tokens)))


if __name__ == "__main__":
    _main()
