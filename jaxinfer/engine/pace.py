"""How many tokens a step may hold while somebody waits for those it draws."""

import collections

from jaxinfer.config import Limits
from jaxinfer.engine.sequence import Sequence

_LONGEST_S = 0.040  # a step that answers wait for, which somebody reads
_LEAST_TOKENS = 512  # with fewer a device has too little to do
_UNKNOWN_TOKENS = 2048  # until a step was timed
_STEP_TOKENS = 512  # what a step costs beside its tokens, as tokens: 2.5 ms of a 1.5B model on an H200


class Pace:
    """Times steps with prompts, and says how large one may be.

    A large model computes the longest step in 0.2 s: then every stream stands still, and prompts that came together
    all wait for the last of them. Smaller steps compute as many tokens a second.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sizes = sorted((b.tokens, b.rows) for b in limits.extend_buckets if b.tokens >= _LEAST_TOKENS)
        self._recent: collections.deque[float] = collections.deque(maxlen=4)  # s for each token

    def add(self, num_tokens: int, num_rows: int, seconds: float) -> None:
        """A step with prompts, of so many tokens and rows in all, took the device so long."""
        if num_tokens >= _LEAST_TOKENS:
            computed = next((size for size in self._holding(num_rows) if size >= num_tokens), num_tokens)
            self._recent.append(seconds / computed)

    def num_tokens(self, num_rows: int) -> int:
        """Of the largest step of so many rows that ends in time. The fastest of those timed counts: something else
        slowed the rest."""
        most = self._limits.max_num_batched_tokens
        fit = _UNKNOWN_TOKENS
        if self._recent:
            fit = int(min(_LONGEST_S / max(min(self._recent), 1e-9), most))
        fit = max([size for size in self._holding(num_rows) if size <= fit], default=fit)
        return min(most, max(fit, _LEAST_TOKENS))

    def _holding(self, num_rows: int) -> list[int]:
        """The tokens of the compiled steps that hold so many rows: what a step has less of, it computes as padding."""
        return [tokens for tokens, rows in self._sizes if rows >= num_rows]

    def for_prompts(self, ready: list[Sequence], waiting: list[Sequence], num_decoding: int) -> int:
        """The tokens of the next step that prompts can have.

        ready: the step's running sequences, num_decoding of them decode rows.    waiting: by rank, those for whom there
        are slots.
        All there are, unless a step as large would hold up somebody who reads along: any stream that runs, or one of
        several that begin.
        """
        starting = [s for s in waiting[:2] if not s.may_not_start]  # more than one: how many makes no difference
        limits, num_prompts = self._limits, len(ready) - num_decoding + len(starting)
        left = limits.max_num_batched_tokens - num_decoding
        in_whole = not limits.enable_chunked_prefill or limits.scheduling == "static"
        if in_whole or not num_prompts or limits.max_num_batched_tokens <= _LEAST_TOKENS:
            return left
        held_up = [s for s in ready if s.decoding] if num_prompts == 1 else [*ready, *starting]
        if not all([s.request.bulk for s in held_up]):
            paced = self.num_tokens(num_decoding + num_prompts)
            left = min(max(paced - num_decoding, paced // 2), left)
        if num_prompts == 1:
            (prompt,) = starting or [s for s in ready if not s.decoding]
            wanted = min(len(prompt.known) - prompt.dispatched, left)
            left = self._unpadded(wanted + num_decoding, num_decoding + 1) - num_decoding
        return left

    def _unpadded(self, num_tokens: int, num_rows: int) -> int:
        """Of so many tokens those of the next step: all, unless they run in a size that is so much larger that a
        smaller one and another step for the rest compute less."""
        sizes = self._holding(num_rows)
        whole = next((size for size in sizes if size >= num_tokens), num_tokens)
        most = max((size for size in sizes if size < num_tokens), default=0)
        rest = next((size for size in sizes if size >= num_tokens - most), num_tokens)
        return most if most and whole - most - rest >= _STEP_TOKENS else num_tokens
