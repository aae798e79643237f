"""What is chosen where the user set nothing: it follows from what was set, and never stands against it."""

import dataclasses

from jaxinfer.config import EngineConfig
from jaxinfer.models.config import ModelConfig
from jaxinfer.runtime.cures import Unlawful


@dataclasses.dataclass(frozen=True)
class Defaults:
    """What is chosen at most.    max_model_len: None: what the model can address."""

    max_num_seqs: int
    max_num_batched_tokens: int
    page_size: int
    max_model_len: int | None = None


# A device takes the first of these with which the settings fit and whose temporaries need at most STEP_SHARE of what
# the weights leave.
# A CPU step of 256 prompt tokens is as efficient as a longer one and keeps running streams waiting half as long.
CPU = tuple(Defaults(tokens // 16, tokens, page_size=16) for tokens in (256, 128, 64, 32, 16))
# A card that the model nearly fills keeps its memory for pages. A larger step computes prompts no faster there
# (decision 0017).
GPU = tuple(Defaults(min(256, tokens // 16), tokens, page_size=64) for tokens in (8192, 4096, 2048, 1024, 512))
CPU_SHARE = 1 / 4  # of the free memory is for pages
STEP_SHARE = {"cpu": 1 - CPU_SHARE, "gpu": 1 / 4}


def choices_for(config: EngineConfig, platform: str) -> tuple[tuple[Defaults, ...], ...]:
    """What a device may take: the second of these where nothing of the first fits.

    Prompts that are not computed in pieces need steps of their length, so that the length is shortened then.
    """
    choices = CPU if platform == "cpu" else GPU
    if config.enable_chunked_prefill or config.max_model_len or config.max_num_batched_tokens:
        return (choices,)
    return choices, tuple(dataclasses.replace(each, max_model_len=each.max_num_batched_tokens) for each in choices)


def page_size_for(config: EngineConfig, platform: str) -> int:
    """Tokens of a page."""
    return config.page_size or (CPU if platform == "cpu" else GPU)[0].page_size


def longest_sequence(config: EngineConfig, model: ModelConfig, defaults: Defaults) -> int:
    """Tokens of a sequence at most. Raises Unlawful for more than the model can address."""
    most = model.max_position
    if config.max_model_len is not None:
        if config.max_model_len > most:
            law = f"max_model_len must be at most what the model can address, {most}"
            raise Unlawful(f"{law}, got {config.max_model_len}", {"max_model_len": most})
        return config.max_model_len
    of_a_step = None if config.enable_chunked_prefill else config.max_num_batched_tokens
    return max(2, min(most, defaults.max_model_len or most, of_a_step or most))


def num_seqs(config: EngineConfig, defaults: Defaults) -> int:
    """Sequences together: of those that nobody asked for no more than a step has tokens."""
    return config.max_num_seqs or min(defaults.max_num_seqs, config.max_num_batched_tokens or defaults.max_num_seqs)


def batched_tokens(config: EngineConfig, defaults: Defaults, longest: int, seqs: int) -> int:
    """Tokens of a step; every running sequence needs one, and a prompt that is not chunked needs all of its own."""
    least, given = seqs if config.enable_chunked_prefill else max(seqs, longest), config.max_num_batched_tokens
    if given is None:
        return max(defaults.max_num_batched_tokens, least)
    if given < least:
        why = f"max_num_seqs ({seqs})" if least == seqs else f"the longest prompt ({least}) without chunked prefill"
        values = {"max_num_batched_tokens": least, "max_num_seqs": given, "max_model_len": given}
        raise Unlawful(f"max_num_batched_tokens must be at least {why}, got {given}", values)
    return given
