"""Every answer that is not a 2xx has OpenAI's error object as its body, or below /v1/messages Anthropic's, below /api
Ollama's; which status means what is decided here.
"""

import math
import re

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from jaxinfer.errors import ApiError, InvalidRequest, Overloaded, Unauthorized, Unavailable
from jaxinfer.llm.admission import RETRY_BUSY_S, RETRY_STARTING_S
from jaxinfer.protocol.anthropic_message import anthropic_error_body
from jaxinfer.protocol.ollama_answers import ollama_error_body
from jaxinfer.protocol.responses import error_body
from jaxinfer.server.absent import ABSENT

_KEPT = re.compile(r"/v1/(files|batches)(/|$)")
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large", 415: "unsupported_media_type"}


def error_response(error: ApiError, scope: Scope) -> Response:
    """An ApiError as a response; a 429 or 503 always says when to come back, a 401 what is asked for."""
    headers = {}
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, Overloaded | Unavailable):
        usual_s = RETRY_BUSY_S if isinstance(error, Overloaded) else RETRY_STARTING_S
        headers["retry-after"] = str(max(1, math.ceil(usual_s if error.retry_after_s is None else error.retry_after_s)))
    body = body_for(error, error.status, scope["path"], scope["state"]["request_id"])
    return Response(body, error.status, headers, "application/json")


def body_for(error: ApiError, status: int, path: str, request_id: str | None) -> bytes:
    """The error object in the form of the API that the path belongs to."""
    if is_ollama(path):
        return ollama_error_body(error)
    return anthropic_error_body(error, status, request_id) if is_anthropic(path) else error_body(error)


def is_anthropic(path: str) -> bool:
    """Whether its clients expect what Anthropic's answers look like."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def is_ollama(path: str) -> bool:
    """Whether its clients expect what Ollama's answers look like."""
    return path.startswith("/api/")


async def render_api_error(request: Request, error: Exception) -> Response:
    """Starlette's hook for what handlers raise on purpose."""
    assert isinstance(error, ApiError)
    return error_response(error, request.scope)


async def render_http_error(request: Request, error: Exception) -> Response:
    """Starlette's hook for its own 404 and 405, and for our 413 and 415."""
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code == 404:
        message = f"there is no {ascii(request.url.path)[:200]} here; {_where_to_look(request)}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"this route takes {allowed}, got {ascii(request.method)[1:-1][:20]}; ask it with that"
    code = _HTTP_CODES.get(error.status_code)
    if error.status_code == 404 and request.app.state.storage is None and _KEPT.match(request.scope["path"]):
        message = "files and batches need a folder to be kept in, this server has none; start it with --files-dir"
        code = "files_disabled"
    fault = InvalidRequest(message, code=code)
    body = body_for(fault, error.status_code, request.scope["path"], request.state.request_id)
    return Response(body, error.status_code, error.headers, "application/json")


def _where_to_look(request: Request) -> str:
    """What to do about a path that is no route."""
    if is_ollama(request.url.path):
        absent = {each.path for each in ABSENT}
        *routes, last = [each.path for each in request.app.routes if is_ollama(each.path) and each.path not in absent]
        return f"the routes of Ollama's API here are {', '.join(routes)} and {last}"
    is_of_api = request.url.path.startswith("/v1/")
    return "GET /openapi.json lists the routes" if is_of_api else "the API's routes begin with /v1 or /api"


async def render_disconnect(request: Request, error: Exception) -> Response:
    """The client left while sending its body: nobody reads this."""
    return Response(status_code=499)


def unavailable(status: str, *, serve_early: bool = False) -> Unavailable | None:
    """Why the engine takes no requests in this status, or None when it does."""
    if status == "failed":
        return Unavailable("the engine has failed and cannot answer; see the server's log", code="failed")
    if status == "draining":
        return Unavailable("the server is shutting down and takes no new requests; ask another", code="draining")
    if status == "ready" or (status == "serving" and serve_early):
        return None
    return Unavailable("the model is still loading; try again, or wait for GET /ready to answer 200", code="starting")
