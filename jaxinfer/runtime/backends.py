"""Which implementation runs each op: chosen once, before anything is compiled, and never changed or left silently."""

import dataclasses
import enum
from typing import Protocol

import jax.numpy as jnp

from jaxinfer.config import AttentionBackend
from jaxinfer.errors import ConfigError
from jaxinfer.models.config import ModelConfig
from jaxinfer_kernels.attention import sm90_decode_config as mosaic_decode_plan
from jaxinfer_kernels.attention import sm90_extend as mosaic_extend
from jaxinfer_kernels.launch import ffi as chain_calls
from jaxinfer_kernels.linear import sm90_large as mosaic_gate_up
from jaxinfer_kernels.linear import sm90_medium_config as mosaic_batch_linear_plan
from jaxinfer_kernels.linear import sm90_small_config as mosaic_linear_plan
from jaxinfer_kernels.sampling import sm90_argmax as mosaic_largest
from jaxinfer_kernels.sampling import sm90_draw

_HOPPER = "9.0"
MOSAIC_LINEAR_ROWS = 16  # up to so many, streaming the weights by our kernels beats XLA's (benchmarks/README.md)
MOSAIC_BATCH_ROWS = 128  # and up to so many, multiplying by gate and up together
CHAINED_ROWS = 256  # and in a chain up to so many, prompts' tokens too, where a model is as narrow as
CHAINED_WIDTH = 2048  # this: 4,096 wide, cuBLAS is faster at 256 rows
MOSAIC_MANY_ROWS = 1024  # and from so many on, gate and up with what follows them


class Backend(enum.StrEnum):
    """XLA: compiled from plain operations, on every device.    MOSAIC: our kernels for Hopper."""

    XLA = "xla"
    MOSAIC = "mosaic"


class Launches(enum.StrEnum):
    """How the kernels of a small step's layers are launched: each for XLA an operation of its own, or all as one, so
    that a kernel begins while the one before it ends (jaxinfer_kernels.chain)."""

    SINGLE = "one by one"
    CHAINED = "chained"


@dataclasses.dataclass(frozen=True)
class Backends:
    """One implementation per op, and how the kernels of small steps are launched."""

    decode_attention: Backend = Backend.XLA
    extend_attention: Backend = Backend.XLA
    decode_linear: Backend = Backend.XLA
    extend_linear: Backend = Backend.XLA
    masks: Backend = Backend.XLA
    sampling: Backend = Backend.XLA
    launches: Launches = Launches.SINGLE

    def rows(self) -> tuple[tuple[str, str], ...]:
        """(op, implementation), for people."""
        return tuple((name.replace("_", " "), str(value)) for name, value in dataclasses.asdict(self).items())


XLA_ONLY = Backends()


class Described(Protocol):
    """A device to choose for: a jax.Device, or one that is not here. A GPU has a `compute_capability` too."""

    @property
    def platform(self) -> str: ...

    @property
    def device_kind(self) -> str: ...


def choose_backends(
    setting: AttentionBackend, model: ModelConfig, dtype: str, page_size: int, device: Described
) -> Backends:
    """The fastest that this device and the model's shapes can run, or what the setting names.

    Raises ConfigError where the setting names what cannot run, with the reason.
    """
    if setting == "xla":
        return XLA_ONLY
    capability = str(getattr(device, "compute_capability", "none"))
    hopper = capability == _HOPPER
    kind, h = jnp.dtype(dtype), model.head_dim
    decode = hopper and mosaic_decode_plan.supported(model.num_heads, model.num_kv_heads, h, page_size, kind)
    extend = decode and mosaic_extend.supported(h, page_size, kind)  # which gives rows of one token to the other
    if setting == "mosaic" and not (decode and extend):
        fact = f"{dtype}, page_size {page_size}, {model.num_heads} heads of {h} over {model.num_kv_heads}"
        if not hopper:
            fact = f"{device.device_kind} ({capability})"
        raise ConfigError(
            f"attention_backend mosaic needs a GPU of compute capability {_HOPPER} (H100, H200), bfloat16 or float16, "
            "pages of 8 to 128 tokens, head_dim 64 or 128 and at most 64 query heads per kv head, "
            f"got {fact}; set attention_backend to auto"
        )
    few = hopper and linears_supported(model, kind)
    many = hopper and mosaic_gate_up.supported(MOSAIC_MANY_ROWS, 2 * model.intermediate_size, model.hidden_size, kind)
    masks = hopper and mosaic_largest.masks_supported(model.vocab_size)
    sampling = hopper and sm90_draw.supported(model.vocab_size)
    launches = Launches.CHAINED if decode and few and chain_calls.available() else Launches.SINGLE
    ops = (decode, extend, few, many, masks, sampling)
    return Backends(*(Backend.MOSAIC if can else Backend.XLA for can in ops), launches)


def linears_supported(model: ModelConfig, dtype: jnp.dtype) -> bool:
    """Whether the Mosaic linear layers of few rows can run all of a model's."""
    d, f, attended = model.hidden_size, model.intermediate_size, model.num_heads * model.head_dim
    qkv = attended + 2 * model.num_kv_heads * model.head_dim
    mlp = ((2 * f, d), (d, f))
    few = (mosaic_linear_plan.supported(MOSAIC_LINEAR_ROWS, *shape, dtype) for shape in ((qkv, d), (d, attended), *mlp))
    return all(few) and all(mosaic_batch_linear_plan.supported(MOSAIC_BATCH_ROWS, *shape, dtype) for shape in mlp)
