"""From a folder to parameters, the way the engine's builder does it."""

from pathlib import Path
from typing import Any

import jax

from jaxinfer.checkpoint.load import load_params
from jaxinfer.checkpoint.placement import Placement
from jaxinfer.checkpoint.resolve import Checkpoint, resolve
from jaxinfer.models.registry import family_for


def specs_of(checkpoint: Checkpoint) -> Any:
    """The parameter specs of a checkpoint's model."""
    family = family_for(checkpoint.config)
    return family.specs(family.config_from_hf(checkpoint.config))


def open_checkpoint(
    folder: Path,
    *,
    dtype: str = "float32",
    placement: Placement | None = None,
    chunk_bytes: int = 2**26,
) -> Any:
    """Resolve, check and load a folder onto the first device, or wherever `placement` says."""
    checkpoint = resolve(str(folder))
    specs = specs_of(checkpoint)
    return load_params(checkpoint, specs, dtype, placement or jax.devices()[0], chunk_bytes=chunk_bytes)
