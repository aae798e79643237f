"""What the server needs of an API to answer in its form: a whole body, or the events of a stream. One path carries out
requests of every API; what differs between them is a reader of the request and one of these.
"""

import dataclasses
from typing import Any, Protocol

from jaxinfer.errors import ApiError
from jaxinfer.protocol.logprobs import TokenLogprob
from jaxinfer.text.tools.reader import CallDelta

EVENT_STREAM = b"text/event-stream; charset=utf-8"
Metrics = dict[str, float | None]  # how long the parts of a request took


@dataclasses.dataclass(slots=True)
class Usage:
    """prompt_tokens: each prompt once, however many choices.    completion_tokens: of all choices together."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int | None = None  # of these, for a model that thinks

    def plus(self, other: "Usage") -> "Usage":
        thoughts = [n for n in (self.reasoning_tokens, other.reasoning_tokens) if n is not None]
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
            sum(thoughts) if thoughts else None,
        )

    def as_dict(self) -> dict[str, Any]:
        details: dict[str, Any] = {}
        if self.reasoning_tokens is not None:
            details = {"completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens}}
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        } | details


@dataclasses.dataclass(slots=True)
class Choice:
    """One finished choice. finish_reason: stop, length, tool_calls or abort.

    stop_reason: the stop string or stop token id.    reasoning, calls: beside the text, where they are wanted.
    """

    index: int
    text: str
    finish_reason: str
    stop_reason: int | str | None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    reasoning: str = ""
    calls: list[CallDelta] = dataclasses.field(default_factory=list)


class Progress(Protocol):
    """How far a request is."""

    @property
    def usage(self) -> Usage: ...

    @property
    def metrics(self) -> Metrics: ...


class Piece(Protocol):
    """What comes next of a choice; its last one has the finish_reason."""

    @property
    def text(self) -> str: ...

    @property
    def finish_reason(self) -> str | None: ...

    @property
    def stop_reason(self) -> int | str | None: ...

    @property
    def logprobs(self) -> list[TokenLogprob] | None: ...

    @property
    def reasoning(self) -> str: ...

    @property
    def calls(self) -> list[CallDelta] | None: ...


class Events(Protocol):
    """A streamed answer, frame by frame. ping: for a silence. Where there is nothing to send, it is b""."""

    @property
    def content_type(self) -> bytes: ...

    @property
    def ping(self) -> bytes: ...

    def piece(self, index: int, piece: Piece) -> bytes:
        """The next piece of choice `index`."""

    def end(self) -> bytes:
        """What follows the last choice's end."""

    def failed(self, error: ApiError) -> bytes:
        """The end of a stream that cannot go on, whose status line is long gone."""


class Form(Protocol):
    """One answer. id: what the client will know it by."""

    @property
    def id(self) -> str: ...

    def body(self, choices: list[Choice], progress: Progress) -> bytes:
        """The whole answer, not streamed."""

    def events(self, progress: Progress) -> Events:
        """The answer, streamed."""
