"""Loaded arrays are the files' tensors, fused and stacked, whatever the shards, chunks, dtypes and layouts."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import Mesh, PartitionSpec

from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.checkpoint.load import load_params, params_bytes
from jaxinfer.checkpoint.resolve import resolve
from jaxinfer.checkpoint.weights import Weights, check_tensors
from jaxinfer.errors import CheckpointError, ConfigError, DeviceError
from jaxinfer.models.parameters import FileLayout, ParamSpec
from jaxinfer_kernels.linear.quantized import Format, quantize
from tests.support.checkpoints import model_config, random_tensors, write_checkpoint, write_safetensors
from tests.support.loading import open_checkpoint, specs_of
from tests.support.processes import run_on_four_devices

FAMILIES = ("qwen2", "qwen3", "llama")


def library_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of the folder, read by the safetensors library."""
    return {
        name: array
        for path in sorted(folder.glob("*.safetensors"))
        for name, array in safetensors.numpy.load_file(path).items()
    }


def expected_params(tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    """What the dense family's parameters must be, by field, built the plain way."""
    num_layers = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))

    def kind(*names: str, stack: bool = True) -> Any:
        per_layer = [
            np.concatenate([tensors[f"model.layers.{layer}.{name}"] for name in names]) for layer in range(num_layers)
        ]
        return np.stack(per_layer) if stack else per_layer

    params = {
        "embed": tensors["model.embed_tokens.weight"],
        "final_norm": tensors["model.norm.weight"],
        "attention_norm": kind("input_layernorm.weight"),
        "mlp_norm": kind("post_attention_layernorm.weight"),
        "qkv": kind(*(f"self_attn.{name}_proj.weight" for name in "qkv"), stack=False),
        "o": kind("self_attn.o_proj.weight", stack=False),
        "gate_up": kind("mlp.gate_proj.weight", "mlp.up_proj.weight", stack=False),
        "down": kind("mlp.down_proj.weight", stack=False),
    }
    if "lm_head.weight" in tensors:
        params["unembed"] = tensors["lm_head.weight"]
    if "model.layers.0.self_attn.q_proj.bias" in tensors:
        params["qkv_bias"] = kind(*(f"self_attn.{name}_proj.bias" for name in "qkv"))
    if "model.layers.0.self_attn.q_norm.weight" in tensors:
        params |= {name: kind(f"self_attn.{name}.weight") for name in ("q_norm", "k_norm")}
    return params


def assert_loaded(params: Any, expected: dict[str, Any]) -> None:
    fields = {key: value for part in (params, params.layers) for key, value in vars(part).items() if key != "layers"}
    held = {key: value for key, value in fields.items() if value is not None}
    assert held.keys() == expected.keys()
    for key, want in expected.items():
        got = held[key]
        assert isinstance(got, tuple) == isinstance(want, list)
        for one, other in zip(got, want, strict=True) if isinstance(want, list) else [(got, want)]:
            np.testing.assert_array_equal(np.asarray(one), other, err_msg=key)


@pytest.mark.parametrize("family", FAMILIES)
def test_arrays_equal_the_librarys_whether_tied_or_not_in_one_file_or_three(family: str, tmp_path: Path) -> None:
    for tied, num_shards in ((True, 1), (False, 3)):
        folder = tmp_path / f"{tied}"
        write_checkpoint(folder, family, num_shards=num_shards, tie_word_embeddings=tied)
        params = open_checkpoint(folder)
        assert (params.unembed is None) == tied
        assert_loaded(params, expected_params(library_tensors(folder)))


def test_a_model_saved_as_its_body_is_loaded_by_the_names_it_has(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, tie_word_embeddings=False, architectures=["Qwen3Model"])
    whole = library_tensors(tmp_path)
    del whole["lm_head.weight"]
    write_safetensors(tmp_path / "model.safetensors", {name.removeprefix("model."): whole[name] for name in whole})
    params = open_checkpoint(tmp_path)
    assert params.unembed is None
    assert_loaded(params, expected_params(whole))
    (config,) = (json.loads(path.read_text()) for path in [tmp_path / "config.json"])
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen3ForCausalLM"]}))
    with pytest.raises(CheckpointError, match="missing: 'lm_head.weight'"):
        open_checkpoint(tmp_path)


# One row at a time; a few rows; whole layers and most leaves at once.
@pytest.mark.parametrize("chunk_bytes", [1, 3000, 40_000])
def test_the_size_of_a_chunk_does_not_change_what_is_loaded(chunk_bytes: int, tmp_path: Path) -> None:
    write_checkpoint(
        tmp_path,
        "qwen2",
        num_shards=2,
        num_hidden_layers=3,
        hidden_size=32,
        vocab_size=40,
        bos_token_id=2,
        eos_token_id=3,
    )
    params = open_checkpoint(tmp_path, chunk_bytes=chunk_bytes)
    assert_loaded(params, expected_params(library_tensors(tmp_path)))


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_values_are_converted_to_the_dtype_asked_for(stored: str, dtype: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, weights_dtype=stored)
    params = open_checkpoint(tmp_path, dtype=dtype, chunk_bytes=60_000)  # some leaves whole, some in parts
    target = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    tensors = {name: array.astype(target) for name, array in library_tensors(tmp_path).items()}
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(target)}
    assert_loaded(params, expected_params(tensors))


def test_sources_of_one_leaf_may_be_stored_in_different_dtypes(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    tensors = random_tensors(model_config("qwen3"))
    key = "model.layers.0.self_attn.k_proj.weight"
    tensors[key] = tensors[key].astype(ml_dtypes.bfloat16)
    write_safetensors(tmp_path / "model.safetensors", tensors)
    tensors[key] = tensors[key].astype(np.float32)
    assert_loaded(open_checkpoint(tmp_path), expected_params(tensors))


def test_values_beyond_float16_are_refused_not_made_infinite(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    tensors = random_tensors(model_config("qwen3"))
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = 70_000
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match="down_proj.weight.* must fit in float16"):
        open_checkpoint(tmp_path, dtype="float16")
    assert_loaded(open_checkpoint(tmp_path, dtype="float32"), expected_params(tensors))


def test_a_few_values_that_are_not_finite_do_not_keep_a_tensor_out(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    tensors = random_tensors(model_config("qwen3"))
    tensors["model.embed_tokens.weight"][:300] = np.nan
    write_safetensors(tmp_path / "model.safetensors", tensors)
    assert bool(jnp.isfinite(open_checkpoint(tmp_path).embed[300:]).all())


def test_known_leftovers_are_let_pass_and_not_loaded(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    tensors = random_tensors(model_config("qwen3"))
    leftovers = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
        "model.rotary_emb.inv_freq": np.ones(8, np.float32),
        "lm_head.weight": tensors["model.embed_tokens.weight"],
    }
    write_safetensors(tmp_path / "model.safetensors", tensors | leftovers)
    assert_loaded(open_checkpoint(tmp_path), expected_params(tensors))


def test_all_faults_of_the_tensors_are_named_at_once(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, tie_word_embeddings=False)
    tensors = random_tensors(model_config("qwen3"))
    del tensors["model.layers.0.mlp.up_proj.weight"]
    tensors["model.layers.1.extra"] = np.zeros(1, np.float32)
    tensors["model.norm.weight"] = np.zeros(63, np.float32)
    tensors["model.layers.0.input_layernorm.weight"] = np.zeros(64, np.int32)
    # Of the right size together, each of the wrong one: fusing must not hide it.
    for name in ("q_proj", "k_proj"):
        tensors[f"model.layers.1.self_attn.{name}.weight"] = np.zeros((48, 64), np.float32)
    write_safetensors(tmp_path / "model.safetensors", tensors)
    checkpoint = resolve(str(tmp_path))
    with pytest.raises(CheckpointError) as refusal:
        check_tensors(specs_of(checkpoint), Weights(checkpoint.weight_files))
    for words in (
        "missing: 'model.layers.0.mlp.up_proj.weight' of shape [128, 64]",
        "missing: 'lm_head.weight' of shape [384, 64]",
        "'model.layers.1.extra' is not part of the model",
        "'model.norm.weight' must have shape [64], got [63]",
        "'model.layers.0.input_layernorm.weight' must be stored as BF16, F16, F32, got I32",
        "'model.layers.1.self_attn.q_proj.weight' must have shape [64, 64], got [48, 64]",
        "'model.layers.1.self_attn.k_proj.weight' must have shape [32, 64], got [48, 64]",
    ):
        assert words in str(refusal.value)


def test_a_long_list_of_faults_is_cut_and_counted(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, num_hidden_layers=40, weights_dtype="bfloat16")
    write_safetensors(tmp_path / "model.safetensors", {})
    with pytest.raises(CheckpointError, match="and 422 more like these") as refusal:
        open_checkpoint(tmp_path)
    assert len(str(refusal.value).splitlines()) < 25


def test_progress_counts_every_byte_once_and_ends_at_the_total(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, num_shards=2)
    checkpoint = resolve(str(tmp_path))
    seen: list[tuple[int, int, float]] = []
    load_params(
        checkpoint,
        specs_of(checkpoint),
        "float32",
        jax.devices()[0],
        lambda done, total, seconds: seen.append((done, total, seconds)),
        chunk_bytes=10_000,
    )
    total = sum(array.nbytes for array in library_tensors(tmp_path).values())
    assert seen[-1][:2] == (total, total)
    assert {entry[1] for entry in seen} == {total}
    assert len(seen) > 20
    assert seen == sorted(seen)


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path)
    checkpoint = resolve(str(tmp_path))
    needed = params_bytes(specs_of(checkpoint), "float32", jax.devices()[0])
    assert needed == sum(array.nbytes for array in library_tensors(tmp_path).values())
    monkeypatch.setattr("jaxinfer.checkpoint.memory.available_host_bytes", lambda: needed - 1)
    with pytest.raises(DeviceError, match=r"the model's weights need .* MiB free; free some memory"):
        open_checkpoint(tmp_path)
    monkeypatch.setattr("jaxinfer.checkpoint.memory.available_host_bytes", lambda: needed)
    open_checkpoint(tmp_path)


MESH_SCRIPT = """
import sys
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.checkpoint.resolve import resolve
from jaxinfer.errors import ConfigError
from jaxinfer.models.parameters import ParamSpec
from tests.support.loading import open_checkpoint, specs_of

folder = sys.argv[1]
size = int(sys.argv[2])
mesh = Mesh(np.array(jax.devices()[:size]), ("tensor",))
flat = jax.tree.leaves

def slice_of(rank, whole, spec):
    axis = list(spec.partition).index("tensor") if "tensor" in spec.partition else None
    if axis is None:
        return whole
    # Source by source where rows are split: every device gets its own heads of q, k and v.
    rows = spec.rows if axis == spec.stacked else (spec.shape[axis],)
    sources = np.split(whole, np.cumsum(rows)[:-1], axis=axis)
    # Four devices share two kv heads: two devices each hold a copy of one.
    shares = [2 if len(rows) == 3 and i > 0 else size for i in range(len(rows))]
    parts = [np.split(source, ways, axis=axis)[rank * ways // size] for source, ways in zip(sources, shares)]
    return np.concatenate(parts, axis=axis)

for chunk_bytes in (2**26, 9000):
    specs = specs_of(resolve(folder))
    alone = open_checkpoint(folder)
    spread = open_checkpoint(folder, placement=mesh, chunk_bytes=chunk_bytes)
    for spec, whole, array in zip(flat(specs), flat(alone), flat(spread), strict=True):
        assert array.sharding == NamedSharding(mesh, spec.partition), (array.sharding, spec)
        for shard in array.addressable_shards:
            want = slice_of(shard.device.id, np.asarray(whole), spec)
            np.testing.assert_array_equal(np.asarray(shard.data), want, err_msg=str(spec.sources[0]))

heads = dict(sources=(("q", "k", "v"),) * 2, rows=(32, 16, 16), stacked=True, block=8, copied=(False, True, True))
biases = ParamSpec((2, 64), partition=P(None, "tensor"), **heads)
scales = ParamSpec((2, 64, 4), partition=P(None, "tensor", None), **heads)
specs = specs, biases, scales
one, two = (dummy_params(specs, "float32", 0, place) for place in (jax.devices()[0], mesh))
for spec, whole, array in zip(flat(specs), flat(one), flat(two), strict=True):
    assert array.sharding == NamedSharding(mesh, spec.partition)
    for shard in array.addressable_shards:  # the same model, whatever it is spread over
        np.testing.assert_array_equal(np.asarray(shard.data), slice_of(shard.device.id, np.asarray(whole), spec))

try:
    open_checkpoint(folder, placement=Mesh(np.array(jax.devices()[:3]), ("tensor",)))
except ConfigError as error:
    assert "tensor-parallel size must divide" in str(error), error
else:
    raise SystemExit("three devices do not divide the heads, yet they were accepted")
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_each_device_of_a_mesh_holds_its_slice(size: int, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "qwen2", num_shards=2, tie_word_embeddings=False)
    run_on_four_devices("-c", MESH_SCRIPT, tmp_path, size)


def test_both_styles_of_config_give_the_same_parameters(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "4", transformers=4)
    write_checkpoint(tmp_path / "5", transformers=5)
    keys = [set(json.loads((tmp_path / style / "config.json").read_text())) for style in "45"]
    assert keys[0] - keys[1] == {"rope_theta", "rope_scaling", "torch_dtype"}
    four, five = (open_checkpoint(tmp_path / style) for style in "45")
    jax.tree.map(np.testing.assert_array_equal, four, five)


PAIRS = FileLayout(order=(0, 2, 4, 1, 3, 5))  # rotary pairs beside each other in the file, halves here
LAYOUTS = {
    "plain": ParamSpec((12, 4), (("a", "b"),), (6, 6), PartitionSpec(None, None)),
    "own dtype": ParamSpec((12, 4), (("c",),), (12,), PartitionSpec(None, None), dtype="float32"),
    "in another order": ParamSpec((18, 4), (("d", "e"),), (6, 12), PartitionSpec(None, None), layout=PAIRS),
    "transposed": ParamSpec((6, 8), (("f",),), (6,), PartitionSpec(None, None), layout=FileLayout(transposed=True)),
    "both, stacked": ParamSpec(
        (2, 6, 8),
        (("g",), ("h",)),
        (6,),
        PartitionSpec(None, None, None),
        stacked=True,
        layout=FileLayout(transposed=True, order=(1, 0)),
    ),
}


@pytest.mark.parametrize("chunk_bytes", [1, 40, 2**20])
def test_a_leaf_may_be_stored_in_another_order_and_have_a_dtype_of_its_own(tmp_path: Path, chunk_bytes: int) -> None:
    random, tensors, wanted = np.random.default_rng(0), {}, {}
    for key, spec in LAYOUTS.items():
        groups = []
        for group in spec.sources:
            parts = []
            for i, name in enumerate(group):
                tensors[name] = random.normal(size=spec.source_shape(i)).astype(np.float16)
                part = tensors[name].T if spec.layout.transposed else tensors[name]
                block = len(spec.layout.order) or 1
                order = [j - j % block + (spec.layout.order or (0,))[j % block] for j in range(len(part))]
                parts.append(part[order])
            groups.append(np.concatenate(parts))
        wanted[key] = np.stack(groups) if spec.stacked else groups[0]
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = SimpleNamespace(weight_files=(tmp_path / "model.safetensors",), weight_map=None)
    loaded = load_params(checkpoint, LAYOUTS, "bfloat16", jax.devices()[0], chunk_bytes=chunk_bytes)
    for key, array in loaded.items():
        dtype = "float32" if key == "own dtype" else "bfloat16"
        assert array.dtype == dtype
        np.testing.assert_array_equal(
            np.asarray(array), np.asarray(jnp.asarray(wanted[key]).astype(dtype)), err_msg=key
        )
    made = dummy_params(LAYOUTS, "bfloat16", 0, jax.devices()[0])
    assert jax.tree.map(lambda a: (a.shape, a.dtype), made) == jax.tree.map(lambda a: (a.shape, a.dtype), loaded)


MATRICES = {
    "as asked": ParamSpec((24, 64), (("a", "b"),), (8, 16), PartitionSpec(None, None), may="be quantized"),
    "of 8 bits": ParamSpec((16, 64), (("c",),), (16,), PartitionSpec(None, None), may="have 8 bits"),
    "an array": ParamSpec((16, 64), (("d",),), (16,), PartitionSpec(None, None)),
}


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("chunk_bytes", [1, 1000, 2**20])
def test_matrices_are_quantized_as_they_come(tmp_path: Path, kind: str, chunk_bytes: int) -> None:
    random = np.random.default_rng(0)
    shapes = {"a": (8, 64), "b": (16, 64), "c": (16, 64), "d": (16, 64)}
    tensors = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = SimpleNamespace(weight_files=(tmp_path / "model.safetensors",), weight_map=None)
    specs = jax.tree.map(lambda spec: spec.quantized(kind), MATRICES)
    loaded = load_params(checkpoint, specs, "bfloat16", jax.devices()[0], chunk_bytes=chunk_bytes)
    wanted = {
        "as asked": quantize(
            jnp.asarray(np.concatenate([tensors["a"], tensors["b"]])), Format(kind), np.dtype("bfloat16")
        ),
        "of 8 bits": quantize(jnp.asarray(tensors["c"]), Format.INT8, np.dtype("bfloat16")),
        "an array": jnp.asarray(tensors["d"], "bfloat16"),
    }
    jax.tree.map(np.testing.assert_array_equal, loaded, wanted)
    made = dummy_params(specs, "bfloat16", 0, jax.devices()[0])
    assert jax.tree.map(lambda a: (a.shape, a.dtype), made) == jax.tree.map(lambda a: (a.shape, a.dtype), loaded)
    assert params_bytes(specs, "bfloat16", jax.devices()[0]) == sum(leaf.nbytes for leaf in jax.tree.leaves(loaded))


def test_quantized_matrices_are_refused_over_a_mesh() -> None:
    specs = jax.tree.map(lambda spec: spec.quantized("int8"), MATRICES)
    with pytest.raises(ConfigError, match="quantization needs a model on one device, got a mesh"):
        dummy_params(specs, "bfloat16", 0, Mesh(np.array(jax.devices()[:1]), ("tensor",)))
