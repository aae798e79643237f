"""Isolation: finds the request that makes steps fail, by running those of a failed step again in halves.

While there are groups, only the first one runs, one step at a time, so that a step that fails says something about the
rows it held. A sequence is cleared once it has been computed again as far as it had come; a group that fails is split
and goes to the end, so that one culprit never makes two groups in a row fail for long; a request that fails twice alone
is the culprit.
"""

from collections import Counter, deque

from jaxinfer.engine.sequence import Sequence, State

MAX_FAILURES_ALONE = 2


class Isolation:
    """Groups of suspects. Invariant: a suspect is in exactly one group, and `_targets` has no others."""

    def __init__(self) -> None:
        self._groups: deque[list[Sequence]] = deque()
        self._targets: dict[Sequence, int] = {}  # positions that a suspect must reach to be cleared
        self._failures: Counter[str] = Counter()  # of requests alone in a failed step

    @property
    def active(self) -> bool:
        """Whether someone is still to be tried; suspects that have ended may be among them."""
        return bool(self._groups)

    def trial(self) -> list[Sequence]:
        """The suspects who may run now, and nobody else; empty: the isolation is over."""
        while self._groups:
            for sequence in [suspect for suspect in self._groups[0] if suspect.state is State.ENDED]:
                self._acquit(sequence)
            if self._groups[0]:
                return list(self._groups[0])
            self._groups.popleft()
        return []

    def blame(self, suspects: dict[Sequence, int]) -> str | None:
        """A step with rows of these sequences failed when each had come to that many positions.

        Returns the id of the request that has now failed twice alone, for the caller to end.
        """
        for i, group in enumerate(self._groups):
            self._groups[i] = [sequence for sequence in group if sequence not in suspects]
        requests: dict[str, list[Sequence]] = {}
        for sequence, end in suspects.items():
            self._targets[sequence] = max(end, self._targets.get(sequence, 0))
            requests.setdefault(sequence.request.id, []).append(sequence)
        ids, half = list(requests), -(-len(requests) // 2)
        self._groups += [
            [sequence for request_id in part for sequence in requests[request_id]]
            for part in (ids[:half], ids[half:])
            if part
        ]
        if len(ids) == 1:
            self._failures[ids[0]] += 1
            if self._failures[ids[0]] == MAX_FAILURES_ALONE:
                return ids[0]
        return None

    def clear(self, reached: dict[Sequence, int]) -> list[Sequence]:
        """A step of the trial was good; its sequences have come to that many positions. Returns the cleared ones."""
        cleared = [sequence for sequence, end in reached.items() if end >= self._targets[sequence]]
        for sequence in cleared:
            self._acquit(sequence)
        return cleared

    def _acquit(self, sequence: Sequence) -> None:
        """Take a sequence out of the group on trial; its request's failures were not of its making."""
        self._groups[0].remove(sequence)
        del self._targets[sequence]
        self._failures.pop(sequence.request.id, None)
