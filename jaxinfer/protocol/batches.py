"""/v1/files and /v1/batches: what is asked, and the objects that are answered, as OpenAI has them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.fields import Refusal, read_wire, required
from jaxinfer.protocol.open_responses import Metadata
from jaxinfer.protocol.validate import invalid

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)
WINDOW, WINDOW_S = "24h", 24 * 3600
MOST_LISTED, LISTED = 10_000, 20
LEAST_LASTING_S, MOST_LASTING_S = 3600, 30 * 24 * 3600
PURPOSE, MADE = "batch", "batch_output"  # of what clients put here, and of what batches make
BATCH_REFUSED = {"output_expires_after": Refusal(cure="leave it out, the server's --max-file-age-s holds")}
FILE_UPLOAD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "JSONL, in OpenAI's form of batches"},
        "purpose": {"const": PURPOSE},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {
            "type": "integer",
            "minimum": LEAST_LASTING_S,
            "maximum": MOST_LASTING_S,
            "description": "how long it is kept, if the server keeps files for as long",
        },
    },
    "required": ["file", "purpose"],
}
_NUMBER = re.compile(r"[0-9]{1,9}")


class BatchWire(msgspec.Struct, frozen=True, kw_only=True):
    """A new batch."""

    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Metadata = {}


def read_batch(body: dict[str, Any]) -> tuple[BatchWire, tuple[str, ...]]:
    """What is asked, and the names that nobody reads. Raises InvalidRequest."""
    for name in ("input_file_id", "endpoint", "completion_window"):
        required(body, name)
    if body["endpoint"] not in ENDPOINTS:
        raise invalid("endpoint", f"one of {', '.join(ENDPOINTS)}", body["endpoint"])
    if body["completion_window"] != WINDOW:
        raise invalid("completion_window", WINDOW, body["completion_window"])
    return read_wire(body, BatchWire, refused=BATCH_REFUSED, ignored=None)


def read_upload(fields: Mapping[str, str]) -> float | None:
    """How long a new file is to last, in seconds, if its form says so. Raises InvalidRequest."""
    purpose = required(dict(fields), "purpose")
    if purpose != PURPOSE:
        raise invalid("purpose", PURPOSE, purpose)
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise invalid("expires_after[anchor]", "created_at", anchor)
    law = f"an integer from {LEAST_LASTING_S} to {MOST_LASTING_S}"
    return float(_number("expires_after[seconds]", seconds or "", LEAST_LASTING_S, MOST_LASTING_S, law))


def read_page(query: Mapping[str, str]) -> tuple[str | None, int]:
    """After which id a list goes on, and how many it holds at most. Raises InvalidRequest."""
    law = f"an integer from 1 to {MOST_LISTED}"
    return query.get("after"), _number("limit", query.get("limit", str(LISTED)), 1, MOST_LISTED, law)


def page_of[Item](items: Sequence[Item], ids: Sequence[str], after: str | None, most: int) -> tuple[list[Item], bool]:
    """That part of a list, and whether there is more. Raises InvalidRequest for an `after` that is not in it."""
    start = 0
    if after is not None:
        if after not in ids:
            raise invalid("after", "the id of one in the list", after)
        start = ids.index(after) + 1
    return list(items[start : start + most]), len(items) > start + most


def list_object(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A list, or a part of one."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}


def _number(name: str, given: str, low: int, high: int, law: str) -> int:
    if not _NUMBER.fullmatch(given) or not low <= int(given) <= high:
        raise invalid(name, law, given)
    return int(given)


def wrong_state(what: str, status: str) -> InvalidRequest:
    """The refusal of what a batch in this status cannot do any longer."""
    return InvalidRequest(f"a batch must be under way to be {what}, this one is {status}", code="invalid_value")
