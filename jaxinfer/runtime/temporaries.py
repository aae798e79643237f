"""Bytes that the largest steps need beside weights and pages: formulas, before anything is compiled."""

import math
from collections.abc import Sequence
from typing import Any

from jaxinfer.config import ExtendBucket
from jaxinfer.models.config import ModelConfig
from jaxinfer.models.parameters import quantized_matrices
from jaxinfer.runtime.buckets import Decode
from jaxinfer.runtime.mask_table import mask_rows
from jaxinfer.runtime.packing import ControlColumn
from jaxinfer.runtime.plan import MAX_LOGIT_BIAS


def step_bytes(
    model: ModelConfig, itemsize: int, largest: ExtendBucket, decode: Sequence[Decode], max_num_seqs: int
) -> int:
    """What the largest steps of both kinds need beside the pages, the hidden states that a step leaves, and what the
    sampler has of every slot.
    """
    at_once = max(temporary_bytes(model, largest), gathered_bytes(model, itemsize, decode))
    return at_once + largest.tokens * model.hidden_size * itemsize + control_bytes(model.vocab_size, max_num_seqs)


def temporary_bytes(model: ModelConfig, largest: ExtendBucket) -> int:
    """A formula for the largest step's temporaries: activations in float32, and the sampler's copies of the logits."""
    d = model.hidden_size
    activations = max(4 * d + 2 * layer.mixer.inner_width + 4 * layer.mlp.width for layer in model.layers)
    return 4 * (largest.tokens * activations + 8 * largest.logits * model.vocab_size)


def gathered_bytes(model: ModelConfig, itemsize: int, sizes: Sequence[Decode]) -> int:
    """What decode attention without a loop holds at once: the rows' keys and values of one layer, and scores twice."""
    tokens = max(size.batch * (size.context or 0) for size in sizes)
    of_token = (2 * mixer.kv_width * itemsize + 2 * 4 * mixer.heads for mixer in model.attentions)
    return tokens * max(of_token, default=0)


def control_bytes(vocab_size: int, max_num_seqs: int) -> int:
    """The logits, what masks leave of them, the full sampler's state of each slot, and the table of masks."""
    bits, columns = 4 * -(-vocab_size // 32), 8 * MAX_LOGIT_BIAS + 4 * len(ControlColumn)
    per_slot = 2 * 4 * vocab_size + 2 * vocab_size + 2 * bits + columns
    return (max_num_seqs + 1) * per_slot + sum(mask_rows(vocab_size, max_num_seqs)) * bits


def widened_bytes(specs: Any) -> int:
    """Of the largest quantized matrix as XLA has it before a product: in float32 where a step has one row."""
    return 4 * max((math.prod(matrix.shape) for matrix in quantized_matrices(specs)), default=0)
