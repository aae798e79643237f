"""/v1/batches, as in OpenAI's reference: rows of a file, answered when no other request has need of the engine."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.errors import InvalidRequest
from jaxinfer.offline.batch_record import BatchRecord
from jaxinfer.protocol.batches import PURPOSE, list_object, page_of, read_batch, read_page
from jaxinfer.protocol.responses import encode_json
from jaxinfer.server.body import read_json, unread
from jaxinfer.server.files import file_of
from jaxinfer.server.storage import storage_of


async def batches(request: Request) -> Response:
    """List the tenant's, or begin another."""
    return await _create(request) if request.method == "POST" else _list(request)


async def _create(request: Request) -> Response:
    storage = storage_of(request)
    wire, unknown = read_batch(await read_json(request, request.app.state.settings.max_body_bytes))
    headers = unread(request, unknown)
    file = file_of(request, wire.input_file_id, param="input_file_id")
    if file.purpose != PURPOSE:
        message = f"the input of a batch must be a file of purpose {PURPOSE}, this one is {file.purpose}; upload it"
        raise InvalidRequest(message, param="input_file_id", code="invalid_value")
    batch = await storage.batches.create(storage.owner_of(request.state.tenant), wire)
    return _answer(batch.shown(), headers)


def _list(request: Request) -> Response:
    storage = storage_of(request)
    after, most = read_page(request.query_params)
    found = storage.batches.of(storage.owner_of(request.state.tenant))
    part, has_more = page_of(found, [batch.id for batch in found], after, most)
    return _answer(list_object([batch.shown() for batch in part], has_more=has_more))


async def one_batch(request: Request) -> Response:
    """How far it is."""
    return _answer(_batch_of(request).shown())


async def cancel_batch(request: Request) -> Response:
    """End it; what was answered stays."""
    batch = _batch_of(request)
    await storage_of(request).batches.cancel(batch)
    return _answer(batch.shown())


def _batch_of(request: Request) -> BatchRecord:
    storage = storage_of(request)
    return storage.batches.find(storage.owner_of(request.state.tenant), request.path_params["id"])


def _answer(body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(encode_json(body), headers=headers, media_type="application/json")
