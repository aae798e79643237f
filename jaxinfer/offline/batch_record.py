"""What is known of a batch that a client has asked for, on disk as in memory."""

import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from jaxinfer.errors import BatchError
from jaxinfer.offline.disk import replacing

Outcome = Literal["completed", "failed", "expired", "cancelled"]
Status = Literal["validating", "in_progress", "finalizing", "cancelling", Outcome]
ENDED: frozenset[Status] = frozenset({"completed", "failed", "expired", "cancelled"})


class BatchRecord(msgspec.Struct, kw_only=True):
    """A batch. owner: whose it is.    outcome: what it will end as, once that is known.    moments: seconds since 1970
    by OpenAI's names of them.    total, completed, failed: rows; counted anew when it is gone on with.    errors: why
    it failed.    output_file_id, error_file_id: names of what is being made, while it is not there yet.
    """

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str]
    created_at: int
    expires_at: int
    status: Status = "validating"
    outcome: Outcome | None = None
    moments: dict[str, int] = {}
    total: int = 0
    completed: int = 0
    failed: int = 0
    errors: list[dict[str, Any]] = []
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    def enter(self, status: Status) -> None:
        """Change the status, now."""
        self.status = status
        self.moments = self.moments | {f"{status}_at": int(time.time())}

    def shown(self) -> dict[str, Any]:
        """As clients see it."""
        names = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        output, errors = (self.output_file_id, self.error_file_id) if self.has_ended else (None, None)
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": output,
            "error_file_id": errors,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{name}_at": self.moments.get(f"{name}_at") for name in names},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.metadata,
        }


def save(batch: BatchRecord, folder: Path) -> None:
    """Write it down. Takes long."""
    content = msgspec.json.encode(batch)
    with replacing(folder / f"{batch.id}.json") as file:
        file.write(content)


def load(folder: Path) -> list[BatchRecord]:
    """All that were written down, the oldest first. Raises BatchError."""
    found = []
    for path in folder.glob("*.json"):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=BatchRecord))
        except (OSError, msgspec.MsgspecError) as error:
            raise BatchError(f"{path} must describe a batch, it cannot be read: {error}; move it away") from error
    return sorted(found, key=lambda batch: (batch.created_at, batch.id))
