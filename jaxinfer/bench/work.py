"""What a model must read and multiply at least: the figures that shares of a device's limits are of."""

import dataclasses
import sys

from jaxinfer.bench.machine import MachineLimits
from jaxinfer.cache.spec import ITEMSIZE, CacheLayout, layout_of
from jaxinfer.checkpoint.resolve import Part, resolve
from jaxinfer.config import EngineConfig
from jaxinfer.errors import ConfigError
from jaxinfer.layers.spec import Attention
from jaxinfer.models.config import ModelConfig
from jaxinfer.models.parameters import num_bytes
from jaxinfer.models.registry import family_for
from jaxinfer.runtime.backends import HostCpu, as_computed, as_held
from jaxinfer.runtime.device import uses_gpu
from jaxinfer.runtime.memory import backends_for


@dataclasses.dataclass(frozen=True)
class ModelWork:
    """One model's work. read_bytes: of the weights, once a step; an untied embedding is looked up, not read through.

    layer_params: of the matrices that every token meets.    head_params: of the last one, which sampled tokens meet.
    outline: layers, hidden size, heads, kv heads, intermediate size and dtype: others' figures may be of the same.
    context: tokens of prompt and answer that the model can address and the settings allow; the pool may hold fewer.
    """

    read_bytes: int
    layer_params: int
    head_params: int
    layout: CacheLayout
    attention_flops: int  # of one query and one key, all layers
    vocab_size: int
    outline: tuple[int | str, ...] = ()
    context: int = sys.maxsize

    def decode_bytes(self, batch: float, context: float) -> float:
        """Of one step."""
        return self.read_bytes + batch * self.layout.read_bytes(context)

    def decode_flops(self, batch: int, context: float) -> float:
        return 2.0 * batch * (self.layer_params + self.head_params) + batch * context * self.attention_flops

    def prefill_flops(self, batch: int, prompt: int) -> float:
        """Of whole prompts; each token attends to half of its prompt on average."""
        causal = prompt * prompt / 2 * self.attention_flops
        return batch * (2.0 * prompt * self.layer_params + 2.0 * self.head_params + causal)

    def offline_s(self, limits: MachineLimits, requests: int, prompt: int, output: int, together: int) -> float:
        """The serial roof of an offline run: memory time and compute time added, nothing hidden behind anything."""
        steps = -(-requests // together) * output
        context = prompt + output / 2
        read_s = (steps * self.read_bytes + requests * output * self.layout.read_bytes(context)) / limits.bytes_per_s
        flops = self.prefill_flops(requests, prompt) + self.decode_flops(requests * output, context)
        return read_s + flops / limits.flops


def check_context(tokens: int, context: int) -> None:
    """Ask it of Work.context before anything is measured, and of a started engine. Raises ConfigError."""
    if tokens > context:
        raise ConfigError(
            f"prompt and answer must have at most {context} tokens together (max_model_len), got {tokens}; shorten them"
        )


def work_of(config: EngineConfig) -> ModelWork:
    """From config.json alone. Raises CheckpointError."""
    needs: tuple[Part, ...] = ("config",)
    checkpoint = resolve(
        config.model,
        revision=config.revision,
        download_dir=config.download_dir,
        needs=needs,
        overrides=config.hf_overrides,
    )
    family = family_for(checkpoint.config)
    model: ModelConfig = family.model(checkpoint.config, config.quantization)
    if model.published is not None and not uses_gpu(config.device):
        model = as_computed(config, model, HostCpu())
        model = as_held(model, backends_for(config, model, HostCpu()))
    dtype = config.dtype_for(model.dtype)
    itemsize = ITEMSIZE[dtype]
    first, mixers = model.layers[0], [layer.mixer for layer in model.layers]
    heads = next(((m.heads, m.kv_heads) for m in mixers if isinstance(m, Attention)), ())
    embedding = model.vocab_size * model.hidden_size
    beside = 0 if model.tie_embeddings else embedding * itemsize
    return ModelWork(
        read_bytes=num_bytes(family.specs(model), dtype) - beside,
        layer_params=model.num_params - embedding * (1 if model.tie_embeddings else 2),
        head_params=embedding,
        layout=layout_of(model.caches(dtype), 1),
        attention_flops=sum(4 * m.q_width for m in mixers if isinstance(m, Attention)),
        vocab_size=model.vocab_size,
        outline=(len(mixers), model.hidden_size, *heads, first.mlp.width, model.held_in(dtype)),
        context=min(config.max_model_len or model.max_position, model.max_position),
    )
