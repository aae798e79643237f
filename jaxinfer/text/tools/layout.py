"""Calls: the parser of answers with calls, whatever their form.

A mark is a tag of the form, or a bracket, comma, quote or fence beside a tag or a call, or the JSON of an object around
one. One rule reads all forms: from the first tag on, and behind the first call, the text is searched for calls. Where
one is found the marks are no content; what is neither mark nor call is. An answer without a call is content as it
stands. Behind the last call an unfinished tag is a mark, as are brackets and quotes; a full stop is not.

Before the first call, marks and up to MAX_LEAD characters among them are held back: they may still lead to a call.

A call that fails, of a tool that is not offered or with arguments that are none, is content: as it stands where the
answer has no call, else without its mark-up. A tag's name is content then.
"""

import re
from collections.abc import Callable
from typing import Literal

from jaxinfer.text.tools.enclosed import AROUND_CALL, KEY_AROUND_CALL, OPEN_KEY_AROUND_CALL, Enclosed
from jaxinfer.text.tools.events import Begin, Dropped, Event, Gap
from jaxinfer.text.tools.form import Body, Layout, OnLine
from jaxinfer.text.tools.marks import FENCE, MAX_LEAD, MIN_TORN_TAG, is_closing, may_become, next_mark

MAX_RETRIED_CHARS = 1 << 18  # of failed calls that are searched for others, in one answer
_PIECE = 4096  # characters that are read at once
_FAILED_CHARS = 16  # for which a failed call counts in MAX_LEAD
MAX_LOST = 4096  # characters behind a call that broke off, which belong to it
_MAX_WORD = 20  # characters of a fence's language
_FENCE = re.compile(rf"{FENCE}\w{{0,{_MAX_WORD}}}")
_SPACE = re.compile(r"\s+")
_RUN = rf"{{1,{MAX_LEAD}}}"  # of signs that are read at once, however the text is cut
_BRACKETS = re.compile(rf"[)\]}}]{_RUN}")
_SEPARATORS = re.compile(rf"[)\]}},;]{_RUN}")
_PARTING = re.compile(r"[,;]")
_BLANK = re.compile(r"[ \t]{0,16}")
_SHORT_SPACE = re.compile(r"\s{0,64}")
_OPENER = re.compile(r"""[(\[{"'`]""")  # which may stand before a call; not within a word
_END_QUOTES = re.compile(r"""[)\]},;]*["'`][)\]},;"'`]*(?=\s|\Z)""")  # of a call directly before
_SENTENCE = re.compile(rf"[.:!?…*|-]{_RUN}")  # a mark only before another mark or a call
_PUNCTUATION = re.compile(rf"""[`\[{{]|[()\]}},;"']{_RUN}|{_SENTENCE.pattern}""")  # which may not run into a call
_PUNCTUATION_AT_END = re.compile(rf"""{FENCE}|[`()\[\]{{}},;"'\s]+""")
_MAX_WRAPPED = 64  # characters of a key or a value beside a call in an object around it
_WORD = rf'"[^"\\\s]{{0,{_MAX_WRAPPED}}}'  # without its last quote; with white space in it, it would be prose
_NUMBER = rf"[-+.\w]{{1,{_MAX_WRAPPED}}}"
_GAP = r"\s{0,16}"
_FIELD = re.compile(rf'(?:,{_GAP}{_WORD}"{_GAP}:{_GAP}(?:{_WORD}"|{_NUMBER}))')
_OPEN_FIELD = re.compile(rf',{_GAP}(?:{_WORD}(?:"{_GAP}(?::{_GAP}(?:{_WORD}|{_NUMBER})?)?)?)?')

Kind = Literal["text", "mark", "soft", "call"]  # soft: a mark where a mark or a call follows, else text; call: failed
Near = Literal["start", "mark", "call", "failed", "text"]  # what came last


class CallParser:
    """A Parser of answers with this layout. new_body: a reader of one call, of what begins it and the last call's tool.
    foreign: the tags of other forms, which are marks beside a call and between tags.    again: what may begin a call
    within the text of one that failed.    further: what begins a call behind one and a comma, without `start`.
    on_line: how calls without an opening are read behind text.
    """

    def __init__(
        self,
        layout: Layout,
        new_body: Callable[[str, str], Body],
        foreign: tuple[str, ...],
        again: re.Pattern[str],
        further: tuple[str, ...] = (),
        on_line: OnLine | None = None,
    ) -> None:
        self._on_line = on_line
        self._layout, self._new_body, self._again, self._further = layout, new_body, again, further
        own, start = layout.tags, layout.start
        self._others = tuple(tag for tag in (*own, *foreign) if tag not in layout.openings)  # which open no call
        self._marks_outside = (*layout.openings, *self._others)
        self._marks = (start, *own)
        self._marks_beside = (start, *own, *(tag for tag in foreign if tag not in (start, *own)))
        self._near: Near = "start" if layout.begins_with_calls else "text"
        self._is_open = False  # a tag
        self._has_calls = False
        self._fence = ""  # that is open: "inner" of a tag, or "outer"
        self._pieces: list[tuple[str, Kind]] = []  # held back
        self._lead_left = MAX_LEAD
        self._num_dropped = 0  # pieces that were shown as a call
        self._has_said, self._has_gap = True, False  # something but marks since the last call; a mark behind it
        self._body: Body | None = None
        self._last_tool = ""
        self._hidden: list[Event] | None = None  # events of a call that is shown once it is whole
        self._is_shown = False  # a call has been shown as it came
        self._has_failed = False  # a call that named its tool, among the pieces
        self._is_in_word = self._begins_line = False
        self._is_parted = self._is_on_line = False  # a comma was last behind a call; the call is on lines of its own
        self._retries_left = MAX_RETRIED_CHARS
        self._held = self._begun = layout.start if layout.is_begun else ""  # the former may begin a mark
        self._has_text = False  # content has been shown

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        for start in range(0, len(text), _PIECE):  # each call copies what is left
            self._run(text[start : start + _PIECE], events, is_last=False)
        return events

    def follow(self, tool: str) -> None:
        """What is fed from now on stands behind a call of this tool, which another parser has read."""
        self._has_calls, self._near, self._last_tool = True, "call", tool
        self._has_said, self._held, self._begun = False, "", ""

    def finish(self) -> list[Event]:
        events: list[Event] = []
        self._run("", events, is_last=True)
        if self._has_calls and self._near in ("mark", "call"):
            self._end_answer()
        self._release(events)
        return [*events, Gap()] if self._has_gap else events

    def _run(self, text: str, events: list[Event], *, is_last: bool) -> None:
        text, self._held, at = self._held + text, "", 0
        while at < len(text) or (is_last and self._body is not None):
            if self._body is not None:
                text, at = self._read(self._body, text[at:], events, is_last=is_last), 0
                continue
            past = self._step(text, at, events, is_last=is_last)
            if past is None:
                self._held = text[at:]
                return
            at = past

    def _read(self, body: Body, text: str, events: list[Event], *, is_last: bool) -> str:
        """A call's text; returns what is left."""
        found, left = body.feed(text)
        if body.is_open and is_last:
            more, left = body.finish()
            found += more
        self._last_tool = next((event.name for event in found if isinstance(event, Begin)), self._last_tool)
        if self._hidden is None:
            events += found
            self._is_shown = self._is_shown or any(isinstance(event, Begin) for event in found)
        else:
            self._hidden += found
        if body.is_open:
            return ""
        self._body = None
        return self._retry(body, left, events) if body.failed else self._end(left, events)

    def _end(self, left: str, events: list[Event]) -> str:
        """Behind a call, or several that were read as one."""
        self._settle("mark")
        hidden, self._hidden = self._hidden, None
        self._has_calls, self._begun = True, ""
        self._release(events)
        events += hidden or []
        self._near, self._has_said, self._has_gap = "call", False, False
        return left

    def _retry(self, body: Body, left: str, events: list[Event]) -> str:
        """A call has failed: it is text, up to where it may hold another. One that has its end holds values alone."""
        raw = body.raw.removeprefix(self._begun)
        num_begun, self._begun = len(body.raw) - len(raw), ""  # characters that the prompt has said
        may_hold_others = len(raw) <= self._retries_left and not (body.has_end or self._is_on_line)
        found = self._again.search(raw, 1) if may_hold_others else None
        self._retries_left -= len(raw)
        text = raw + left
        at = found.start() if found else max(len(raw), 1)
        is_shown, self._is_shown, self._hidden = self._is_shown, False, None
        if self._is_on_line:
            self._push(text[:at], "text", events)
            return text[at:]
        self._near, self._last_tool = "failed", ""
        if body.has_name and found is None:
            self._settle("mark")
        if not is_shown:
            wraps = at <= MAX_LEAD and AROUND_CALL.fullmatch(text, 0, at)
            self._push(text[:at], "soft" if wraps else "call", events, _FAILED_CHARS)
        else:
            past = body.num_read - num_begun if isinstance(body, Enclosed) else at  # what comes behind was not shown
            self._pieces.append((text[:past], "call"))
            if self._has_calls:
                events.append(Dropped(self._said(self._pieces)))
                self._pieces.clear()
            else:
                self._num_dropped = len(self._pieces)
            if past < at:
                self._push(text[past:at], "call", events, _FAILED_CHARS)
        if body.has_name:
            self._has_failed, self._lead_left = True, MAX_LEAD if body.has_end else MAX_LOST
            self._is_open = self._is_open or not (body.has_end or self._has_calls)
        if body.has_name and body.has_end:
            self._near = "call"
        return text[at:]

    def _step(self, text: str, at: int, events: list[Event], *, is_last: bool) -> int | None:
        """Takes what stands at `at`; where it ends. None: it is not known yet what stands there."""
        if space := _SPACE.match(text, at):
            is_soft = self._near != "text" or bool(self._pieces and self._pieces[-1][1] == "soft")
            self._push(space[0], "soft" if is_soft else "text", events)
            return space.end()
        begins = self._begins_on_line(text, at)
        if begins and self._on_line:
            return self._open_body(self._on_line.new_body(), at, is_on_line=True)
        marks = self._marks_here()
        may_be_mark = len(text) - at < MAX_LEAD and may_become(text[at:], (*marks, FENCE))
        if not is_last and (begins is None or may_be_mark):
            return None
        if is_last and self._has_calls and self._is_torn(text[at:], marks):
            self._push(text[at:], "mark", events)
            return len(text)
        if text.startswith(marks, at):
            return self._take_mark(text, at, marks, events, is_last=is_last)
        if text.startswith(FENCE, at):
            return self._take_fence(text, at, events, is_last=is_last)
        if self._begins_inner(text, at):
            return self._open_body(self._new_body(self._layout.inner, self._last_tool), at)
        if text.startswith(self._further_here(), at):
            return self._open_body(self._new_body("", self._last_tool), at)
        if not is_last and self._is_undecided(text, at):
            return None
        if self._is_behind_call and (quotes := _END_QUOTES.match(text, at)):
            self._push(quotes[0], "mark", events)
            return quotes.end()
        if self._is_in_wrapper and (key := KEY_AROUND_CALL.match(text, at)):
            self._push(key[0], "soft", events)
            return key.end()
        if past := self._take_left_over(text, at, events):
            return past
        if not self._is_in_word and (opener := _OPENER.match(text, at)):
            self._push(opener[0], "soft", events)
            return opener.end()
        if self._has_calls and not self._is_in_word and (closers := _BRACKETS.match(text, at)):
            self._push(closers[0], "soft", events)  # a mark only before a closing tag
            return closers.end()
        brackets = () if marks is self._marks_outside else ("[",)
        if text.startswith(brackets, at):
            self._push("[", "soft", events)
            return at + 1
        self._near = "text"
        marks = self._marks_here()
        found = next_mark((*marks, *(() if marks is self._marks_outside else "["), FENCE)).search(text, at + 1)
        past = found.start() if found else len(text)
        self._push(text[at:past], "text", events)
        return past

    def _take_mark(
        self, text: str, at: int, marks: tuple[str, ...], events: list[Event], *, is_last: bool
    ) -> int | None:
        """One of these at `at`; where it ends, None where the text behind it must show what it is."""
        before_text = self._layout.text
        if before_text and text.startswith(before_text, at):
            self._begin_text(events)
            return at + len(before_text)
        tag = next(mark for mark in marks if text.startswith(mark, at))
        if tag == self._layout.start:
            return self._begin(text, at, events, is_last=is_last)
        is_mark = not self._parts_text(tag)
        if not is_mark and self._has_calls and is_closing(tag) and _SHORT_SPACE.fullmatch(text, at + len(tag)):
            if not is_last:
                return None
            is_mark = True  # the last of an answer, behind a call and text
        self._push(tag, "mark" if is_mark else "soft", events)
        if is_mark and tag in self._layout.tags:
            self._near, self._is_open = "mark", not is_closing(tag)
            self._lead_left = min(self._lead_left, MAX_LEAD)
        return at + len(tag)

    def _begins_on_line(self, text: str, at: int) -> bool | None:
        """Whether calls without an opening begin here; None: they still may."""
        if self._on_line is None or not self._may_be_on_line or not text.startswith(self._on_line.signs, at):
            return False
        return self._on_line.begins(text, at)

    @property
    def _may_be_on_line(self) -> bool:
        """Whether calls without an opening may come here."""
        if self._has_calls:
            return False
        if self._layout.begins_with_calls:
            return self._begins_line
        return self._near == "text" and not (self._is_open or self._is_in_word)

    @property
    def _is_behind_call(self) -> bool:
        """Whether a call or a mark was directly before."""
        return self._has_calls and self._near in ("mark", "call") and not self._pieces

    @property
    def _is_in_wrapper(self) -> bool:
        """Whether the beginning of a JSON object or list was before, or a key around a call."""
        if self._marks_here() is self._marks_outside and not self._layout.is_bare:
            return False
        for piece, kind in reversed(self._pieces):
            if kind != "soft":  # and no other before it is
                return False
            if piece.strip():
                return piece.endswith(("{", "[", ":", ","))
        return False

    def _is_undecided(self, text: str, at: int) -> bool:
        """Whether what comes next decides what this is."""
        quotes = _END_QUOTES.match(text, at) if self._is_behind_call else None
        if quotes and quotes.end() == len(text):
            return True
        if self._near in ("mark", "call") and _OPEN_FIELD.fullmatch(text, at):
            return True
        if (further := self._further_here()) and may_become(text[at:], further):
            return True
        found = self._left_over(text, at) or (_BRACKETS.match(text, at) if self._has_calls else None)
        if found is not None and len(found[0]) < MAX_LEAD and self._may_go_on(text, found.end()):
            return True
        return self._is_in_wrapper and bool(OPEN_KEY_AROUND_CALL.fullmatch(text, at))

    def _may_go_on(self, text: str, at: int) -> bool:
        """Whether what stands before `at` is not known yet to stand alone."""
        past = _BLANK.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty string
        return may_become(text[past:], (*self._marks_here(), *self._further, FENCE))

    def _stands_alone(self, text: str, at: int) -> bool:
        """Whether a line's end or a mark comes next: other text would make prose of what stands before."""
        past = _BLANK.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty string
        marks = (*self._marks_here(), *self._further, FENCE, "\n", "\r")
        return past == len(text) or text.startswith(marks, past)

    def _marks_here(self) -> tuple[str, ...]:
        is_outside = self._near == "text" and not (self._is_open or self._has_calls)
        return self._marks_outside if is_outside else self._marks_beside

    def _parts_text(self, tag: str) -> bool:
        """Whether this tag stands in text, where it is a mark only before a mark or a call."""
        if self._is_open or tag not in self._others:
            return False
        if self._near == "text" and not self._has_calls:
            return True
        return self._near in ("text", "failed") and tag not in self._layout.tags

    def _is_torn(self, text: str, marks: tuple[str, ...]) -> bool:
        """Whether the answer ends within a tag; what begins with a letter may be a word."""
        if text[0].isalnum():
            return False
        if self._near in ("mark", "call"):
            return may_become(text, marks)
        return len(text) >= MIN_TORN_TAG and may_become(text, marks if self._is_open else self._marks)

    def _begins_inner(self, text: str, at: int) -> bool:
        is_due = self._near == "call" or (self._near == "mark" and self._is_open)
        return bool(self._layout.inner) and is_due and text.startswith(self._layout.inner, at)

    def _further_here(self) -> tuple[str, ...]:
        return self._further if self._is_parted and self._near == "call" else ()

    def _left_over(self, text: str, at: int) -> re.Match[str] | None:
        """What a form, or a slip, writes between calls and behind them."""
        if self._near in ("start", "text"):
            return None
        field = _FIELD.match(text, at) if self._near in ("mark", "call") else None
        closers = (_BRACKETS if self._near == "mark" else _SEPARATORS).match(text, at)
        return field or closers or (_PUNCTUATION.match(text, at) if self._near != "failed" else None)

    def _take_left_over(self, text: str, at: int, events: list[Event]) -> int | None:
        """Where it ends. Beside a call only what directly follows it or stands alone is a mark."""
        found = self._left_over(text, at)
        if found is None:
            return None
        is_mark = found.re in (_BRACKETS, _SEPARATORS) and self._near != "failed" and not self._is_after_sentence()
        is_attached = not self._pieces or _FIELD.fullmatch(self._pieces[-1][0]) is not None
        is_mark = is_mark and (not self._has_calls or is_attached or self._stands_alone(text, found.end()))
        self._is_parted = bool(_PARTING.search(found[0]))
        if not is_mark and len(found[0]) > self._lead_left:
            self._near = "text"
        self._push(found[0], "mark" if is_mark else "soft", events)
        return found.end()

    def _is_after_sentence(self) -> bool:
        """Whether such signs, and white space, are all since the last mark or call; `:)` is no bracket of a call."""
        return any(_SENTENCE.fullmatch(piece) for piece, kind in self._pieces if kind == "soft")

    def _end_answer(self) -> None:
        """Brackets and quotes behind the last call belong to it."""
        if all(_PUNCTUATION_AT_END.fullmatch(piece) for piece, _ in self._pieces):
            self._settle("mark")

    def _begin(self, text: str, at: int, events: list[Event], *, is_last: bool) -> int | None:
        """Where a call may start; some models double its bracket where a prompt spells it so."""
        start = self._layout.start
        after = text[at + len(start) : at + MAX_LEAD].lstrip()
        if may_become(after, (start,)) and not is_last and len(text) - at < MAX_LEAD:
            return None
        is_doubled = after.startswith(start)
        has_head = not is_doubled and self._layout.has_head(text, at + len(start))
        if has_head is None and not is_last:
            return None
        needs = self._layout.needs
        lacks = needs and not self._has_calls and not any(needs in piece for piece, _ in self._pieces)
        if has_head and not lacks:
            return self._open_body(self._new_body(start, self._last_tool), at)
        if not self._begun:
            self._near = self._near if is_doubled else "text"
            self._push(start, "soft" if is_doubled else "text", events)
        self._begun = ""  # which the prompt has said, not the answer
        return at + len(start)

    def _begin_text(self, events: list[Event]) -> None:
        """Behind a mark that is before text: what is held back cannot lead to a call any more."""
        self._settle("mark")
        self._release(events)
        self._near, self._is_open, self._is_in_word, self._begun = "text", False, False, ""
        self._has_gap = self._has_gap or (self._has_said and self._has_text)

    def _open_body(self, body: Body, at: int, *, is_on_line: bool = False) -> int:
        if body.is_json:
            layout = self._layout
            in_tag = self._is_open or layout.start != "{"
            ends = layout.ends if in_tag else (*layout.openings, *layout.ends)
            on_line = tuple(tag for tag in layout.openings if tag not in ends)
            body = Enclosed(body, "{" + layout.start[0], ends, on_line, self._retries_left, in_tag=in_tag)
        self._body, self._is_on_line, self._is_parted = body, is_on_line, False
        waits = not self._has_calls and any(kind in ("text", "call") for _, kind in self._pieces)
        self._hidden, self._is_shown = [] if waits else None, False
        return at

    def _take_fence(self, text: str, at: int, events: list[Event], *, is_last: bool) -> int | None:
        fence = _FENCE.match(text, at)[0]  # type: ignore[index]  # it begins with a fence
        if at + len(fence) == len(text) and not is_last and len(fence) < len(FENCE) + _MAX_WORD:
            return None
        is_due = self._fence or (self._layout.is_fenced and self._near in ("call", "mark"))
        if is_due and fence == FENCE:
            self._fence = ""
            self._push(fence, "mark", events)
        else:
            self._push(fence, "soft", events)
        return at + len(fence)

    def _push(self, text: str, kind: Kind, events: list[Event], num_chars: int | None = None) -> None:
        """Hold it back, or show what cannot become a mark any more."""
        num_chars = len(text) if num_chars is None else num_chars
        if num_chars > self._lead_left:
            self._release(events)
            kind = "text" if kind == "soft" else kind
        if kind != "soft":
            self._settle("mark" if kind == "mark" else "text")
        if kind == "text" and self._fence == "inner" and not self._is_open:
            self._fence = ""
        self._pieces.append((text, kind))
        _, line_end, line = text.rpartition("\n")
        self._begins_line = not line.strip() and (bool(line_end) or self._begins_line) and self._near == "text"
        self._is_in_word = kind == "text" and not text[-1:].isspace()
        self._lead_left -= num_chars
        is_lead = self._is_open or self._has_failed or self._near in ("mark", "failed")
        if kind != "soft" if self._has_calls else kind == "text" and not is_lead:
            self._release(events)

    def _settle(self, settled: Kind) -> None:
        """What was soft was marks, where a mark or a call follows; else text."""
        for i in range(len(self._pieces) - 1, -1, -1):
            piece, kind = self._pieces[i]
            if kind != "soft":
                break
            if settled == "mark" and piece.startswith(FENCE):
                self._fence = "inner" if self._is_open else "outer"
            self._pieces[i] = (piece, settled)

    def _said(self, pieces: list[tuple[str, Kind]]) -> str:
        """The content that these are beside a call."""
        texts = (self._layout.said(text) if kind == "call" else text for text, kind in pieces if kind != "mark")
        return "".join(texts)

    def _release(self, events: list[Event]) -> None:
        """Show what was held back: without its marks if there is a call."""
        pieces, self._pieces = self._pieces, []
        num_dropped, self._num_dropped, self._lead_left = self._num_dropped, 0, MAX_LEAD
        self._has_failed = False
        if num_dropped:
            dropped = pieces[:num_dropped]
            as_it_stands = "".join(text for text, _ in dropped)
            events.append(Dropped(self._said(dropped) if self._has_calls else as_it_stands))
            self._has_said = True
        for text, kind in pieces[num_dropped:]:
            if self._has_calls and kind == "mark":
                self._has_gap = self._has_said
            else:
                self._say(self._said([(text, kind)]) if self._has_calls else text, events)
        if not self._has_calls:
            self._is_open, self._near = False, "text"

    def _say(self, text: str, events: list[Event]) -> None:
        self._has_text = True
        if self._has_gap:
            events.append(Gap())
        self._has_said, self._has_gap = True, False
        events.append(text)
