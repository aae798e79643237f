"""How much of the compiled steps is padding: a step is carried by the smallest compiled size that holds it. No jax."""

import dataclasses

from jaxinfer.config import ExtendBucket, Limits
from jaxinfer.engine.scheduler import Step
from jaxinfer.runtime.buckets import decode_sizes, pick_decode, pick_extend
from jaxinfer.runtime.plan import Plan


@dataclasses.dataclass
class Padding:
    """Of an engine's steps, as its `on_step`. limits: those the device was compiled for, every size of them.

    wanted, carried: tokens of the steps, and of the sizes that carried them.
    """

    limits: Limits
    wanted: int = 0
    carried: int = 0

    def __call__(self, step: Step) -> None:
        self.wanted += step.plan.num_tokens
        self.carried += carried_tokens(step.plan, self.limits)

    @property
    def percent(self) -> float:
        """Of the tokens carried; 0 where there were no steps."""
        return 100 * (1 - self.wanted / self.carried) if self.carried else 0.0


def carried_tokens(plan: Plan, limits: Limits) -> int:
    """Of the smallest size that holds a step: the device runs it, unless a chunk far back would be read by token."""
    if plan.is_decode and all(row.sample for row in plan.rows):
        longest = max(row.start for row in plan.rows) + 1
        return pick_decode(decode_sizes(limits.decode_buckets, limits.decode_contexts), len(plan.rows), longest).batch
    need = ExtendBucket(plan.num_tokens, len(plan.rows), sum(row.sample for row in plan.rows))
    return pick_extend(limits.extend_buckets, need).tokens
