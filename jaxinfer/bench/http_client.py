"""A client of streamed answers that costs little: httptools parses HTTP, bytes are kept with the time they came.

Nothing is decoded while streams run; `read_stream` makes tokens and times of a finished one. No jax.
"""

import asyncio
import dataclasses
import ssl
import time
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import msgspec

TIMEOUT_S = 600.0
NO_CONNECTION = "no connection"  # begins the error of a request that reached no server


@dataclasses.dataclass(slots=True)
class Reply:
    """One answer as it came: (time, bytes) of each read.    error: why there is none."""

    sent_s: float = 0.0
    status: int = 0
    reads: list[tuple[float, bytes]] = dataclasses.field(default_factory=list)
    error: str = ""

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.reads)


@dataclasses.dataclass(frozen=True)
class Target:
    """Where requests go. base: the URL up to and without /v1.    key: sent as a bearer token, "" for none."""

    base: str
    key: str = ""

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """A whole HTTP/1.1 request."""
        parts = urlsplit(self.base)
        lines = [f"{method} {parts.path.rstrip('/')}{path} HTTP/1.1", f"Host: {parts.netloc}", "Accept: */*"]
        lines += [f"Authorization: Bearer {self.key}"] if self.key else []
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode() + body

    async def connect(self) -> "Connection":
        """Raises OSError."""
        parts = urlsplit(self.base)
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if tls else 80)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, parts.hostname or "", port, ssl=tls)
        return connection


class Connection(asyncio.Protocol):
    """One connection, one request at a time. Invariant: `_reply` is set exactly while an answer is awaited."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._now_s = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes) -> Reply:
        """Send a request and wait for all of its answer; what goes wrong is the reply's error."""
        assert self._transport is not None and self._reply is None, "one request at a time"
        self._reply = reply = Reply()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        reply.sent_s = time.monotonic()
        self._transport.write(request)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._done
        except TimeoutError:
            reply.error = f"no end after {TIMEOUT_S:.0f} s"
            self.close()
        self._reply = None
        if not reply.error and reply.status != 200:
            reply.error = f"HTTP {reply.status}: {sentence_of(reply.body)}"
        return reply

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name

    def data_received(self, data: bytes) -> None:
        if self._reply is None:
            self.close()  # nobody asked
            return
        self._now_s = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"the answer is no HTTP: {error}")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(f"the connection ended early: {error or 'closed by the server'}")

    # httptools' calls

    def on_body(self, body: bytes) -> None:
        assert self._reply is not None
        self._reply.reads.append((self._now_s, body))

    def on_message_complete(self) -> None:
        assert self._reply is not None
        self._reply.status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.close()
        self._end("")

    def _end(self, error: str) -> None:
        if self._reply is not None and not self._done.done():
            self._reply.error = error
            self._done.set_result(None)


class _Refusal(msgspec.Struct):
    message: str


class _Refused(msgspec.Struct):
    error: _Refusal


def sentence_of(body: bytes) -> str:
    """What a server says of a request that it does not answer: OpenAI's error.message, or else the body itself.

    Of a page for browsers it says only that it is one: no OpenAI-compatible server answers so.
    """
    if body.lstrip()[:1] == b"<":
        return "a page of HTML, which no OpenAI-compatible server sends"
    try:
        return msgspec.json.decode(body, type=_Refused).error.message[:400]
    except msgspec.DecodeError:
        return body[:200].decode(errors="replace")


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    """Whatever is in it, a choice is a piece of the answer."""

    finish_reason: str | None = None
    text: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None
    error: Any = None


@dataclasses.dataclass(slots=True)
class Outcome:
    """One request as its user saw it, in seconds of the machine's monotonic clock.

    times_s: when each piece of the answer came; a piece is a token or more.    tokens: as the server counted them, or
    else pieces.    error: "" when the answer came whole.
    """

    sent_s: float
    times_s: list[float] = dataclasses.field(default_factory=list)
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: str = ""
    error: str = ""


def read_stream(reply: Reply) -> Outcome:
    """What a streamed completion said, and when each piece of it came."""
    outcome = Outcome(reply.sent_s, error=reply.error)
    if outcome.error:
        return outcome
    decoder, rest, ended = msgspec.json.Decoder(_Event), b"", False
    try:
        for now_s, data in reply.reads:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    payload = line[5:].strip()
                    ended = ended or payload == b"[DONE]"
                    if payload != b"[DONE]":
                        _take(outcome, decoder.decode(payload), now_s)
    except msgspec.DecodeError as error:
        outcome.error = f"a frame is no event of a completion: {error}"
    if not ended and not outcome.error:
        outcome.error = "the stream ended without [DONE]"
    outcome.tokens = outcome.tokens or len(outcome.times_s)
    return outcome


def read_text(reply: Reply) -> str:
    """All text of a streamed completion that `read_stream` finds nothing wrong with."""
    found = []
    for line in reply.body.split(b"\n"):
        payload = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and payload != b"[DONE]":
            found += [choice.text or "" for choice in msgspec.json.decode(payload, type=_Event).choices]
    return "".join(found)


def _take(outcome: Outcome, event: _Event, now_s: float) -> None:
    if event.error is not None:
        outcome.error = msgspec.json.encode(event.error)[:200].decode(errors="replace")
    if event.choices:
        outcome.times_s.append(now_s)
        outcome.finish_reason = event.choices[0].finish_reason or outcome.finish_reason
    if event.usage is not None:
        outcome.tokens = event.usage.completion_tokens or outcome.tokens
        outcome.prompt_tokens = event.usage.prompt_tokens or outcome.prompt_tokens
        if event.usage.prompt_tokens_details is not None:
            outcome.cached_tokens = event.usage.prompt_tokens_details.cached_tokens
