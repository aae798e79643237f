"""A look over a batch's input before anything of it is computed: every row must be one that can be told from the others
and belongs to the batch's route. What a row asks for is judged when its turn comes, and is its own failure.
"""

import hashlib
from pathlib import Path
from typing import Any

from jaxinfer.config import counted
from jaxinfer.errors import ApiError, BatchError, InvalidRequest
from jaxinfer.offline.formats import open_source
from jaxinfer.offline.rows import read_row
from jaxinfer.protocol.validate import invalid

MAX_FAULTS = 100  # that are told


class Unfit(BatchError):
    """An input that cannot be a batch. faults: as OpenAI's errors of a batch have them."""

    def __init__(self, faults: list[dict[str, Any]]) -> None:
        super().__init__(faults[0]["message"])
        self.faults = faults


def count_rows(path: Path, endpoint: str, max_rows: int) -> int:
    """How many rows the input has. Takes long. Raises Unfit."""
    faults: list[dict[str, Any]] = []
    seen: set[bytes] = set()  # digests of the rows' ids
    num_rows = 0
    source = open_source(path, "jsonl")
    try:
        for raw in source.rows:
            num_rows += 1
            if num_rows > max_rows:
                law = f"a batch must have at most {counted(max_rows, 'row')} (--max-batch-rows)"
                message = f"{law}, this one has more; split it"
                raise Unfit([fault("too_many_rows", message)])
            row = read_row(raw, {}, "openai")
            try:
                if row.fault is not None:
                    raise row.fault
                if row.url != endpoint:
                    raise invalid("url", f"the batch's endpoint, {endpoint}", row.url)
                _check_new(row.custom_id or "", seen)
            except ApiError as error:
                faults.append(fault(error.code or error.type, str(error), error.param, raw.number))
                if len(faults) == MAX_FAULTS:
                    break
    finally:
        source.close()
    if faults:
        raise Unfit(faults)
    if not num_rows:
        raise Unfit([fault("empty_file", "a batch must have a row, its input file has none; put one into it")])
    return num_rows


def _check_new(custom_id: str, seen: set[bytes]) -> None:
    digest = hashlib.blake2b(custom_id.encode(), digest_size=16).digest()
    if digest in seen:
        message = f"each custom_id must be there once, {ascii(custom_id)[:80]} is there twice; change one of them"
        raise InvalidRequest(message, param="custom_id", code="duplicate_custom_id")
    seen.add(digest)


def fault(code: str, message: str, param: str | None = None, line: int | None = None) -> dict[str, Any]:
    """One of a batch's errors. line: of its input."""
    return {"code": code, "message": message, "param": param, "line": line}
