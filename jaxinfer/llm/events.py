"""What happens while an engine starts, for whoever shows it: a terminal, a log, a notebook."""

import dataclasses
import threading
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One sign of progress.

    kind: resolve | plan | load | compile | run | read | wait | serving | ready | measure (what a benchmark does). Steps
    run on padding once more when all are compiled, as a GPU's graphs need; the tokenizer is read meanwhile or last; the
    first of several engines waits for the others.
    detail: a sentence or a name.    done, total: bytes while loading, executables while compiling or running, engines
    that are ready while others are waited for, parts of what is measured.
    seconds: how long the part took, or for serving and ready since the start.
    rows: a table of (what, value), for the memory plan.
    cached: the executable that was just made ready came from the cache.
    num_serving: executables, the first of `total`, that the model serves with.
    """

    kind: str
    detail: str = ""
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    rows: tuple[tuple[str, str], ...] = ()
    cached: bool = False
    num_serving: int = 0


STAGES = ("load", "compile", "run", "read", "wait")  # kinds of what takes time, for who asks how far a start is
TEXTS = Event("read", "the tokenizer and the chat template")

OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The listener of callers that show nothing."""


class Announcer:
    """Passes events on, from any thread. That a model serves, or is ready, waits for `release`; what is going on until
    then does not."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._held: list[Event] = []
        self._released = False
        self._lock = threading.RLock()  # events keep their order

    def __call__(self, event: Event) -> None:
        with self._lock:
            if not self._released and event.kind in ("serving", "ready"):
                self._held.append(event)
            else:
                self._on_event(event)

    def release(self) -> None:
        """What reads and writes the model's texts was found fit."""
        with self._lock:
            self._released = True
            held, self._held = self._held, []
            for event in held:
                self._on_event(event)
