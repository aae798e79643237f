"""The outermost layer of every request: its id, and the answer when something failed that should not have.

Plain ASGI: Starlette's BaseHTTPMiddleware would put a task and a queue between each frame and the socket.
"""

import asyncio
import logging
import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxinfer.errors import ApiError
from jaxinfer.protocol.responses import error_body

logger = logging.getLogger("jaxinfer.server")

_USABLE_ID = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,128}")


class RequestContext:
    """Echoes x-request-id (ours when the client sent none that can be used) and turns a bug into a 500 with that id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        header = (b"x-request-id", request_id.encode())
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except asyncio.CancelledError:
            # only the server's own end cancels a request, and this is the top of its task: uvicorn closes the socket
            logger.warning("request %s was cut off, the server ends", request_id)
        except Exception:
            # the path was decoded from %xx: ascii() keeps line ends and escapes out of the log
            logger.exception("request %s to %s failed", request_id, ascii(scope["path"])[:200])
            if started:
                raise
            await _send_internal_error(send_with_id, request_id)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _USABLE_ID.fullmatch(value):
            return str(value, "ascii")
    return uuid.uuid4().hex


async def _send_internal_error(send: Send, request_id: str) -> None:
    body = error_body(internal_error(request_id))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def internal_error(request_id: str) -> ApiError:
    """What a client is told of a bug: where its operator can look, and nothing of our inside."""
    return ApiError(f"the server failed on this request; its log names the cause under {request_id}", code="internal")
