"""POST /abort_request: the request."""

from typing import Any

import msgspec

from jaxinfer.protocol.fields import Refusal, read_wire, required


class AbortWire(msgspec.Struct, frozen=True, kw_only=True):
    """request_id: what the answer's x-request-id header says, or will say when the client sent that header."""

    request_id: str = ""


REFUSED = {"abort_all": Refusal((False,)), "rid": Refusal(cure="send request_id")}


def read_abort(body: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The id, and the names that nobody reads. Raises InvalidRequest."""
    wire, unknown = read_wire(body, AbortWire, refused=REFUSED)
    required(body, "request_id")
    return wire.request_id, unknown
