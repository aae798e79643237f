"""What the server says about itself: /v1/models, /health, /ready, /live, /props, /version, /metrics."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.errors import Unavailable
from jaxinfer.llm.asked import served_model
from jaxinfer.llm.types import ModelInfo
from jaxinfer.protocol.responses import encode_json
from jaxinfer.server.errors import unavailable
from jaxinfer.server.metrics import Kept, render_metrics
from jaxinfer.server.paths import plain
from jaxinfer.version import __version__

DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")  # of GenerationDefaults


async def list_models(request: Request) -> Response:
    """Every name the model is served under."""
    info = served_info(request)
    return _json({"object": "list", "data": [_card(info, name) for name in info.served_names]})


async def get_model(request: Request) -> Response:
    """One of them; the name may hold slashes."""
    info = served_info(request)
    given = request.path_params["id"]
    meant = (name for name in info.served_names if plain(f"/{name}") == plain(f"/{given}"))  # a folder's name, say
    return _json(_card(info, served_model(info, next(meant, given))))


async def health(request: Request) -> Response:
    """200 once requests are taken, while draining too; 503 while the model loads, the engine hangs or has failed, and
    from the moment its last steps have all failed until one succeeds.
    """
    _check_progress(request)
    refusal = _refusal(request)
    if refusal is not None and refusal.code != "draining":
        raise refusal
    _check_steps(request)
    return _json({"status": "ok"})


async def ready(request: Request) -> Response:
    """200 when everything is compiled, also with serve_early, requests are taken and steps succeed: for balancers."""
    _check_progress(request)
    refusal = unavailable(request.app.state.llm.status)
    if refusal is not None:
        raise refusal
    _check_steps(request)
    return _json({"status": "ready"})


async def live(request: Request) -> Response:
    """200 unless the engine hangs or has failed, while the model loads too: for what restarts a dead server."""
    _check_progress(request)
    refusal = _refusal(request)
    if refusal is not None and refusal.code == "failed":
        raise refusal
    return _json({"status": "live"})


async def props(request: Request) -> Response:
    """What llama.cpp's clients ask a server for: the context, how many answers run together, the template."""
    info, limits = served_info(request), request.app.state.llm.limits
    settings = {"n_ctx": info.max_model_len, "params": {name: getattr(info.defaults, name) for name in DEFAULTS}}
    return _json(
        {
            "default_generation_settings": settings,
            "total_slots": limits.max_num_seqs,
            "model_path": info.root,
            "model_alias": info.served_names[0],
            "chat_template": info.chat_template,
            "modalities": {"vision": False, "audio": False},
            "build_info": f"jaxinfer-{__version__}",
        }
    )


async def version(request: Request) -> Response:
    return _json({"version": __version__})


async def metrics(request: Request) -> Response:
    """Prometheus text; answers in every status."""
    state = request.app.state
    kept = Kept(state.sessions, state.responses, state.storage)
    page = render_metrics(state.llm, state.http, kept)
    return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")


def _check_progress(request: Request) -> None:
    """Raise Unavailable when the engine has hung for too long."""
    state = request.app.state
    limit_s, stalled_s = state.settings.stall_timeout_s, state.llm.stalled_s
    if stalled_s > limit_s:
        raise Unavailable(
            f"the engine must take a step every {limit_s:g} s while it has work (--stall-timeout-s), it has taken none "
            f"for {stalled_s:.1f} s; if it stays so, restart the server",
            code="stalled",
        )


def _check_steps(request: Request) -> None:
    """Raise Unavailable where the last steps have all failed. Only once the model is there."""
    if request.app.state.llm.stats().is_failing:
        raise Unavailable(
            "the engine's steps must succeed, the last ones have all failed; the server's log names the cause; while "
            "nobody asks for anything it tries one every second",
            code="failing",
        )


def _refusal(request: Request) -> Unavailable | None:
    state = request.app.state
    return unavailable(state.llm.status, serve_early=state.settings.serve_early)


def served_info(request: Request) -> ModelInfo:
    """The model, once requests are taken, since clients wait for it to ask; while draining too. Raises Unavailable."""
    refusal = _refusal(request)
    if refusal is not None and refusal.code != "draining":
        raise refusal
    info: ModelInfo = request.app.state.llm.info
    return info


def _card(info: ModelInfo, name: str) -> dict[str, Any]:
    card = {
        "id": name,
        "object": "model",
        "created": info.created,
        "owned_by": "jaxinfer",
        "root": info.root,
        "parent": None,
        "max_model_len": info.max_model_len,
        "max_context_length": info.max_model_len,
        "meta": {
            "n_ctx": info.max_model_len,
            "n_ctx_train": info.facts.context_length,
            "n_vocab": info.vocab_size,
            "n_embd": info.hidden_size,
            "n_params": info.facts.num_params,
            "size": info.facts.weight_bytes,
        },
        "permission": [],
        "default_sampling_params": {name: getattr(info.defaults, name) for name in DEFAULTS},
    }
    return card | {"note": info.note} if info.note else card


def _json(answer: dict[str, Any]) -> Response:
    return Response(encode_json(answer), media_type="application/json")
