"""How the tokens of a step are shared, among prompts and between them and decode rows."""

import dataclasses
import itertools
from typing import TYPE_CHECKING

from jaxinfer.config import Limits
from jaxinfer.engine.sequence import Sequence

if TYPE_CHECKING:
    from jaxinfer.engine.scheduler import Scheduler

_MOST_KEPT = 64  # tokens for one answer: what a grammar forces, a thought that is closed
_QUESTION = 512  # tokens


@dataclasses.dataclass(slots=True)
class Budget:
    """The tokens of a step that are left for prompts, given out by rank: a prompt gets all but what is kept for others,
    also where a little more would end it. It needs a step more then, and those others are not held up by two.

    left: not given yet.    short: who may overtake if need be (see kept_tokens), and how many tokens each needs.
    kept: what is left for them.
    """

    left: int
    short: dict[Sequence, int]
    kept: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.kept = sum(self.short.values())

    def chunk(self, pending: int, sequence: Sequence) -> int:
        """How many of its pending tokens a prompt gets."""
        return min(pending, self.left - max(0, self.kept - self.short.get(sequence, 0)))

    def take(self, count: int, sequence: Sequence) -> None:
        """Give a prompt so many: from what is kept if that is for it, or if nothing else is left."""
        self.left -= count
        self.kept = min(self.kept - min(count, self.short.get(sequence, 0)), self.left)

    def is_kept_from(self, sequence: Sequence) -> bool:
        """Whether all that is left is kept, and not enough of it for this waiting prompt."""
        return self.left == self.kept and self.short.get(sequence, self.left + 1) > self.left


def prompts_fill(limits: Limits, running: list[Sequence], waiting: list[Sequence], num_slots: int) -> bool:
    """Whether prompts alone fill a step, and nobody minds that the decode rows pause for it.

    waiting: by rank; num_slots of them can start. A decode row beside prompts costs about what it does in a step of its
    own, and rows that begin together end together: fewer steps with few rows. Prompts of which nothing will be decoded
    do not count: they leave their slots to others at once, and could go on for ever.
    """
    if not waiting or not num_slots or limits.scheduling == "static":
        return False
    num_tokens = limits.max_num_batched_tokens
    for sequence in running:
        if not sequence.decoding:
            num_tokens -= (len(sequence.known) - sequence.dispatched) * sequence.will_decode
        elif not sequence.request.bulk:
            return False
    startable = (s for s in waiting if s.will_decode and not s.may_not_start)
    return num_tokens <= sum(len(sequence.tokens) for sequence in itertools.islice(startable, num_slots))


def kept_tokens(scheduler: "Scheduler", ready: list[Sequence], num_decoding: int, left: int) -> dict[Sequence, int]:
    """What of the tokens that prompts can have, `left`, is kept for whom: for answers first, which would be decode rows
    but for a few tokens known beforehand, so that no prompt holds them up; then for short prompts.
    """
    kept: dict[Sequence, int] = {}
    if num_decoding < len(ready):
        for sequence in ready:
            if not sequence.decoding and sequence.dispatched >= sequence.num_prompt and left > 0:
                pending = len(sequence.known) - sequence.dispatched
                kept[sequence] = min(pending, _MOST_KEPT, left)
                left -= kept[sequence]
    return kept | short_prompts(scheduler, ready, num_decoding + len(kept), left)


def short_prompts(scheduler: "Scheduler", ready: list[Sequence], num_decoding: int, left: int) -> dict[Sequence, int]:
    """The waiting prompts that may overtake others of their priority, and how many tokens each needs: this step
    computes them whole, and has a quarter of the largest one for them and the decode rows together; where that is more
    than a quarter of what is left for prompts, such a quarter or what an ordinary question needs.

    num_decoding: of the answers that go on in the step.
    """
    if not scheduler.waiting:
        return {}
    limits, num_slots = scheduler.limits, len(scheduler.free_slots)
    share = min(limits.max_num_batched_tokens // 4 - num_decoding, max(left // 4, min(left // 2, _QUESTION)))
    in_order = limits.scheduling == "static" or not limits.enable_chunked_prefill or scheduler.isolation.active
    if in_order or not num_slots or share <= 0:
        return {}
    priority = scheduler.waiting[0].rank[0]
    first = next((s for s in ready if not s.decoding and s.dispatched < s.num_prompt), None)
    if first is not None and first.rank[0] < priority:
        return {}
    found: dict[Sequence, int] = {}
    for sequence in scheduler.waiting:
        if sequence.rank[0] != priority or len(found) == num_slots:
            break
        if len(sequence.tokens) > share:
            num_slots = len(scheduler.free_slots) - 1  # the last one is for the first whom they overtake
        elif not sequence.may_not_start:
            found[sequence] = len(sequence.tokens) - scheduler.prefix(sequence).length
            share -= found[sequence]
    return found
