"""Cures for a model that does not fit a device: the settings that were given and take the memory."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from jaxinfer.cache.spec import ITEMSIZE
from jaxinfer.config import EngineConfig, size_words
from jaxinfer.errors import ConfigError, DeviceError
from jaxinfer.models.config import ModelConfig
from jaxinfer.runtime.backends import XLA_ONLY, Backends

# the least value that is tried of those of which a smaller one may fit
_LOWERED = {"max_num_batched_tokens": 1, "max_num_seqs": 1, "page_size": 16, "max_model_len": 2}
GIB = 2**30
_OF_MEMORY = (
    *("gpu_memory_utilization", "kv_offloading_bytes", "enable_chunked_prefill", "dtype", *_LOWERED),
    *("num_pages", "kv_cache_memory_bytes"),
)
_TOGETHER = 4  # settings: of so many all are told, as trying each choice of them takes a plan
_MOST_SET = 256  # sequences, where nobody asked for a number
SLACK = 80 * 2**20  # bytes that other programs may take between a refusal and the next start


class DoesNotFit(DeviceError):
    """A model that a device has too little memory for.

    fact: what must fit.    values: of settings, which may be enough.    missing_bytes: of what the engine may use.
    What has been tried, nothing and 0 of what does not help: changes: of settings, each of which is enough, in words.
    to_free: how many bytes more are enough.    smaller: what makes the weights small enough, in words.    beside: a
    change without which freeing is not enough, in words.
    """

    def __init__(
        self,
        fact: str,
        values: Mapping[str, int],
        missing_bytes: int,
        *,
        changes: Sequence[str] = (),
        to_free: int = 0,
        smaller: str = "",
        beside: str = "",
    ) -> None:
        free = with_beside(beside, f"free {size_words(to_free)} of memory") if to_free else ""
        others = [*filter(None, [free, smaller]), "choose a smaller model, or a larger machine"]
        super().__init__(f"{fact}; {' or '.join(changes) or ', '.join(others)}")
        self.fact, self.values, self.missing_bytes = fact, values, missing_bytes
        self.changes, self.to_free, self.smaller, self.beside = changes, to_free, smaller, beside

    def with_cures(
        self, *, changes: Sequence[str] = (), to_free: int = 0, smaller: str = "", fact: str = "", beside: str = ""
    ) -> "DoesNotFit":
        """The same with cures that were tried later, or told as a part of another fact and cures beside a change."""
        return DoesNotFit(
            fact or self.fact,
            self.values,
            self.missing_bytes,
            changes=[with_beside(beside, change) for change in changes or self.changes],
            to_free=to_free or self.to_free,
            smaller=with_beside(beside, smaller or self.smaller),
            beside=with_beside(beside, self.beside) or beside,
        )


class Unlawful(ConfigError):
    """A setting that the model or another setting does not allow.

    values: of settings, which may be lawful; the first is the setting's own.    changes: of settings, each of which has
    been tried and is enough, in words.
    """

    def __init__(self, fact: str, values: Mapping[str, int], changes: Sequence[str] = ()) -> None:
        super().__init__("; ".join(filter(None, [fact, " or ".join(changes)])))
        self.fact, self.values, self.changes = fact, values, changes


def with_beside(beside: str, cure: str) -> str:
    """A cure, with another change without which it does not help."""
    return f"{beside} and {cure}" if beside and cure else cure


def change_words(config: EngineConfig, name: str, value: int) -> str:
    """To give a setting that was given another value."""
    return f"{'lower' if value < getattr(config, name) else 'raise'} {name} to {value}"


def rounded_up(num_bytes: int) -> int:
    """The bytes that `size_words` can say which are not less."""
    digit = GIB // 100 if num_bytes >= GIB // 10 else 2**20 // 10
    return -(-num_bytes // digit) * digit


def missing_words(num_bytes: int) -> str:
    """How much is missing, in words that are not less."""
    return f"{size_words(rounded_up(num_bytes))} are missing"


def lowered(most: int, least: int, unit_bytes: int = 1) -> int:
    """A value at most so high that fits a little less memory too, of two digits. Not below `least`, which `most` is not
    either.

    unit_bytes: what one more of the value takes.
    """
    value = most - min(-(-SLACK // max(1, unit_bytes)), (most - least) * 3 // 4)
    digit = 10 ** max(0, len(str(value)) - 2)
    return max(least, value // digit * digit)


def changes_that_fit(config: EngineConfig, values: Mapping[str, int], fits: Callable[..., bool]) -> list[str]:
    """Changes of settings that were given and without which the model fits, each of which is enough.

    values: of settings, which are tried first.    fits: whether the model does with a configuration and so many bytes
    less.
    """
    return _changes(config, values, partial(fits, slack=SLACK)) or _changes(config, values, partial(fits, slack=0))


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


def without(config: EngineConfig, left_out: Sequence[str]) -> EngineConfig:
    """The configuration with these settings as they are unasked."""
    standard = EngineConfig()
    return dataclasses.replace(config, **{name: getattr(standard, name) for name in left_out})


def sets_of_settings(config: EngineConfig) -> Iterator[tuple[str, ...]]:
    """The settings that were given, take memory and may be left out together, the fewest first, all of them last."""
    names = _given(config)
    for count in range(1, min(len(names), _TOGETHER)):
        yield from itertools.combinations(names, count)
    if names:
        yield names


def sets_that_help_most(config: EngineConfig) -> Iterator[tuple[str, ...]]:
    """All of these settings, and all but one, which may itself be why something fits. Where none of these is enough it
    is not worth it to try hundreds of smaller sets.
    """
    if names := _given(config):
        yield names
        yield from itertools.combinations(names, len(names) - 1)


def _given(config: EngineConfig) -> tuple[str, ...]:
    """The names of those settings that take memory and are not as they are unasked."""
    standard = EngineConfig()
    return tuple(name for name in _OF_MEMORY if getattr(config, name) != getattr(standard, name))


def _changes(config: EngineConfig, values: Mapping[str, int], fits: Callable[[EngineConfig], bool]) -> list[str]:
    """The settings of which one alone is enough, else the fewest together."""
    names = _given(config)
    tried = [*(name for name in values if name in names), *names]
    tried += ["max_num_seqs"] if names else []  # of those that nobody asked for fewer may leave the rest as asked
    found = [change for name in dict.fromkeys(tried) if (change := _change(config, name, values.get(name), fits))]
    if found:
        return found
    if len(names) > 1 and any(fits(without(config, left_out)) for left_out in sets_that_help_most(config)):
        for left_out in sets_of_settings(config):
            if fits(without(config, left_out)):
                return [f"leave out {' and '.join(left_out)}"]
    return []


def _change(config: EngineConfig, name: str, likely: int | None, fits: Callable[[EngineConfig], bool]) -> str:
    """A value of a setting that works: the likely one, a power of two, else what it is unasked. Empty without any."""
    value, standard, least = getattr(config, name), getattr(EngineConfig(), name), _LOWERED.get(name)

    def does(other: object) -> bool:
        return other != value and fits(dataclasses.replace(config, **{name: other}))

    if likely is not None and value is not None and likely >= (least or 0) and does(likely):
        return change_words(config, name, likely)
    is_enough = does(standard)
    if least is not None and (is_enough or (value or _MOST_SET) > least and does(least)):
        powers = (2**bits for bits in reversed(range(((value or _MOST_SET) - 1).bit_length())))
        if power := next((power for power in powers if power >= least and does(power)), None):
            return f"{'set' if value is None else 'lower'} {name} to {power}"
    if not is_enough:
        return ""
    if standard is None:
        return f"leave out {name}"
    return f"{'raise' if name == 'gpu_memory_utilization' else 'set'} {name} to {str(standard).lower()}"
