"""PendingStep: a step that the device has been given, and how its results are read."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from jaxinfer.runtime import packing
from jaxinfer.runtime.mask_table import Masks
from jaxinfer.runtime.plan import StepResult

type Scored = tuple[int, list[jax.Array]]
type Pooled = tuple[list[int], list[jax.Array]]


class PendingStep:
    """A dispatched step, whose results the device writes to the host's memory.

    scored: of each row with targets, their number and blocks of logprobs.
    pooled: the row of each piece that was added up, and blocks of their sums.
    """

    def __init__(
        self,
        tokens: jax.Array,
        num_rows: int,
        scored: dict[int, Scored] | None = None,
        pooled: Pooled = ([], []),
    ) -> None:
        self._tokens, self._num_rows = tokens, num_rows
        self._logits_rows: Sequence[int] = ()
        self._drawn: jax.Array | None = None
        self._tops: jax.Array | None = None
        self._scored, self._pooled = scored or {}, pooled
        self.on_masks: Callable[[Masks], None] | None = None  # of a masked plan: what draws

    def draw(self, masks: Masks) -> None:
        """Dispatch the draws of a masked plan."""
        assert self.on_masks is not None, "only a masked plan waits for masks"
        self.on_masks(masks)

    def take(self, logits_rows: Sequence[int], drawn: jax.Array | None, tops: jax.Array | None) -> None:
        """What a sampler made of it and the logprobs of that, by rows of logits, and each row's row of logits.

        Both may be one array, which has the token first.
        """
        self._logits_rows, self._drawn, self._tops = logits_rows, drawn, tops

    def wait(self) -> StepResult:
        tokens = np.asarray(self._tokens)[: self._num_rows]
        result = StepResult(tokens=tokens, finite=tokens != packing.NOT_FINITE)
        if self._drawn is not None:
            result.tokens = np.asarray(self._drawn)[self._logits_rows, 0]
        if self._tops is not None:
            tops = np.asarray(self._tops)[self._logits_rows]
            result.logprobs = packing.unpack_logprobs(tops[:, 1:] if self._tops is self._drawn else tops)
        for row, (count, blocks) in self._scored.items():
            columns = np.concatenate([np.asarray(block) for block in blocks])
            result.targets[row] = packing.unpack_logprobs(columns[:count])
        owners, blocks = self._pooled
        if owners:
            _add_up(result, owners, np.concatenate([np.asarray(block) for block in blocks])[: len(owners)])
        return result


def _add_up(result: StepResult, owners: Sequence[int], sums: np.ndarray) -> None:
    """Put the sums of rows' pieces, f32[pieces, D], into a result; a row whose sum is not finite is not finite."""
    for row, found in zip(owners, sums, strict=True):
        result.pooled[row] = result.pooled[row] + found if row in result.pooled else found
    for row, total in result.pooled.items():
        result.finite[row] &= bool(np.isfinite(total).all())
