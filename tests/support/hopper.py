"""The GPU that the tests marked gpu run on, and all ops in our kernels there."""

import dataclasses

import jax

from jaxinfer.models.config import ModelConfig
from jaxinfer.runtime.backends import Backend, Backends, Launches, choose_backends
from jaxinfer_kernels import mosaic_largest


def gpu() -> jax.Device:
    return jax.devices("cuda")[0]


def all_mosaic(model: ModelConfig, page_size: int, device: jax.Device) -> Backends:
    """What attention_backend mosaic chooses for a bf16 model; fails if any op of a step is left to another backend."""
    backends = choose_backends("mosaic", model, "bfloat16", page_size, device)
    chosen = dataclasses.asdict(backends)
    assert chosen.pop("launches") is Launches.CHAINED
    masks, wanted = chosen.pop("masks"), mosaic_largest.masks_supported(model.vocab_size)
    assert (masks is Backend.MOSAIC) == wanted  # of other vocabularies, as in some tests, no bits are whole words
    others = {op: backend for op, backend in chosen.items() if backend is not Backend.MOSAIC}
    assert not others
    return backends
