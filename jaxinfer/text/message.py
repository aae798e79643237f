"""MessageText: one answer of a chat taken apart, into thoughts, content and tool calls, as its tokens come.

Fed like a TextState, whose place it takes. Thoughts are told by token ids: a text that spells their tags is only text.
Stop strings are looked for in the content alone. The line ends around thoughts belong to neither.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial

from jaxinfer.text.detokenizer import Detokenizer
from jaxinfer.text.state import TextDelta, TextState
from jaxinfer.text.thinking import CLOSE, Start, Thinking, Thoughts
from jaxinfer.text.tokenizer import Tokenizer
from jaxinfer.text.tools.reader import CallDelta, ToolReader, merged


@dataclasses.dataclass(slots=True)
class Parts:
    """What an answer brought beside its content. num_thinking: tokens of thoughts, their tags included."""

    reasoning: str = ""
    calls: list[CallDelta] = dataclasses.field(default_factory=list)
    num_thinking: int = 0


class MessageText:
    """thinking, start: the model's tags, if it has any, and what the prompt has begun.    tools: None if nothing is a
    call.    stop, include_stop, start_after: as for a TextState, the last counting thoughts too.
    verbatim: the content keeps the white space that it begins with, since its form was asked for.    whole: as for a
    Detokenizer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        start_after: int = 0,
        skip_special_tokens: bool = True,
        thinking: Thinking | None = None,
        start: Start = "answering",
        tools: ToolReader | None = None,
        verbatim: bool = False,
        whole: bool = False,
    ) -> None:
        self._detokenizer = Detokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, goes_on=verbatim, whole=whole
        )
        self._verbatim = verbatim
        self._new_text = partial(TextState, self._detokenizer, stop=stop, include_stop=include_stop)
        self._pieces = tokenizer.piece_table(skip_special_tokens)
        self._start_after = start_after
        self._thinking = thinking
        self._tools = tools
        self._state: Start = "answering" if thinking is None else start
        self._thoughts = None if thinking is None else Thoughts(start, thinking.open_id, thinking.close_id)
        self._num_tokens = 0
        self._text = self._new_text(start_after=start_after)
        self._lead = ""  # white space before it is known whether thoughts follow
        self._after_thoughts = False  # no content since
        self._line_ends = ""  # of the thoughts, held back
        self._has_reasoning = False
        self._shown = 0  # characters of content since `take`
        self._parts = Parts()

    @property
    def stop(self) -> str | None:
        """The stop string that ended it."""
        return self._text.stop

    @property
    def has_calls(self) -> bool:
        return self._tools is not None and self._tools.has_calls

    def take(self) -> Parts:
        """What came beside the content since the last call."""
        parts, self._parts = self._parts, Parts()
        parts.calls = merged(parts.calls)
        self._shown = 0
        return parts

    def feed(self, token_ids: Sequence[int]) -> TextDelta:
        """The content that these tokens bring. `num_tokens` is a TextState's."""
        content: list[str] = []
        at = 0
        while at < len(token_ids) and self._text.stop is None:
            if self._state == "thinking":
                count = self._think(list(token_ids[at:]))
            elif self._state == "either":
                count = self._begin(token_ids[at], content)
            elif self._after_thoughts and self._is_line_end(token_ids[at]):
                count = 1
                self._detokenizer.feed((token_ids[at],))
                self._text.skip()
            else:
                found = self._text.feed(token_ids[at:])
                count = found.num_tokens
                content.append(self._answer(found.text))
            at += count
            self._num_tokens += count
        if self._text.stop is not None:
            content += [self._answer(self._lead), self._end_tools()]
        return TextDelta("".join(content), at, self._text.stop)

    def finish(self) -> str:
        """The content still held back, once the answer has ended; nothing after a stop string."""
        if self._text.stop is not None:
            return ""
        if self._state == "thinking":
            self._reason(self._detokenizer.flush())
            return self._end_tools()
        text = self._lead + self._text.finish()
        self._lead = ""
        return self._answer(text) + self._end_tools()

    def _begin(self, token_id: int, content: list[str]) -> int:
        """A token where thoughts or content may begin; the first that is not blank decides, or the last that may."""
        assert self._thoughts is not None
        if self._thoughts.follow(token_id):
            self._detokenizer.feed((token_id,))
            self._parts.num_thinking += 1
            self._lead, self._state = "", "thinking"
            return 1
        self._lead += self._text.feed((token_id,)).text
        if self._lead.strip() or not self._thoughts.may_begin:
            lead, self._lead, self._state = self._lead, "", "answering"
            content.append(self._answer(lead))
        return 1

    def _think(self, ids: list[int]) -> int:
        """Tokens up to the end of the thoughts; how many they are."""
        assert self._thinking is not None
        close_id = self._thinking.close_id
        count = ids.index(close_id) if close_id in ids else len(ids)
        text = self._detokenizer.feed(ids[:count])
        if count < len(ids):
            text += self._detokenizer.feed((close_id,)).removesuffix(CLOSE)
            count += 1
            self._state, self._after_thoughts = "answering", not self._verbatim
            left = self._start_after - self._num_tokens - count
            self._text = self._new_text(start_after=max(left, 0))
        self._parts.num_thinking += count
        self._reason(text)
        return count

    def _reason(self, text: str) -> None:
        text = self._line_ends + (text if self._has_reasoning else text.lstrip("\n"))
        shown = text.rstrip("\n")
        self._line_ends = text[len(shown) :]
        self._has_reasoning = self._has_reasoning or bool(shown)
        self._parts.reasoning += shown

    def _answer(self, text: str) -> str:
        """Content, from which the calls are taken out."""
        if self._after_thoughts:
            text = text.lstrip("\n")
            self._after_thoughts = not text
        if self._tools is not None and text:
            return self._read(*self._tools.feed(text))
        self._shown += len(text)
        return text

    def _end_tools(self) -> str:
        return "" if self._tools is None else self._read(*self._tools.finish())

    def _read(self, content: str, calls: list[CallDelta]) -> str:
        for call in calls:
            call.at += self._shown
        self._shown += len(content)
        self._parts.calls += calls
        return content

    def _is_line_end(self, token_id: int) -> bool:
        piece = b"" if self._pieces is None else self._pieces[token_id]
        return bool(piece) and not piece.strip(b"\n")
