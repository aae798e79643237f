"""Cures for a model that does not fit a device: the settings that were given and take the memory."""

import dataclasses
from collections.abc import Callable

from jaxinfer.config import EngineConfig

_LOWERED = ("max_num_batched_tokens", "max_num_seqs", "page_size", "max_model_len")  # a smaller value may fit
_OF_MEMORY = ("gpu_memory_utilization", "kv_offloading_bytes", "enable_chunked_prefill", "dtype", *_LOWERED)


def changes_that_fit(config: EngineConfig, fits: Callable[[EngineConfig], bool]) -> str:
    """Which settings to change, of those that were given and without which the model fits. Empty without any."""
    standard = EngineConfig()
    given = {name: getattr(standard, name) for name in _OF_MEMORY if getattr(config, name) != getattr(standard, name)}
    found = [_change(config, name, fits) for name in given if fits(dataclasses.replace(config, **{name: given[name]}))]
    if not found and len(given) > 1 and fits(dataclasses.replace(config, **given)):
        return f"leave out {' and '.join(given)}"
    return " or ".join(found)


def _change(config: EngineConfig, name: str, fits: Callable[[EngineConfig], bool]) -> str:
    """A value of a setting that works: a power of two, else what it is unasked."""
    value, standard = getattr(config, name), getattr(EngineConfig(), name)
    lower = (2**bits for bits in reversed(range((value - 1).bit_length()))) if name in _LOWERED else ()
    for power in lower:
        if fits(dataclasses.replace(config, **{name: power})):
            return f"lower {name} to {power}"
    if standard is None:
        return f"leave out {name}"
    return f"{'raise' if name == 'gpu_memory_utilization' else 'set'} {name} to {str(standard).lower()}"
