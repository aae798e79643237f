"""uvicorn's HTTP/1.1 protocol with limits: how large a head may be, how slowly a request may come or an answer be read.

What is refused here has reached no app, so this is the one place beside it that writes answers; in the same shape.
Invariant: beside its body, at most MAX_HEAD_BYTES and one read of the socket are held of a request that is coming.
"""

import asyncio
import logging
import socket
from collections import deque
from http import HTTPStatus

import httptools
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from jaxinfer.errors import InvalidRequest
from jaxinfer.server.errors import body_for
from jaxinfer.server.http_counts import SLOW
from jaxinfer.server.linger import Lingering, LingeringTransport
from jaxinfer.server.paths import plain

logger = logging.getLogger("jaxinfer.server")
MAX_HEAD_BYTES = 64 * 2**10
MAX_HEADERS = 128
PATIENCE_S = 10.0  # for a head, and for each MIN_BODY_BYTES of a body
MIN_BODY_BYTES = 16 * 2**10
READ_AHEAD = 8  # requests that wait for an answer before theirs on one connection, while more is read
VERSIONS = ("1.0", "1.1")
MAX_PIPELINED = 128  # such requests, or the connection is closed: one read of the socket holds thousands
INTERIM_S = 0.0, 1.0, 5.0, 20.0  # from a half-close; Go before 1.24 takes five, and may have asked for one itself
LOOK_S, SOON_S = 0.25, 0.02  # from one look at a half-closed connection to the next; from what was written to a look
SPARE_BYTES = 256 * 2**10  # of a body behind an answer that did without it: read, so that the connection can be kept
SLOW_READER_S = 60.0  # for a client to read what its connection holds of an answer, some 64 KiB


class _HeadTooLarge(Exception):
    """Leaves the parser's callback; uvicorn then asks for a 400."""


class _BadCoding(Exception):
    """Likewise, at a body in transfer codings that nobody here undoes."""


class _BadVersion(Exception):
    """Likewise, at a version of HTTP that is not spoken here."""


class _TooManyPipelined(Exception):
    """As well, and that alone keeps the parser from the rest of what was read."""


class _Parser(httptools.HttpRequestParser):
    """Of one connection. A client that offers another protocol is answered in this one (RFC 9110, section 7.8), as
    Java's offers HTTP/2 with its first request. httptools ends such a request at its head.
    """

    def __init__(self, connection: "BoundedProtocol") -> None:
        super().__init__(connection)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self._connection = connection

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]  # uvicorn gives nothing else
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._connection.decline(data[offer.args[0] :])


class BoundedProtocol(HttpToolsProtocol):
    """One connection. The timer runs while a request is coming."""

    transport: LingeringTransport
    patience_s = PATIENCE_S
    slow_reader_s = SLOW_READER_S
    interim_s = INTERIM_S
    lingering = Lingering()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(LingeringTransport(transport, self.loop, self._is_more_coming, self.lingering))
        self.parser = _Parser(self)
        self._body_follows = False  # behind a head that offers another protocol
        self._is_resuming = False
        self.url = b""  # until one comes
        self._head_bytes = 0  # of names, values and the URL, as parsed
        self._unparsed_bytes = 0  # received since the parser last told of something
        self._recent_bytes = 0
        self._body_bytes = self._spare_bytes = 0  # of the newest request; of those, what came behind its answer
        self._in_body = self._is_coming = False
        self._unanswered: deque[RequestResponseCycle] = deque()  # the first is being answered, the others wait
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._is_half_closed = False  # by the client, which sends nothing more
        self._ending: bytes | None = None  # the last to write, behind all answers that are due; nothing is read by then
        self._interim_at: deque[float] = deque()  # of the loop's clock: when it is probed whether the client is there
        self._look_again: asyncio.TimerHandle | None = None
        self._lingers = False  # behind the last
        # until the first byte, like between two requests; uvicorn itself would wait for ever
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.transport.lost()
        for timer in (self._unread, self._look_again):
            if timer is not None:
                timer.cancel()
        for cycle in self._unanswered:  # uvicorn tells the newest alone, which may still wait behind another
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:  # of one that was reset uvicorn leaves it, and with it all of this
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def pause_writing(self) -> None:
        """The connection holds as much as it may: whoever writes waits, its request's pages too."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.slow_reader_s, self._abandon)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _abandon(self) -> None:
        """Drop the connection with what it holds; its request then ends as when a client leaves, but for the reason."""
        answering = self._answering()
        if answering is not None:  # else all of the answer is in the connection's own memory
            answering.scope["state"]["gone"] = SLOW
        request_id = "" if answering is None else answering.scope["state"].get("request_id", "")
        said = "a client was dropped (%s), it read nothing of its answer for %g s, request %s"
        logger.warning(said, SLOW, self.slow_reader_s, request_id, extra={"request_id": request_id, "reason": SLOW})
        self.transport.abort()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more, and may read on or be gone: what it has asked for is answered until it is seen
        to be gone. Returns whether the connection stays open.
        """
        if self.transport.is_closing():
            return False
        if self._is_coming:
            message = "the request must be whole before the client stops sending, this one is cut short; send all of it"
            self._refuse(HTTPStatus.BAD_REQUEST, message, "invalid_http")
        cycle = self._answering()
        if cycle is None:
            return False
        is_gone = cycle.scope["http_version"] != "1.1" and not cycle.response_started  # it knows no interim responses
        if is_gone or self.scheme == "https":  # TLS knows no half of a connection
            return False
        if not self._is_half_closed:
            self._is_half_closed, self._ending = True, self._ending or b""
            self._stop_timer()
            self._interim_at.extend(self.loop.time() + pause_s for pause_s in self.interim_s)
            self._look()
        return True

    def _is_more_coming(self) -> bool:
        """Whether the client still writes, as far as can be told."""
        return (self._is_coming or bool(self.pipeline) or self.flow.read_paused) and not self._is_half_closed

    def _answering(self) -> RequestResponseCycle | None:
        """The first that is not answered."""
        return next((cycle for cycle in self._unanswered if not cycle.response_complete), None)

    def _look(self) -> None:
        """Whether who half-closed is there. One that is gone answers what is written with a reset, so that before an
        answer begins an interim response is: clients pass over it (RFC 9110, section 15.2), but those of HTTP/1.0. In
        a stream its ping is. The reset leaves an error on the socket, which nobody reads from any more.
        """
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        pause_s, cycle = LOOK_S, self._answering()
        if self._interim_at and self.loop.time() >= self._interim_at[0]:
            self._interim_at.popleft()
            if cycle is not None and not self.transport.is_closing():
                pause_s = SOON_S
                if cycle.response_started:
                    cycle.scope["state"].get("ping", lambda: None)()
                elif cycle.scope["http_version"] == "1.1":
                    self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._look_again = self.loop.call_later(pause_s, self._look)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._end()

    def data_received(self, data: bytes) -> None:
        if self._is_coming and self._in_body and self.cycle.response_complete:  # nobody reads this body
            if self._spare_bytes > SPARE_BYTES:
                self.transport.linger()
            self._spare_bytes += len(data)
        if self._ending is not None or self.transport.is_closing():
            self.transport.drop(len(data))
            return
        if self._timer is None:
            self._recent_bytes = 0
            self._start_timer()
        self._recent_bytes += len(data)
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > MAX_HEAD_BYTES and self._ending is None and not self.transport.is_closing():
            self._refuse_head()

    def decline(self, rest: bytes) -> None:
        """Read on as if no other protocol had been offered. rest: what came behind the head."""
        self.parser = _Parser(self)
        if self._body_follows:
            self._is_resuming = True
            framing = b"".join(b"%b: %b\r\n" % header for header in self._framing())
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
            self._body_follows = self._is_resuming = False
        self.parser.feed_data(rest)

    def _framing(self) -> list[tuple[bytes, bytes]]:
        """The headers that say how long the body is."""
        return [header for header in self.headers if header[0] in (b"content-length", b"transfer-encoding")]

    def on_message_begin(self) -> None:
        if self._is_resuming:
            return
        self._head_bytes = self._unparsed_bytes = self._body_bytes = self._spare_bytes = 0
        self._in_body, self._is_coming = False, True
        self._start_timer()  # it has ended with the request before this one, in the same read
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._is_resuming:
            return
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_resuming:
            return
        super().on_header(name, value)
        self._count(len(name) + len(value))
        if len(self.headers) > MAX_HEADERS:
            raise _HeadTooLarge

    def _count(self, num_bytes: int) -> None:
        self._unparsed_bytes = 0
        self._head_bytes += num_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLarge

    def on_headers_complete(self) -> None:
        if self._is_resuming:
            return
        if self._codings_before_chunked():
            raise _BadCoding
        if self.parser.get_http_version() not in VERSIONS:
            raise _BadVersion
        self._body_follows = self.parser.should_upgrade() and any(
            name == b"transfer-encoding" or value.strip(b" 0") for name, value in self._framing()
        )
        super().on_headers_complete()
        self._in_body = True
        if 0 < len(self.pipeline) <= READ_AHEAD:
            self.flow.resume_reading()  # uvicorn stops, and would not notice that the client leaves
        while self._unanswered and self._unanswered[0].response_complete:
            self._unanswered.popleft()
        self._unanswered.append(self.cycle)
        if len(self.pipeline) > MAX_PIPELINED:
            raise _TooManyPipelined

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.scope["http_version"] != "1.1":
            cycle.waiting_for_100_continue = False
            app = _unchunked(cycle, app)
        elif (num_bytes := _announced_bytes(cycle)) > SPARE_BYTES or cycle.waiting_for_100_continue:
            app = self._last_if_unread(cycle, num_bytes, app)
        super()._start_asgi_task(cycle, app)

    def _last_if_unread(self, cycle: RequestResponseCycle, num_bytes: int, app: ASGI3Application) -> ASGI3Application:
        """The app for a request of which much may stay unread, or of which nothing comes unless its client is told to
        go on: an answer that begins before says that it is its connection's last.
        """

        async def answer(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            async def send_last(message: ASGISendEvent) -> None:
                if cycle.more_body and not cycle.response_started:
                    is_much = num_bytes - self._body_bytes > SPARE_BYTES
                    cycle.keep_alive = cycle.keep_alive and not (is_much or cycle.waiting_for_100_continue)
                await send(message)

            await app(scope, receive, send_last)

        return answer

    def _codings_before_chunked(self) -> list[bytes]:
        """Transfer codings that a client has applied first. Where another is the last one, the parser refuses it."""
        given = self._transfer_encoding() or b""
        codings = [coding for each in given.split(b",") if (coding := each.strip().lower())]
        return codings[:-1] if codings[-1:] == [b"chunked"] else []

    def _transfer_encoding(self) -> bytes | None:
        """All that the header says; None where there is none."""
        given = [value for name, value in self.headers or () if name == b"transfer-encoding"]
        return b",".join(given) if given else None

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._body_follows and not self._is_resuming:
            return
        self._unparsed_bytes, self._is_coming = 0, False
        self._stop_timer()
        super().on_message_complete()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.patience_s, self._lose_patience)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _lose_patience(self) -> None:
        """Close a connection whose request comes too slowly, unless it is us who do not read, or answer another."""
        self._timer = None
        answering = self._answering()
        if self.transport.is_closing() or (answering is not None and not self._is_coming):
            return  # a line end behind a whole request, say
        is_behind = answering is not None and not (self._in_body and answering is self.cycle)
        if self.flow.read_paused or is_behind or (self._in_body and self._recent_bytes >= MIN_BODY_BYTES):
            self._recent_bytes = 0
            self._start_timer()
        elif self._in_body and self.cycle.response_started:  # it was answered without its body
            self.transport.close_at_once()
        else:
            law = (
                f"a head within {self.patience_s:g} s, {MIN_BODY_BYTES} bytes of the body in each {self.patience_s:g} s"
            )
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the request must come faster: {law}", "request_timeout")

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, and what our own callbacks have raised at."""
        if len(self.pipeline) > MAX_PIPELINED:
            self.transport.close_at_once()  # an error would come in the middle of the answers that are due
        elif self._head_bytes > MAX_HEAD_BYTES or len(self.headers or ()) > MAX_HEADERS:
            self._refuse_head()
        elif (version := self.parser.get_http_version()) not in (*VERSIONS, "0.0"):  # the last before it has come
            message = f"the request must be of HTTP/1.1 or 1.0, got {version}; send it as HTTP/1.1"
            self._refuse(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, message, "invalid_http")
        elif (codings := self._codings_before_chunked()) and b"chunked" not in codings:
            given = ascii(b", ".join(codings).decode("latin-1"))[:80]
            message = f"the body's only transfer coding must be chunked, got {given} before it; send the body as it is"
            self._refuse(HTTPStatus.NOT_IMPLEMENTED, message, "unsupported_transfer_coding")
        elif (coded := self._transfer_encoding()) is not None and coded.strip().lower() != b"chunked":
            fact = f"got {ascii(coded.decode('latin-1'))[:80]}; send the body as it is"
            message = f"a transfer-encoding must be chunked and nothing else, {fact}"
            self._refuse(HTTPStatus.BAD_REQUEST, message, "invalid_http")
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, f"the request must be well-formed HTTP/1.1: {msg}", "invalid_http")

    def _refuse_head(self) -> None:
        law = f"the request's head must have at most {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} headers"
        message = f"{law}, got more; put less into the URL and the headers"
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message, "head_too_large")

    def _refuse(self, status: HTTPStatus, message: str, code: str) -> None:
        """Refuse what is coming, in its turn, and close: nobody can tell where another request would begin."""
        self._ending = b""
        has_cycle = self._is_coming and self._in_body
        if not (has_cycle and self.cycle.response_started):  # else it is answered without its body
            self._ending = self._refusal(status, message, code)
            if has_cycle:
                self._unanswered.pop()
                self.cycle.disconnected = True  # what it writes would come behind the refusal
                self.cycle.message_event.set()
                if self.pipeline and self.pipeline[0][0] is self.cycle:  # behind others: it never begins
                    self.pipeline.popleft()
        self._lingers = status is not HTTPStatus.REQUEST_TIMEOUT  # of who sends little, little is on its way
        self._is_coming = False
        self._stop_timer()
        self._end()

    def _end(self) -> None:
        """Write what is due last, once all else is answered, and close."""
        if self._ending is None or self._answering() is not None or self.transport.is_closing():
            return
        self.transport.write(self._ending)
        if self._lingers and not self._is_half_closed:
            self.transport.linger()
        else:
            self.transport.close()

    def _refusal(self, status: HTTPStatus, message: str, code: str) -> bytes:
        path = plain(self.url.partition(b"?")[0].decode("latin-1"))
        body = body_for(InvalidRequest(message, code=code), status, path, None)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def _unchunked(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """The app for a client of HTTP/1.0, which knows no chunks: an answer whose length is not known when it begins ends
    with the connection (RFC 9112, section 6.3).
    """

    async def answer(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        has_length = True

        async def send_plain(message: ASGISendEvent) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                if not has_length:
                    cycle.chunked_encoding, cycle.keep_alive = False, False
            elif message["type"] == "http.response.body" and not has_length:
                cycle.expected_content_length = len(message.get("body", b""))  # else uvicorn refuses to write it
            await send(message)

        await app(scope, receive, send_plain)

    return answer


def _announced_bytes(cycle: RequestResponseCycle) -> int:
    """How long its body is by its head; 0 where that does not say."""
    return next((int(value) for name, value in cycle.scope["headers"] if name == b"content-length"), 0)
