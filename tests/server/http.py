"""Ways to ask an app: in process, and over a loopback port through uvicorn, where framing and leaving matter."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette

from jaxinfer.server.app import create_app
from jaxinfer.server.serve import bind
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.wire import BoundedProtocol
from tests.server.fakes import FakeLLM
from tests.support.attempts import Stopwatch

USER = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
SCORE = "/score"
LEAKS = ("Traceback", 'File "', "/home", "site-packages", " at 0x", "jaxinfer.")  # of our inside, in no error (A13)


def ask(
    llm: FakeLLM, method: str, path: str, settings: ServerSettings | None = None, **request: Any
) -> httpx2.Response:
    """One request to a server over `llm`, in process."""
    return ask_app(create_app(llm, settings), method, path, **request)


def ask_app(app: Starlette, method: str, path: str, **request: Any) -> httpx2.Response:
    """One request to an app, in process."""

    async def send() -> httpx2.Response:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **request)

    return asyncio.run(send())


def post(llm: FakeLLM, path: str, body: Any, settings: ServerSettings | None = None, **headers: str) -> httpx2.Response:
    """POST a JSON body; header names are written with _ for -."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"content-type": "application/json", **names}
    return ask(llm, "POST", path, settings, content=content, headers=sent)


def chat(llm: FakeLLM, **fields: Any) -> httpx2.Response:
    return post(llm, CHAT, {"messages": USER, **fields})


def error_of(response: httpx2.Response, sent: str = "") -> dict[str, Any]:
    """The error object, after checking that it tells of nothing of our inside and has OpenAI's shape, below
    /v1/messages Anthropic's, or below /api Ollama's.

    sent: what the client itself may have written of that.
    """
    assert response.headers["content-type"] == "application/json"
    assert not any(leak in response.text and leak not in sent for leak in LEAKS), response.text
    body = response.json()
    if f"{response.request.url.path}/".startswith(f"{MESSAGES}/"):
        error = body.pop("error")
        assert body == {"type": "error", "request_id": response.headers["request-id"]}
        assert error.keys() == {"type", "message"} and error["message"]
        return error | {"param": None, "code": None}
    assert body.keys() == {"error"}
    if response.request.url.path.startswith("/api/"):
        assert isinstance(body["error"], str) and body["error"]
        return {"message": body["error"], "type": None, "param": None, "code": None}
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str)
    assert isinstance(error["param"], str | None) and isinstance(error["code"], str | None)
    return error


def events(text: str) -> list[Any]:
    """The JSON of each data frame, without the [DONE] that must end the stream. Comments are left out."""
    frames = [frame for frame in text.split("\n\n") if frame and not frame.startswith(":")]
    assert text.endswith("data: [DONE]\n\n")
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]


Step = Callable[[], Awaitable[None]]


def named_events(text: str) -> list[dict[str, Any]]:
    """The object of each event of the APIs that name them, pings left out."""
    frames = [frame for frame in text.split("\n\n") if frame and not frame.startswith((":", "event: ping\n"))]
    found = []
    for frame in frames:
        event, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert event == f"event: {found[-1]['type']}"
    return found


class _Server(uvicorn.Server):
    """uvicorn around something that must start and close in the server's own event loop."""

    def __init__(self, config: uvicorn.Config, begin: Step | None, close: Step | None) -> None:
        super().__init__(config)
        self._begin, self._close = begin, close

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._begin is not None:
            await self._begin()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self._close is not None:
            await self._close()


@contextlib.contextmanager
def live(
    app: Starlette,
    begin: Step | None = None,
    close: Step | None = None,
    protocol: type[BoundedProtocol] = BoundedProtocol,
    pem: Path | None = None,
) -> Iterator[int]:
    """The app behind uvicorn on a loopback port; yields the port. begin and close run in the server's event loop.

    pem: a certificate with its key, for HTTPS.
    """
    listener = bind("127.0.0.1", 0)
    config = uvicorn.Config(
        app, http=protocol, loop="uvloop", lifespan="off", ws="none", log_config=None, ssl_certfile=pem
    )
    server = _Server(config, begin, close)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), timeout_s=120)
        assert server.started
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive()


def raw_request(port: int, path: str, body: Any, *, method: str = "POST", **headers: str) -> socket.socket:
    """Send one request over a bare socket, and hand over the socket."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"host": "test", "content_type": "application/json", "content_length": str(len(content)), **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in given.items())]
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)
    return connection


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """What comes, up to and including `end`; all of it when that is empty."""
    received = b""
    while not end or not received.endswith(end):
        if not (chunk := connection.recv(65536)):
            assert not end, f"closed after {received!r}"
            break
        received += chunk
    return received


def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Fail unless the condition holds in time, by a stopwatch that stands while processes wait for a processor."""
    watch = Stopwatch()
    while not condition():
        assert watch.seconds() < timeout_s, "it did not happen in time"
        time.sleep(0.005)
