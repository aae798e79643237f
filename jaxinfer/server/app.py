"""The HTTP surface: which path runs which handler, and which error becomes which answer."""

import asyncio
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from jaxinfer.errors import ApiError
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.server import about, errors, ollama
from jaxinfer.server.absent import ABSENT
from jaxinfer.server.anthropic import count_tokens, create_message
from jaxinfer.server.batches import batches, cancel_batch, one_batch
from jaxinfer.server.chat_page import chat_page
from jaxinfer.server.completions import chat_completions, completions
from jaxinfer.server.context import HEALTH_PATHS, RequestContext
from jaxinfer.server.docs import docs
from jaxinfer.server.embeddings import embeddings, score
from jaxinfer.server.files import file_content, files, one_file
from jaxinfer.server.guard import Guard
from jaxinfer.server.http_counts import HttpCounts
from jaxinfer.server.large_bodies import LargeBodies
from jaxinfer.server.open_responses import cancel_response, count_input_tokens, create_response, stored_response
from jaxinfer.server.openapi import openapi
from jaxinfer.server.profiling import Profiling, start_profile, stop_profile
from jaxinfer.server.response_store import ResponseStore
from jaxinfer.server.running import Running, abort_request, load
from jaxinfer.server.sessions import Sessions, list_sessions, one_session
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.storage import Storage, open_storage
from jaxinfer.server.tenants import EVERYBODY, Tenants
from jaxinfer.server.tokenize import apply_template, detokenize, tokenize

if TYPE_CHECKING:
    from jaxinfer.server.tracing import Tracer

ROUTES = [
    Route("/", chat_page),
    Route("/v1/models", about.list_models),
    Route("/v1/models/{id:path}", about.get_model),
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/embeddings", embeddings, methods=["POST"]),
    Route("/score", score, methods=["POST"]),
    Route("/v1/sessions", list_sessions),
    Route("/v1/sessions/{id}", one_session, methods=["GET", "DELETE"]),
    Route("/v1/responses", create_response, methods=["POST"]),
    Route("/v1/responses/input_tokens", count_input_tokens, methods=["POST"]),
    Route("/v1/responses/{id}", stored_response, methods=["GET", "DELETE"]),
    Route("/v1/responses/{id}/cancel", cancel_response, methods=["POST"]),
    Route("/v1/messages", create_message, methods=["POST"]),
    Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
    Route("/api/tags", ollama.ollama_tags),
    Route("/api/ps", ollama.ollama_ps),
    Route("/api/version", ollama.ollama_version),
    Route("/api/show", ollama.ollama_show, methods=["POST"]),
    Route("/api/chat", ollama.ollama_chat, methods=["POST"]),
    Route("/api/generate", ollama.ollama_generate, methods=["POST"]),
    Route("/api/embed", ollama.ollama_embed, methods=["POST"]),
    Route("/api/embeddings", ollama.ollama_embeddings, methods=["POST"]),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/apply-template", apply_template, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
    *(Route(path, about.health) for path in ("/health", "/healthz", "/ping")),
    *(Route(path, about.ready) for path in ("/ready", "/readyz")),
    *(Route(path, about.live) for path in ("/live", "/livez")),
    Route("/abort_request", abort_request, methods=["POST"]),
    Route("/load", load),
    Route("/props", about.props),
    Route("/version", about.version),
    Route("/metrics", about.metrics),
    Route("/openapi.json", openapi),
    Route("/docs", docs),
    *(absent.route for absent in ABSENT),
]
PROBES = HEALTH_PATHS | {"/load", "/version", "/metrics"}
STORAGE_ROUTES = [
    Route("/v1/files", files, methods=["GET", "POST"]),
    Route("/v1/files/{id}", one_file, methods=["GET", "DELETE"]),
    Route("/v1/files/{id}/content", file_content),
    Route("/v1/batches", batches, methods=["GET", "POST"]),
    Route("/v1/batches/{id}", one_batch),
    Route("/v1/batches/{id}/cancel", cancel_batch, methods=["POST"]),
]
PROFILE_ROUTES = [
    Route("/start_profile", start_profile, methods=["POST"]),
    Route("/stop_profile", stop_profile, methods=["POST"]),
]


def create_app(llm: AsyncLLM, settings: ServerSettings | None = None, tracer: "Tracer | None" = None) -> Starlette:
    """The server of one model. It may be served while `llm` is still starting: it then answers 503.

    tracer: OpenTelemetry's, for a span of each request (tracing.exporting). Batches are carried out while somebody runs
    `app.state.storage.batches.run()`, once the model is there. Raises ConfigError or BatchError for a folder of files
    that cannot be used.
    """
    settings = settings or ServerSettings()
    tenants = Tenants(settings.api_keys) if settings.api_keys else None
    routes = ROUTES if settings.profile_folder is None else [*ROUTES, *PROFILE_ROUTES]
    routes = routes if settings.files_folder is None else [*routes, *STORAGE_ROUTES]
    http, running = HttpCounts([route.path for route in routes], PROBES), Running()
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(RequestContext, running, http, settings.log_requests),
            *_tracing(tracer, http),
            Middleware(Guard, settings, tenants),
        ],
        exception_handlers={
            ApiError: errors.render_api_error,
            HTTPException: errors.render_http_error,
            ClientDisconnect: errors.render_disconnect,
        },
    )
    app.router.redirect_slashes = False  # paths are plain already, and a 307 is no answer to an API client
    app.state.llm = llm
    app.state.settings = settings
    app.state.running = running
    app.state.sessions = Sessions(llm, settings.max_sessions_per_key, settings.max_session_idle_s)
    app.state.responses = ResponseStore(
        settings.max_stored_responses, settings.max_stored_bytes, settings.max_stored_age_s
    )
    app.state.storage = _storage(llm, settings, tenants)
    app.state.http = http
    if settings.profile_folder is not None:
        app.state.profiling = Profiling(llm, settings.profile_folder)
    app.state.parsing = asyncio.Lock()
    app.state.large_bodies = LargeBodies()
    return app


def _storage(llm: AsyncLLM, settings: ServerSettings, tenants: Tenants | None) -> Storage | None:
    if settings.files_folder is None:
        return None
    return open_storage(settings.files_folder, settings.kept, llm, tenants.all if tenants else (EVERYBODY,))


def _tracing(tracer: "Tracer | None", http: HttpCounts) -> list[Middleware]:
    if tracer is None:
        return []
    from jaxinfer.server.tracing import Tracing

    return [Middleware(Tracing, tracer, http)]
