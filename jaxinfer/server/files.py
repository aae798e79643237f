"""/v1/files: what batches read and what they make, as in OpenAI's reference; README.md says what is left out."""

import asyncio
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from jaxinfer.errors import InvalidRequest, NotFound
from jaxinfer.offline.files import StoredFile
from jaxinfer.protocol.batches import list_object, page_of, read_page, read_upload
from jaxinfer.protocol.fields import refuse_unknown
from jaxinfer.protocol.responses import encode_json
from jaxinfer.protocol.validate import invalid, show
from jaxinfer.server.multipart import read_form
from jaxinfer.server.storage import storage_of

_ORDERS = ("desc", "asc")
# whatever it holds, a browser shows nothing of it as a page of this server's
_CONTENT_HEADERS = {"x-content-type-options": "nosniff", "content-security-policy": "sandbox"}


async def files(request: Request) -> Response:
    """List the tenant's, or take another."""
    return await _upload(request) if request.method == "POST" else await _list(request)


async def _upload(request: Request) -> Response:
    storage = storage_of(request)
    store, owner = storage.files, storage.owner_of(request.state.tenant)
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > store.limits.max_file_bytes + _FORM_BYTES:
        raise _too_large(f"a file must have at most {store.limits.max_file_bytes} bytes (--max-file-bytes)")
    with store.uploading(owner) as upload:
        try:
            form = await read_form(request, upload)
        except InvalidRequest as error:
            if error.code == "file_too_large":
                raise _too_large(str(error)) from error
            raise
        lasts_s = read_upload(form.fields)
        if request.app.state.settings.strict:
            refuse_unknown(tuple(name for name in form.fields if name not in _FIELDS))
        file = await asyncio.to_thread(upload.finish, form.filename, form.fields["purpose"], lasts_s)
        upload.keep(file)
    return _answer(_shown(file))


_FORM_BYTES = 64 * 2**10  # beside the file
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")


async def _list(request: Request) -> Response:
    storage, query = storage_of(request), request.query_params
    after, most = read_page(query)
    order, purpose = query.get("order", "desc"), query.get("purpose")
    if order not in _ORDERS:
        raise invalid("order", " or ".join(_ORDERS), order)
    found = storage.files.of(storage.owner_of(request.state.tenant))
    if order == "desc":
        found.reverse()
    found = [file for file in found if purpose in (None, file.purpose)]
    part, has_more = page_of(found, [file.id for file in found], after, most)
    return _answer(list_object([_shown(file) for file in part], has_more=has_more))


async def one_file(request: Request) -> Response:
    """Say what it is, or forget it."""
    store, file = storage_of(request).files, file_of(request, request.path_params["id"])
    if request.method != "DELETE":
        return _answer(_shown(file))
    if store.is_in_use(file):
        message = "a file must not be the input of a batch under way to be deleted, this one is; cancel that first"
        raise InvalidRequest(message, param="id", code="file_in_use")
    store.delete(file)
    return _answer({"id": file.id, "object": "file", "deleted": True})


async def file_content(request: Request) -> Response:
    """Its bytes."""
    store, file = storage_of(request).files, file_of(request, request.path_params["id"])
    path, media = store.path_of(file.id), "application/octet-stream"
    return FileResponse(path, headers=_CONTENT_HEADERS, media_type=media, filename=file.filename)


def file_of(request: Request, file_id: str, *, param: str = "id") -> StoredFile:
    """Raises NotFound, as for another tenant's."""
    storage = storage_of(request)
    file = storage.files.find(storage.owner_of(request.state.tenant), file_id)
    if file is None:
        message = f"there is no file {show(file_id)} of yours here, or no more; GET /v1/files lists those there are"
        raise NotFound(message, param=param, code="file_not_found")
    return file


def _shown(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.num_bytes,
        "created_at": file.created,
        "expires_at": file.expires,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def _too_large(message: str) -> HTTPException:
    return HTTPException(413, message, {"connection": "close"})  # the rest of the body is not worth reading


def _answer(body: dict[str, Any]) -> Response:
    return Response(encode_json(body), media_type="application/json")
