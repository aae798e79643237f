"""Departures: ended sequences whose pages nobody may have yet: a row in flight may still prove not to be finite."""

from jaxinfer.engine.sequence import Sequence


class Departures:
    """Invariant: a sequence is here from its end until no step in flight can hold a row of it."""

    def __init__(self) -> None:
        self._queue: list[tuple[int, Sequence]] = []  # with the number of commits after which it may go
        self._num_committed = 0

    @property
    def sequences(self) -> list[Sequence]:
        return [sequence for _, sequence in self._queue]

    def add(self, sequence: Sequence, in_flight: int) -> None:
        """A sequence ended while so many steps were in flight."""
        self._queue.append((self._num_committed + in_flight, sequence))

    def step_committed(self) -> list[Sequence]:
        """Returns the sequences whose pages are free to go."""
        self._num_committed += 1
        gone = [sequence for due, sequence in self._queue if due <= self._num_committed]
        self._queue = [(due, sequence) for due, sequence in self._queue if due > self._num_committed]
        return gone
