"""What happens while an engine starts, for whoever shows it: a terminal, a log, a notebook."""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One sign of progress.

    kind: resolve | plan | load | compile | serving | ready | measure (what a benchmark does).
    detail: a sentence or a name.    done, total: bytes while loading, executables while compiling, parts of what is
    measured.
    seconds: how long the part took, or for serving and ready since the start.
    rows: a table of (what, value), for the memory plan.
    cached: the executable that was just made ready came from the cache.
    """

    kind: str
    detail: str = ""
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    rows: tuple[tuple[str, str], ...] = ()
    cached: bool = False


OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The listener of callers that show nothing."""
