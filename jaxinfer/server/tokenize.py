"""POST /tokenize and /detokenize, in vLLM's shapes, and /apply-template, in llama.cpp's."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.llm.asked import check_tools, render_chat, served_model
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.protocol.responses import encode_json
from jaxinfer.protocol.tokenize import TokenizeRequest, read_apply_template, read_detokenize, read_tokenize
from jaxinfer.server.body import read_prompt, unread
from jaxinfer.server.completions import open_llm
from jaxinfer.server.watch import while_connected

_IDS_AT_ONCE = 4096  # some hundredths of a second


async def tokenize(request: Request) -> Response:
    """A prompt's or a conversation's token ids."""
    llm = open_llm(request)
    wanted = read_tokenize(await read_prompt(request))
    served_model(llm.info, wanted.wire.model)
    headers = unread(request, wanted.unknown)

    async def run() -> dict[str, Any]:
        ids = await _ids(llm, wanted)
        strings = await _each(llm, ids) if wanted.wire.return_token_strs else None
        return {"count": len(ids), "max_model_len": llm.info.max_model_len, "tokens": ids, "token_strs": strings}

    return _json(await while_connected(request.receive, run()), headers)


async def apply_template(request: Request) -> Response:
    """What the model reads of a conversation: the text of its ids, the template's control tokens included."""
    llm = open_llm(request)
    wanted = read_apply_template(await read_prompt(request))
    served_model(llm.info, wanted.wire.model)
    headers = unread(request, wanted.unknown)
    text = await llm.decode(await _ids(llm, wanted), skip_special_tokens=False)
    return _json({"prompt": text}, headers)


async def _ids(llm: AsyncLLM, wanted: TokenizeRequest) -> list[int]:
    if wanted.messages is None:
        return await llm.encode(wanted.prompt or "", add_special_tokens=wanted.wire.add_special_tokens is not False)
    check_tools(llm.info, wanted.tools)
    return await render_chat(
        llm,
        wanted.messages,
        add_generation_prompt=wanted.add_generation_prompt,
        continue_final_message=wanted.wire.continue_final_message,
        template_kwargs=wanted.wire.chat_template_kwargs,
        tools=wanted.wire.tools or None,
    )


async def _each(llm: AsyncLLM, ids: list[int]) -> list[str]:
    """The text of each, so many at a time that other requests, and a client that leaves, need not wait for all."""
    found: list[str] = []
    for start in range(0, len(ids), _IDS_AT_ONCE):
        found += await llm.decode_each(ids[start : start + _IDS_AT_ONCE])
    return found


async def detokenize(request: Request) -> Response:
    """The text of token ids, special tokens included."""
    llm = open_llm(request)
    body = await read_prompt(request)
    wire, ids, unknown = read_detokenize(body, vocab_size=llm.info.vocab_size)
    served_model(llm.info, wire.model)
    headers = unread(request, unknown)
    return _json({"prompt": await llm.decode(ids, skip_special_tokens=False)}, headers)


def _json(answer: dict[str, Any], headers: dict[str, str]) -> Response:
    return Response(encode_json(answer), headers=headers, media_type="application/json")
