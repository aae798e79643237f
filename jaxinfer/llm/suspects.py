"""Which request ends engines? Those that were in one when it ended are told apart by trying them one at a time."""

from collections import Counter, deque
from collections.abc import Collection

SUSPECT, GUILTY = 2, 3  # ends in a row of the engines that a request was in, without a token for it between them


class Suspects:
    """Counts, for each request, the engines that ended under it since it last got a token.

    After two of them it is a suspect: it waits until the suspects before it have got a token, so that the third engine
    ends under one suspect alone. Invariant: whoever waits here has not been given to the engine that runs.
    """

    def __init__(self) -> None:
        self._ends: Counter[str] = Counter()
        self._waiting: deque[str] = deque()
        self._on_trial: str | None = None

    def engine_ended(self, lost: Collection[str]) -> tuple[list[str], list[str]]:
        """An engine gets the first list of the requests that another had as it ended; the second is guilty. Others
        wait.
        """
        self._ends.update(lost)
        guilty = [made for made in lost if self._ends[made] >= GUILTY]
        cleared = [made for made in lost if self._ends[made] < SUSPECT]
        self._waiting.extend(made for made in lost if self._ends[made] == SUSPECT)
        for made in guilty:
            del self._ends[made]
        tried_elsewhere = self._on_trial is not None and self._on_trial not in lost
        return cleared + ([] if tried_elsewhere else self._next()), guilty

    @property
    def exist(self) -> bool:
        """Whether an engine has ended under anyone: else there is nothing to learn from tokens."""
        return bool(self._ends)

    def got_token(self, made: str) -> list[str]:
        """A request got a token, or has ended: whom the engine is given now."""
        self._ends.pop(made, None)
        if made in self._waiting:
            self._waiting.remove(made)
        return self._next() if made == self._on_trial else []

    def _next(self) -> list[str]:
        self._on_trial = self._waiting.popleft() if self._waiting else None
        return [] if self._on_trial is None else [self._on_trial]
