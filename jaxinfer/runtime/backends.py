"""Which implementation runs each op: chosen once, before anything is compiled, and never changed or left silently."""

import dataclasses
import enum
import functools
import itertools
from collections.abc import Sequence
from typing import Protocol

import jax.numpy as jnp

from jaxinfer.config import AttentionBackend, EngineConfig, ExtendBucket
from jaxinfer.errors import ConfigError
from jaxinfer.layers import attention
from jaxinfer.layers.batch import AttentionOp
from jaxinfer.layers.products import (
    CPU,
    XLA,
    Products,
    large_products,
    medium_products,
    sequence_products,
    small_products,
    w8a8_products,
)
from jaxinfer.layers.spec import Attention
from jaxinfer.models.config import ModelConfig
from jaxinfer.models.published import Fp8, Int4, Scheme
from jaxinfer.runtime.buckets import Decode
from jaxinfer.runtime.plan import BackendTime
from jaxinfer_kernels import cpu
from jaxinfer_kernels.attention import cpu as cpu_attention
from jaxinfer_kernels.attention import sm90_decode_config, sm90_extend
from jaxinfer_kernels.attention.sm90_decode_config import DecodeTuning
from jaxinfer_kernels.attention.sm90_extend import ExtendTuning
from jaxinfer_kernels.cpu import Isa
from jaxinfer_kernels.launch import ffi
from jaxinfer_kernels.linear import cpu as cpu_linear
from jaxinfer_kernels.linear import sm90_large, sm90_medium_config, sm90_small_config, sm90_w8a8
from jaxinfer_kernels.linear.quantized import Format
from jaxinfer_kernels.linear.sm90_small_config import PLAIN, WeightForm
from jaxinfer_kernels.sampling import sm90_argmax, sm90_draw
from jaxinfer_kernels.sm90 import CAPABILITY, HopperGpu

# Rows of a decode step, or tokens of an extend step, at which one of jaxinfer_kernels.linear is the fastest
# (benchmarks/README.md).
SMALL_ROWS = 16  # sm90_small up to so many
MEDIUM_ROWS = 128  # sm90_medium up to so many, of a model
NARROW = 2048  # as wide as this
NARROW_ROWS = 256  # and in a launch sequence up to so many: 4,096 wide, cuBLAS is faster at 256 rows
WIDENED_ROWS = 64  # of weights in fp8, which the others widen: sm90_w8a8 for more
PACKED_ROWS = 32  # of weights of 4 bits, which sm90_small alone widens: XLA for more
LARGE_ROWS = 1024  # sm90_large from so many on
CPU_ROWS = 8  # cpu up to so many, where the processor has no AMX and weights are bfloat16


class Backend(enum.StrEnum):
    """XLA: compiled from plain operations, on every device.    MOSAIC, CPU: our kernels for Hopper, and for CPUs."""

    XLA = "xla"
    MOSAIC = "mosaic"
    CPU = "cpu"


class Launches(enum.StrEnum):
    """How the kernels of a small step's layers are launched: each for XLA an operation of its own, or those that follow
    each other as one, so that a kernel begins while the one before it ends (jaxinfer_kernels.launch.sequence)."""

    SINGLE = "one by one"
    SEQUENCE = "in sequences, which an operation without a kernel closes"


@dataclasses.dataclass(frozen=True)
class Backends:
    """One implementation per op, and how the kernels of small steps are launched.

    gpu: what our kernels are cut for; None where there are none.    isa: what those for CPUs use, likewise.
    timings: what runtime/timing.py measured before it chose. No executable depends on them: they are no part of
    equality and of repr.
    """

    decode_attention: Backend = Backend.XLA
    extend_attention: Backend = Backend.XLA
    decode_linear: Backend = Backend.XLA
    extend_linear: Backend = Backend.XLA
    masks: Backend = Backend.XLA
    sampling: Backend = Backend.XLA
    launches: Launches = Launches.SINGLE
    gpu: HopperGpu | None = None
    isa: Isa | None = None
    timings: tuple[BackendTime, ...] = dataclasses.field(default=(), compare=False, repr=False)

    @property
    def of_sm90(self) -> HopperGpu:
        assert self.gpu is not None, "our kernels are cut for a GPU"
        return self.gpu

    def by_op(self) -> dict[str, str]:
        """The implementation of each op, and how kernels are launched."""
        return {name: str(value) for name, value in vars(self).items() if name not in ("gpu", "isa", "timings")}

    def rows(self) -> tuple[tuple[str, str], ...]:
        """The same for people, with times, and how many multiprocessors or which instructions our kernels use."""
        ops = tuple((op.replace("_", " "), value + self._times_of(op)) for op, value in self.by_op().items())
        if self.isa is not None:
            return *ops, ("instructions", self.isa.name)
        return ops if self.gpu is None else (*ops, ("multiprocessors", str(self.gpu.multiprocessors)))

    def _times_of(self, op: str) -> str:
        """Of a layer, as in " (decode 1: cpu 41 us, xla 86 us)"."""
        by_step: dict[str, list[str]] = {}
        for timing in self.timings:
            if timing.op == op:
                by_step.setdefault(timing.step, []).append(f"{timing.backend} {timing.median_s * 1e6:.0f} us")
        return f" ({'; '.join(f'{step}: {", ".join(times)}' for step, times in by_step.items())})" if by_step else ""


XLA_ONLY = Backends()


class Described(Protocol):
    """A device to choose for: a jax.Device, or one that is not here. What else a GPU has: HopperGpu.of."""

    @property
    def platform(self) -> str: ...

    @property
    def device_kind(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class HostCpu:
    """This machine's processor, to choose for without asking JAX for it."""

    platform: str = "cpu"
    device_kind: str = "cpu"


def choose_backends(
    setting: AttentionBackend, model: ModelConfig, dtype: str, page_size: int, device: Described
) -> Backends:
    """The fastest that this device and the model's shapes can run, or what the setting names.

    Raises ConfigError where the setting names what cannot run, with the reason.
    """
    if setting == "xla":
        return XLA_ONLY
    gpu, kind, mixers = HopperGpu.of(device), jnp.dtype(dtype), model.attentions
    decode = gpu is not None and all(_decodes(mixer, page_size, kind, gpu) for mixer in mixers)
    # which gives rows of one token to the other
    extend = decode and all(sm90_extend.supported(mixer.head_dim, page_size, kind) for mixer in mixers)
    if setting == "mosaic" and not extend:
        heads = " and ".join(sorted(f"{one.heads} heads of {one.head_dim} over {one.kv_heads}" for one in mixers))
        fact = f"{dtype}, page_size {page_size}, {heads}"
        if gpu is None:
            fact = f"{device.device_kind} ({getattr(device, 'compute_capability', 'none')})"
        raise ConfigError(
            f"attention_backend mosaic needs a GPU of compute capability {CAPABILITY} (H20, H100, H200), bfloat16 or "
            "float16, pages of 8 to 128 tokens, head_dim 64 or 128 and at most 64 query heads per kv head, "
            f"got {fact}; set attention_backend to auto"
        )
    if device.platform == "cpu":
        return _of_cpu(model, kind, page_size)
    if gpu is None:
        return XLA_ONLY
    few = linears_supported(model, kind, gpu)
    many = few and _in_fp8_supported(model, kind) if model.is_quantized else _gates_supported(model, kind)
    masks, sampling = sm90_argmax.masks_supported(model.vocab_size), sm90_draw.supported(model.vocab_size)
    launches = Launches.SEQUENCE if decode and few and ffi.available() else Launches.SINGLE
    ops = (decode, extend, few, many, masks, sampling)
    return Backends(*(Backend.MOSAIC if can else Backend.XLA for can in ops), launches, gpu)


def _of_cpu(model: ModelConfig, dtype: jnp.dtype, page_size: int) -> Backends:
    isa = cpu.best()
    if isa is None or not cpu_linear.supported(dtype):
        return XLA_ONLY
    shapes = ((mixer.heads, mixer.kv_heads, mixer.head_dim) for mixer in model.attentions)
    attends = all(cpu_attention.supported(*shape, page_size, dtype) for shape in shapes)
    attention_by = Backend.CPU if attends else Backend.XLA
    return Backends(attention_by, attention_by, Backend.CPU, Backend.CPU, isa=isa)


def as_computed(config: EngineConfig, model: ModelConfig, device: Described) -> ModelConfig:
    """The model with the dtype that `auto` finds on a device.

    Tools for 4 bits save float16, in which XLA widens each matrix for each product: seconds a token on a CPU. So a
    published model of float16 is computed in bfloat16 where our kernels for CPUs would then run.
    """
    in_ours = dataclasses.replace(model, dtype="bfloat16", saved_in="float16")
    is_asked = config.dtype != "auto" or config.attention_backend == "xla"
    if model.published is None or model.dtype != "float16" or is_asked or device.platform != "cpu":
        return model
    return model if cpu.best() is None else in_ours


def as_held(model: ModelConfig, backends: Backends) -> ModelConfig:
    """The model with its weights as they are held where these run: of published ones our kernels for CPUs read int8."""
    if model.published is None or backends.decode_linear is not Backend.CPU:
        return model
    return dataclasses.replace(model, quantization="int8")


def rounds_activations(model: ModelConfig, backends: Backends) -> bool:
    """Whether steps of more than `widened_rows` multiply in fp8, activations too."""
    return model.is_quantized and backends.extend_linear is Backend.MOSAIC


def widened_rows(model: ModelConfig) -> int:
    """Rows up to which our kernels for Hopper widen quantized weights themselves."""
    return PACKED_ROWS if _has_4_bits(model) else WIDENED_ROWS


def _has_4_bits(model: ModelConfig) -> bool:
    return model.published is not None and any(isinstance(scheme, Int4) for scheme in model.published.schemes)


def widens(backends: Backends) -> bool:
    """Whether XLA widens quantized weights in some step. Outside of a launch sequence it does q's, k's and v's."""
    ops = backends.decode_linear, backends.extend_linear
    return Backend.XLA in ops or (Backend.MOSAIC in ops and backends.launches is Launches.SINGLE)


def head_products(backends: Backends) -> Products:
    """What computes logits."""
    return CPU if backends.decode_linear is Backend.CPU else XLA


def _decodes(mixer: Attention, page_size: int, dtype: jnp.dtype, gpu: HopperGpu) -> bool:
    shape = mixer.heads, mixer.kv_heads, mixer.head_dim
    return mixer.window is None and sm90_decode_config.supported(*shape, page_size, dtype, gpu)


def _gates_supported(model: ModelConfig, dtype: jnp.dtype) -> bool:
    """Whether the Mosaic kernel of prompts can run the first products of all MLPs."""
    mlps = {layer.mlp for layer in model.layers}
    shapes = [(LARGE_ROWS, 2 * mlp.width, model.hidden_size, dtype) for mlp in mlps if mlp.gated]
    return len(shapes) == len(mlps) and all(itertools.starmap(sm90_large.supported, shapes))


def _in_fp8_supported(model: ModelConfig, dtype: jnp.dtype) -> bool:
    """Whether the Mosaic kernels in fp8 of many rows can run all of a quantized model's."""
    schemes = _schemes_read(model)
    return schemes is not None and all(
        isinstance(scheme, Fp8) and sm90_w8a8.supported(sum(rows), columns, dtype, scheme.block(rows, columns))
        for (rows, columns), scheme in itertools.product(_products_of(model), schemes)
    )


def linears_supported(model: ModelConfig, dtype: jnp.dtype, gpu: HopperGpu) -> bool:
    """Whether the Mosaic linear layers of few rows can run all of a model's."""
    quantized = _schemes_read(model)
    if quantized is None:
        return False
    small = PACKED_ROWS if _has_4_bits(model) else SMALL_ROWS

    def run(rows: Sequence[int], columns: int, scheme: Fp8 | Int4 | None) -> bool:
        shape, weights = (sum(rows), columns, dtype), _weights(scheme, rows, columns)
        if not sm90_small_config.supported(small, *shape, gpu, weights):
            return False
        shared = weights.shared if weights.format else None
        return small == PACKED_ROWS or sm90_medium_config.supported(MEDIUM_ROWS, *shape, shared)

    # A quantized model may leave modules as they are.
    return all(run(*shape, scheme) for shape, scheme in itertools.product(_products_of(model), (None, *quantized)))


def _weights(scheme: Fp8 | Int4 | None, rows: Sequence[int], columns: int) -> WeightForm:
    """How a matrix is held whose members have so many rows."""
    if isinstance(scheme, Int4):
        return WeightForm(Format.PACKED4, (1, scheme.group or columns), scheme.stores_zeros)
    return PLAIN if scheme is None else WeightForm(Format.FP8, scheme.block(rows, columns))


def _schemes_read(model: ModelConfig) -> tuple[Fp8 | Int4, ...] | None:
    """How a model's matrices are stored, none where it is not quantized; None where our kernels do not read one."""
    published: Sequence[Scheme] = model.published.schemes if model.published else ()
    schemes = tuple(scheme for scheme in published if isinstance(scheme, Fp8 | Int4))
    return schemes if len(schemes) == len(published) and bool(published) == model.is_quantized else None


def _products_of(model: ModelConfig) -> set[tuple[Sequence[int], int]]:
    """Rows of the members, and columns, of all layers' matrices."""
    width = model.hidden_size
    return {shape for layer in model.layers for part in (layer.mixer, layer.mlp) for shape in part.products(width)}


@dataclasses.dataclass(frozen=True)
class StepKernels:
    """What computes the layers of one step.

    sequence: they are launched as one (jaxinfer_kernels.launch.sequence).
    reads_by_token: each token of an extend step reads keys for itself, as decode rows do: in small steps of many rows,
    of which most bring one token. A chunk of a prompt is then read once for each of its tokens.
    """

    attention: AttentionOp
    products: Products
    sequence: bool = False
    reads_by_token: bool = False


def kernels_for(model: ModelConfig, backends: Backends, key: Decode | ExtendBucket) -> StepKernels:
    """The kernels of a step of this size: the one place where rows are compared with thresholds."""
    return _of_extend(model, backends, key) if isinstance(key, ExtendBucket) else _of_decode(model, backends, key)


def _of_decode(model: ModelConfig, backends: Backends, key: Decode) -> StepKernels:
    products = _products(model, backends, key.batch, sequence=backends.launches is Launches.SEQUENCE)
    sequence = backends.launches is Launches.SEQUENCE and products.align > 1
    if backends.decode_attention is Backend.CPU:
        return StepKernels(attention.decode_cpu, products)
    if backends.decode_attention is not Backend.MOSAIC:
        return StepKernels(functools.partial(attention.decode_xla, key.context), products, sequence)
    # A launch saved is worth most where there is little to compute; outside of a sequence, many rows rotate faster in
    # XLA's.
    attend = attention.decode_sm90 if products.align > 1 else attention.decode_sm90_write
    tuning = DecodeTuning(gpu=backends.of_sm90, pdl=sequence)
    return StepKernels(functools.partial(attend, tuning), products, sequence)


def _of_extend(model: ModelConfig, backends: Backends, key: ExtendBucket) -> StepKernels:
    if backends.extend_attention is not Backend.MOSAIC:
        attend = attention.extend_cpu if backends.extend_attention is Backend.CPU else attention.extend_xla
        return StepKernels(attend, _products_of_prompts(model, backends, key))
    gpu = backends.of_sm90
    fits = sm90_extend.ROWS <= key.tokens <= _most_in_sequence(model) and key.tokens % 8 == 0
    if backends.launches is not Launches.SEQUENCE or not fits:
        attend = functools.partial(attention.extend_sm90, ExtendTuning(gpu=gpu))
        return StepKernels(attend, _products_of_prompts(model, backends, key))
    by_token = key.rows > sm90_extend.FEW_ROWS
    if by_token:
        attend = functools.partial(attention.extend_sm90_by_token, DecodeTuning(gpu=gpu, pdl=True))
    else:
        attend = functools.partial(attention.extend_sm90_tiles, ExtendTuning(gpu=gpu, pdl=True))
    return StepKernels(attend, sequence_products(gpu), sequence=True, reads_by_token=by_token)


def _products_of_prompts(model: ModelConfig, backends: Backends, key: ExtendBucket) -> Products:
    few = key.tokens <= SMALL_ROWS and backends.extend_linear is not Backend.CPU and not model.is_quantized
    return XLA if few else _products(model, backends, key.tokens, sequence=False)


def _products(model: ModelConfig, backends: Backends, rows: int, *, sequence: bool) -> Products:
    if backends.decode_linear is Backend.CPU:
        return CPU if backends.isa is Isa.AMX or rows <= CPU_ROWS or model.quantization else XLA
    if model.is_quantized and rows > widened_rows(model):
        return w8a8_products(backends.of_sm90) if rounds_activations(model, backends) else XLA
    if rows >= LARGE_ROWS:
        large = backends.extend_linear is Backend.MOSAIC and rows % sm90_large.TILE_ROWS == 0
        return large_products(backends.of_sm90) if large else XLA
    most = _most_in_sequence(model) if sequence else MEDIUM_ROWS
    if backends.decode_linear is not Backend.MOSAIC or rows > most:
        return XLA
    if rows <= (PACKED_ROWS if _has_4_bits(model) else SMALL_ROWS):
        return small_products(backends.of_sm90)
    return (sequence_products if sequence else medium_products)(backends.of_sm90)


def _most_in_sequence(model: ModelConfig) -> int:
    """Rows, or tokens of an extend step, up to which the layers of a step can be one launch sequence."""
    if model.is_quantized:
        return widened_rows(model)
    return NARROW_ROWS if model.hidden_size <= NARROW else MEDIUM_ROWS
