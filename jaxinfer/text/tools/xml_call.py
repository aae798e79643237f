"""XmlCall: a call as Qwen3-Coder writes it: <function=name>, <parameter=name>value</parameter> ..., </function>; or as
MiniCPM5 does, with other tags (xml_tags) and CDATA, in which no tag counts where its end comes.

Values stand there as plain text; the tool's schema says what they are. Each parameter is passed on when it is whole. A
text ends at the first closing tag that is none of a call quoted in it (xml_nesting); one that stands within a string of
JSON is part of it, unless a line begins with it. Where a model leaves that tag out, a text ends before a line that
begins another of the tool's parameters or another call, and before the tags that end the call where the answer ends or
another call begins. Where one of those tags stands before that tag, a text ends before it, unless it stands behind that
tag too: then it is of the text. A call goes on behind tags that end it, or open another, where a parameter follows
them; behind all of its ends, only where that is one it lacks. Where the answer ends in a text that quotes a call, there
is no call, nor where another begins before all that the tool requires is given.

An object of JSON in the place of parameters is the arguments. A call that gives one parameter two values is none, and
so is one of a tool that is not offered; both are read to their end. Where the answer ends before </function>, a call is
whole if it has all arguments that its tool requires.
"""

import re
from collections.abc import Callable, Container
from typing import Any

from jaxinfer.text.tools.arguments import arguments_of
from jaxinfer.text.tools.events import Arguments, Begin, End, Event
from jaxinfer.text.tools.json_call import further_key, key_behind
from jaxinfer.text.tools.json_scanner import JsonScanner, mended
from jaxinfer.text.tools.json_text import JsonText
from jaxinfer.text.tools.marks import MIN_TORN_TAG, may_become
from jaxinfer.text.tools.python_calls import python_value
from jaxinfer.text.tools.schema_types import Values, type_of
from jaxinfer.text.tools.strict_json import dumped, loaded
from jaxinfer.text.tools.xml_nesting import Kind, Nesting, Torn
from jaxinfer.text.tools.xml_tags import CDATA, CLOSING, END_CDATA, END_FUNCTION, MAX_NAME_CHARS, OPENING, XmlTags

MAX_REREAD_CHARS = 4096  # of a value without its end, that may be calls
MAX_UNNESTED_CHARS = 1 << 16  # of a value whose tags are no calls in each other
_NAME = re.compile(r"([^<>\n]*)(?:\s*>|\n)")  # in a tag; some models leave out its bracket
_EARLY_ENDS = (END_FUNCTION, CLOSING, OPENING)  # with which a call does not end before a parameter


class Parameters:
    """What the arguments of one tool are, which its schema says."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._named, self._other = arguments_of(schema)
        self._values = Values(schema)
        required = schema.get("required")
        self._required = required if isinstance(required, list) else []

    def are_in(self, given: Container[str]) -> bool:
        """Whether all that are required are given."""
        return all(name in given for name in self._required)

    def __contains__(self, name: str) -> bool:
        return name in self._named

    def types(self, name: str) -> frozenset[str]:
        """Of the argument with this name; none where nothing is said."""
        return self._values.types(self._named.get(name, self._other))


class XmlCall:
    """One call, a layout.Body. names: the tools offered.    parameters_of: called with the name of one.    torn: of the
    answer's calls. Text between its parameters is left for others.
    """

    is_json = False

    def __init__(
        self, tags: XmlTags, names: Container[str], parameters_of: Callable[[str], Parameters], torn: Torn
    ) -> None:
        self._tags, self._torn = tags, torn
        self.is_open, self.failed = True, False
        self.has_name = self.has_end = self._is_last = False  # the last: no more text comes
        self._is_call = True  # as far as is known
        self._names, self._parameters_of = names, parameters_of
        self._raw: list[str] = []
        self._between = ""
        self._tool = ""
        self._parameter = ""
        self._types: frozenset[str] = frozenset()  # that it may be of
        self._stage = "tag"  # of the function or a parameter, then "value"; or "object"
        self._scanner = JsonScanner()  # of the object
        self._has_object = False  # it has been read, or was none
        self._held = ""  # of a tag, or the end of a value that may be in its closing tag
        self._value: list[str] = []
        self._next_call: int | None = None  # which of the value's parts may begin another call
        self._json: JsonText | None = None  # the value, where it may be JSON
        self._is_blank = True  # the value, as far as it has come
        self._in_cdata = False  # of the value
        self._reads_tags = False  # in CDATA too, which lacks its end
        self._nests = torn.may_nest  # no value's tags have turned out to be no calls in each other
        self._nesting: Nesting | None = None  # of the value, as long as it may quote calls
        self._quoted = 0  # of the value's parts, up to the last tag of a call in it
        self._given: dict[str, Any] = {}  # parameters and their values

    @property
    def raw(self) -> str:
        return "".join(self._raw)

    def feed(self, text: str) -> tuple[list[Event], str]:
        events: list[Event] = []
        text, self._held = self._held + text, ""
        take = {"tag": self._take_tag, "value": self._take_value, "object": self._take_object}
        while text and self.is_open:
            text = take[self._stage](text, events)
        return events, text

    def finish(self) -> tuple[list[Event], str]:
        self._is_last = True
        events, left = self.feed("")  # what was held back because of what might come
        if self.is_open and self._in_cdata and len(value := "".join([*self._value, self._held])) <= MAX_REREAD_CHARS:
            self._value.clear()
            self._held, self._is_blank, self._in_cdata, self._reads_tags = "", True, False, True
            more, left = self.feed(value)
            events += more
        if self.is_open and self._stage == "value" and self._nesting is not None and self._nesting.has_begun:
            if self._is_cut(self._nesting):
                self.has_end = True
                self._raw += [*self._value, self._held]
                return events, self._fail("")
            left, self._held = self._without_nesting(self._held), ""
            more, left = self.feed(left)
            events += more
        if not self.is_open:
            return events, left
        if self._stage == "value" and (self._holds_call() or self._held.startswith((END_FUNCTION, CLOSING))):
            left = self._end_open_value(self._held, events)
            return events, self._end(left, events) if self.is_open else left
        if self._stage == "tag" and self._tool and (held := self._held.lstrip()).startswith(_EARLY_ENDS):
            return events, self._end_at_tag(self._held, held, events)
        if self._stage == "tag" and self._tool and self._is_call and self._has_all(self._held.lstrip()):
            return events, self._end("", events)
        self._raw += () if self._stage == "tag" else self._value
        if not self._tool:
            self._raw.append(self._held)
            self._held = ""
        return events, self._fail(self._held)

    def _is_cut(self, nesting: Nesting) -> bool:
        """Whether the answer ends in a value that quotes calls, not in a call behind a value that lacks its end."""
        behind = "".join([*self._value[self._quoted :], self._held])
        return (
            nesting.is_open
            or not self._tags.closers_run.fullmatch(behind)
            or sum(map(len, self._value)) > MAX_UNNESTED_CHARS
        )

    def _has_all(self, held: str) -> bool:
        """Whether it lacks no more than its end where the answer ends behind this."""
        if len(held) >= MIN_TORN_TAG:
            if END_FUNCTION.startswith(held):
                return True
            if self._tags.parameter.startswith(held):
                return False
        return bool(self._given) and self._parameters_of(self._tool).are_in(self._given)

    def _take_tag(self, text: str, events: list[Event]) -> str:
        """A function's tag, then parameters' tags up to the function's end."""
        bare = text.lstrip()
        if len(text) - len(bare) > MAX_NAME_CHARS:
            return self._fail(text)
        if self._tool and bare.startswith("{") and not (self._has_object or self._given or self._between):
            self._raw.append(text[: len(text) - len(bare)])
            self._stage = "object"
            return bare
        spelt = self._tags
        tags = (spelt.parameter, END_FUNCTION, spelt.end_parameter, *spelt.ends) if self._tool else (spelt.function,)
        if any(len(bare) < len(tag) and tag.startswith(bare) for tag in tags):
            self._held = text
            return ""
        tag = next(filter(bare.startswith, tags), None)
        if tag is not None:
            between, self._between = self._between, self._between and self._between + text[: len(text) - len(bare)]
            left = self._take_whole_tag(text, bare, tag, events)
            if self._held:  # read again when more has come
                self._between = between
            return left
        return self._take_between(text) if self._tool else self._fail(text)

    def _take_between(self, text: str) -> str:
        """Text where a tag should stand."""
        most = MAX_NAME_CHARS - len(self._between)
        end = text.find("<", len(text) - len(text.lstrip()) + 1, most)
        taken = text[: end if end > 0 else most].rstrip()  # what is behind it may stand before a tag
        self._between += taken
        if self._has_object and further_key(self._between):  # behind a bracket too many
            self._is_call = False
        self._raw.append(taken)
        left = text[len(taken) :]
        return left if taken else self._fail(left)

    def _take_whole_tag(self, text: str, bare: str, tag: str, events: list[Event]) -> str:
        if tag == self._tags.end_parameter:  # once too often
            self._raw.append(text[: len(text) - len(bare) + len(tag)])
            return bare.removeprefix(tag)
        if tag in _EARLY_ENDS:
            past = self._tags.early_run.match(bare, 0, MAX_NAME_CHARS).end()  # type: ignore[union-attr]  # of the tag
            is_early = self._are_early(bare[:past], bare[past : past + 2 * MAX_NAME_CHARS])
            if is_early is None:
                self._held = text
                return ""
            if is_early:
                self._raw.append(text[: len(text) - len(bare) + past])
                return bare[past:]
        if self._tool and tag != self._tags.parameter:
            return self._end_at_tag(text, bare, events)
        head = bare[len(tag) : len(tag) + MAX_NAME_CHARS]
        found = _NAME.match(head)
        if len(head) < MAX_NAME_CHARS and _is_open_name(head, found):
            self._held = text
            return ""
        name = _unquoted(found[1]) if found else ""
        if found is None or not name:
            return self._fail(text)
        left = bare[len(tag) + found.end() :]
        self._raw.append(text[: len(text) - len(left)])
        if tag == self._tags.function:
            self._tool, self.has_name = name, True
            self._is_call = name in self._names
            events += [Begin(name)] if self._is_call else []
        else:
            self._parameter, self._stage = name, "value"
            self._types = self._parameters_of(self._tool).types(name)
            # where a text with tags stands in CDATA, a quote begins one of lists and objects alone
            begins = "[{" if self._tags.has_cdata else '"[{'
            may_be = {"array", "object"} if self._tags.has_cdata else self._types - {"string"}
            self._json = JsonText(begins) if self._types & may_be else None
            self._nesting = Nesting(self._tags) if self._nests and not self._tags.has_cdata else None
        return left

    def _are_early(self, tags: str, after: str) -> bool | None:
        """Whether the call goes on behind these tags, with this text behind them; None: not known yet. Behind both of
        its ends it goes on with a parameter that its tool has and that it lacks.
        """
        if self._has_object:
            if (behind := key_behind(after, self._tags.early)) is None:
                return None
            self._is_call = self._is_call and not behind[0]  # a tag stands within the object
        if not after.startswith(self._tags.parameter):
            may_go_on = len(tags) < MAX_NAME_CHARS and may_become(after, (self._tags.parameter, *self._tags.early))
            return None if may_go_on else False
        has_both = END_FUNCTION in tags and CLOSING in tags
        return self._begins_parameter(after.removeprefix(self._tags.parameter)) if has_both else True

    def _end_at_tag(self, text: str, bare: str, events: list[Event]) -> str:
        """bare: the text without white space before its tag."""
        self._raw.append(text[: len(text) - len(bare)])
        return self._end(bare.removeprefix(END_FUNCTION) if self._is_call else bare, events)

    def _take_object(self, text: str, events: list[Event]) -> str:
        at = self._scanner.feed(text, 0, 0)
        self._value.append(text[:at])
        if not (self._scanner.bad or self._scanner.has_ended):
            return ""
        value, self._value, self._stage, self._has_object = "".join(self._value), [], "tag", True
        self._raw.append(value)
        entries = _object_of(mended(value)) if self._scanner.has_ended else None
        self._is_call = self._is_call and entries is not None
        for key, entry in (entries or {}).items():
            self._give(key, entry, events)
        return text[at:]

    def _take_value(self, text: str, events: list[Event]) -> str:
        past = 0  # of what is known to belong to the value
        for found in self._tags.mark.finditer(text):
            self._add(text[past : found.start()])
            past = found.start()
            after = text[found.end() : found.end() + 2 * MAX_NAME_CHARS]
            kind = self._kind_of(found[0], after)
            if kind == "torn":
                return self._without_nesting(text[past:])
            ends = None if kind is None else kind == "own" and self._ends_at(found[0], after)
            if ends is None:
                self._held = text[past:]
                return ""
            if ends and found[0] == self._tags.end_parameter:
                self._end_value(events)
                self._raw.append(self._tags.end_parameter)
                return text[found.end() :]
            if ends:
                return self._end_open_value(text[past:], events)
            self._add(found[0])
            past = found.end()
            if kind == "quoted":
                self._quoted = len(self._value)
        left = text[past:]
        marks = self._tags.marks
        most = min(max(map(len, marks)) - 1, len(left))
        keep = next((n for n in range(most, 0, -1) if any(mark.startswith(left[-n:]) for mark in marks)), 0)
        self._add(left[: len(left) - keep])
        self._held = left[len(left) - keep :]
        return ""

    def _kind_of(self, mark: str, after: str) -> Kind | None:
        """What a mark in a value is, as Nesting has it."""
        is_quoted = self._json is not None and self._json.is_in_string and not self._begins_line
        if self._nesting is None or is_quoted:
            return "own"
        return self._nesting.take(mark, after, is_last=self._is_last)

    def _without_nesting(self, left: str) -> str:
        """The value again, whose tags are no calls in each other: some may be of a call behind it, or of others of this
        call's values, none of which nests.
        """
        text = "".join([*self._value, left])
        self._value, self._is_blank, self._nesting, self._nests = [], True, None, False
        self._torn.add(len(text))
        if self._json is not None:
            self._json = self._json.begun_again()
        return text

    @property
    def _begins_line(self) -> bool:
        """Whether a value goes on at a line's beginning."""
        return not self._value or self._value[-1].endswith("\n")

    def _ends_at(self, mark: str, after: str) -> bool | None:
        """Whether a value ends at a mark behind which this text stands; None: not known yet."""
        if self._is_cdata(mark):
            return False
        begins_line = self._begins_line
        if self._json is not None and self._json.is_in_string and not begins_line:
            return False
        begins_line = begins_line or self._tags.has_cdata  # outside of which no text has a tag
        if mark == self._tags.end_parameter:
            return True
        if mark in (OPENING, self._tags.function):
            return self._begins_call(mark, after) if begins_line and self._next_call is None else False
        if mark == self._tags.parameter:
            if self._next_call is not None:
                return begins_line
            return self._begins_parameter(after) if begins_line else False
        if (closers := self._closers_behind(after)) is None:
            return None
        if self._tags.end_parameter in closers:
            return _are_due(mark + closers, self._tags.end_parameter)
        follows = after.lstrip()
        ends = (OPENING, self._tags.function, CLOSING) if mark == END_FUNCTION else (OPENING, self._tags.function)
        if follows.startswith(ends):
            return True
        is_open = len(after) < 2 * MAX_NAME_CHARS and any(each.startswith(follows) for each in ends)
        return None if is_open else False

    def _is_cdata(self, mark: str) -> bool:
        """Whether a mark within a value begins CDATA, ends it or stands in it."""
        if mark == CDATA and not self._in_cdata and self._is_blank:
            self._in_cdata = not self._reads_tags
        elif mark == END_CDATA and self._in_cdata:
            self._in_cdata = False
            return True
        return self._in_cdata or mark in (CDATA, END_CDATA)

    def _closers_behind(self, after: str) -> str | None:
        """Closing tags that this begins with; none where another parameter follows. None: not known yet."""
        closers = self._tags.closers_run.match(after)[0]  # type: ignore[index]  # it matches the empty string
        rest = after[len(closers) :]
        spelt = self._tags
        is_short = not self._is_last and len(after) < 2 * MAX_NAME_CHARS
        if is_short and may_become(rest, (*spelt.early, spelt.parameter)):
            return None
        return "" if rest.startswith(spelt.parameter) and closers.strip() == spelt.end_parameter else closers

    def _begins_call(self, mark: str, after: str) -> bool | None:
        """False: it is of the value, unless this lacks its end and then ends here."""
        function = self._tags.function
        head = after.lstrip() if mark == OPENING else function + after
        name, end, _ = head.removeprefix(function)[:MAX_NAME_CHARS].partition(">")
        if not end and len(after) < MAX_NAME_CHARS and (head.startswith(function) or function.startswith(head)):
            return None
        if end and head.startswith(function) and _unquoted(name) in self._names:
            self._next_call = len(self._value)
        return False

    def _begins_parameter(self, after: str) -> bool | None:
        name, end, _ = after[:MAX_NAME_CHARS].partition(">")
        if not end:
            return False if len(after) >= MAX_NAME_CHARS or "\n" in name else None
        name = _unquoted(name)
        return name in self._parameters_of(self._tool) and name not in {*self._given, self._parameter}

    def _end_open_value(self, text: str, events: list[Event]) -> str:
        """One that lacks its end, before this text or the call that began in it."""
        if not self._holds_call():
            self._end_value(events)
            return text
        left = "".join([*self._value[self._next_call :], text])
        del self._value[self._next_call :]
        is_blank = not "".join(self._value).strip()
        self._end_value(events)
        self._is_call = self._is_call and not is_blank and self._parameters_of(self._tool).are_in(self._given)
        return self._end(left, events)

    def _holds_call(self) -> bool:
        return self._next_call is not None and sum(map(len, self._value[self._next_call :])) <= MAX_REREAD_CHARS

    def _end_value(self, events: list[Event]) -> None:
        value = "".join(self._value)
        self._raw.append(value)
        self._value, self._stage, self._next_call, self._nesting, self._quoted = [], "tag", None, None, 0
        self._is_blank, self._in_cdata, self._reads_tags = True, False, False
        self._give(self._parameter, typed_value(value, self._types, self._tags), events)

    def _give(self, name: str, value: Any, events: list[Event]) -> None:
        """One argument."""
        if not self._is_call:
            return
        if name not in self._given:
            events.append(Arguments(f"{', ' if self._given else '{'}{dumped(name)}: {dumped(value)}"))
            self._given[name] = value
        elif dumped(value) != dumped(self._given[name]):
            self._is_call = False

    def _end(self, left: str, events: list[Event]) -> str:
        if not self._is_call:
            self.has_end = True
            return self._fail(left)
        events += [Arguments("}" if self._given else "{}"), End()]
        self.is_open = False
        return self._between + left

    def _add(self, text: str) -> None:
        """To the value."""
        if text:
            self._value.append(text)
            self._is_blank = self._is_blank and text.isspace()
            if self._json is not None:
                self._json.feed(text)

    def _fail(self, text: str) -> str:
        self.is_open, self.failed = False, True
        return text


def _are_due(closers: str, end_parameter: str) -> bool:
    """Whether a value ends before these tags, and not at its own end among them: a tag is of the value where it stands
    behind that end too.
    """
    before, _, behind = closers.partition(end_parameter)
    return any(tag in before and tag not in behind for tag in (END_FUNCTION, CLOSING))


def is_read_back(tags: XmlTags, tool: str, name: str, text: str, parameters: Parameters, tools: Container[str]) -> bool:
    """Whether a parameter's text, as it stands between its tags, is read as that text. tool, name: whose it is."""
    written = tags.written(text)
    if tags.mark.search(written) is None:
        return bool(typed_value(written, parameters.types(name), tags) == text)
    call = XmlCall(tags, tools, lambda _: parameters, Torn())
    function, head = f"{tags.function}{tags.quote}{tool}{tags.quote}>{tags.gap}", tags.head(name).removesuffix(tags.gap)
    after = f"{tags.end_parameter}{tags.gap}{END_FUNCTION}{tags.gap}{CLOSING}"
    events, left = call.feed(f"{function}{head}{written}{after}")
    if call.is_open:
        more, left = call.finish()
        events += more
    read = "".join(event.text for event in events if isinstance(event, Arguments))
    return not call.failed and left.strip() == CLOSING and bool(loaded(read) == {name: text})


def _is_open_name(head: str, found: re.Match[str] | None) -> bool:
    """Whether the bracket behind the name in a tag that begins so may still come."""
    if found is None:
        return "<" not in head
    return found[0].endswith("\n") and not head[found.end() :].strip()


def _object_of(text: str) -> dict[str, Any] | None:
    """None for what cannot be sent."""
    try:
        value: dict[str, Any] = loaded(text)
        dumped(value)
    except (ValueError, RecursionError):
        return None
    return value


def _unquoted(name: str) -> str:
    """Without its quotes, and without other attributes behind them."""
    name = name.strip()
    end = name.find(name[0], 1) if name and name[0] in "\"'" else -1
    return name[1:end] if end > 0 else name


def typed_value(value: str, types: frozenset[str], tags: XmlTags) -> Any:
    """What stands between a parameter's tags: a text, unless it may be of other types and is one, as JSON or as Python
    writes it.
    """
    text = tags.text_of(value)
    if types <= {"string"}:
        return text
    for spelt in dict.fromkeys((value.strip(), text.strip())):
        for read in (mended, python_value):
            try:
                found = loaded(read(spelt))
                dumped(found)  # what cannot be is no such value
            except (ValueError, RecursionError):
                continue
            if read is python_value and isinstance(found, str):
                continue  # in quotes that are the text's own
            if type_of(found) in types or (type_of(found) == "integer" and "number" in types):
                return found
    return text
