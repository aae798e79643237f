"""GET /openapi.json: what can be asked here, for programs that make clients or tests of it (OpenAPI 3.1)."""

import dataclasses
import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.protocol.answers import ANSWERS
from jaxinfer.protocol.batches import MOST_LISTED
from jaxinfer.protocol.responses import encode_json
from jaxinfer.protocol.schemas import request_schemas
from jaxinfer.protocol.validate import MAX_LOGPROBS
from jaxinfer.server.absent import ABSENT
from jaxinfer.server.context import HEALTH_PATHS
from jaxinfer.server.errors import is_anthropic, is_ollama
from jaxinfer.server.guard import OPEN
from jaxinfer.version import __version__

MAX_VOCAB_SIZE = 2**31  # of any model: ids are int32
_JSON, _EVENTS, _PROMETHEUS, _HTML = "application/json", "text/event-stream", "text/plain", "text/html"
_NDJSON = "application/x-ndjson"
_BYTES, _FORM = "application/octet-stream", "multipart/form-data"
_ANY_ROUTE = (400, 401, 403, 408, 431, 500)
_WITH_BODY = (404, 413, 415, 429, 501, 503)
_WHY = {
    400: "a field, the JSON or the HTTP is at fault",
    401: "no API key of this server",
    403: "a host name that this server does not answer to",
    404: "no such model, or session of yours",
    409: "something under way stands against it",
    408: "the request came too slowly",
    413: "the body is too large",
    415: "the body is not application/json in UTF-8",
    429: "the queue is full, or the key asks too often",
    431: "the head is too large",
    500: "the engine failed on this request, or a bug",
    501: "the body is in another transfer coding than chunked",
    503: "starting, draining, hung or failed, or the last steps have all failed",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. answer, body: names of schemas.    others: the answer's other media types, as text.

    more: statuses beside those of every such route.    verb: of one without a body.    error: name of its schema.
    is_form: the body is multipart/form-data.    pages: it lists part by part.    is_absent: there is no answer.
    """

    path: str
    summary: str
    answer: str = ""
    body: str = ""
    others: tuple[str, ...] = ()
    more: tuple[int, ...] = ()
    verb: str = "get"
    error: str = "Error"
    is_form: bool = False
    pages: bool = False
    is_absent: bool = False

    @property
    def method(self) -> str:
        return "post" if self.body else self.verb


def _error_of(path: str) -> str:
    return "OllamaError" if is_ollama(path) else "AnthropicError" if is_anthropic(path) else "Error"


OPERATIONS = (
    Operation(
        "/v1/chat/completions",
        "The assistant's next message",
        "ChatCompletion",
        "ChatCompletionRequest",
        (_EVENTS,),
        (409,),
    ),
    Operation("/v1/completions", "What follows prompts", "Completion", "CompletionRequest", (_EVENTS,), (409,)),
    Operation("/v1/responses", "What follows a text or messages", "Response", "ResponseRequest", (_EVENTS,), (409,)),
    Operation("/v1/responses/input_tokens", "How many tokens such a request has", "InputTokenCount", "ResponseRequest"),
    Operation("/v1/responses/{id}", "A stored response", "Response", more=(404,)),
    Operation("/v1/responses/{id}", "Forget one", "DeletedResponse", more=(404,), verb="delete"),
    Operation("/v1/responses/{id}/cancel", "End one that is under way", "Response", more=(404,), verb="post"),
    Operation(
        "/v1/messages",
        "The assistant's next message, in Anthropic's API",
        "Message",
        "MessageRequest",
        (_EVENTS,),
        (409,),
        error="AnthropicError",
    ),
    Operation(
        "/v1/messages/count_tokens",
        "How many tokens such messages have",
        "TokenCount",
        "CountTokensRequest",
        error="AnthropicError",
    ),
    Operation("/v1/embeddings", "An embedding of each input", "Embeddings", "EmbeddingRequest"),
    Operation("/score", "How alike two texts are: the cosine of their embeddings", "Scores", "ScoreRequest"),
    Operation("/v1/models", "A card per served name", "Models", more=(503,)),
    Operation("/v1/models/{id}", "One of them", "Model", more=(404, 503)),
    Operation("/v1/sessions", "Your conversations whose pages stay cached", "Sessions"),
    Operation("/v1/sessions/{id}", "One of them", "Session", more=(404,)),
    Operation("/v1/sessions/{id}", "End it and free its pages", "SessionDeleted", more=(404,), verb="delete"),
    *(
        Operation(f"/api/{name}", f"{summary}, in Ollama's API", answer, body, others, more, error="OllamaError")
        for name, summary, answer, body, others, more in (
            ("chat", "The assistant's next message", "OllamaChat", "OllamaChatRequest", (_NDJSON,), (409,)),
            ("generate", "What the model says to a prompt", "Generated", "GenerateRequest", (_NDJSON,), (409,)),
            ("embed", "An embedding of each input", "OllamaEmbeddings", "OllamaEmbedRequest", (), ()),
            ("embeddings", "The embedding of one text", "OldEmbedding", "OldEmbedRequest", (), ()),
            ("show", "What a model is and can do", "OllamaModel", "ShowRequest", (), ()),
            ("tags", "The models", "OllamaModels", "", (), (503,)),
            ("ps", "The loaded models", "OllamaModels", "", (), (503,)),
            ("version", "The version", "Version", "", (), ()),
        )
    ),
    Operation("/tokenize", "Token ids of a text or of messages", "Tokens", "TokenizeRequest"),
    Operation("/apply-template", "The text that the template makes of messages", "Prompt", "ApplyTemplateRequest"),
    Operation("/detokenize", "The text of token ids", "Prompt", "DetokenizeRequest"),
    Operation("/abort_request", "End requests by their id", "Aborted", "AbortRequest"),
    Operation("/load", "How many requests are being answered or wait, and the pages in use", "Load"),
    *(Operation(path, "Whether requests are taken", "Status", more=(503,)) for path in sorted(HEALTH_PATHS)),
    Operation("/props", "What llama.cpp's clients ask a server for", "Props", more=(503,)),
    Operation("/version", "The version", "Version"),
    Operation("/metrics", "Prometheus' text", others=(_PROMETHEUS,)),
    Operation("/openapi.json", "This document", "Document"),
    Operation("/docs", "The same as a page", others=(_HTML,)),
    Operation("/", "A chat in the browser", others=(_HTML,)),
    *(
        Operation(
            absent.path.replace(":path", ""),
            f"Not here: {absent.what}",
            more=(404,),
            verb=method.lower(),
            error=_error_of(absent.path),
            is_absent=True,
        )
        for absent in ABSENT
        for method in absent.methods
    ),
)
STORAGE = (
    Operation("/v1/files", "Put a file here", "File", "FileUpload", is_form=True),
    Operation("/v1/files", "Your files, the newest first", "Files", pages=True),
    Operation("/v1/files/{id}", "One of them", "File", more=(404,)),
    Operation("/v1/files/{id}", "Forget it", "FileDeleted", more=(404,), verb="delete"),
    Operation("/v1/files/{id}/content", "Its bytes", others=(_BYTES,), more=(404,)),
    Operation("/v1/batches", "Answer the rows of a file, after all other requests", "Batch", "BatchRequest"),
    Operation("/v1/batches", "Your batches, the newest first", "Batches", pages=True),
    Operation("/v1/batches/{id}", "How far one is", "Batch", more=(404,)),
    Operation("/v1/batches/{id}/cancel", "End one; what was answered stays", "Batch", more=(404,), verb="post"),
)
PROFILING = (
    Operation("/start_profile", "Begin a trace of the device", "Profile", more=(409, 429, 503), verb="post"),
    Operation("/stop_profile", "End it and write it", "Profile", more=(409, 429, 503), verb="post"),
)
_NAMES = re.compile(r"\{(\w+)\}")
_PAGES = [
    {"name": "after", "in": "query", "schema": {"type": "string"}},
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": MOST_LISTED}},
]
_UNKNOWN = "MODEL"  # as long as there is none
_CONVERSATION = {"messages": [{"role": "user", "content": "What is 7 plus 5?"}]}
_EXAMPLES: dict[str, dict[str, Any]] = {  # of other requests a model's name is enough
    "ChatCompletionRequest": _CONVERSATION,
    "CompletionRequest": {"prompt": "7 plus 5 is", "max_tokens": 8},
    "ResponseRequest": {"input": "What is 7 plus 5?"},
    "MessageRequest": _CONVERSATION | {"max_tokens": 32},
    "CountTokensRequest": _CONVERSATION,
    "EmbeddingRequest": {"input": ["seven plus five", "a tiny story"]},
    "ScoreRequest": {"text_1": "seven plus five", "text_2": ["five plus seven", "a tiny story"]},
    "OllamaChatRequest": _CONVERSATION,
    "GenerateRequest": {"prompt": "What is 7 plus 5?"},
    "OllamaEmbedRequest": {"input": ["seven plus five", "a tiny story"]},
    "OldEmbedRequest": {"prompt": "seven plus five"},
    "TokenizeRequest": {"prompt": "7 plus 5 is"},
    "ApplyTemplateRequest": _CONVERSATION,
    "DetokenizeRequest": {"tokens": [65, 66]},
    "AbortRequest": {"request_id": "an-id-of-yours"},
    "FileUpload": {"purpose": "batch", "file": "@rows.jsonl"},
    "BatchRequest": {"input_file_id": "file-ID", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
}


async def openapi(request: Request) -> Response:
    """Answers in every status."""
    return Response(encode_json(document_for(request)), media_type=_JSON)


def document_for(request: Request) -> dict[str, Any]:
    """This server's document; while there is no model, it does not know how wide that is."""
    llm, settings = request.app.state.llm, request.app.state.settings
    is_there = llm.status not in ("starting", "failed")
    widths = (llm.info.max_logprobs, llm.info.vocab_size) if is_there else (MAX_LOGPROBS, MAX_VOCAB_SIZE)
    operations = OPERATIONS if settings.profile_folder is None else OPERATIONS + PROFILING
    operations = operations if settings.files_folder is None else operations + STORAGE
    model = llm.info.served_names[0] if is_there else _UNKNOWN
    return openapi_document(*widths, has_keys=bool(settings.api_keys), operations=operations, model=model)


def openapi_document(
    max_logprobs: int,
    vocab_size: int,
    *,
    has_keys: bool,
    operations: tuple[Operation, ...] = OPERATIONS,
    model: str = _UNKNOWN,
) -> dict[str, Any]:
    """The whole document.    model: the name that examples have, where one is needed."""
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation, has_keys=has_keys, model=model)
    named = {name for operation in operations for name in (operation.answer, operation.body, operation.error)}
    schemas = request_schemas(max_logprobs, vocab_size) | ANSWERS
    return {
        "openapi": "3.1.0",
        "info": {"title": "jaxinfer", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in schemas.items() if name in named},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _described(operation: Operation, *, has_keys: bool, model: str) -> dict[str, Any]:
    statuses = sorted({*_ANY_ROUTE, *operation.more, *(_WITH_BODY if operation.body else ())})
    error = {_JSON: {"schema": _reference(operation.error)}}
    kinds: dict[str, Any] = {kind: {"schema": {"type": "string"}} for kind in operation.others}
    if operation.answer:
        kinds = {_JSON: {"schema": _reference(operation.answer)}} | kinds
    answered = {} if operation.is_absent else {"200": {"description": "the answer", "content": kinds}}
    refused = {str(status): {"description": _WHY[status], "content": error} for status in statuses}
    described: dict[str, Any] = {"summary": operation.summary, "responses": answered | refused}
    if operation.body:
        example = _EXAMPLES.get(operation.body, {"model": model})
        content = {"schema": _reference(operation.body), "example": example}
        media = _FORM if operation.is_form else _JSON
        described["requestBody"] = {"required": True, "content": {media: content}}
    if names := _NAMES.findall(operation.path):
        text = {"in": "path", "required": True, "schema": {"type": "string"}}
        described["parameters"] = [{"name": name} | text for name in names]
    if operation.pages:
        described["parameters"] = _PAGES
    if has_keys and operation.path not in OPEN:
        described["security"] = [{"key": []}, {"x-api-key": []}]
    return described


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
