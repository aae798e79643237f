"""Enclosed: a call whose arguments are JSON is a call as a whole, or content up to where its brackets close.

A place where a form has a call is the only one where a call is looked for, so that nothing within another object is
one, whatever made that object no call. Where its brackets never close, it ends before the first closing tag of the form
outside of its strings, or an opening there that begins a line; where the answer ends in a string, before the first
closing tag at all; else it goes on to the answer's end. A form that has no closing tag has openings in its place.

An object that has nothing but a call in it, as APIs write one, is a place too: {"tool_calls": [, {"function":.
"""

import re

from jaxinfer.text.tools.events import Event
from jaxinfer.text.tools.form import Body
from jaxinfer.text.tools.marks import may_become

_FEW = r"\s{0,16}"
_OBJECT = re.compile(rf"""\{{{_FEW}(?:["'{{\[]|\w{{1,64}}{_FEW}[:=,"'{{])""")
_OPEN_OBJECT = re.compile(rf"\{{{_FEW}(?:\w{{1,64}}{_FEW})?")
_BESIDE = rf'"(?:type|id|index)"{_FEW}:{_FEW}(?:"[^"\\\s]{{0,64}}"|\d{{1,9}}){_FEW},'
_KEY = rf'"(?:functions?|function_calls?|tools?|(?:tool_)?calls?)"{_FEW}:'
KEY_AROUND_CALL = re.compile(rf"{_BESIDE}|{_KEY}")  # in an object that has nothing but a call
OPEN_KEY_AROUND_CALL = re.compile(
    rf'"(?:[a-z_]{{0,14}}(?:"{_FEW}(?::{_FEW}(?:"[^"\\\s]{{0,64}}(?:"{_FEW})?|\d{{0,9}}{_FEW})?)?)?)?'
)
AROUND_CALL = re.compile(rf"(?:\s|[\[{{]|{_BESIDE}|{_KEY})+")
_NAMED = re.compile(rf"""\{{{_FEW}(["'])name\1{_FEW}:{_FEW}(["'])[^"'\\\s]{{1,64}}\2""")  # a tool, in an object
_AROUND = re.compile(rf"\{{\s*(?:{_BESIDE}\s*){{0,3}}{_KEY}\s*\[?\s*")


class Enclosed:
    """A layout.Body around `body`. starts: with which a call may begin.    ends: tags that may end it.    openings:
    those that may where they begin a line.    most: characters that are read again at most.    in_tag: where no prose
    is expected; elsewhere, what does not begin as an object is prose.
    """

    is_json = False

    def __init__(
        self, body: Body, starts: str, ends: tuple[str, ...], openings: tuple[str, ...], most: int, *, in_tag: bool
    ) -> None:
        self._body, self._starts, self._ends, self._most, self._in_tag = body, starts, ends, most, in_tag
        self.is_open, self.failed = True, False
        self.has_name = self.has_end = False
        self.num_read = 0  # characters of `raw` that `body` has read
        self._tags = (*ends, *(f"\n{tag}" for tag in openings))
        self._signs = re.compile("|".join((r"\\.?", r"[\"'{}\[\]]", *map(re.escape, self._tags))), re.DOTALL)
        self._is_content = False
        self._parts: list[str] = []
        self._size = self._depth = 0
        self._held = ""  # of a sign, or of what may begin as an object
        self._quotes, self._quote = '"', ""  # that the text has; one that is open
        self._first_tag: int | None = None

    @property
    def raw(self) -> str:
        return "".join(self._parts) if self.failed else self._body.raw

    def feed(self, text: str) -> tuple[list[Event], str]:
        """What was found, and the rest of the text once it is not open any more."""
        events: list[Event] = []
        if self._body.is_open:
            events, text = self._body.feed(text)
        if self._body.is_open:
            return events, ""
        return events, self._go_on(text, is_last=False)

    def finish(self) -> tuple[list[Event], str]:
        """At the end of the text, which came while it was open."""
        events: list[Event] = []
        text = ""
        if self._body.is_open:
            events, text = self._body.finish()
        left = self._go_on(text, is_last=True)
        if not self.is_open:
            return events, left
        self._add(self._held)
        return events, self._end_at(self._size if self._first_tag is None else self._first_tag)

    def _go_on(self, text: str, *, is_last: bool) -> str:
        """Behind the other body's end; what is left of the text."""
        if not self._body.failed:
            self.is_open = False
            return text
        text, self._held = self._held + text, ""
        if self._is_content:
            return self._take(text)
        raw = self._body.raw
        brace = raw.find("{")
        if brace < 0:
            return self._give_back(raw, text)
        around = _AROUND.match(raw, brace)
        if around and around.end() == len(raw) and not (text or is_last):
            return ""
        if around and (raw + text)[around.end() : around.end() + 1] in self._starts:
            return self._give_back(raw[: around.end()], raw[around.end() :] + text)
        if not (self._in_tag or _OBJECT.match(raw[brace:] + text)):
            if not is_last and _OPEN_OBJECT.fullmatch(raw[brace:] + text):
                self._held = text
                return ""
            return self._give_back(raw, text)
        has_ended = self._begin(raw.rstrip(), brace)
        text = raw[len(raw.rstrip()) :] + text  # an opening may be behind its line's beginning
        self.num_read = len(raw)
        return self._end_at(self._size) + text if has_ended else self._take(text)

    def _give_back(self, raw: str, left: str) -> str:
        """It is no object, or a call may begin behind this."""
        self.is_open, self.failed, self._parts, self.num_read = False, True, [raw], len(raw)
        return left

    def _begin(self, raw: str, brace: int) -> bool:
        """The other body's text is content, and so is what follows up to the end; whether this has come."""
        self._is_content = True
        self._quotes = "\"'" if raw[brace + 1 :].lstrip().startswith("'") else '"'
        for found in self._signs.finditer(raw, brace):
            self._follow(found[0], found.start())
        self._add(raw)
        if self._depth <= 0 and raw.endswith(":"):  # a key behind brackets that closed too early
            self._depth = 1
        return self._depth <= 0 and not self._quote

    def _take(self, text: str) -> str:
        """What is left of the text behind the end; nothing where it has not come."""
        found, size = None, self._size
        for found in self._signs.finditer(text):
            if self._is_past(size + found.end()):
                break
            ends, past = self._follow(found[0], size + found.start()), found.end()
            if found[0] in self._tags:
                ends, past = not self._quote, found.start()
            if ends:
                self._add(text[:past])
                return self._end_at(self._size) + text[past:]
        keep = int(found is not None and found[0] == "\\" and found.end() == len(text))
        past = found.end() if found else 0  # what was a sign begins no other
        most = min(max(map(len, self._tags), default=0), len(text) - past)
        begun = (n for n in range(most, 0, -1) if may_become(text[-n:], self._tags))
        keep = keep or next(begun, 0)
        self._add(text[: len(text) - keep])
        self._held = text[len(text) - keep :]
        if self._first_tag is not None and self._is_past(self._size):
            self._add(self._held)
            return self._end_at(self._first_tag)
        return ""

    def _is_past(self, at: int) -> bool:
        """Whether this is too far behind a tag that may have been the end."""
        return at > self._most and self._first_tag is not None

    def _follow(self, sign: str, at: int) -> bool:
        """A sign at a place in the whole; whether it closes the last bracket."""
        if sign in self._ends:
            self._first_tag = at if self._first_tag is None else self._first_tag
        elif self._quote:
            self._quote = "" if sign == self._quote else self._quote
        elif sign in self._quotes:
            self._quote = sign
        elif sign in ("{", "["):
            self._depth += 1
        elif sign in ("}", "]"):
            self._depth -= 1
            return self._depth <= 0
        return False

    def _add(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)

    def _end_at(self, end: int) -> str:
        """Content up to there; the rest of what was read."""
        whole = "".join(self._parts)
        self.is_open, self.failed, self.has_end = False, True, True
        self.has_name = self._body.has_name or (self._in_tag and _NAMED.search(whole, 0, end) is not None)
        self._parts, self._held, self.num_read = [whole[:end]], "", min(self.num_read, end)
        return whole[end:]
