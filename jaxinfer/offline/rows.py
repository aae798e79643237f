"""One row of a batch file, in OpenAI's form (custom_id, method, url, body) or the plain one: a column `prompt` or
`messages`, and any field of the routes' beside it.

Every row that is read becomes a Row; what is wrong with it is its fault, to be answered in its place.
"""

import dataclasses
import sys
from typing import Any, Literal

from jaxinfer.errors import ApiError, InvalidRequest
from jaxinfer.protocol.body import parse_body
from jaxinfer.protocol.fields import required
from jaxinfer.protocol.many_ids import refused_as_prompts
from jaxinfer.protocol.responses import Kind
from jaxinfer.protocol.validate import invalid, is_unicode

Form = Literal["openai", "plain"]
type Route = Kind | Literal["embedding"]

MAX_ROW_BYTES = 16 * 2**20  # what the server takes as a body
ROUTES: dict[str, Route] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completion",
    "/v1/embeddings": "embedding",
}
OPENAI_COLUMNS = frozenset({"custom_id", "method", "url", "body"})
PLAIN_COLUMNS = ("prompt", "messages")


@dataclasses.dataclass(frozen=True, slots=True)
class Raw:
    """number: of its line or record in the file, from 1.    content: a line of JSON, columns by name, or why there is
    neither.    num_bytes: about as much as it holds.
    """

    number: int
    content: bytes | dict[str, Any] | InvalidRequest
    num_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class InputRow:
    """body: of the request, as the route of its kind takes it.    unknown: names outside of it that nobody reads.
    url: as it was given, "" in the plain form.
    """

    number: int
    custom_id: str | None = None
    url: str = ""
    kind: Route = "completion"
    body: dict[str, Any] = dataclasses.field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    fault: ApiError | None = None


def form_of(raw: Raw) -> Form | None:
    """The form it is in, or None for what cannot be read."""
    try:
        columns = _columns(raw)
    except InvalidRequest:
        return None
    return "openai" if _is_openai(columns) else "plain"


def read_row(
    raw: Raw, defaults: dict[str, Any], form: Form | None = None, *, max_model_len: int = sys.maxsize
) -> InputRow:
    """defaults: fields of a body for the rows that do not name them.    form: the only one that is taken.

    max_model_len: beyond it a row of too many values is told as a prompt that is too long.
    """
    columns: dict[str, Any] = {}
    try:
        with refused_as_prompts(max_model_len):
            columns = _columns(raw)
        if form == "openai" or (form is None and _is_openai(columns)):
            return _openai_row(raw.number, columns, defaults)
        return _plain_row(raw.number, columns, defaults)
    except ApiError as fault:
        given = columns.get("custom_id")
        named = isinstance(given, str) and is_unicode(given)
        return InputRow(raw.number, given if named else None, fault=fault)


def _columns(raw: Raw) -> dict[str, Any]:
    if isinstance(raw.content, InvalidRequest):
        raise raw.content
    return parse_body(raw.content) if isinstance(raw.content, bytes) else raw.content


def _is_openai(columns: dict[str, Any]) -> bool:
    return "body" in columns or "url" in columns


def _openai_row(number: int, columns: dict[str, Any], defaults: dict[str, Any]) -> InputRow:
    custom_id, method, url, body = (required(columns, name) for name in ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str):
        raise invalid("custom_id", "a string", custom_id)
    if method != "POST":
        raise invalid("method", "POST", method)
    if not isinstance(url, str) or url not in ROUTES:
        raise invalid("url", " or ".join(ROUTES), url)
    if not isinstance(body, dict):
        raise invalid("body", "an object", body)
    unknown = tuple(name for name in columns if name not in OPENAI_COLUMNS)
    kind = ROUTES[url]
    return InputRow(number, custom_id, url, kind, body if kind == "embedding" else _over(defaults, body), unknown)


def _plain_row(number: int, columns: dict[str, Any], defaults: dict[str, Any]) -> InputRow:
    given = [name for name in PLAIN_COLUMNS if columns.get(name) is not None]
    if len(given) != 1:
        fact = "both" if given else "neither"
        raise InvalidRequest(f"a row must have a prompt or messages, got {fact}; give one", param="prompt")
    body = {name: value for name, value in columns.items() if name != "custom_id"}
    kind: Kind = "chat" if given == ["messages"] else "completion"
    return InputRow(number, _plain_id(columns.get("custom_id")), kind=kind, body=_over(defaults, body))


def _over(defaults: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """A null names nothing."""
    return defaults | {name: value for name, value in body.items() if value is not None or name not in defaults}


def _plain_id(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and is_unicode(value)):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise invalid("custom_id", "a string or an integer", value)
