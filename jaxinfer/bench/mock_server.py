"""A server that costs next to nothing, to learn what a client can read: `python -m jaxinfer.bench.mock_server`.

Every stream gets one pre-rendered frame a round, in rounds over all open streams as fast as they go, each frame in a
write of its own as a real server sends it, and with logprobs where the request asks for some. Says its port on a line,
ends with its standard input. No jax.
"""

import asyncio
import functools
from typing import cast

import httptools
import msgspec
import uvloop

from jaxinfer import children


class _Body(msgspec.Struct):
    max_tokens: int
    logprobs: int | None = None


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(frame: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(frame), frame)


def frame(**fields: object) -> bytes:
    common = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1800000000, "model": "mock"}
    return b"data: " + msgspec.json.encode(common | fields) + b"\n\n"


@functools.cache
def token(num_logprobs: int | None) -> bytes:
    """The frame of a token with so many of the most likely ones; None: without logprobs."""
    logprobs = None
    if num_logprobs is not None:
        top = {f" word{rank}": -1.25 - rank for rank in range(num_logprobs)}
        logprobs = {"text_offset": [100], "token_logprobs": [-1.25], "tokens": [" word0"], "top_logprobs": [top]}
    return chunk(frame(choices=[{"index": 0, "text": " word", "logprobs": logprobs, "finish_reason": None}]))


def last(num_tokens: int) -> bytes:
    usage = {"prompt_tokens": 1, "completion_tokens": num_tokens, "total_tokens": num_tokens + 1}
    return chunk(frame(choices=[], usage=usage)) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class MockStream(asyncio.Protocol):
    """One connection. `open`: the connections that are owed frames, and how many."""

    def __init__(self, open_streams: "dict[MockStream, int]", wake: asyncio.Event) -> None:
        self._open, self._wake = open_streams, wake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._open.pop(self, None)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body = msgspec.json.decode(self._body, type=_Body)
        self.num_tokens, self.token = body.max_tokens, token(body.logprobs)
        self._body = b""
        self.transport.write(HEAD)
        self._open[self] = self.num_tokens
        self._wake.set()


async def serve() -> None:
    open_streams: dict[MockStream, int] = {}
    wake = asyncio.Event()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: MockStream(open_streams, wake), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    while True:
        if not open_streams:
            wake.clear()
            await wake.wait()
        for stream, remaining in list(open_streams.items()):
            stream.transport.write(stream.token)
            if remaining > 1:
                open_streams[stream] = remaining - 1
            else:
                del open_streams[stream]
                stream.transport.write(last(stream.num_tokens))
        await asyncio.sleep(0)


if __name__ == "__main__":
    children.end_with_parent()
    uvloop.run(serve())
