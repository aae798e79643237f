"""Each op's implementation follows the device and the shapes, or the setting; what cannot run is refused by name.

That the steps call what was chosen is read off their traces. A chain is lowered for a GPU when it is traced; of other
kernels that is left to tests/kernels.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.cli.cards import GPUS
from jaxinfer.config import EngineConfig, ExtendBucket, Limits
from jaxinfer.errors import ConfigError
from jaxinfer.layers.products import CPU, XLA, Deferred, Products
from jaxinfer.models.config import HFConfig
from jaxinfer.models.dense import DenseConfig
from jaxinfer.models.known import FP8
from jaxinfer.models.published import Fp8, Int4, Int8
from jaxinfer.models.quantization_config import published_from_hf
from jaxinfer.models.registry import dense
from jaxinfer.runtime import programs, step
from jaxinfer.runtime.backends import (
    LARGE_ROWS,
    MEDIUM_ROWS,
    NARROW,
    NARROW_ROWS,
    PACKED_ROWS,
    SMALL_ROWS,
    WIDENED_ROWS,
    XLA_ONLY,
    Backend,
    Backends,
    Launches,
    as_computed,
    as_held,
    choose_backends,
    kernels_for,
    linears_supported,
)
from jaxinfer.runtime.buckets import Decode
from jaxinfer.runtime.packing import DecodeColumn, extend_layout
from jaxinfer.runtime.state import DeviceState, init_state
from jaxinfer_kernels import cpu
from jaxinfer_kernels.cpu import Isa
from jaxinfer_kernels.launch import ffi, sequence
from jaxinfer_kernels.linear import sm90_small
from jaxinfer_kernels.linear.sm90_small_config import SmallTuning
from jaxinfer_kernels.sm90 import H200, HopperGpu
from tests.support.jaxprs import equations
from tests.support.teacher_forced import model_of

ALL_MOSAIC = Backends(*[Backend.MOSAIC] * 6, gpu=HopperGpu(114, H200.shared_bytes))
CHAINED = Backends(*[Backend.MOSAIC] * 6, Launches.SEQUENCE, HopperGpu(78, H200.shared_bytes))
MODEL = dataclasses.replace(model_of(6, 2, 128, qk_norm=True, hidden=256, num_layers=2), vocab_size=512)


@dataclasses.dataclass(frozen=True)
class Device:
    """What choose_backends asks a device."""

    device_kind: str
    compute_capability: str
    platform: str = "gpu"


H20, PCIE, L40 = GPUS["h20"], GPUS["h100pcie"], Device("NVIDIA L40", "8.9")


def changed(**fields: object):
    return dataclasses.replace(MODEL, **fields)


@pytest.fixture(autouse=True)
def plugin(monkeypatch):
    """JAX's CUDA plugin, which these tests need not have."""
    monkeypatch.setattr(ffi, "available", lambda: True)


@pytest.fixture(autouse=True)
def no_gpu_is_assumed(monkeypatch):
    """Tunings are of an H200 unless told otherwise; a step that forgets to tell one fails here."""
    monkeypatch.delitem(vars(H200), "multiprocessors")


def test_auto_takes_every_kernel_where_it_runs():
    assert choose_backends("auto", MODEL, "bfloat16", 64, H20) == CHAINED
    assert choose_backends("auto", MODEL, "float16", 8, H20) == CHAINED


def test_the_setting_mosaic_is_met_or_refused():
    assert choose_backends("mosaic", MODEL, "bfloat16", 64, H20) == CHAINED


def test_kernels_are_launched_one_by_one_where_a_plugin_cannot_chain_them(monkeypatch):
    monkeypatch.setattr(ffi, "available", lambda: False)
    assert choose_backends("auto", MODEL, "bfloat16", 64, PCIE) == ALL_MOSAIC
    assert choose_backends("mosaic", MODEL, "bfloat16", 64, PCIE) == ALL_MOSAIC


@pytest.mark.parametrize("device", [L40, Device("NVIDIA B200", "10.0")], ids=str)
def test_no_kernel_is_taken_on_another_gpu(device):
    assert choose_backends("auto", MODEL, "bfloat16", 64, device) == XLA_ONLY


def test_on_a_cpu_kernels_are_taken_for_bfloat16_where_they_were_compiled(monkeypatch):
    device = jax.devices("cpu")[0]
    monkeypatch.setattr(cpu, "best", lambda: Isa.AVX2)
    chosen = choose_backends("auto", MODEL, "bfloat16", 16, device)
    assert set(chosen.by_op().values()) == {Backend.CPU, Backend.XLA, Launches.SINGLE}
    assert chosen.rows()[-1] == ("instructions", "AVX2")
    products = [kernels_for(MODEL, chosen, key).products for key in (Decode(1), Decode(8), Decode(16))]
    assert products == [CPU, CPU, XLA], "without AMX, many rows are XLA's"
    assert choose_backends("auto", MODEL, "float32", 16, device) == XLA_ONLY
    assert choose_backends("xla", MODEL, "bfloat16", 16, device) == XLA_ONLY
    monkeypatch.setattr(cpu, "best", lambda: None)
    assert choose_backends("auto", MODEL, "bfloat16", 16, device) == XLA_ONLY


def test_quantized_weights_are_ours_for_any_number_of_rows_on_a_cpu_and_xla_s_on_a_gpu(monkeypatch):
    device, model = jax.devices("cpu")[0], dataclasses.replace(MODEL, quantization="int8")
    monkeypatch.setattr(cpu, "best", lambda: Isa.AVX2)
    chosen = choose_backends("auto", model, "bfloat16", 16, device)
    assert [kernels_for(model, chosen, Decode(rows)).products for rows in (1, 16)] == [CPU, CPU]
    assert choose_backends("auto", model, "float32", 16, device) == XLA_ONLY
    for gpu in (H20, L40):
        on_gpu = choose_backends("auto", model, "bfloat16", 64, gpu)
        assert [kernels_for(model, on_gpu, key).products for key in (Decode(1, 64), Decode(128, 64))] == [XLA, XLA]
        assert on_gpu.decode_attention is (Backend.MOSAIC if gpu is H20 else Backend.XLA)


PUBLISHED = published_from_hf(HFConfig(FP8))


def test_published_formats_are_rounded_again_where_our_kernels_for_cpus_multiply(monkeypatch):
    device, model = jax.devices("cpu")[0], dataclasses.replace(MODEL, published=PUBLISHED)
    monkeypatch.setattr(cpu, "best", lambda: Isa.AVX2)
    ours = choose_backends("auto", model, "bfloat16", 16, device)
    held = as_held(model, ours)
    assert (held.quantization, held.held_in("bfloat16")) == ("int8", "int8")
    assert [kernels_for(held, ours, Decode(rows)).products for rows in (1, 16)] == [CPU, CPU]
    assert as_held(MODEL, ours) == MODEL
    by_xla = choose_backends("auto", model, "float32", 16, device)
    assert as_held(model, by_xla) == model
    assert model.held_in("float32") == "fp8 with a scale per 128 x 128 weights"
    on_gpu = choose_backends("auto", model, "bfloat16", 64, H20)
    assert as_held(model, on_gpu) == as_computed(EngineConfig(), model, H20) == model


def test_published_float16_is_computed_in_bfloat16_where_our_kernels_then_run(monkeypatch):
    device, model = jax.devices("cpu")[0], dataclasses.replace(MODEL, published=PUBLISHED, dtype="float16")
    monkeypatch.setattr(cpu, "best", lambda: Isa.AVX2)
    found = as_computed(EngineConfig(), model, device)
    assert (found.dtype, found.saved_in) == ("bfloat16", "float16")
    assert (
        choose_backends("auto", found, EngineConfig().dtype_for(found.dtype), 16, device).decode_linear is Backend.CPU
    )
    kept = [(EngineConfig(dtype="float16"), model, device), (EngineConfig(attention_backend="xla"), model, device)]
    kept += [(EngineConfig(), model, H20), (EngineConfig(), dataclasses.replace(model, published=None), device)]
    kept += [(EngineConfig(), dataclasses.replace(model, dtype="float32"), device)]
    assert all(as_computed(*one) is one[1] for one in kept)
    monkeypatch.setattr(cpu, "best", lambda: None)
    assert as_computed(EngineConfig(), model, device) is model


def test_the_setting_xla_holds_on_every_device():
    for device in (H20, L40, jax.devices("cpu")[0]):
        assert choose_backends("xla", MODEL, "bfloat16", 64, device) == XLA_ONLY


@pytest.mark.parametrize(
    ("fields", "dtype", "page_size", "left"),
    [
        ({}, "float32", 64, {"decode_attention", "extend_attention", "decode_linear", "extend_linear"}),
        ({}, "bfloat16", 48, {"decode_attention", "extend_attention"}),
        ({"head_dim": 96, "num_heads": 8}, "bfloat16", 64, {"decode_attention", "extend_attention"}),
        ({"head_dim": 256}, "bfloat16", 64, {"extend_attention"}),
        ({"num_heads": 130}, "bfloat16", 64, {"decode_attention", "extend_attention"}),
        (
            {"head_dim": 256, "num_heads": 8, "num_kv_heads": 1},
            "bfloat16",
            128,
            {"decode_attention", "extend_attention"},
        ),
        ({"intermediate_size": 500}, "bfloat16", 64, {"decode_linear", "extend_linear"}),
        ({"hidden_size": 192}, "bfloat16", 64, {"decode_linear"}),
        ({"vocab_size": 1000}, "bfloat16", 64, {"masks", "sampling"}),  # no whole words
    ],
)
def test_auto_leaves_to_xla_what_no_kernel_can_run(fields, dtype, page_size, left):
    backends = choose_backends("auto", changed(**fields), dtype, page_size, H20)
    assert {op for op, backend in vars(backends).items() if backend is Backend.XLA} == left
    whole = not left & {"decode_attention", "decode_linear"}  # what a chain is made of
    assert backends.launches is (Launches.SEQUENCE if whole else Launches.SINGLE)


LAW = (
    "attention_backend mosaic needs a GPU of compute capability 9.0 (H20, H100, H200), bfloat16 or float16, pages of 8 "
    "to 128 tokens, head_dim 64 or 128 and at most 64 query heads per kv head, got "
)


@pytest.mark.parametrize(
    ("fields", "dtype", "page_size", "device", "fact"),
    [
        ({}, "bfloat16", 64, L40, "NVIDIA L40 (8.9)"),
        ({}, "bfloat16", 64, jax.devices("cpu")[0], "cpu (none)"),
        ({}, "float32", 64, H20, "float32, page_size 64, 6 heads of 128 over 2"),
        ({}, "bfloat16", 48, H20, "bfloat16, page_size 48, 6 heads of 128 over 2"),
        ({"head_dim": 256}, "bfloat16", 64, H20, "bfloat16, page_size 64, 6 heads of 256 over 2"),
        ({"num_heads": 130}, "bfloat16", 64, H20, "bfloat16, page_size 64, 130 heads of 128 over 2"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_mosaic_that_cannot_run_is_refused_with_the_reason(fields, dtype, page_size, device, fact):
    with pytest.raises(ConfigError) as error:
        choose_backends("mosaic", changed(**fields), dtype, page_size, device)
    assert str(error.value) == f"{LAW}{fact}; set attention_backend to auto"


def test_people_read_one_row_an_op():
    assert Backends(decode_attention=Backend.MOSAIC, gpu=ALL_MOSAIC.gpu).rows() == (
        ("decode attention", "mosaic"),
        ("extend attention", "xla"),
        ("decode linear", "xla"),
        ("extend linear", "xla"),
        ("masks", "xla"),
        ("sampling", "xla"),
        ("launches", "one by one"),
        ("multiprocessors", "114"),
    )
    assert CHAINED.rows()[-2] == ("launches", "in sequences, which an operation without a kernel closes")


# The steps


def limits(rows: int, tokens: int = 128, model: DenseConfig = MODEL) -> Limits:
    return Limits(
        max_model_len=512,
        max_num_seqs=rows,
        max_num_batched_tokens=tokens,
        page_size=64,
        num_pages=20,
        vocab_size=model.vocab_size,
        decode_buckets=(rows,),
        extend_buckets=(ExtendBucket(tokens, rows, rows),),
    )


def avals(rows: int, tokens: int = 128, model: DenseConfig = MODEL) -> tuple[object, DeviceState]:
    """Of the parameters and of the state."""
    make = functools.partial(dummy_params, dense.specs(model), "bfloat16", 0, jax.devices("cpu")[0])
    state = functools.partial(init_state, limits(rows, tokens, model), model, "bfloat16")
    return jax.eval_shape(make), jax.eval_shape(state)


def kernels_of(function: object, *arguments: object) -> tuple[int, int]:
    """How many Mosaic kernels and how many chains of them a function has.

    A kernel that several layers call counts once, one in a chain not at all.
    """
    traced = list(equations(jax.jit(function).trace(*arguments).jaxpr, seen=set()))
    kernels = [one for one in traced if one.primitive.name in sequence._KERNEL_PRIMITIVES]
    return len(kernels), sum(one.params.get("target_name") == sequence.TARGET for one in traced)


def named(value: object) -> str:
    """Backends by the ops that are Mosaic's, and how they are launched."""
    if not isinstance(value, Backends):
        return str(value)
    return "+".join(op for op, name in value.rows() if name == "mosaic" or name.startswith("in sequences")) or "none"


ATTENTION, LINEARS, BATCH = 1, 5, 3  # qkv of the first layer and of others, o, gate and up, down; all but qkv
W8A8 = 4  # one qkv for all layers
EXTEND = 2  # rotation and pages, attention


@pytest.mark.parametrize(
    ("backends", "rows", "kernels"),
    [
        *((ALL_MOSAIC, rows, ATTENTION + LINEARS) for rows in (1, 8, SMALL_ROWS)),
        *((ALL_MOSAIC, rows, ATTENTION + BATCH) for rows in (SMALL_ROWS + 1, MEDIUM_ROWS)),
        (ALL_MOSAIC, MEDIUM_ROWS + 1, ATTENTION),
        (Backends(decode_linear=Backend.MOSAIC, gpu=ALL_MOSAIC.gpu), 8, LINEARS),
        (Backends(decode_attention=Backend.MOSAIC, gpu=ALL_MOSAIC.gpu), 8, ATTENTION),
        (Backends(extend_attention=Backend.MOSAIC, gpu=ALL_MOSAIC.gpu), 8, 0),
        (XLA_ONLY, 8, 0),
    ],
    ids=named,
)
def test_a_decode_step_has_the_chosen_kernels(backends, rows, kernels):
    assert kernels_of_decode(backends, rows) == (kernels, 0)


@functools.cache
def kernels_of_decode(backends: Backends, rows: int, model: DenseConfig = MODEL) -> tuple[int, int]:
    decode = functools.partial(step.decode, step.Model(model, dense, backends), None)
    return kernels_of(decode, *avals(rows, model=model), jax.ShapeDtypeStruct((rows, len(DecodeColumn)), jnp.int32))


@pytest.mark.parametrize(
    ("backends", "rows", "kernels"),
    [(ALL_MOSAIC, 8, 1), (ALL_MOSAIC, 9, 0), (Backends(decode_attention=Backend.MOSAIC, gpu=ALL_MOSAIC.gpu), 8, 0)],
    ids=named,
)
def test_the_largest_of_many_logits_are_found_by_a_kernel_of_its_own(backends, rows, kernels):
    few, _ = kernels_of_decode(backends, rows)
    assert kernels_of_decode(backends, rows, changed(vocab_size=1024)) == (few + kernels, 0)


@pytest.mark.parametrize(("masks", "kernels"), [(Backend.MOSAIC, 1), (Backend.XLA, 0)])
@pytest.mark.parametrize("rows", [1, 10])
def test_masks_are_left_out_by_the_chosen_kernel(rows, masks, kernels):
    device = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    model = step.Model(MODEL, dense, dataclasses.replace(XLA_ONLY, masks=masks))
    listed = programs.without_arrays(model, limits(10), "bfloat16", device)
    (program,) = [program for program in listed if program.key == programs.Mask(rows)]
    assert kernels_of(program.function, *program.arguments) == (kernels, 0)


@pytest.mark.parametrize("rows", [1, 8, SMALL_ROWS, SMALL_ROWS + 1, 24, MEDIUM_ROWS, NARROW_ROWS])
def test_all_layers_of_a_decode_step_are_one_chain(rows):
    assert kernels_of_decode(CHAINED, rows) == (0, 1)


@pytest.mark.parametrize("sharing", ["block", "channel", "tensor"])
def test_weights_in_fp8_are_multiplied_by_our_kernels_in_steps_of_all_sizes(sharing):
    model = changed(published=dataclasses.replace(PUBLISHED, groups=((("Linear",), Fp8(sharing)),)))
    assert choose_backends("auto", model, "bfloat16", 64, H20).extend_linear is Backend.MOSAIC
    assert linears_supported(model, jnp.dtype(jnp.bfloat16), CHAINED.of_sm90)
    found = [kernels_of_decode(CHAINED, rows, model) for rows in (1, SMALL_ROWS + 1, WIDENED_ROWS, WIDENED_ROWS + 1)]
    assert found == [(0, 1)] * 3 + [(ATTENTION + W8A8, 0)], "one chain, or a kernel for each"
    found = [kernels_of_extend(CHAINED, tokens, 1, model) for tokens in (8, WIDENED_ROWS, WIDENED_ROWS + 8, LARGE_ROWS)]
    assert found == [(EXTEND + LINEARS, 0), (0, 1), (EXTEND + W8A8, 0), (EXTEND + W8A8, 0)]
    left = dataclasses.replace(CHAINED, extend_linear=Backend.XLA)
    assert kernels_of_extend(left, LARGE_ROWS, 1, model) == (EXTEND, 0)


@pytest.mark.parametrize("scheme", [Int4("awq", 128, True), Int4("compressed-tensors", None, False)], ids=str)
def test_weights_of_4_bits_are_multiplied_by_our_kernels_in_steps_of_few_rows(scheme):
    model = changed(published=dataclasses.replace(PUBLISHED, groups=((("Linear",), scheme),)))
    assert choose_backends("auto", model, "bfloat16", 64, H20).extend_linear is Backend.XLA
    assert linears_supported(model, jnp.dtype(jnp.bfloat16), CHAINED.of_sm90)
    backends = dataclasses.replace(CHAINED, extend_linear=Backend.XLA)
    found = [kernels_of_decode(backends, rows, model) for rows in (1, SMALL_ROWS + 1, PACKED_ROWS, PACKED_ROWS + 1)]
    assert found == [(0, 1)] * 3 + [(ATTENTION, 0)], "one chain, or XLA's products"
    found = [kernels_of_extend(backends, tokens, 1, model) for tokens in (8, PACKED_ROWS, WIDENED_ROWS, LARGE_ROWS)]
    assert found == [(EXTEND + LINEARS, 0)] * 2 + [(EXTEND, 0)] * 2
    for other in (Int4("awq", 64, True), Int4("gptq", None, False)):  # whose groups are small, or have one zero a row
        model = changed(published=dataclasses.replace(PUBLISHED, groups=((("Linear",), other),)))
        assert not linears_supported(model, jnp.dtype(jnp.bfloat16), CHAINED.of_sm90)


def test_other_formats_are_left_to_xla():
    mixed = dataclasses.replace(PUBLISHED, groups=((("q_proj",), Int8("channel")), *PUBLISHED.groups))
    narrow = model_of(6, 1, 32, qk_norm=True, hidden=256, num_layers=2)  # of whose keys 128 rows have four scales
    models = changed(quantization="int8"), changed(published=mixed), dataclasses.replace(narrow, published=PUBLISHED)
    assert not any(linears_supported(model, jnp.dtype(jnp.bfloat16), CHAINED.of_sm90) for model in models)
    for model in models:
        assert kernels_for(model, dataclasses.replace(CHAINED, decode_linear=Backend.XLA), Decode(8)).products is XLA


def test_a_decode_step_of_more_rows_is_no_chain():
    rows = NARROW_ROWS + 1
    assert kernels_of_decode(CHAINED, rows) == kernels_of_decode(ALL_MOSAIC, rows) == (ATTENTION, 0)


@pytest.mark.parametrize(
    ("backends", "tokens", "rows", "kernels"),
    [
        (ALL_MOSAIC, 128, 8, EXTEND + BATCH),
        (ALL_MOSAIC, 256, 8, EXTEND),
        (ALL_MOSAIC, LARGE_ROWS, 8, EXTEND + 1),
        (ALL_MOSAIC, LARGE_ROWS + 64, 8, EXTEND),  # which tiles of 128 rows do not make up
        (Backends(extend_linear=Backend.MOSAIC, gpu=ALL_MOSAIC.gpu), LARGE_ROWS, 8, 1),
        (ALL_MOSAIC, 128, 9, EXTEND + 1 + BATCH),  # rows of one token go together through the decode attention
        (Backends(decode_attention=Backend.MOSAIC, decode_linear=Backend.MOSAIC, gpu=ALL_MOSAIC.gpu), 128, 9, BATCH),
        (Backends(decode_attention=Backend.MOSAIC, gpu=ALL_MOSAIC.gpu), 128, 9, 0),
        (CHAINED, 2 * NARROW_ROWS, 8, EXTEND),
        (CHAINED, 2 * NARROW_ROWS, 9, EXTEND + 1),
    ],
    ids=named,
)
def test_an_extend_step_has_the_chosen_kernels(backends, tokens, rows, kernels):
    assert kernels_of_extend(backends, tokens, rows) == (kernels, 0)


def kernels_of_extend(backends: Backends, tokens: int, rows: int, model: DenseConfig = MODEL) -> tuple[int, int]:
    (bucket,) = limits(rows, tokens).extend_buckets
    extend = functools.partial(step.extend, step.Model(model, dense, backends), bucket)
    upload = jax.ShapeDtypeStruct((extend_layout(bucket, 64).size,), jnp.int32)
    return kernels_of(extend, *avals(rows, tokens, model), upload)


@pytest.mark.parametrize(
    ("width", "tokens", "kernels"),
    [
        (MODEL.hidden_size, NARROW_ROWS, (0, 1)),
        (NARROW + 256, MEDIUM_ROWS, (0, 1)),
        (NARROW + 256, NARROW_ROWS, (EXTEND, 0)),
    ],
)
def test_all_layers_of_a_short_prompt_s_step_are_one_chain(width, tokens, kernels):
    assert kernels_of_extend(CHAINED, tokens, 8, changed(hidden_size=width)) == kernels


@pytest.mark.parametrize("rows", [9, 128, NARROW_ROWS])
def test_all_layers_of_a_small_step_of_many_rows_are_one_chain_that_reads_by_token(rows):
    assert kernels_of_extend(CHAINED, NARROW_ROWS, rows) == (0, 1)
    assert [kernels_for(MODEL, CHAINED, ExtendBucket(NARROW_ROWS, n, n)).reads_by_token for n in (8, rows)] == [
        False,
        True,
    ]


INTERPRET = plgpu.InterpretGPUParams()
HOW = {"tuning": SmallTuning(gpu=ALL_MOSAIC.gpu), "interpret": INTERPRET}
INTERPRETED = Products(
    Deferred,
    lambda x, w, bias: sm90_small.norm_linear(
        x.rows, x.norm.weight.array, w, x.norm.weight.index, eps=x.norm.eps, **HOW
    ),
    lambda x, w, residual, then: sm90_small.linear_residual(x, w, residual, **HOW),
    lambda x, w: sm90_small.norm_gate_up(x.rows, x.norm.weight.array, w, x.norm.weight.index, eps=x.norm.eps, **HOW),
)


@pytest.mark.slow
def test_few_rows_are_padded_for_the_linears_and_padding_leaves_no_trace():
    """Three rows through kernels that take eight: interpreted, beside the same step of plain operations."""
    model = dataclasses.replace(model_of(2, 1, 64, qk_norm=True, hidden=128, num_layers=1), intermediate_size=128)
    seen = []

    def forward(config, params, batch, cache):
        assert batch.products.norm is Deferred
        seen.append(len(batch.tokens))
        return dense.forward(config, params, dataclasses.replace(batch, products=INTERPRETED), cache)

    cpu = jax.devices("cpu")[0]
    params = dummy_params(dense.parameters(model), "bfloat16", 0, cpu)
    state = init_state(limits(3, model=model), model, "bfloat16")
    state = state.replace(last_token=jnp.arange(4, dtype=jnp.int32) * 7, next_pos=jnp.array([0, 1, 9, 0], jnp.int32))
    state = state.replace(
        store=jax.tree.map(lambda array: array + jnp.bfloat16(1), state.store), page_table=state.page_table + 5
    )
    upload = jnp.array([[2, 0, 3, 1], [3, 0, 4, 0], [0, 0, 0, 0]], jnp.int32)
    padded = step.Model(
        model, dataclasses.replace(dense, forward=forward), Backends(decode_linear=Backend.MOSAIC, gpu=ALL_MOSAIC.gpu)
    )
    wanted, expected = step.decode(step.Model(model, dense), None, params, state, upload)
    got, drawn = jax.block_until_ready(step.decode(padded, None, params, state, upload))
    assert seen == [8]
    np.testing.assert_array_equal(drawn[:2], expected[:2])
    np.testing.assert_allclose(got.logits[:2], wanted.logits[:2], atol=0.05)
    for name in ("page_table", "last_token", "next_pos", "sampling"):
        np.testing.assert_array_equal(getattr(got, name)[1:], getattr(wanted, name)[1:])
    for mine, own in zip(got.store.pages, wanted.store.pages, strict=True):
        np.testing.assert_allclose(mine[:, 1:].astype(jnp.float32), own[:, 1:].astype(jnp.float32), atol=0.05)
