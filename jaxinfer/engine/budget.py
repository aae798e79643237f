"""Budget: how the tokens of a step are shared among prompts, so that a short one need not wait for long ones."""

import dataclasses

from jaxinfer.engine.sequence import Sequence


@dataclasses.dataclass(slots=True)
class Budget:
    """The tokens of a step that are left for prompts, given out by rank: a prompt gets all it needs if that is there,
    else all but what is kept.

    left: not given yet.    short: the waiting prompts that overtake if need be, and how many tokens each needs.
    kept: what is left for them.
    """

    left: int
    short: dict[Sequence, int]
    kept: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.kept = sum(self.short.values())

    def chunk(self, pending: int) -> int:
        """How many of its pending tokens a prompt gets."""
        return pending if pending <= self.left else self.left - self.kept

    def take(self, count: int, sequence: Sequence) -> None:
        """Give a prompt so many: from what is kept if that is for it, or if nothing else is left."""
        self.left -= count
        self.kept = min(self.kept - min(count, self.short.get(sequence, 0)), self.left)

    def is_kept_from(self, sequence: Sequence) -> bool:
        """Whether all that is left is kept, and not enough of it for this waiting prompt."""
        return self.left == self.kept and self.short.get(sequence, self.left + 1) > self.left
