"""What clients are told of a model, from its files and the settings. No jax."""

import hashlib
import json
import time
from typing import Protocol

from jaxinfer.checkpoint.contents import CONFIG
from jaxinfer.checkpoint.resolve import Checkpoint
from jaxinfer.config import EngineConfig
from jaxinfer.errors import CheckpointError
from jaxinfer.llm.types import CheckpointFacts, ModelInfo
from jaxinfer.models.config import HFConfig, is_headless, token_ids
from jaxinfer.protocol.sampling import GenerationDefaults
from jaxinfer.version import __version__

DEMO_NOTE = "a demo, no useful assistant; a real one: jaxinfer serve Qwen/Qwen3-0.6B"
DUMMY_NOTE = "these are random weights (load_format dummy): the answers mean nothing"
HEADLESS_NOTE = (
    "this model was saved without the matrix that makes logits: its embeddings are right, generated text means nothing"
)


class ModelOutline(Protocol):
    """Of a ModelConfig what clients are told."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def max_position(self) -> int: ...

    @property
    def num_params(self) -> int: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...


def model_info(config: EngineConfig, checkpoint: Checkpoint, model: ModelOutline) -> ModelInfo:
    """The fingerprint names the version, the model's config and how the weights came about."""
    from_file = config.generation_config == "auto"
    defaults = GenerationDefaults.from_generation_config(checkpoint.generation_config if from_file else {})
    dummy = config.load_format == "dummy"
    digest = hashlib.sha256(json.dumps(checkpoint.config, sort_keys=True).encode()).hexdigest()[:8]
    kind = "" if config.quantization == "auto" else f"-{config.quantization}"
    kind += "-dummy" if dummy else "-demo" if checkpoint.is_demo else ""
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
        facts=checkpoint_facts(checkpoint, model.num_params),
    )


def checkpoint_facts(checkpoint: Checkpoint, num_params: int) -> CheckpointFacts:
    """From config.json, and names, sizes and times of the weights' files, which are not read."""
    raw, files = checkpoint.config, checkpoint.weight_files
    sizes = [(file.name, file.stat().st_size) for file in files]
    quantized = raw.get("quantization_config")
    method = quantized.get("quant_method") if isinstance(quantized, dict) else None
    told = json.dumps([raw, sizes], sort_keys=True).encode()
    newest = [file.stat().st_mtime for file in (checkpoint.folder / CONFIG, *files) if file.exists()]
    return CheckpointFacts(
        family=str(raw.get("model_type") or ""),
        context_length=_count(raw.get("max_position_embeddings")),
        num_layers=_count(raw.get("num_hidden_layers")),
        dtype=str(method or raw.get("dtype") or raw.get("torch_dtype") or ""),
        num_params=num_params,
        weight_bytes=sum(size for _, size in sizes),
        digest=hashlib.sha256(told).hexdigest(),
        modified_s=max(newest, default=0.0),
    )


def _count(value: object) -> int:
    return value if type(value) is int else 0


def _note(checkpoint: Checkpoint) -> str:
    if is_headless(checkpoint.config) and not checkpoint.config.get("tie_word_embeddings"):
        return HEADLESS_NOTE
    return DEMO_NOTE if checkpoint.is_demo else ""


def eos_ids(checkpoint: Checkpoint, model: ModelOutline) -> tuple[int, ...]:
    """generation_config.json's list where it has one, since it is the one meant for generating, and config.json's.

    Raises CheckpointError for an id that the vocabulary does not have.
    """
    config = HFConfig(checkpoint.generation_config, prefix="generation_config.json: ")
    stated = token_ids(config, "eos_token_id", model.vocab_size)
    if config.faults:
        raise CheckpointError("; ".join(config.faults))
    return tuple(dict.fromkeys([*stated, *model.eos_token_ids]))
