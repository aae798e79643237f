"""Admission: whether an engine in some state, with so many choices under way, takes a request."""

from typing import Literal

from jaxinfer.config import Limits, counted
from jaxinfer.errors import InvalidRequest, Overloaded, Unavailable

Status = Literal["starting", "serving", "ready", "draining", "failed"]

RETRY_STARTING_S, RETRY_BUSY_S = 5.0, 1.0
_WHY_NOT: dict[str, tuple[str, float]] = {
    "starting": ("the model is still being loaded; try again shortly", RETRY_STARTING_S),
    "draining": ("the server is shutting down; send the request elsewhere", RETRY_BUSY_S),
    "failed": ("the engine has failed; the server must be restarted", RETRY_STARTING_S),
}


def check_status(status: Status) -> None:
    """Raise Unavailable if nothing is taken now."""
    if status in _WHY_NOT:
        raise unavailable(status)


def unavailable(status: Status) -> Unavailable:
    """What is raised while nothing is taken."""
    message, retry_after_s = _WHY_NOT[status]
    return Unavailable(message, code=status, retry_after_s=retry_after_s)


def check_room(limits: Limits, num_active: int, num_choices: int, num_replicas: int = 1) -> None:
    """Raise InvalidRequest if so many choices never have room together, Overloaded if they have none now.

    limits: of each replica; all choices of a request are in one.
    """
    capacity = limits.max_num_seqs + limits.max_num_queued_seqs
    if num_choices > capacity:
        raise InvalidRequest(
            f"a request may have at most {capacity} choices here (max_num_seqs + max_num_queued_seqs), it asks for "
            f"{num_choices}; send fewer prompts or a smaller n at a time",
            param="n",
        )
    left = capacity * num_replicas - num_active
    if num_choices > left:
        most = counted(limits.max_num_queued_seqs * num_replicas, "sequence")
        raise Overloaded(
            f"at most {most} may wait (max_num_queued_seqs), there is "
            f"room for {left} and the request needs {num_choices}; try again shortly",
            code="queue_full",
            retry_after_s=RETRY_BUSY_S,
        )
