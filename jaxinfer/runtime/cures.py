"""Cures for a model that does not fit a device: the settings that were given and take the memory."""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial

from jaxinfer.config import EngineConfig
from jaxinfer.errors import ConfigError

_LOWERED = ("max_num_batched_tokens", "max_num_seqs", "page_size", "max_model_len")  # a smaller value may fit
_OF_MEMORY = (
    *("gpu_memory_utilization", "kv_offloading_bytes", "enable_chunked_prefill", "dtype", *_LOWERED),
    *("num_pages", "kv_cache_memory_bytes"),
)
SLACK = 80 * 2**20  # bytes that other programs may take between a refusal and the next start


class Unlawful(ConfigError):
    """A setting beyond what the model or another setting allows.    lawful: the nearest value that is allowed."""

    def __init__(self, message: str, setting: str, lawful: int) -> None:
        super().__init__(message)
        self.setting, self.lawful = setting, lawful


def lowered(most: int, least: int, unit_bytes: int = 1) -> int:
    """A value at most so high that fits a little less memory too, of two digits. Not below `least`, which `most` is not
    either.

    unit_bytes: what one more of the value takes.
    """
    value = most - min(-(-SLACK // max(1, unit_bytes)), (most - least) * 3 // 4)
    digit = 10 ** max(0, len(str(value)) - 2)
    return max(least, value // digit * digit)


def changes_that_fit(config: EngineConfig, fits: Callable[..., bool]) -> str:
    """Which settings to change, of those that were given and without which the model fits. Empty without any.

    fits: whether the model does with a configuration and so many bytes less.
    """
    return _changes(config, partial(fits, slack=SLACK)) or _changes(config, partial(fits, slack=0))


def _changes(config: EngineConfig, fits: Callable[[EngineConfig], bool]) -> str:
    """The settings of which one alone is enough, else the fewest together."""
    standard = EngineConfig()
    given = {name: getattr(standard, name) for name in _OF_MEMORY if getattr(config, name) != getattr(standard, name)}
    found = [_change(config, name, fits) for name in given if fits(dataclasses.replace(config, **{name: given[name]}))]
    if found:
        return " or ".join(found)
    for count in range(2, len(given) + 1):
        for names in itertools.combinations(given, count):
            if fits(dataclasses.replace(config, **{name: given[name] for name in names})):
                return f"leave out {' and '.join(names)}"
    return ""


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
