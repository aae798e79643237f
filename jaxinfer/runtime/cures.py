"""Cures for a model that does not fit a device: the settings that were given and take the memory."""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial

from jaxinfer.cache.spec import ITEMSIZE
from jaxinfer.config import EngineConfig
from jaxinfer.errors import ConfigError, DeviceError
from jaxinfer.models.config import ModelConfig
from jaxinfer.runtime.backends import XLA_ONLY, Backends

_LOWERED = ("max_num_batched_tokens", "max_num_seqs", "page_size", "max_model_len")  # a smaller value may fit
_OF_MEMORY = (
    *("gpu_memory_utilization", "kv_offloading_bytes", "enable_chunked_prefill", "dtype", *_LOWERED),
    *("num_pages", "kv_cache_memory_bytes"),
)
_TOGETHER = 4  # settings: of so many all are told, as trying each choice of them takes a plan
SLACK = 80 * 2**20  # bytes that other programs may take between a refusal and the next start


class DoesNotFit(DeviceError):
    """A model that a device has too little memory for.

    fact: what must fit.    changes: of settings, with which it fits.    to_free: how much memory to free.
    smaller: what makes its weights small enough.    missing: how much is. All in words; "" of what helps nothing.
    """

    def __init__(
        self,
        fact: str,
        changes: str = "",
        *,
        to_free: str = "free some memory",
        smaller: str = "",
        missing: str = "",
    ) -> None:
        others = [*filter(None, [to_free, smaller]), "choose a smaller model, or a larger machine"]
        super().__init__(f"{fact}; {changes or ', '.join(others)}")
        self.fact, self.changes = fact, changes
        self.to_free, self.smaller, self.missing = to_free, smaller, missing

    def with_cures(self, *, changes: str = "", smaller: str = "", fact: str = "") -> "DoesNotFit":
        """The same with cures that were found later, and told as a part of another fact."""
        return DoesNotFit(
            fact or self.fact,
            changes or self.changes,
            to_free=self.to_free,
            smaller=smaller or self.smaller,
            missing=self.missing,
        )


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


def smaller_weights(
    config: EngineConfig, model: ModelConfig, platform: str, backends: Backends, fits: Callable[..., bool]
) -> str:
    """A setting with which the weights take less, and the model fits. Empty without any.

    fits: whether a model does with a configuration and backends.
    """
    changes = [("dtype", "bfloat16")] if ITEMSIZE[config.dtype_for(model.dtype)] > 2 else []
    changes += [("quantization", name) for name in ("int8", "int4") if not model.is_quantized]
    for name, value in changes:
        changed, made, kernels = dataclasses.replace(config, **{name: value}), model, backends
        if name == "quantization":
            made = dataclasses.replace(model, quantization=value)
            kernels = backends if platform == "cpu" else XLA_ONLY
        if fits(changed, made, backends=kernels):
            is_slow = name == "quantization" and platform != "cpu"
            return f"set {name} to {value}" + (" (slow on a GPU)" if is_slow else "")
    return ""


def without_settings(config: EngineConfig) -> tuple[EngineConfig, list[str]]:
    """The configuration without the settings that take memory, and the names of those that were given."""
    standard = EngineConfig()
    names = [name for name in _OF_MEMORY if getattr(config, name) != getattr(standard, name)]
    return dataclasses.replace(config, **{name: getattr(standard, name) for name in names}), names


def _changes(config: EngineConfig, fits: Callable[[EngineConfig], bool]) -> str:
    """The settings of which one alone is enough, else the fewest together."""
    standard, names = without_settings(config)
    given = {name: getattr(standard, name) for name in names}
    found = [_change(config, name, fits) for name in given if fits(dataclasses.replace(config, **{name: given[name]}))]
    if found:
        return " or ".join(found)
    if len(given) < 2 or not fits(standard):
        return ""
    for count in range(2, min(len(given), _TOGETHER)):
        for names in itertools.combinations(given, count):
            if fits(dataclasses.replace(config, **{name: given[name] for name in names})):
                return f"leave out {' and '.join(names)}"
    return f"leave out {' and '.join(given)}"


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
