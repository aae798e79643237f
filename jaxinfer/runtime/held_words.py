"""What a plan says of quantized weights."""

import collections
from typing import Any

from jaxinfer.models.config import ModelConfig
from jaxinfer.models.parameters import quantized_matrices
from jaxinfer.runtime.backends import Backend, Backends, rounds_activations, widened_rows
from jaxinfer_kernels.linear.quantized import Quantized


def held_words(model: ModelConfig, specs: Any, dtype: str, platform: str, backends: Backends) -> str:
    """What follows the size of quantized weights: which are how, and what XLA does to them where it multiplies."""
    matrices = quantized_matrices(specs)
    if not matrices:
        return ""
    kinds = collections.Counter(
        str(model.published) if isinstance(one, Quantized) else str(one.format) for one in matrices
    )
    words = ", ".join(f"{count} {'matrix' if count == 1 else 'matrices'} in {kind}" for kind, count in kinds.items())
    are_rounded = model.published is not None and not all(isinstance(one, Quantized) for one in matrices)
    if are_rounded:
        words += f", rounded again from {model.published}, which our kernels for CPUs do not read"
    if model.saved_in:
        why = "they do not read either" if are_rounded else "our kernels for CPUs do not read"
        words += f", computed in {dtype} and not {model.saved_in}, which {why} (dtype sets it)"
    if backends.decode_linear is Backend.CPU:
        return f": {words}"
    most = widened_rows(model)
    if rounds_activations(model, backends):
        return f": {words}; steps of more than {most} rows round activations to fp8 too, with a scale per row"
    if backends.decode_linear is Backend.MOSAIC:
        return f": {words}, which steps of more than {most} rows widen to {dtype} for each product, slowly"
    if backends.gpu is not None:
        read = "our kernels for this card read fp8, and int4 in groups of 128 or more, in sizes that they divide"
        why = "our kernels are for bfloat16 and float16" if dtype == "float32" else read
    elif platform != "cpu":
        why = "no kernels of ours run here"
    elif dtype != "bfloat16":
        why = "our kernels are for bfloat16"
    else:
        why = "there are no kernels of ours (jaxinfer doctor)"
    return f": {words}, which XLA widens to {dtype} for each product, slowly, as {why}"
