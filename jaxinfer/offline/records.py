"""What a batch answers a row with: a line of JSON in the form of the job, and the columns of the plain form."""

import dataclasses
from typing import Any

import msgspec

from jaxinfer.errors import ApiError
from jaxinfer.llm.asked import Asked, served_model
from jaxinfer.llm.types import ModelInfo
from jaxinfer.offline.rows import Form, InputRow
from jaxinfer.protocol.embeddings import EmbeddingRequest, read_embedding
from jaxinfer.protocol.forms import Choice, Progress
from jaxinfer.protocol.responses import AnswerEnvelope, encode_json, error_body
from jaxinfer.protocol.validate import Verbatim, invalid

COLUMNS: dict[str, type] = {
    "row": int,
    "custom_id": str,
    "status": int,
    "text": str,
    "finish_reason": str,
    "prompt_tokens": int,
    "completion_tokens": int,
    "error": str,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """The answer to row `number`. line: JSON without a line end.    status: as HTTP has them, 200 is an answer."""

    number: int
    status: int
    line: bytes


def check_row(asked: Asked, form: Form) -> None:
    """Raise InvalidRequest for what a row cannot be answered with."""
    if asked.wire.stream:
        raise invalid("stream", "false in a batch, where an answer is one row", True)
    if asked.wire.session_id is not None or asked.is_appended:
        law = "left out in a batch, whose rows know nothing of each other"
        raise invalid("session_id", law, asked.wire.session_id)
    if form == "plain":
        if asked.num_choices > 1:
            fact = Verbatim(f"{asked.num_choices} choices")
            raise invalid("n", "1, and the prompt one, where an answer is a row of columns", fact, cure=OTHER_FORM)
        for name in ("logprobs", "prompt_logprobs"):
            if (value := getattr(asked.sampling, name)) is not None:
                raise invalid(name, "left out where an answer is a row of columns", value, cure=OTHER_FORM)
        if asked.request.wire.include_metrics:
            raise invalid("include_metrics", "false where an answer is a row of columns", True, cure=OTHER_FORM)


def read_embedding_row(row: InputRow, form: Form, info: ModelInfo) -> EmbeddingRequest:
    """The request of a row for embeddings. Raises InvalidRequest, or NotFound for another model."""
    if form == "plain":
        raise invalid(
            "url", "another than /v1/embeddings where an answer is a row of columns", row.url, cure=OTHER_FORM
        )
    asked = read_embedding(row.body, vocab_size=info.vocab_size, hidden_size=info.hidden_size)
    served_model(info, asked.wire.model)
    return asked


OTHER_FORM = "leave it out, or write the row in OpenAI's form and the answers as JSONL"


def answered(row: InputRow, form: Form, answer: AnswerEnvelope, choices: list[Choice], progress: Progress) -> Record:
    if form == "openai":
        body = msgspec.Raw(answer.body(choices, progress))
        return Record(row.number, 200, encode_json(_openai(row, 200, body, None)))
    choice, usage = choices[0], progress.usage
    columns = {
        "row": row.number,
        "custom_id": row.custom_id,
        "status": 200,
        "text": choice.text,
        "finish_reason": choice.finish_reason,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "error": None,
    }
    return Record(row.number, 200, encode_json(columns))


def embedded(row: InputRow, body: bytes) -> Record:
    """The answer to a row for embeddings."""
    return Record(row.number, 200, encode_json(_openai(row, 200, msgspec.Raw(body), None)))


def refused(row: InputRow, form: Form, error: ApiError) -> Record:
    """The row's error, as the route would have answered it, with its code and message where a reader looks first."""
    if form == "openai":
        body, short = msgspec.Raw(error_body(error)), {"code": error.code or error.type, "message": str(error)}
        return Record(row.number, error.status, encode_json(_openai(row, error.status, body, short)))
    columns = dict.fromkeys(COLUMNS) | {"row": row.number, "custom_id": row.custom_id, "status": error.status}
    return Record(row.number, error.status, encode_json(columns | {"error": str(error)}))


def out_of_time(row: InputRow) -> Record:
    """Of a row that its batch had no time for."""
    short = {"code": "batch_expired", "message": "this row had no turn before its batch's completion window was over"}
    line = {"id": request_id(row), "custom_id": row.custom_id, "response": None, "error": short}
    return Record(row.number, 408, encode_json(line))


def request_id(row: InputRow) -> str:
    return f"batch_req_{row.number}"


def _openai(row: InputRow, status: int, body: msgspec.Raw, error: dict[str, Any] | None) -> dict[str, Any]:
    name = request_id(row)
    response = {"status_code": status, "request_id": name, "body": body}
    return {"id": name, "custom_id": row.custom_id, "response": response, "error": error}
