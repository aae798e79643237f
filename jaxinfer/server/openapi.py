"""GET /openapi.json: what can be asked here, for programs that make clients or tests of it (OpenAPI 3.1)."""

import dataclasses
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.protocol.responses import encode_json
from jaxinfer.protocol.schemas import request_schemas
from jaxinfer.protocol.validate import MAX_LOGPROBS
from jaxinfer.server.guard import OPEN
from jaxinfer.version import __version__

_JSON, _EVENTS, _PROMETHEUS = "application/json", "text/event-stream", "text/plain"
_ANY_ROUTE = (400, 401, 403, 408, 431, 500)
_WITH_BODY = (404, 413, 415, 429, 503)
_WHY = {
    400: "a field, the JSON or the HTTP is at fault",
    401: "no API key of this server",
    403: "a host name that this server does not answer to",
    404: "no such model",
    409: "something under way stands against it",
    408: "the request came too slowly",
    413: "the body is too large",
    415: "the body is not application/json",
    429: "the queue is full, or the key asks too often",
    431: "the head is too large",
    500: "the engine failed on this request, or a bug",
    503: "starting, draining, hung or failed",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. body: the name of its schema.    more: statuses beside those of every such route.

    changes: it is a POST without a body.
    """

    path: str
    summary: str
    body: str = ""
    answers: tuple[str, ...] = (_JSON,)
    more: tuple[int, ...] = ()
    changes: bool = False

    @property
    def method(self) -> str:
        return "post" if self.body or self.changes else "get"


OPERATIONS = (
    Operation("/v1/chat/completions", "The assistant's next message", "ChatCompletionRequest", (_JSON, _EVENTS)),
    Operation("/v1/completions", "What follows prompts", "CompletionRequest", (_JSON, _EVENTS)),
    Operation("/v1/models", "A card per served name", more=(503,)),
    Operation("/v1/models/{id}", "One of them", more=(404, 503)),
    Operation("/tokenize", "Token ids of a text or of messages", "TokenizeRequest"),
    Operation("/apply-template", "The text that the template makes of messages", "ApplyTemplateRequest"),
    Operation("/detokenize", "The text of token ids", "DetokenizeRequest"),
    Operation("/abort_request", "End requests by their id", "AbortRequest"),
    Operation("/load", "How many requests are being answered or wait"),
    *(Operation(path, "Whether requests are taken", more=(503,)) for path in sorted(OPEN)),
    Operation("/version", "The version"),
    Operation("/metrics", "Prometheus' text", answers=(_PROMETHEUS,)),
    Operation("/openapi.json", "This"),
)
PROFILING = (
    Operation("/start_profile", "Begin a trace of the device", more=(409, 429, 503), changes=True),
    Operation("/stop_profile", "End it and write it", more=(409, 429, 503), changes=True),
)
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


async def openapi(request: Request) -> Response:
    """Answers in every status; what only a model knows is not in it."""
    llm, settings = request.app.state.llm, request.app.state.settings
    is_there = llm.status not in ("starting", "failed")
    operations = OPERATIONS if settings.profile_folder is None else OPERATIONS + PROFILING
    most = llm.info.max_logprobs if is_there else MAX_LOGPROBS
    document = openapi_document(most, has_keys=bool(settings.api_keys), operations=operations)
    return Response(encode_json(document), media_type=_JSON)


def openapi_document(
    max_logprobs: int, *, has_keys: bool, operations: tuple[Operation, ...] = OPERATIONS
) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation, has_keys=has_keys)
    return {
        "openapi": "3.1.0",
        "info": {"title": "jaxinfer", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**request_schemas(max_logprobs), "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation, *, has_keys: bool) -> dict[str, Any]:
    statuses = sorted({*_ANY_ROUTE, *operation.more, *(_WITH_BODY if operation.body else ())})
    error = {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    kinds = {kind: {"schema": {"type": "object" if kind == _JSON else "string"}} for kind in operation.answers}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {
            "200": {"description": "the answer", "content": kinds},
            **{str(status): {"description": _WHY[status], "content": error} for status in statuses},
        },
    }
    if operation.body:
        schema = {"$ref": f"#/components/schemas/{operation.body}"}
        described["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema}}}
    if "{id}" in operation.path:
        described["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    if has_keys and operation.path not in OPEN:
        described["security"] = [{"key": []}]
    return described
