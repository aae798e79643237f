"""A streamed answer: server-sent events, or lines of JSON. It begins at the first output, so that early failures keep
their status.
"""

import asyncio
import contextlib
import logging
from contextlib import aclosing

from starlette.types import Receive, Scope, Send

from jaxinfer.errors import ApiError
from jaxinfer.llm.generation import Generation
from jaxinfer.protocol.forms import Form
from jaxinfer.server.context import internal_error
from jaxinfer.server.watch import disconnected, stop

logger = logging.getLogger("jaxinfer.server")

HEADERS = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect frames otherwise
]


class EventStream:
    """One streamed answer, as an ASGI response. Invariant: the generation is closed when __call__ ends, however."""

    def __init__(
        self,
        generation: Generation,
        form: Form,
        headers: dict[str, str],
        ping_interval_s: float,
    ) -> None:
        self._generation = generation
        self._events = form.events(generation)
        own = [(b"content-type", self._events.content_type)]
        self._headers = own + HEADERS + [(name.encode(), value.encode()) for name, value in headers.items()]
        self._ping_interval_s = ping_interval_s
        self._is_begun = self._is_ended = False
        self._sending = asyncio.Lock()  # a ping may fall due while a frame waits for a slow reader
        self._ping_now = asyncio.Event()
        self._last_sent_s = asyncio.get_running_loop().time()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["ping"] = self._ping_now.set  # for a connection that may have lost its client
        tasks = (
            asyncio.create_task(self._send_answer(send, scope["state"]["request_id"])),
            asyncio.create_task(disconnected(receive)),
            asyncio.create_task(self._ping(send)),
        )
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                await stop(*tasks)
            finally:
                await self._generation.close()
        if not tasks[0].cancelled():
            tasks[0].result()  # a failure before the first byte becomes a plain HTTP answer

    async def _send_answer(self, send: Send, request_id: str) -> None:
        try:
            await self._send_pieces(send)
            last = self._events.end()
        except Exception as error:
            if not self._is_begun:
                raise
            if not isinstance(error, ApiError):
                logger.exception("stream %s failed", request_id, extra={"request_id": request_id})
                error = internal_error(request_id)
            last = self._events.failed(error)
        await self._send(send, last, is_last=True)

    async def _send_pieces(self, send: Send) -> None:
        async with aclosing(self._generation.deltas()) as deltas:
            async for index, delta in deltas:
                if frames := self._events.piece(index, delta):
                    await self._send(send, frames)

    async def _send(self, send: Send, frames: bytes, *, is_last: bool = False) -> None:
        async with self._sending:
            if self._is_ended:
                return
            if not self._is_begun:
                self._is_begun = True
                await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            self._is_ended = is_last
            self._last_sent_s = asyncio.get_running_loop().time()
            await send({"type": "http.response.body", "body": frames, "more_body": not is_last})

    async def _ping(self, send: Send) -> None:
        """A frame in each silence, lest a proxy takes a long prompt for a dead connection, and when it is asked for.
        Never returns.
        """
        loop = asyncio.get_running_loop()
        while True:
            silent_s = loop.time() - self._last_sent_s
            if silent_s >= self._ping_interval_s or self._ping_now.is_set():
                self._ping_now.clear()
                await self._send(send, self._events.ping)
                silent_s = 0.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._ping_interval_s - silent_s):
                    await self._ping_now.wait()
