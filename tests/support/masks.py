"""Masks for a runner that is driven by hand."""

import numpy as np

from jaxinfer.runtime.mask_table import Masks


def new_masks(*allowed: set[int] | None, vocab_size: int) -> Masks:
    """Those of a step's masked rows, all of them new: of each the tokens that may be drawn; None: any."""
    flags = np.zeros((len(allowed), -(-vocab_size // 32) * 32), bool)
    for row, tokens in zip(flags, allowed, strict=True):
        row[list(range(vocab_size) if tokens is None else tokens)] = True
    words = np.packbits(flags, axis=1, bitorder="little").view(np.int32)
    rows = np.arange(1, 1 + len(allowed), dtype=np.int32)
    return Masks(rows, rows.copy(), words)
