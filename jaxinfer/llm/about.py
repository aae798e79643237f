"""What clients are told of a model, from its files and the settings. No jax."""

import hashlib
import json
import time
from typing import Protocol

from jaxinfer.checkpoint.resolve import Checkpoint
from jaxinfer.config import EngineConfig
from jaxinfer.errors import CheckpointError
from jaxinfer.llm.types import ModelInfo
from jaxinfer.models.config import HFConfig, is_headless, token_ids
from jaxinfer.protocol.sampling import GenerationDefaults
from jaxinfer.version import __version__

DEMO_NOTE = (
    "this is the bundled demo model: a few million parameters, trained on generated text; it is no useful assistant. "
    "A real model: jaxinfer serve Qwen/Qwen3-0.6B"
)
DUMMY_NOTE = "these are random weights (load_format dummy): the answers mean nothing"
HEADLESS_NOTE = (
    "this model was saved without the matrix that makes logits: its embeddings are right, generated text means nothing"
)


class Outline(Protocol):
    """Of a ModelConfig what clients are told."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def max_position(self) -> int: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...


def model_info(config: EngineConfig, checkpoint: Checkpoint, model: Outline) -> ModelInfo:
    """The fingerprint names the version, the model's config and how the weights came about."""
    from_file = config.generation_config == "auto"
    defaults = GenerationDefaults.from_generation_config(checkpoint.generation_config if from_file else {})
    dummy = config.load_format == "dummy"
    digest = hashlib.sha256(json.dumps(checkpoint.config, sort_keys=True).encode()).hexdigest()[:8]
    kind = "-dummy" if dummy else "-demo" if checkpoint.is_demo else ""
    return ModelInfo(
        served_names=config.served_model_name or (config.model,),
        root=config.model,
        max_model_len=model.max_position,
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        eos_token_ids=eos_ids(checkpoint, model),
        defaults=defaults,
        fingerprint=f"jaxinfer-{__version__}-{digest}{kind}",
        created=int(time.time()),
        is_demo=checkpoint.is_demo,
        max_logprobs=config.max_logprobs,
        note=DUMMY_NOTE if dummy else _note(checkpoint),
    )


def _note(checkpoint: Checkpoint) -> str:
    if is_headless(checkpoint.config) and not checkpoint.config.get("tie_word_embeddings"):
        return HEADLESS_NOTE
    return DEMO_NOTE if checkpoint.is_demo else ""


def eos_ids(checkpoint: Checkpoint, model: Outline) -> tuple[int, ...]:
    """generation_config.json's list where it has one, since it is the one meant for generating, and config.json's.

    Raises CheckpointError for an id that the vocabulary does not have.
    """
    config = HFConfig(checkpoint.generation_config, prefix="generation_config.json: ")
    stated = token_ids(config, "eos_token_id", model.vocab_size)
    if config.faults:
        raise CheckpointError("; ".join(config.faults))
    return tuple(dict.fromkeys([*stated, *model.eos_token_ids]))
