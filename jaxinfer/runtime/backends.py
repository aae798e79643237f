"""Which implementation runs each op: chosen once, before anything is compiled, and never changed or left silently."""

import dataclasses
import enum
from typing import Protocol

import jax.numpy as jnp

from jaxinfer.config import AttentionBackend, ExtendBucket
from jaxinfer.errors import ConfigError
from jaxinfer.layers import attention
from jaxinfer.layers.batch import AttentionOp
from jaxinfer.layers.products import SM90_BATCH, SM90_BATCH_SEQUENCE, SM90_FEW, SM90_MANY, XLA, Products
from jaxinfer.layers.spec import Attention, Dense
from jaxinfer.models.config import ModelConfig
from jaxinfer.runtime.buckets import Decode
from jaxinfer_kernels.attention import sm90_decode_config, sm90_extend
from jaxinfer_kernels.launch import ffi
from jaxinfer_kernels.linear import sm90_large, sm90_medium_config, sm90_small_config
from jaxinfer_kernels.sampling import sm90_argmax, sm90_draw

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
    that a kernel begins while the one before it ends (jaxinfer_kernels.launch.sequence)."""

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
    kind, mixers = jnp.dtype(dtype), model.attentions
    decode = hopper and all(_decodes(mixer, page_size, kind) for mixer in mixers)
    # which gives rows of one token to the other
    extend = decode and all(sm90_extend.supported(mixer.head_dim, page_size, kind) for mixer in mixers)
    if setting == "mosaic" and not (decode and extend):
        heads = " and ".join(sorted(f"{one.heads} heads of {one.head_dim} over {one.kv_heads}" for one in mixers))
        fact = f"{dtype}, page_size {page_size}, {heads}"
        if not hopper:
            fact = f"{device.device_kind} ({capability})"
        raise ConfigError(
            f"attention_backend mosaic needs a GPU of compute capability {_HOPPER} (H100, H200), bfloat16 or float16, "
            "pages of 8 to 128 tokens, head_dim 64 or 128 and at most 64 query heads per kv head, "
            f"got {fact}; set attention_backend to auto"
        )
    few = hopper and linears_supported(model, kind)
    many = hopper and all(
        mlp.gated and sm90_large.supported(MOSAIC_MANY_ROWS, 2 * mlp.width, model.hidden_size, kind)
        for mlp in _mlps(model)
    )
    masks = hopper and sm90_argmax.masks_supported(model.vocab_size)
    sampling = hopper and sm90_draw.supported(model.vocab_size)
    launches = Launches.CHAINED if decode and few and ffi.available() else Launches.SINGLE
    ops = (decode, extend, few, many, masks, sampling)
    return Backends(*(Backend.MOSAIC if can else Backend.XLA for can in ops), launches)


def _decodes(mixer: Attention, page_size: int, dtype: jnp.dtype) -> bool:
    shape = mixer.heads, mixer.kv_heads, mixer.head_dim
    return mixer.window is None and sm90_decode_config.supported(*shape, page_size, dtype)


def _mlps(model: ModelConfig) -> set[Dense]:
    return {layer.mlp for layer in model.layers}


def linears_supported(model: ModelConfig, dtype: jnp.dtype) -> bool:
    """Whether the Mosaic linear layers of few rows can run all of a model's."""
    d = model.hidden_size
    shapes = {shape for mlp in _mlps(model) for shape in mlp.products(d)}
    of_mixers = {shape for layer in model.layers for shape in layer.mixer.products(d)}
    few = (sm90_small_config.supported(MOSAIC_LINEAR_ROWS, *shape, dtype) for shape in shapes | of_mixers)
    return all(few) and all(sm90_medium_config.supported(MOSAIC_BATCH_ROWS, *shape, dtype) for shape in shapes)


@dataclasses.dataclass(frozen=True)
class StepKernels:
    """What computes the layers of one step.

    sequence: they are launched as one (jaxinfer_kernels.launch.sequence).
    align: the rows of a decode step are padded to a multiple of it.
    reads_by_token: each token of an extend step reads keys for itself, as decode rows do: in small steps of many rows,
    of which most bring one token. A chunk of a prompt is then read once for each of its tokens.
    """

    attention: AttentionOp
    products: Products
    sequence: bool = False
    align: int = 1
    reads_by_token: bool = False


def kernels_for(model: ModelConfig, backends: Backends, key: Decode | ExtendBucket) -> StepKernels:
    """The kernels of a step of this size: the one place where rows are compared with thresholds."""
    return _of_extend(model, backends, key) if isinstance(key, ExtendBucket) else _of_decode(model, backends, key)


def _of_decode(model: ModelConfig, backends: Backends, key: Decode) -> StepKernels:
    sequence = backends.launches is Launches.CHAINED
    products = _products(model, backends, key.batch, sequence=sequence)
    aligned = products in (SM90_FEW, SM90_BATCH_SEQUENCE)
    sequence = sequence and aligned
    attend = attention.decode_xla(key.context)
    if backends.decode_attention is Backend.MOSAIC:
        # A launch saved is worth most where there is little to compute; outside of a sequence, many rows rotate faster
        # in XLA's.
        attend = attention.decode_sm90(in_sequence=sequence) if aligned else attention.decode_sm90_write
    return StepKernels(attend, products, sequence, align=8 if aligned else 1)


def _of_extend(model: ModelConfig, backends: Backends, key: ExtendBucket) -> StepKernels:
    if backends.extend_attention is not Backend.MOSAIC:
        return StepKernels(attention.extend_xla, _products_of_prompts(model, backends, key))
    fits = sm90_extend.ROWS <= key.tokens <= _most_in_sequence(model) and key.tokens % 8 == 0
    if backends.launches is not Launches.CHAINED or not fits:
        return StepKernels(attention.extend_sm90, _products_of_prompts(model, backends, key))
    by_token = key.rows > sm90_extend.FEW_ROWS
    attend = attention.extend_sm90_by_token if by_token else attention.extend_sm90_tiles
    return StepKernels(attend, SM90_BATCH_SEQUENCE, sequence=True, reads_by_token=by_token)


def _products_of_prompts(model: ModelConfig, backends: Backends, key: ExtendBucket) -> Products:
    few = key.tokens <= MOSAIC_LINEAR_ROWS
    return XLA if few else _products(model, backends, key.tokens, sequence=False)


def _products(model: ModelConfig, backends: Backends, rows: int, *, sequence: bool) -> Products:
    if rows >= MOSAIC_MANY_ROWS:
        many = backends.extend_linear is Backend.MOSAIC and rows % sm90_large.TILE_ROWS == 0
        return SM90_MANY if many else XLA
    most = _most_in_sequence(model) if sequence else MOSAIC_BATCH_ROWS
    if backends.decode_linear is not Backend.MOSAIC or rows > most:
        return XLA
    if rows <= MOSAIC_LINEAR_ROWS:
        return SM90_FEW
    return SM90_BATCH_SEQUENCE if sequence else SM90_BATCH


def _most_in_sequence(model: ModelConfig) -> int:
    """Rows, or tokens of an extend step, up to which the layers of a step can be one launch sequence."""
    return CHAINED_ROWS if model.hidden_size <= CHAINED_WIDTH else MOSAIC_BATCH_ROWS
