"""Reading a request's body: JSON by its content type, within the limit, parsed off the event loop when it is large; and
what becomes of the fields that nobody reads.
"""

import asyncio
from typing import Any

from python_multipart.multipart import parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from jaxinfer.protocol.body import LARGE_BYTES, parse_body
from jaxinfer.protocol.fields import read_priority, refuse_unknown, warning_text
from jaxinfer.protocol.many_ids import refused_as_prompts
from jaxinfer.server.errors import is_ollama
from jaxinfer.server.large_bodies import Held

# a browser sends the first with each POST (Fetch standard, section 3.2), and the second too where it trusts the address
OF_BROWSERS = frozenset({"origin", "sec-fetch-site"})
WARNINGS = "x-jaxinfer-warnings"


async def read_json(request: Request, max_bytes: int) -> dict[str, Any]:
    """The body's JSON object. Raises HTTPException 413 or 415, Overloaded, or InvalidRequest."""
    _check_headers(request)
    raw = await _read(request, max_bytes)
    if len(raw) > LARGE_BYTES:
        async with request.app.state.parsing:  # one at a time: many numbers hold the interpreter for 30 ms in a row
            return await asyncio.to_thread(parse_body, raw)
    return parse_body(raw)


async def read_prompt(request: Request) -> dict[str, Any]:
    """The same of a route that takes prompts: more token ids or messages than a body may hold are one that is too
    long.
    """
    with refused_as_prompts(request.app.state.llm.info.max_model_len):
        return await read_json(request, request.app.state.settings.max_body_bytes)


async def read_ranked(request: Request) -> dict[str, Any]:
    """The same of a route that computes, its priority being the one of the header if there is one, as vLLM has it."""
    body = await read_prompt(request)
    header = request.headers.get("x-vllm-priority")
    return body if header is None else {**body, "priority": read_priority(header)}


def unread(request: Request, names: tuple[str, ...]) -> dict[str, str]:
    """The header that tells of the fields nobody reads. Raises InvalidRequest where the server is strict."""
    if request.app.state.settings.strict:
        refuse_unknown(names)
    warning = warning_text(names)
    return {WARNINGS: warning} if warning else {}


def warned(warnings: tuple[str, ...], headers: dict[str, str]) -> dict[str, str]:
    """That header with what of a request is not carried out as it was asked for."""
    if not warnings:
        return {}
    told = [headers[WARNINGS]] if WARNINGS in headers else []
    return {WARNINGS: "; ".join([*told, *(ascii(warning)[1:-1] for warning in warnings)])[:2000]}


def _check_headers(request: Request) -> None:
    kind, _ = check_content(request)
    if kind != b"application/json" and not _may_leave_kind_out(request):
        content_type = request.headers.get("content-type")
        given = ascii(content_type[:80]) if content_type else "none"
        raise HTTPException(415, f"the content-type must be application/json, got {given}; set that header")


def _may_leave_kind_out(request: Request) -> bool:
    """Whether the body is JSON whatever its content type: Ollama's documentation calls /api with curl, which names that
    of a form. Not from a browser: a page of any site may send a form here, and JSON only after it has been allowed to.
    """
    return is_ollama(request.scope["path"]) and OF_BROWSERS.isdisjoint(request.headers)


def check_content(request: Request) -> tuple[bytes, dict[bytes, bytes]]:
    """The content type and its parameters. Raises HTTPException 415 for a body that is not UTF-8 or is encoded."""
    kinds = request.headers.getlist("content-type")
    if len(kinds) > 1 or any("charset*" in kind.lower() for kind in kinds):
        given = ascii(", ".join(kinds))[:80]
        raise HTTPException(415, f"the content-type must be one, its charset as it is, got {given}; send one")
    kind, options = parse_options_header(kinds[0] if kinds else "")
    charset = options.get(b"charset", b"utf-8")
    if charset.lower() not in (b"utf-8", b"utf8"):
        given = ascii(charset.decode("latin-1"))[:80]
        raise HTTPException(415, f"the body's charset must be utf-8, got {given}; leave it out of the content-type")
    encoding = ", ".join(request.headers.getlist("content-encoding")).strip()
    if encoding.lower() not in ("", "identity"):
        raise HTTPException(415, f"the body must be sent as it is, got content-encoding {ascii(encoding[:80])}")
    return kind, options


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise _too_large(max_bytes, f"{announced[:20]} bytes")
    held = Held(request.app.state.large_bodies, request.state.tenant.name)
    request.state.held_body = held  # until it is queued, or the request ends
    chunk, is_last = await _next_chunk(request)
    if is_last and len(chunk) <= min(LARGE_BYTES, max_bytes):
        return chunk  # as most come: nothing of it could give way
    chunks, size = [chunk], len(chunk)
    async with held.reading():
        while size <= max_bytes:
            held.grow(size)
            if is_last:
                return b"".join(chunks)
            chunk, is_last = await _next_chunk(request)
            chunks.append(chunk)
            size += len(chunk)
    raise _too_large(max_bytes, "more")


async def _next_chunk(request: Request) -> tuple[bytes, bool]:
    """What comes next of the body, and whether it is its end."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), not message.get("more_body", False)


def _too_large(max_bytes: int, given: str) -> HTTPException:
    # close: the rest of the body is not worth reading
    message = f"the body must have at most {max_bytes} bytes, got {given}; send less at a time"
    return HTTPException(413, message, {"connection": "close"})
