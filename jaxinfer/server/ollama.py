"""Ollama's API: /api/chat, generate, embed, embeddings, tags, ps, show and version. Our paths with other forms."""

import datetime
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.llm.asked import served_model
from jaxinfer.llm.types import ModelInfo
from jaxinfer.protocol.carried import speaking_of
from jaxinfer.protocol.embeddings import EmbeddingRequest, shaped
from jaxinfer.protocol.ollama import (
    NAMES,
    Generating,
    read_generate,
    read_old_embedding,
    read_ollama_chat,
    read_ollama_embedding,
    read_show,
)
from jaxinfer.protocol.ollama_answers import OllamaAnswer, embeddings_body, rfc3339
from jaxinfer.protocol.responses import encode_json
from jaxinfer.protocol.served_names import LATEST
from jaxinfer.protocol.validate import invalid
from jaxinfer.server.about import served_info
from jaxinfer.server.body import read_json, read_ranked, unread
from jaxinfer.server.completions import answer_chat, open_llm
from jaxinfer.server.embeddings import embedded, pooled_head, pooled_job, respond_pooled
from jaxinfer.server.stream import EventStream
from jaxinfer.version import __version__

FOREVER = datetime.timedelta(microseconds=(2**63 - 1) // 1000)  # Ollama's, the most nanoseconds that Go has
_PARAMETERS = {  # of a Modelfile, and our defaults of the same meaning
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
}


async def ollama_chat(request: Request) -> Response | EventStream:
    """One conversation in, the assistant's next message out."""
    llm = open_llm(request)
    asked = read_ollama_chat(await read_ranked(request), max_model_len=llm.info.max_model_len)
    return await _answer(request, asked, is_chat=True)


async def ollama_generate(request: Request) -> Response | EventStream:
    """One prompt in, what the model says to it out."""
    llm, body = open_llm(request), await read_ranked(request)
    asked = read_generate(body, max_model_len=llm.info.max_model_len, vocab_size=llm.info.vocab_size)
    return await _answer(request, asked, is_chat=False)


async def _answer(request: Request, asked: Generating, *, is_chat: bool) -> Response | EventStream:
    llm = open_llm(request)
    name = served_model(llm.info, asked.wire.model)
    form = OllamaAnswer(f"ollama-{request.state.request_id}", asked.wire.model or name, is_chat)
    if asked.request is None:
        return Response(
            form.loaded(unloads=asked.unloads), headers=unread(request, asked.unknown), media_type="application/json"
        )
    with speaking_of(NAMES):
        return await answer_chat(request, llm, asked.request, form)


async def ollama_embed(request: Request) -> Response:
    """An embedding for each input, of length 1."""
    llm, body, began_s = open_llm(request), await read_ranked(request), request.state.begun_s
    asked = read_ollama_embedding(body, **_widths(llm.info))
    model = asked_name(body, llm.info)

    async def run() -> bytes:
        vectors, num_tokens = await _vectors(request, asked, model)
        return embeddings_body(model, vectors, num_tokens, time.monotonic() - began_s)

    return await respond_pooled(request, run, asked.unknown)


async def ollama_embeddings(request: Request) -> Response:
    """The embedding of one text, as the older route has it."""
    llm, body = open_llm(request), await read_ranked(request)
    asked = read_old_embedding(body, **_widths(llm.info))
    model = asked_name(body, llm.info)

    async def run() -> bytes:
        (vector,), _ = await _vectors(request, asked, model)
        return b'{"embedding":%b}' % vector

    return await respond_pooled(request, run, asked.unknown)


async def _vectors(request: Request, asked: EmbeddingRequest, model: str) -> tuple[list[bytes], int]:
    """Each embedding as a JSON list, and how many tokens there were."""
    llm, wire = open_llm(request), asked.wire

    def render(index: int, raw: bytes) -> bytes:
        return encode_json(shaped(raw, normalize=wire.normalize, dimensions=wire.dimensions).tolist())

    job = await pooled_job(request, llm, asked.inputs, wire, "input")
    vectors, usage = await embedded(request, llm, job, pooled_head("embd", request, model), render)
    return vectors, usage.prompt_tokens


async def ollama_tags(request: Request) -> Response:
    """The models that are here, under the names that they are served under."""
    info = served_info(request)
    return _json({"models": [_listed(info, name) for name in info.served_names]})


async def ollama_ps(request: Request) -> Response:
    """Those that are loaded, which all are. None expires: the moment is that of Ollama's keep_alive -1.

    On a GPU the size is of weights and pages, all of which are there; clients show the share of the two sizes.
    """
    info = served_info(request)
    facts: dict[str, Any] = {
        "expires_at": rfc3339(datetime.datetime.now(datetime.UTC) + FOREVER),
        "size_vram": info.gpu_bytes,
        "context_length": info.max_model_len,
    } | ({"size": info.gpu_bytes} if info.gpu_bytes else {})
    return _json({"models": [_listed(info, name) | facts for name in info.served_names]})


async def ollama_show(request: Request) -> Response:
    """What one of them is and can do."""
    info = served_info(request)
    body = await read_json(request, request.app.state.settings.max_body_bytes)
    name, unknown = read_show(body)
    served_model(info, name)
    facts, parameters = info.facts, _parameters(info)
    family = facts.family or "transformer"
    numbers = {
        "general.architecture": family,
        "general.parameter_count": facts.num_params,
        f"{family}.context_length": info.max_model_len,
        f"{family}.embedding_length": info.hidden_size,
        f"{family}.block_count": facts.num_layers,
        f"{family}.vocab_size": info.vocab_size,
    }
    shown = {
        "modelfile": f"# served by jaxinfer {__version__}, which reads no Modelfile\nFROM {info.root}",
        "parameters": parameters,
        "template": info.chat_template,
        "details": _details(info),
        "model_info": {name: value for name, value in numbers.items() if value},
        "capabilities": _capabilities(info),
        "modified_at": _modified(info),
    }
    return _json(shown | ({"note": info.note} if info.note else {}), unread(request, unknown))


async def ollama_version(request: Request) -> Response:
    """Ours: Ollama's numbers would promise what Ollama does."""
    return _json({"version": __version__})


def asked_name(body: dict[str, Any], info: ModelInfo) -> str:
    """The model as the client calls it. Raises NotFound, or InvalidRequest where it is no name."""
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise invalid("model", "a string", model)
    served = served_model(info, model)
    return model or served


def _listed(info: ModelInfo, name: str) -> dict[str, Any]:
    full = name if ":" in name.rpartition("/")[2] else name + LATEST
    facts = {"modified_at": _modified(info), "size": info.facts.weight_bytes, "digest": info.facts.digest}
    return {"name": full, "model": full} | facts | {"details": _details(info)}


def _details(info: ModelInfo) -> dict[str, Any]:
    facts = info.facts
    families = [facts.family] if facts.family else []
    size = _rounded(facts.num_params)
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": facts.family,
        "families": families,
        "parameter_size": size,
        "quantization_level": facts.dtype,
    }


def _rounded(num_params: int) -> str:
    """As Ollama writes how many parameters there are; "" where that is not known."""
    for factor, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if num_params >= factor:
            return f"{num_params / factor:.1f}{unit}"
    return str(num_params) if num_params else ""


def _parameters(info: ModelInfo) -> str:
    """Lines of a name and a number; clients take the context's length from here."""
    defaults = {name: getattr(info.defaults, ours) for name, ours in _PARAMETERS.items()}
    return "\n".join(f"{name:<30} {value}" for name, value in ({"num_ctx": info.max_model_len} | defaults).items())


def _capabilities(info: ModelInfo) -> list[str]:
    has = {"tools": info.tool_format is not None, "thinking": info.has_thinking}
    return ["completion", "embedding", *(name for name, holds in has.items() if holds)]


def _modified(info: ModelInfo) -> str:
    return rfc3339(datetime.datetime.fromtimestamp(info.facts.modified_s, datetime.UTC))


def _widths(info: ModelInfo) -> dict[str, int]:
    return {"max_model_len": info.max_model_len, "vocab_size": info.vocab_size, "hidden_size": info.hidden_size}


def _json(answer: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(encode_json(answer), headers=headers, media_type="application/json")
