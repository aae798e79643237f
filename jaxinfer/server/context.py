"""The outermost layer of every request: its id, and the answer when something failed that should not have.

Plain ASGI: Starlette's BaseHTTPMiddleware would put a task and a queue between each frame and the socket.
"""

import asyncio
import logging
import re
import time
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxinfer.errors import ApiError, Unavailable
from jaxinfer.llm.turns import Turns
from jaxinfer.server.errors import body_for, error_response, is_anthropic
from jaxinfer.server.http_counts import GONE, HttpCounts
from jaxinfer.server.paths import make_plain
from jaxinfer.server.running import Running

logger = logging.getLogger("jaxinfer.server")

HEALTH_PATHS = frozenset({"/health", "/healthz", "/ping", "/ready", "/readyz", "/live", "/livez"})
BEGUN_AT_ONCE = 8  # in a round of the event loop: about two milliseconds; hundreds may come at the same moment
_USABLE_ID = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,128}")


class RequestContext:
    """Echoes x-request-id (ours when the client sent none that can be used), turns a bug into a 500 with that id, the
    server's end into a 503, and counts every answer. Whatever is below it sees the plain path.

    running: knows each request until its answer begins.
    log_requests: a line in the log for each request that has ended, but for health checks that went well.
    """

    def __init__(self, app: ASGIApp, running: Running, http: HttpCounts, log_requests: bool = False) -> None:
        self.app = app
        self._unanswered = running.unanswered
        self._http = http
        self._log_requests = log_requests
        self._turns = Turns(BEGUN_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        make_plain(scope)
        request_id = _request_id(scope)
        begun_s = time.monotonic()
        scope["state"] = {**scope.get("state", {}), "request_id": request_id, "begun_s": begun_s}
        headers = [(b"x-request-id", request_id.encode())]
        if is_anthropic(scope["path"]):
            headers.append((b"request-id", request_id.encode()))  # the name that Anthropic's clients look for
        status, is_whole = 0, False  # until an answer begins, until it ends
        task = asyncio.current_task()
        assert task is not None
        self._unanswered[task] = scope["state"]

        async def send_with_id(message: Message) -> None:
            nonlocal status, is_whole
            if message["type"] == "http.response.start":
                status = message["status"]
                self._unanswered.pop(task, None)
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            elif not message.get("more_body", False):
                is_whole = True
            await send(message)

        async def receive_or_note() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not is_whole:
                scope["state"].setdefault("gone", GONE)
            return message

        try:
            if scope["method"] == "POST":
                await self._turns.wait()
            await self.app(scope, receive_or_note, send_with_id)
        except asyncio.CancelledError:
            # only the server's own end cancels a request, and this is the top of its task: uvicorn closes the socket
            logger.warning("request %s was cut off, the server ends", request_id, extra={"request_id": request_id})
            if not status:
                await error_response(cut_off(), scope)(scope, receive, send_with_id)
        except Exception:
            # the path was decoded from %xx: ascii() keeps line ends and escapes out of the log
            path = ascii(scope["path"])[:200]
            logger.exception("request %s to %s failed", request_id, path, extra={"request_id": request_id})
            if status:
                raise
            await _send_internal_error(send_with_id, scope["path"], request_id)
        finally:
            self._unanswered.pop(task, None)
            if "held_body" in scope["state"]:
                scope["state"]["held_body"].release()
            if "gone" in scope["state"]:
                self._http.abort(scope["state"]["gone"])
            seconds = time.monotonic() - begun_s
            self._http.add(scope["path"], scope["method"], status, seconds)
            if self._log_requests and not (status == 200 and scope["path"] in HEALTH_PATHS):
                _log_request(scope, status, seconds)


def _log_request(scope: Scope, status: int, seconds: float) -> None:
    """status: 0 when the client left before an answer began. The query may hold a secret, so it is left out."""
    state = scope["state"]
    fields = {
        "request_id": state["request_id"],
        "tenant": state["tenant"].name if "tenant" in state else "",
        "method": ascii(scope["method"])[1:-1][:20],
        "path": ascii(scope["path"])[1:-1][:200],
        "status": status,
        "seconds": round(seconds, 6),
    }
    logger.info("%(method)s %(path)s %(status)d in %(seconds).3f s, request %(request_id)s", fields, extra=fields)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _USABLE_ID.fullmatch(value):
            return str(value, "ascii")
    return uuid.uuid4().hex


async def _send_internal_error(send: Send, path: str, request_id: str) -> None:
    body = body_for(internal_error(request_id), 500, path, request_id)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def internal_error(request_id: str) -> ApiError:
    """What a client is told of a bug: where its operator can look, and nothing of our inside."""
    return ApiError(f"the server failed on this request; its log names the cause under {request_id}", code="internal")


def cut_off() -> Unavailable:
    """What a client is told whose answer had not begun when the server ended."""
    return Unavailable("the server stops before it could answer this request; send it to another", code="draining")
