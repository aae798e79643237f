"""JsonCall: a call written as a JSON object, {"name": ..., "arguments": {...}}, in any order of its keys.

Arguments are passed on as the model wrote them (json_scanner says what is mended), piece by piece, as soon as the name
before them is known. Written in another order, or as a string, they come in one piece when the object is whole. Of an
object that only lacks its last closing brackets when a tag comes, these are added. An object that ends between its name
and its arguments goes on behind its bracket: {"name": ...}, "arguments": {...}}. An object with further arguments
behind its arguments, within which a bracket was one too many, is no call. Nor is one with two arguments that are
filled, or with none where another key may hold them.
"""

import json
import re
from collections.abc import Container
from typing import Any

from jaxinfer.text.tools.arguments import arguments_of
from jaxinfer.text.tools.call_object import (
    BESIDE,
    EMPTY,
    OF_ARGUMENTS,
    Schemas,
    arguments_in,
    call_of,
    entries_behind,
    has_further,
    has_name,
    joined_call,
    lacking,
)
from jaxinfer.text.tools.events import Arguments, Begin, End, Event
from jaxinfer.text.tools.json_scanner import SPACE, JsonScanner
from jaxinfer.text.tools.marks import FENCE, MAX_LEAD, may_become
from jaxinfer.text.tools.strict_json import entries_of

HEAD_CHARS = 1024  # in which the name and the arguments' key must stand for these to be streamed
_HEAD = re.compile(
    rf'{SPACE}\{{{SPACE}"name"{SPACE}:{SPACE}"([^"\\\x00-\x1f]*)"{SPACE},?{SPACE}"(?:arguments|parameters)"{SPACE}:'
    rf"{SPACE}(?=\{{)"
)
_MAX_BETWEEN = 64  # signs behind a bracket that came too early
_JSON_SPACE = " \t\n\r"
_BETWEEN = re.compile(rf"[{_JSON_SPACE},;]*")
_FEW = rf"[{_JSON_SPACE}]{{0,16}}"
_FURTHER = re.compile(rf'[}}\]{_JSON_SPACE}]{{0,16}},{_FEW}"([^"\\]{{1,64}})"{_FEW}:')  # behind arguments
_OPEN_FURTHER = re.compile(rf'[}}\]{_JSON_SPACE}]{{0,16}}(?:,{_FEW}(?:"[^"\\]{{0,64}}(?:"{_FEW})?)?)?')
_MAX_TAGS = 4  # behind a call, of which one may have come too early
_CLOSERS = re.compile(rf"[}}\]{_JSON_SPACE}]{{0,16}}")


class JsonCall:
    """One call, a layout.Body. schemas: of the tools offered.    tags: where one stands, or a fence, its last brackets
    may lack.    head: a name in a group, up to the arguments.    depth: of brackets around the arguments.
    """

    is_json = True

    def __init__(
        self, schemas: Schemas, tags: tuple[str, ...] = (), head: re.Pattern[str] = _HEAD, depth: int = 1
    ) -> None:
        self.is_open, self.failed = True, False
        self.has_name = self.has_end = False
        self._names = schemas
        self._ends, self._pattern, self._depth = (*tags, FENCE), head, depth
        self._held = ""  # what may be a tag
        self._raw: list[str] = []
        self._read: list[str] = []  # the same as JSON has it
        self._head = ""
        self._stage = "head"
        self._scanner = JsonScanner()
        self._tool = ""  # whose arguments are read
        self._pending = ""  # arguments that were not passed on: as long as they are empty, others may follow
        self._is_filled = False
        self._is_torn = False  # they lacked brackets, which were added
        self._tail: list[str] = []  # behind the arguments in their object
        self._is_reopened = False  # behind a bracket that came too early
        self._lacking: tuple[str, ...] = ()  # keys of which one may come behind the object
        self._second = JsonScanner()  # of an object behind it, which may have these
        self._second_raw: list[str] = []
        self._second_read: list[str] = []

    @property
    def raw(self) -> str:
        return "".join(self._raw)

    def feed(self, text: str) -> tuple[list[Event], str]:
        """What was found, and the rest of the text once it is not open any more."""
        events: list[Event] = []
        text, self._held = self._held + text, ""
        if self._stage == "head":
            text = self._feed_head(text, events)
        if self._stage == "second":
            text = self._feed_second(text, events)
        if self._stage == "behind":
            text = self._feed_behind(text, events)
        if self._stage == "whole":
            text = self._feed_whole(text, events)
        if self._stage == "arguments":
            text = self._feed_arguments(text, events)
        if self._stage == "tail":
            text = self._feed_tail(text)
        if self._stage == "further":
            text = self._feed_further(text, events)
        if self._closes(text) is None or self._stage in ("behind", "further"):
            text, self._held = "", text
        return events, text

    def finish(self) -> tuple[list[Event], str]:
        """At the end of the text, which came while it was open."""
        self.is_open = False
        events: list[Event] = []
        if self._stage == "tail":
            self._end_tail(self._scanner.missing or "")
        elif self._stage == "second":
            self._held = self._end_second("", events)
        elif self._stage == "behind" or self._lacks_end:
            self._end_whole("}" if self._lacks_end else "", events)
        if self._stage == "further":
            self._end_arguments(events)
        else:
            self._fail()
        return events, self._held

    def _feed_head(self, text: str, events: list[Event]) -> str:
        """Look for the name and the arguments' key before the scanner goes on."""
        known = len(self._head)
        self._head += text[: HEAD_CHARS - known]
        found = self._pattern.match(self._head)
        self.has_name = found is not None
        if found is None or found[1] not in self._names:
            if found is not None or len(self._head) == HEAD_CHARS:
                self._stage = "whole"
            return self._feed_whole(text, events) if self._stage == "head" else text
        at = found.end() - known  # the brace there is new, or it had been found before
        self._scanner.feed(text[:at], 0, -1)
        self._scanner.written()  # is not of the arguments
        self._raw.append(text[:at])
        self._stage, self._tool = "arguments", found[1]
        events.append(Begin(found[1]))
        return text[at:]

    def _feed_whole(self, text: str, events: list[Event]) -> str:
        at = self._scanner.feed(text, 0, 0)
        self._raw.append(text[:at])
        self._read.append(self._scanner.written())
        if self._scanner.bad:
            self._stage = "whole"
            if (closes := self._closes(text[at:])) is not None:
                missing = "}" if self._lacks_end else self._scanner.missing or ""
                self._end_whole(missing if closes else "", events)
        elif self._scanner.has_ended:
            self._lacking = () if self._is_reopened else lacking("".join(self._read))
            if self._lacking:
                self._stage = "behind"
                return self._feed_behind(text[at:], events)
            self._end_whole("", events)
        return text[at:]

    def _feed_behind(self, text: str, events: list[Event]) -> str:
        """Behind an object that lacks its name or its arguments: where these come, it has ended too early."""
        start = _BETWEEN.match(text, 0, _MAX_BETWEEN).end()  # type: ignore[union-attr]  # it matches the empty string
        rest = text[start : start + 2 * _MAX_BETWEEN]
        if rest.startswith("{"):
            return self._begin_second(text, start, events)
        key = next(filter(rest.startswith, self._lacking), "")
        colon = rest[len(key) :].lstrip(_JSON_SPACE)
        if key and colon.startswith(":"):
            self._reopen(text[:start])
            return self._feed_whole(text[start:], events)
        may_come = not colon if key else may_become(rest, self._lacking)
        if start == _MAX_BETWEEN or len(rest) == 2 * _MAX_BETWEEN or not may_come:
            self._end_whole("", events)
        return text

    def _begin_second(self, text: str, start: int, events: list[Event]) -> str:
        """Behind an object that lacks its name or its arguments, where another begins: it may have these, or be a call
        of its own.
        """
        inner = text[start + 1 : start + _MAX_BETWEEN].lstrip(_JSON_SPACE)
        if may_become(inner, ('"name"',)) and len(text) - start < _MAX_BETWEEN:
            return text
        if inner.startswith('"name"') and '"name"' not in self._lacking:
            self._end_whole("", events)
            return text
        self._stage = "second"
        self._second_raw.append(text[:start])
        return self._feed_second(text[start:], events)

    def _feed_second(self, text: str, events: list[Event]) -> str:
        at = self._second.feed(text, 0, 0)
        self._second_raw.append(text[:at])
        self._second_read.append(self._second.written())
        is_over = self._second.bad or self._second.has_ended
        return self._end_second(text[at:], events) if is_over else ""

    def _end_second(self, left: str, events: list[Event]) -> str:
        """Take the second object for a part of this call; where it is none, it is left."""
        raw, read = "".join(self._second_raw), "".join(self._second_read)
        may_lack = bool(left) or read.rstrip().endswith(
            "}"
        )  # its last brackets; at the answer's end, that behind its arguments
        missing = "}" if self._second.lacks_key else self._second.missing or ""
        joined = joined_call("".join(self._read), read + (missing if may_lack else ""), self._names)
        if joined is None:
            left = raw + left
            if '"name"' not in self._lacking and raw.strip(EMPTY) and not has_name(read):
                self._fail_named()  # these may be its arguments
                return left
        else:
            self._raw.append(raw)
            self._read = [joined]
        self._end_whole("", events)
        return left

    def _reopen(self, between: str) -> None:
        """Go on as if the object had not ended before this."""
        self._raw.append(between)
        self._stage, self._is_reopened, self._scanner = "whole", True, JsonScanner()
        self._scanner.feed("".join(self._read).removesuffix("}") + ",", 0, 0)
        self._read = [self._scanner.written()]

    @property
    def _lacks_end(self) -> bool:
        """Whether an object that ended too early lacks nothing but the bracket that it had there."""
        return self._is_reopened and (self._scanner.missing == "}" or self._scanner.lacks_key)

    def _end_whole(self, missing: str, events: list[Event]) -> None:
        text = "".join(self._read) + missing
        call = self._call_of(text)
        if call is None or has_further(entries_of(text), self._arguments_of(call[0])):
            self.has_name = self.has_end = self.has_name or has_name(text)
            self._fail()
        else:
            self._tool, self._pending = call
            self._is_filled, self._is_torn = bool(self._pending.strip(EMPTY)), len(missing) > 1
            self._stage = "further"
            events.append(Begin(self._tool))

    def _call_of(self, text: str) -> tuple[str, str] | None:
        return call_of(text, self._names)

    def _feed_arguments(self, text: str, events: list[Event]) -> str:
        at = self._scanner.feed(text, 0, self._depth)
        self._raw.append(text[:at])
        if written := self._scanner.written():
            self._pending += written
            self._is_filled = self._is_filled or bool(written.strip(EMPTY))
        if self._is_filled:
            self._pass_on(events)
        if self._scanner.bad:
            closes = self._closes(text[at:])
            if closes:
                self._pending += (self._scanner.missing or "")[: self._scanner.depth - self._depth]
                self._is_torn, self._stage = True, "further"
            elif closes is False:
                self._fail()
        elif at and self._scanner.depth == self._depth:
            self._stage = "tail" if self._depth else "further"
        return text[at:]

    def _feed_tail(self, text: str) -> str:
        """Behind the arguments, in their object."""
        at = self._scanner.feed(text, 0, 0)
        self._raw.append(text[:at])
        self._tail.append(self._scanner.written())
        if self._scanner.bad or self._scanner.has_ended:
            self._end_tail("}" if self._scanner.lacks_key else self._scanner.missing or "")
        return text[at:]

    def _end_tail(self, missing: str) -> None:
        arguments: dict[str, Any] = {"": 0} if self._is_filled else {}
        entries = [("name", self._tool), ("arguments", arguments), *entries_behind("".join(self._tail) + missing)]
        found = arguments_in(entries)
        if found is None or has_further(entries, self._arguments_of(self._tool)):
            self._fail_named()
            return
        if not self._is_filled and found.strip(EMPTY):
            self._pending, self._is_filled = found, True
        self._stage = "further"

    def _feed_further(self, text: str, events: list[Event]) -> str:
        """Behind a call, or a tag that came too early. Where its arguments stand alone, nothing but keys of a call may
        be named there.
        """
        if (behind := key_behind(text, self._ends)) is None:
            return text
        key, end = behind
        if not (key and self._may_be_argument(key)):
            self._end_arguments(events)
            return text
        self._raw.append(text[:end])
        self._fail_named()
        return text[end:]

    def _may_be_argument(self, key: str) -> bool:
        if key in BESIDE:
            return self._is_torn
        is_known = key in OF_ARGUMENTS or key in self._arguments_of(self._tool)
        return is_known or self._is_torn or not (self._depth and self._is_filled)

    def _pass_on(self, events: list[Event]) -> None:
        if self._pending:
            events.append(Arguments(self._pending))
            self._pending = ""

    def _end_arguments(self, events: list[Event]) -> None:
        self._pass_on(events)
        events.append(End())
        self._stage, self.is_open = "done", False

    def _arguments_of(self, tool: str) -> Container[str]:
        return arguments_of(self._names[tool])[0] if tool in self._names else ()

    def _closes(self, left: str) -> bool | None:
        """Whether the object only lacks closers where a tag comes; None: not known yet."""
        if not self.is_open or not self._scanner.bad or self._stage == "tail":
            return False
        if self._lacks_end:
            return True
        if self._scanner.missing is None:
            return False
        tag = left[:MAX_LEAD].lstrip("] \t\r\n")  # perhaps behind the end of a list
        if tag.startswith(self._ends):
            return True
        return None if len(left) < MAX_LEAD and (not tag or may_become(tag, self._ends)) else False

    def _fail(self) -> None:
        self.is_open, self.failed, self._stage = False, True, "failed"

    def _fail_named(self) -> None:
        """It has been read to its end, but is no call."""
        self.has_name = self.has_end = True
        self._fail()


class NamedCall(JsonCall):
    """A call whose name stands before its arguments, a JSON object. head: all before that; its groups are the name and
    text between them, which is left for others.
    """

    def __init__(self, schemas: Schemas, tags: tuple[str, ...], head: re.Pattern[str]) -> None:
        super().__init__(schemas, tags, head, depth=0)
        self._between = ""

    def feed(self, text: str) -> tuple[list[Event], str]:
        events, left = super().feed(text)
        return events, left if self.is_open or self.failed else self._between + left

    def finish(self) -> tuple[list[Event], str]:
        if self._stage == "head":
            self._raw.append(self._head)
        events, left = super().finish()
        return events, left if self.failed else self._between + left

    def _call_of(self, text: str) -> tuple[str, str] | None:
        """Of a tool that is not offered, whatever its arguments are."""
        return None

    def _feed_head(self, text: str, events: list[Event]) -> str:
        self._head += text
        found = self._pattern.match(self._head)
        if found is not None:
            self.has_name = True
            self._raw.append(found[0])
            self._between = found[2].strip()
            is_known, self._tool = found[1] in self._names, found[1]
            self._stage = "arguments" if is_known else "whole"
            events += [Begin(found[1])] if is_known else []
            return self._head[found.end() :]
        brace = self._head.find("{", 0, HEAD_CHARS)
        if brace < 0 and len(self._head) < HEAD_CHARS:
            return ""
        end = brace if brace >= 0 else HEAD_CHARS
        self._raw.append(self._head[:end])
        self._fail()
        return self._head[end:]


class InnerCall(JsonCall):
    """An object where the form has its calls another way. tool: of the last call, whose arguments it may be again."""

    def __init__(self, schemas: Schemas, tags: tuple[str, ...], tool: str = "") -> None:
        super().__init__(schemas, tags)
        self._tool, self._stage = tool, "whole"  # it may well be none

    def _call_of(self, text: str) -> tuple[str, str] | None:
        if (call := super()._call_of(text)) or has_name(text, self._names):
            return call
        return call_of(f'{{"name": {json.dumps(self._tool)}, "arguments": {text}}}', self._names)


def further_key(text: str) -> str:
    """The key that an object of arguments goes on with in the text behind it; "" where it does not."""
    found = _FURTHER.match(text)
    return "" if found is None or found[1] in BESIDE else found[1]


def key_behind(text: str, tags: tuple[str, ...]) -> tuple[str, int] | None:
    """The key that an object goes on with behind brackets and tags, which came too early then, "" where it does not,
    and where its colon ends. None: not known yet.
    """
    at = 0
    for _ in range(_MAX_TAGS):
        at = _CLOSERS.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty string
        tag = next((tag for tag in tags if text.startswith(tag, at)), "")
        if not tag:
            break
        at += len(tag)
    if found := _FURTHER.match(text, at):
        return found[1], found.end()
    return None if _OPEN_FURTHER.fullmatch(text, at) or may_become(text[at:], tags) else ("", at)
