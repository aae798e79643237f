"""The GPU that the tests marked gpu run on, and all ops in our kernels there."""

import jax

from jaxinfer.models.config import ModelConfig
from jaxinfer.runtime.backends import Backend, Backends, Launches, choose_backends
from jaxinfer_kernels.sampling import sm90_argmax, sm90_draw
from jaxinfer_kernels.sm90 import HopperGpu


def gpu() -> jax.Device:
    return jax.devices("cuda")[0]


def all_mosaic(model: ModelConfig, page_size: int, device: jax.Device) -> Backends:
    """What attention_backend mosaic chooses for a bf16 model; fails if any op of a step is left to another backend."""
    backends = choose_backends("mosaic", model, "bfloat16", page_size, device)
    chosen = {**vars(backends)}
    assert chosen.pop("gpu") == HopperGpu.of(device)
    assert chosen.pop("launches") is Launches.SEQUENCE
    assert chosen.pop("isa") is None  # that is of CPUs
    assert chosen.pop("timings") == ()  # nothing is timed for a setting
    by_word = {"masks": sm90_argmax.masks_supported, "sampling": sm90_draw.supported}
    for op, supported in by_word.items():  # of other vocabularies, as in some tests, no bits are whole words
        assert (chosen.pop(op) is Backend.MOSAIC) == supported(model.vocab_size)
    others = {op: backend for op, backend in chosen.items() if backend is not Backend.MOSAIC}
    assert not others
    return backends
