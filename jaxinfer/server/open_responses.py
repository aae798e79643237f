"""POST /v1/responses and what has become of them: chat's path with another form, and a store."""

import secrets
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.errors import InvalidRequest, NotFound
from jaxinfer.llm.asked import check_abilities, rendered, served_model
from jaxinfer.protocol.carried import speaking_of
from jaxinfer.protocol.open_responses import NAMES, ResponseRequest, read_response_request
from jaxinfer.protocol.response_calls import Item
from jaxinfer.protocol.response_items import Messages
from jaxinfer.protocol.response_object import ResponseForm
from jaxinfer.protocol.response_output import Said
from jaxinfer.protocol.responses import encode_json
from jaxinfer.protocol.validate import show, unsupported
from jaxinfer.server.body import read_prompt, read_ranked, unread
from jaxinfer.server.completions import answer_chat, open_llm
from jaxinfer.server.response_store import ResponseStore, Stored
from jaxinfer.server.running import end
from jaxinfer.server.stream import EventStream


async def create_response(request: Request) -> Response | EventStream:
    """A text or messages in, the assistant's next message out; it may go on from an earlier response."""
    llm = open_llm(request)
    store: ResponseStore = request.app.state.responses
    tenant, response_id = request.state.tenant.name, f"resp_{secrets.token_hex(24)}"
    shared: list[Messages] = []  # the history it goes on from, held for all who go on from it meanwhile
    wanted = _wanted(request, await read_ranked(request), shared)

    def keep(response: dict[str, Any], said: Said) -> None:
        shared.clear()
        if wanted.wire.store:
            history = [*wanted.conversation, said.message()]
            item_ids = tuple(item["id"] for item in response["output"])
            store.put(
                tenant,
                response_id,
                encode_json(response),
                encode_json(history),
                item_ids,
                response["previous_response_id"],
            )

    model = served_model(llm.info, wanted.wire.model)
    form = ResponseForm(response_id, int(time.time()), model, wanted.settings(llm.info.defaults), keep)
    with speaking_of(NAMES):
        return await answer_chat(request, llm, wanted.chat, form)


async def count_input_tokens(request: Request) -> Response:
    """How many tokens the model would read of such a request."""
    llm = open_llm(request)
    wanted = _wanted(request, await read_prompt(request), [])
    served_model(llm.info, wanted.wire.model)
    headers = unread(request, wanted.chat.unknown)
    with speaking_of(NAMES):
        check_abilities(llm.info, wanted.chat)
        ids, _ = await rendered(llm, wanted.chat)
    counted = {"object": "response.input_tokens", "input_tokens": len(ids)}
    return Response(encode_json(counted), headers=headers, media_type="application/json")


def _wanted(request: Request, body: dict[str, Any], shared: list[Messages]) -> ResponseRequest:
    """The request, with what it names of earlier responses. shared: takes the history that it goes on from."""
    store: ResponseStore = request.app.state.responses
    tenant, read = request.state.tenant.name, dict[str, Item]()

    def history_of(previous_id: str) -> Messages:
        shared.append(_history(request, previous_id))
        return shared[-1]

    def item_of(item_id: str) -> Item | None:
        if item_id not in read:
            read.update(store.items(tenant, item_id))
        return read.get(item_id)

    def is_before(previous_id: str, item_id: str) -> bool:
        return item_id in store.items_up_to(tenant, previous_id)

    most = request.app.state.llm.info.max_logprobs
    return read_response_request(body, history_of, item_of, is_before, max_logprobs=most)


def _history(request: Request, previous_id: str) -> Messages:
    """What a request goes on from. Raises InvalidRequest."""
    store: ResponseStore = request.app.state.responses
    history = store.history(request.state.tenant.name, previous_id)
    if history is None:
        message = f"previous_response_id must name {_held(store)}, got {show(previous_id)}; send all of it as input"
        raise InvalidRequest(message, param="previous_response_id", code="previous_response_not_found")
    return history


async def stored_response(request: Request) -> Response:
    """A response that has ended and is still held; or forget it."""
    stored, response_id = _stored(request), request.path_params["id"]
    if request.method == "DELETE":
        request.app.state.responses.forget(request.state.tenant.name, response_id)
        deleted = {"id": response_id, "object": "response", "deleted": True}
        return Response(encode_json(deleted), media_type="application/json")
    if request.query_params.get("stream", "false") != "false":
        raise unsupported("stream", cure="ask for the whole response")
    return Response(stored.body, media_type="application/json")


async def cancel_response(request: Request) -> Response:
    """End one that is under way; its own answer, or stream, ends with what there is."""
    tenant, response_id = request.state.tenant.name, request.path_params["id"]
    for entry in request.app.state.running.known_as((tenant, response_id)):
        generation, form, _ = entry
        if isinstance(form, ResponseForm) and form.id == response_id:  # not a client's own id that looks like one
            await end(entry)
            body = form.object("cancelled", [], generation.usage)
            return Response(encode_json(body), media_type="application/json")
    _stored(request)
    raise InvalidRequest("a response must be under way to be cancelled, this one has ended", code="invalid_value")


def _stored(request: Request) -> Stored:
    store: ResponseStore = request.app.state.responses
    response_id = request.path_params["id"]
    stored = store.get(request.state.tenant.name, response_id)
    if stored is None:
        message = f"there is no response {show(response_id)} here; the id must name {_held(store)}"
        raise NotFound(message, param="id", code="response_not_found")
    return stored


def _held(store: ResponseStore) -> str:
    limits = f"{store.max_responses} responses, {store.max_bytes} bytes and {store.max_age_s:g} s"
    return f"a stored response of yours that is still held (at most {limits})"
