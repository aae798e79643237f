"""Prompts of random token ids: no two requests share a beginning unless they are meant to. No jax."""

from collections.abc import Sequence

import numpy as np


class Prompts:
    """Fresh ids below vocab_size, from a seed of one number or of several."""

    def __init__(self, vocab_size: int, seed: int | Sequence[int]) -> None:
        self._vocab_size = vocab_size
        self._random = np.random.default_rng(seed)

    def one(self, length: int) -> list[int]:
        ids: list[int] = self._random.integers(0, self._vocab_size, length).tolist()
        return ids

    def many(self, count: int, length: int) -> list[list[int]]:
        return [self.one(length) for _ in range(count)]
