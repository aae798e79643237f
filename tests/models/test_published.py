"""Checkpoints that are quantized already, from their files to logits: what is loaded is what was published."""

import dataclasses
import functools
import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxinfer.checkpoint import rounding
from jaxinfer.checkpoint.contents import QUANTIZATION
from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.checkpoint.load import load_params, params_bytes
from jaxinfer.checkpoint.resolve import resolve
from jaxinfer.checkpoint.weights import Weights
from jaxinfer.errors import CheckpointError, ConfigError, DeviceError
from jaxinfer.layers.products import XLA
from jaxinfer.models.as_published import as_published
from jaxinfer.models.config import ModelConfig
from jaxinfer.models.file_layout import FileLayout
from jaxinfer.models.parameters import ParamSpec, num_bytes
from jaxinfer.models.published import Fp8, Int4, Int8, Published, Scheme
from jaxinfer.models.quantization_config import unfollowed
from jaxinfer.models.registry import dense
from jaxinfer_kernels import cpu
from jaxinfer_kernels.linear import cpu as cpu_linear
from jaxinfer_kernels.linear.quantized import Format, Quantized, quantize
from jaxinfer_kernels.linear.reference import linear_quantized_reference
from tests.support.checkpoints import model_config, write_safetensors
from tests.support.parity import dense_logits
from tests.support.published import E4M3, FORMATS, sizes_of, write_plain, write_published

DEVICE = jax.devices("cpu")[0]
MODULE = "model.layers.0.self_attn.k_proj"


OURS = [name for name in FORMATS if name.startswith("int8")]  # which kernels for CPUs read
OTHERS = [name for name in FORMATS if name not in OURS]


def some_formats(quick: str = "", names: Iterable[str] = FORMATS) -> Any:
    """All of them, of which one or none is quick: each compiles much."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=() if name == quick else pytest.mark.slow) for name in names]
    )


MEMBERS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def load(folder: Path, **more: Any) -> tuple[ModelConfig, Any]:
    checkpoint = resolve(str(folder))
    config = dense.model(checkpoint.config)
    return config, load_params(checkpoint, dense.specs(config), "float32", DEVICE, **more)


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    weights = Weights((folder / "model.safetensors",))
    return {name: weights.view(name).copy() for name in weights if not name.endswith("weight_shape")}


def matrices(params: Any, *parts: str) -> list[Any]:
    return [matrix for part in parts or MEMBERS for matrix in getattr(params.layers, part)]


def fused(wide: dict[str, np.ndarray], layers: int) -> list[np.ndarray]:
    """What `matrices` must stand for."""
    return [
        np.concatenate([wide[f"model.layers.{layer}.{member}.weight"] for member in members])
        for members in MEMBERS.values()
        for layer in range(layers)
    ]


@jax.jit
def widened(matrix: Quantized) -> jax.Array:
    return matrix.widened("float32")


@some_formats()  # test_published_by_tools.py loads each quickly
def test_matrices_are_loaded_as_published_and_stand_for_what_numpy_says(name: str, tmp_path: Path) -> None:
    wide = write_published(tmp_path, name)
    config, params = load(tmp_path)
    for held, exact in zip(matrices(params), fused(wide, 2), strict=True):
        assert isinstance(held, Quantized)
        assert held.shape == exact.shape
        np.testing.assert_array_equal(np.asarray(widened(held)), exact)
    np.testing.assert_array_equal(params.unembed, wide["lm_head.weight"])
    specs, of_each = dense.specs(config), sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert params_bytes(specs, "float32", DEVICE) == num_bytes(specs, "float32") == of_each


@some_formats()
def test_the_size_of_a_chunk_changes_nothing_and_random_weights_have_the_same_shapes(name: str, tmp_path: Path) -> None:
    write_published(tmp_path, name, num_hidden_layers=1)
    config, params = load(tmp_path)
    _, in_parts = load(tmp_path, chunk_bytes=9000)
    jax.tree.map(np.testing.assert_array_equal, in_parts, params)
    made = dummy_params(dense.specs(config), "float32", 0, DEVICE)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), made) == jax.tree.map(lambda a: (a.shape, a.dtype), params)
    spread = np.asarray(widened(made.layers.o[0])).std() * made.layers.o[0].shape[1] ** 0.5
    assert 0.9 < spread < 1.1


@some_formats()
def test_logits_are_those_of_what_the_weights_stand_for(name: str, tmp_path: Path) -> None:
    wide = write_published(tmp_path / "published", name, num_hidden_layers=1)
    config, params = load(tmp_path / "published")
    plain_config, plain = load(write_plain(tmp_path / "plain", wide, name, num_hidden_layers=1))
    tokens = np.array([3, 1, 4, 1, 5, 9])
    found, exact = (
        jax.jit(functools.partial(dense_logits, one))(held, tokens)
        for one, held in ((config, params), (plain_config, plain))
    )
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["fp8 channel", pytest.param("int4 group", marks=pytest.mark.slow)])
def test_a_quantized_head_makes_the_logits_of_what_it_stands_for(name: str, tmp_path: Path) -> None:
    section = FORMATS[name][0] | {"ignore": []}
    overrides = dict(num_hidden_layers=1, quantization_config=section, vocab_size=384)  # whole tiles
    wide = write_published(tmp_path, name, head=True, **overrides)
    config, params = load(tmp_path)
    assert isinstance(params.unembed, Quantized)
    np.testing.assert_array_equal(np.asarray(widened(params.unembed)), wide["lm_head.weight"])
    hidden = np.random.default_rng(1).normal(size=(2, config.hidden_size)).astype(np.float32)
    found = jax.jit(lambda held, rows: dense.unembed(config, held, rows, XLA))(params, hidden)
    of_plain = jax.jit(lambda held, rows: dense.unembed(config, held, rows, XLA))(
        params.replace(unembed=jax.numpy.asarray(wide["lm_head.weight"])), hidden
    )
    np.testing.assert_allclose(found, of_plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize("stored", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_scales_of_4_bits_may_have_any_type_and_sign(stored: Any, tmp_path: Path) -> None:
    write_published(tmp_path, "int4 group", num_hidden_layers=1)
    tensors = tensors_of(tmp_path)
    scale = f"{MODULE}.weight_scale"
    tensors[scale] = np.where(np.arange(4) % 2, 1, -0.5).astype(stored) * tensors[scale].astype(stored)
    write_safetensors(tmp_path / "model.safetensors", tensors)
    config, params = load(tmp_path)
    held = params.layers.qkv[0]
    found = np.asarray(held.scales).swapaxes(1, 2).reshape(-1, 4)[128:192]
    np.testing.assert_array_equal(found, tensors[scale].astype(np.float32))
    of_each = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert num_bytes(dense.specs(config), "bfloat16") < num_bytes(dense.specs(config), "float32") == of_each


def test_a_head_and_left_out_modules_are_read_as_the_config_says(tmp_path: Path) -> None:
    section = FORMATS["fp8 channel"][0] | {"ignore": ["re:.*mlp.*", "lm_head"]}
    wide = write_published(tmp_path, "fp8 channel", excluded=("mlp",), quantization_config=section)
    _, params = load(tmp_path)
    assert {type(one) for one in matrices(params, "qkv", "o")} == {Quantized}
    np.testing.assert_array_equal(params.layers.down[1], wide["model.layers.1.mlp.down_proj.weight"])


def test_scales_may_be_powers_of_two_in_eight_bits(tmp_path: Path) -> None:
    write_published(tmp_path, "fp8 block")
    tensors = tensors_of(tmp_path)
    scale = f"{MODULE}.weight_scale_inv"
    tensors[scale] = np.full(tensors[scale].shape, 0.125, np.float32).astype(ml_dtypes.float8_e8m0fnu)
    write_safetensors(tmp_path / "model.safetensors", tensors)
    _, params = load(tmp_path)
    exact = tensors[f"{MODULE}.weight"].astype(np.float32) / 8
    np.testing.assert_array_equal(np.asarray(params.layers.qkv[0].widened("float32"))[128:192], exact)


@some_formats(quick="fp8 block", names=OTHERS)
def test_they_are_rounded_again_for_kernels_that_read_no_published_format(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_published(tmp_path, name, num_hidden_layers=1)
    config, params = load(tmp_path)
    specs = dense.specs(dataclasses.replace(config, quantization="int8"))
    exact = widened(params.layers.qkv[0])
    some, held = ({"qkv": tree.layers.qkv, "head": tree.unembed} for tree in (specs, params))
    monkeypatch.setattr(rounding, "ROWS", 128)  # of 256
    rounded = rounding.round_again(some, dict(held), np.dtype("bfloat16"))
    jax.tree.map(np.testing.assert_array_equal, rounded["qkv"][0], quantize(exact, Format.INT8, np.dtype("bfloat16")))
    assert rounded["head"] is params.unembed
    assert all(array.is_deleted() for array in jax.tree.leaves(params.layers.qkv)), "no matrix stays twice"
    assert num_bytes(some, "float32") == sum(leaf.nbytes for leaf in jax.tree.leaves(rounded))


@some_formats(quick="int8 tensor", names=OURS)
def test_int8_is_not_rounded_again_and_our_kernels_take_it_as_published(name: str, tmp_path: Path) -> None:
    wide = write_published(tmp_path, name, num_hidden_layers=1)
    config, params = load(tmp_path)
    specs = dense.specs(dataclasses.replace(config, quantization="int8"))
    assert specs == dense.specs(config)
    held = rounding.round_again(specs, params, np.dtype("bfloat16"))
    jax.tree.map(np.testing.assert_array_equal, held, params)
    matrix, exact, isa = held.layers.qkv[0], fused(wide, 1)[0], cpu.best()
    assert (np.asarray(matrix.values) == -128).any(), "which rounding here never makes"
    x = np.random.default_rng(2).normal(size=(3, 128)).astype("bfloat16")
    found = np.asarray(jax.jit(lambda x, w: cpu_linear.linear(x, w, out_dtype="float32", isa=isa))(x, matrix))
    np.testing.assert_allclose(found, linear_quantized_reference(x, matrix), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found, x.astype(np.float32) @ exact.T, rtol=0, atol=0.02 * np.abs(exact).max() * 11)


@pytest.mark.parametrize("shape", [(1, 64), (64, 1, 1, 1)])
def test_scales_may_have_more_dimensions_of_one(
    shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = write_published(tmp_path, "fp8 channel", num_hidden_layers=1)
    tensors = tensors_of(tmp_path)
    scale = f"{MODULE}.weight_scale"
    write_safetensors(tmp_path / "model.safetensors", tensors | {scale: tensors[scale].reshape(shape)})
    for name in ("will_need", "release"):
        whole = getattr(Weights, name)

        def within(weights: Weights, tensor: str, rows: range, whole: Any = whole) -> None:
            assert rows.stop <= (weights[tensor].shape or (1,))[0], "only what is there may be asked for"
            whole(weights, tensor, rows)

        monkeypatch.setattr(Weights, name, within)
    _, params = load(tmp_path, chunk_bytes=9000)
    exact = wide[f"{MODULE}.weight"]
    np.testing.assert_array_equal(np.asarray(widened(params.layers.qkv[0]))[128:192], exact)


def spoiled(tensors: dict[str, np.ndarray], last: str, array: np.ndarray | None) -> dict[str, np.ndarray]:
    """With another tensor of MODULE, or without it."""
    rest = {name: value for name, value in tensors.items() if name != f"{MODULE}.{last}"}
    return rest if array is None else rest | {f"{MODULE}.{last}": array}


def scales(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32).reshape(-1, 1)


ONES = np.ones((64, 128), np.float32)
WORDS = np.zeros((64, 16), np.int32)
BYTES = np.zeros((64, 64), np.uint8)
INDEX = np.arange(128, dtype=np.int32) // 128
FAULTS = [
    ("fp8 block", "weight_scale_inv", None, f"missing: '{MODULE}.weight_scale_inv' of shape [1, 1]"),
    ("fp8 block", "weight_scale_inv", scales(1, 1), "must have shape [1, 1], got [2, 1]"),
    ("fp8 block", "weight_scale_inv", scales(np.nan), "must hold finite numbers above 0, 1 of its 1 are not, as nan"),
    ("fp8 block", "weight_scale_inv", scales(0), "must hold finite numbers above 0, 1 of its 1 are not, as 0.0"),
    ("fp8 tensor", "weight_scale", np.asarray(np.inf, np.float32), "1 of its 1 are not, as inf"),
    ("fp8 channel", "weight_scale", -np.ones((64, 1), np.float32), "64 of its 64 are not, as -1.0"),
    ("fp8 channel", "weight_scale", np.ones((1, 1), np.float32), "must have shape [64, 1], got [1, 1]"),
    ("fp8 channel", "weight_scale", np.ones((64, 1), np.int32), "must be stored as F32, BF16, F16, F8_E8M0, got I32"),
    ("fp8 channel", "weight", ONES[:63].astype(ml_dtypes.float8_e4m3fn), "must have shape [64, 128], got [63, 128]"),
    ("fp8 channel", "weight", ONES, "must be stored as F8_E4M3, got F32"),
    ("fp8 channel", "weight_zero_point", ONES, "is not part of the model in config.json"),
    ("int8 channel", "weight", ONES, "must be stored as I8, got F32"),
    ("int8 channel", "weight", ONES[:63].astype(np.int8), "must have shape [64, 128], got [63, 128]"),
    ("int8 channel", "weight_scale", None, f"missing: '{MODULE}.weight_scale' of shape [64]"),
    ("int8 channel", "weight_scale", np.ones((64, 2), np.float32), "must have shape [64], got [64, 2]"),
    ("int8 channel", "weight_scale", np.ones((64, 1), np.int8), "must be stored as F32, BF16, F16, F8_E8M0, got I8"),
    ("int8 channel", "weight_scale", np.full((64, 1), np.nan, np.float32), "64 of its 64 are not, as nan"),
    ("int8 tensor", "weight_scale", np.zeros(1, np.float32), "must hold finite numbers above 0, 1 of its 1 are not"),
    ("int8 channel", "weight_zero_point", np.zeros((64, 1), np.int8), "is not part of the model in config.json"),
    ("int8 packed", "weight_packed", WORDS, "must have shape [64, 32], got [64, 16]"),
    ("int8 packed", "weight_packed", ONES[:, :32], "must be stored as I32, got F32"),
    ("int8 packed", "weight_shape", np.zeros(3, np.int64), "must be a list of 2 of I32 or I64, got [3] of I64"),
    ("int4 group", "weight_packed", WORDS[:, :15], "must have shape [64, 16], got [64, 15]"),
    ("int4 group", "weight_packed", WORDS.astype(np.int64), "must be stored as I32, got I64"),
    ("int4 group", "weight_scale", ONES[:, :3] * np.nan, "must have shape [64, 4], got [64, 3]"),
    ("int4 group", "weight_scale", ONES[:, :4] * np.nan, "256 of its 256 are not, as nan"),
    ("int4 group", "weight_scale", WORDS[:, :4], "must be stored as BF16, F16, F32, got I32"),
    ("int4 group", "weight_scale", ONES[:, :4] * 0, "must hold finite numbers not 0, 256 of its 256 are not, as 0.0"),
    ("int4 group", "weight_zero_point", WORDS[:8, :4], "is not part of the model in config.json"),
    ("int4 zeros", "weight_zero_point", None, f"missing: '{MODULE}.weight_zero_point' of shape [8, 2]"),
    ("int4 zeros", "weight_zero_point", WORDS[:7, :2], "must have shape [8, 2], got [7, 2]"),
    ("nvfp4 modelopt", "weight", BYTES[:, :63], "must have shape [64, 64], got [64, 63]"),
    ("nvfp4 modelopt", "weight", WORDS, "must be stored as U8, got I32"),
    ("nvfp4 modelopt", "weight_scale", None, f"missing: '{MODULE}.weight_scale' of shape [64, 8]"),
    ("nvfp4 modelopt", "weight_scale", ONES[:, :8], "must be stored as F8_E4M3, got F32"),
    ("nvfp4 modelopt", "weight_scale", (BYTES[:, :8] + 184).view(E4M3), "must hold finite numbers 0 or above, 512 of"),
    ("nvfp4 modelopt", "weight_scale", (BYTES[:, :8] + 127).view(E4M3), "512 of its 512 are not, as nan"),
    ("nvfp4 modelopt", "weight_scale_2", np.asarray(np.nan, np.float32), "1 of its 1 are not, as nan"),
    ("nvfp4 modelopt", "weight_scale_2", np.ones(2, np.float32), "must have shape [1], got [2]"),
    ("nvfp4 modelopt", "weight_global_scale", np.ones(1, np.float32), "is not part of the model in config.json"),
    ("nvfp4 compressed", "weight_global_scale", None, f"missing: '{MODULE}.weight_global_scale' of shape [1]"),
    ("nvfp4 compressed", "weight_global_scale", np.zeros(1, np.float32), "1 of its 1 are not, as 0.0"),
    ("mxfp4", "weight_scale", BYTES[:, :5], "must have shape [64, 4], got [64, 5]"),
    ("mxfp4", "weight_scale", ONES[:, :4].astype(E4M3), "must be stored as U8, got F8_E4M3"),
    ("mxfp4", "weight_scale", BYTES[:, :4] + 253, "must hold finite numbers below 253, 256 of its 256 are not, as 253"),
    ("mxfp4", "weight_global_scale", np.ones(1, np.float32), "is not part of the model in config.json"),
    ("awq", "qzeros", None, f"missing: '{MODULE}.qzeros' of shape [2, 8]"),
    ("awq", "qweight", WORDS, "must have shape [128, 8], got [64, 16]"),
    ("gptq", "qweight", WORDS, "must have shape [16, 64], got [64, 16]"),
    ("gptq", "g_idx", INDEX[::-1] + 1, "must count groups of 128 columns in order, it does not: desc_act"),
    ("gptq", "g_idx", INDEX - 2**30, "must count groups of 128 columns in order"),
    ("gptq", "g_idx", INDEX.astype(np.int64), "must be a list of 128 of I32, got [128] of I64"),
    ("gptq", "g_idx", INDEX[:-1], "must be a list of 128 of I32, got [127] of I32"),
    ("gptq", "g_idx", np.append(INDEX, np.int32(1)), "must be a list of 128 of I32, got [129] of I32"),
    ("gptq", "g_idx", INDEX.astype(np.float32), "must be a list of 128 of I32, got [128] of F32"),
    ("gptq", "bias", np.zeros(63, np.float16), "must be a list of 64 of BF16 or F16 or F32, got [63] of F16"),
    ("gptq", "bias", np.zeros(64, np.int32), "must be a list of 64 of BF16 or F16 or F32, got [64] of I32"),
    ("int4 group", "weight_shape", np.zeros(3, np.int64), "must be a list of 2 of I32 or I64, got [3] of I64"),
    ("int4 group", "weight_shape", np.zeros(2, np.float32), "must be a list of 2 of I32 or I64, got [2] of F32"),
    ("gptq", "bias", np.ones(64, np.float16), "must be 0, as the model has no such bias"),
    ("gptq v2", "bias", np.ones((64, 1), np.float16), "must be a list of"),
]


@pytest.mark.parametrize(("name", "last", "array", "words"), FAULTS)
def test_hostile_tensors_are_refused_before_anything_is_allocated(
    name: str, last: str, array: np.ndarray | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_published(tmp_path, name, num_hidden_layers=1)
    write_safetensors(tmp_path / "model.safetensors", spoiled(tensors_of(tmp_path), last, array))
    monkeypatch.setattr("jaxinfer.checkpoint.load.make_room_for", lambda *_: pytest.fail("memory was taken"))
    with pytest.raises(CheckpointError) as refused:
        load(tmp_path)
    assert words in str(refused.value)
    assert f"{MODULE}.{last}" in str(refused.value)


def test_columns_in_another_order_are_refused(tmp_path: Path) -> None:
    """As desc_act leaves them: each group has its columns, in any places of the matrix."""
    write_published(tmp_path, "gptq")
    name = "model.layers.0.mlp.down_proj.g_idx"
    tensors = tensors_of(tmp_path)
    assert tensors[name].max() == 1, "there are two groups"
    shuffled = np.random.default_rng(0).permutation(tensors[name])
    write_safetensors(tmp_path / "model.safetensors", tensors | {name: shuffled})
    with pytest.raises(
        CheckpointError, match="must count groups of 128 columns in order, it does not: desc_act"
    ) as refused:
        load(tmp_path)
    assert name in str(refused.value)


def test_all_faults_come_at_once_and_scales_are_looked_at_after_shapes(tmp_path: Path) -> None:
    write_published(tmp_path, "fp8 block")
    tensors = tensors_of(tmp_path)
    names = [name for name in tensors if name.endswith("weight_scale_inv")]
    write_safetensors(tmp_path / "model.safetensors", tensors | {name: tensors[name] * 0 for name in names})
    with pytest.raises(CheckpointError) as refused:
        load(tmp_path)
    assert str(refused.value).count("must hold finite numbers above 0") == len(names)


def test_a_config_that_is_silent_about_quantized_tensors_is_refused(tmp_path: Path) -> None:
    write_published(tmp_path, "fp8 block")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"must be stored as BF16, F16, F32, got F8_E4M3"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"intermediate_size": 192}, "model.layers.0.mlp.down_proj has 128 rows and 192 columns in groups of 64"),
        ({"head_dim": 16}, f"{MODULE} has 32 rows and 128 columns in groups of 64"),
        (
            {"intermediate_size": 192, "quantization_config": FORMATS["nvfp4 modelopt"][0]},
            "model.layers.0.mlp.down_proj has 128 rows and 192 columns in groups of 16",
        ),
    ],
)
def test_shapes_that_tiles_do_not_have_are_refused(sizes: dict[str, Any], words: str) -> None:
    config = dense.model(
        model_config("qwen3", **(sizes_of("awq") | {"quantization_config": FORMATS["awq"][0]} | sizes))
    )
    with pytest.raises(CheckpointError, match="whole groups of 32, 64, 128 or all columns") as refused:
        dense.specs(config)
    assert words in str(refused.value)


ORDERED = ParamSpec(
    (192, 256),
    (("a.weight", "b.weight"),),
    (128, 64),
    PartitionSpec(None, None),
    layout=FileLayout(order=(0, 2, 1, 3)),
    may="be quantized",
)


@pytest.mark.parametrize("name", ["fp8 channel", "fp8 tensor", "int8 channel", "int8 tensor"])
def test_scales_follow_rows_that_a_model_has_in_another_order(name: str, tmp_path: Path) -> None:
    drawn = np.random.default_rng(3)
    plain = {
        f"{one}.weight": drawn.normal(size=(rows, 256)) * 4.0 ** drawn.integers(-3, 3, (rows, 1))
        for one, rows in (("a", 128), ("b", 64))
    }
    tensors, wide = {}, []
    for full, matrix in plain.items():
        packed, exact = FORMATS[name][1](matrix.astype(np.float32))
        tensors |= {f"{full.partition('.')[0]}.{last}": array for last, array in packed.items()}
        wide.append(exact.reshape(-1, 4, 256)[:, [0, 2, 1, 3]].reshape(exact.shape))
    write_safetensors(tmp_path / "model.safetensors", tensors)
    checkpoint = SimpleNamespace(weight_files=(tmp_path / "model.safetensors",), weight_map=None)
    scheme = {"fp8": Fp8, "int8": Int8}[name.split()[0]](name.split()[1])
    specs = as_published({"a": ORDERED}, Published(((("Linear",), scheme),)))
    held = load_params(checkpoint, specs, "float32", DEVICE, chunk_bytes=9000)["a"]
    np.testing.assert_array_equal(np.asarray(widened(held)), np.concatenate(wide))


@pytest.mark.parametrize("scheme", [Fp8("block"), Int4("awq", 64, True), Int8("channel", packed=True)])
@pytest.mark.parametrize("layout", [FileLayout(order=(1, 0)), FileLayout(transposed=True)])
def test_other_scales_of_rows_in_another_order_are_refused(scheme: Scheme, layout: FileLayout) -> None:
    spec = dataclasses.replace(ORDERED, layout=layout)
    with pytest.raises(CheckpointError, match="in another order than the file must be fp8 or int8") as refused:
        as_published({"a": spec}, Published(((("Linear",), scheme),)))
    assert "\n  - a\n  - b\n" in str(refused.value)


def test_a_block_whose_scale_is_0_is_nothing(tmp_path: Path) -> None:
    write_published(tmp_path, "nvfp4 modelopt", num_hidden_layers=1)
    tensors = tensors_of(tmp_path)
    tensors["model.layers.0.self_attn.o_proj.weight_scale"][0, 0] = 0
    write_safetensors(tmp_path / "model.safetensors", tensors)
    held = np.asarray(widened(load(tmp_path)[1].layers.o[0]))
    assert not held[0, :16].any() and held[0, 16:].any()


def test_modelopt_s_own_file_says_how_weights_are_stored_where_config_json_does_not(tmp_path: Path) -> None:
    wide = write_published(tmp_path, "fp8 tensor", quantization_config=None)
    names = (f"model.layers.0.self_attn.{one}_proj.{one}_scale" for one in "kv")
    of_cache = dict.fromkeys(names, np.ones((), np.float32))
    write_safetensors(tmp_path / "model.safetensors", tensors_of(tmp_path) | of_cache)
    said = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (tmp_path / QUANTIZATION).write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": said}))
    config, params = load(tmp_path)
    assert config.published == Published(((("Linear",), Fp8("tensor")),), ("lm_head",), head=True)
    np.testing.assert_array_equal(np.asarray(widened(params.layers.down[1])), fused(wide, 2)[-1])
    facts = resolve(str(tmp_path)).config
    assert unfollowed(facts) == "kv_cache_quant_algo 'FP8' of hf_quant_config.json"
    facts["quantization_config"]["quantization"]["quant_algo"] = "W4A16"
    fault = r"\n  - hf_quant_config.json: quantization.quant_algo must be one of FP8, NVFP4, got 'W4A16'"
    with pytest.raises(CheckpointError, match=fault):
        dense.model(facts)
    without = resolve(str(tmp_path), overrides={"quantization_config": None})
    assert dense.model(without.config).published is None
    (tmp_path / QUANTIZATION).write_text("{")
    with pytest.raises(CheckpointError, match=r"hf_quant_config.json: must be JSON"):
        load(tmp_path)
    other = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": FORMATS["fp8 tensor"][0]}
    (tmp_path / "config.json").write_text(json.dumps(other))
    assert load(tmp_path)[0].published.of("lm_head") is None, "config.json holds where it says something"


def test_a_mesh_and_too_little_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_published(tmp_path, "fp8 block")
    checkpoint = resolve(str(tmp_path))
    specs = dense.specs(dense.model(checkpoint.config))
    mesh = jax.sharding.Mesh(np.array([DEVICE]), ("tensor",))
    with pytest.raises(ConfigError, match="quantization needs a model on one device"):
        load_params(checkpoint, specs, "float32", mesh)
    monkeypatch.setattr("jaxinfer.checkpoint.memory.available_device_bytes", lambda *_: 1000)
    with pytest.raises(DeviceError):
        load(tmp_path)
