"""config.json of quantized checkpoints: which matrices are stored how, and what is refused by its name."""

from typing import Any

import pytest

from jaxinfer.errors import CheckpointError, ConfigError
from jaxinfer.models.published import Fp4, Fp8, Int4, Int8, Published, Scheme
from jaxinfer.models.quantization_config import quantization_words
from jaxinfer.models.registry import dense
from tests.support.checkpoints import model_config
from tests.support.published import AWQ, BLOCKS, GPTQ, SIZES, compressed

CHANNEL = dict(num_bits=8, type="float", strategy="channel")
PACKED = compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=64)
FLOAT = compressed("float-quantized", **CHANNEL)
NVFP4 = compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16)
INT = compressed("int-quantized", num_bits=8, type="int", strategy="channel")
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"


def read(section: Any, **overrides: Any) -> Published | None:
    return dense.model(model_config("qwen3", **(SIZES | {"quantization_config": section} | overrides))).published


@pytest.mark.parametrize(
    ("section", "scheme"),
    [
        (BLOCKS, Fp8("block", "weight_scale_inv")),
        (BLOCKS | {"fmt": None, "scale_fmt": "ue8m0"}, Fp8("block", "weight_scale_inv")),
        ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, Fp8("tensor")),
        (FLOAT, Fp8("channel")),
        (compressed("float-quantized", num_bits=8, type="float", strategy="tensor"), Fp8("tensor")),
        (
            compressed("float-quantized", num_bits=8, type="float", strategy="block", block_structure=[128, 128]),
            Fp8("block"),
        ),
        (INT, Int8("channel")),
        (compressed("int-quantized", num_bits=8, type="int", strategy="tensor"), Int8("tensor")),
        (compressed("pack-quantized", num_bits=8, type="int", strategy="channel"), Int8("channel", packed=True)),
        (PACKED, Int4("compressed-tensors", 64, False)),
        (NVFP4, Fp4("compressed-tensors")),
        (
            compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32),
            Fp4("compressed-tensors", mx=True),
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]}, Fp4("modelopt")),
        (AWQ | {"modules_to_not_convert": None, "backend": "autoawq"}, Int4("awq", 64, True)),
        (GPTQ | {"damp_percent": 0.01, "true_sequential": True}, Int4("gptq", 128, True)),
        (GPTQ | {"checkpoint_format": "gptq_v2", "group_size": -1}, Int4("gptq_v2", None, True)),
    ],
)
def test_it_says_how_matrices_are_stored(section: dict[str, Any], scheme: Scheme) -> None:
    published = read(section)
    assert published is not None
    assert published.of(Q) == published.of(DOWN) == scheme
    assert published.of("lm_head") is None
    assert quantization_words({"quantization_config": section}) == str(scheme)
    assert read(None, compression_config=section) == published


GPTQMODEL = {
    "bits": 4,
    "checkpoint_format": "gptq",
    "desc_act": False,
    "dynamic": {r"-:.*down_proj": {}, r"-:model\.layers\.7\..*": {}},
    "format": "gptq",
    "group_size": 128,
    "hyb_act": True,
    "act_group_aware": True,
    "lm_head": False,
    "meta": {"quantizer": ["gptqmodel:5.4.2"], "uri": "u", "damp_percent": 0.05, "act_group_aware": True, "mse": 0.0},
    "method": "gptq",
    "pack_dtype": "int32",
    "pack_impl": "cpu",
    "quant_method": "gptq",
    "sym": True,
}
"""As GPTQModel 5 writes it."""
AUTO_GPTQ = {
    "act_bits": 16,
    "act_data_type": "int",
    "act_dynamic": True,
    "act_group_size": 128,
    "act_sym": True,
    "amp": True,
    "autoround_version": "0.5.1",
    "batch_size": 8,
    "bits": 4,
    "damp_percent": 0.01,
    "data_type": "int",
    "desc_act": False,
    "enable_minmax_tuning": True,
    "enable_norm_bias_tuning": False,
    "enable_quanted_input": True,
    "gradient_accumulate_steps": 1,
    "group_size": 128,
    "iters": 1000,
    "low_gpu_mem_usage": True,
    "lr": 0.001,
    "minmax_lr": 0.001,
    "nsamples": 512,
    "quant_method": "gptq",
    "scale_dtype": "torch.float16",
    "seqlen": 2048,
    "super_bits": None,
    "super_group_size": None,
    "sym": True,
    "to_quant_block_names": None,
    "true_sequential": False,
}
"""As AutoRound writes it for GPTQ's loaders."""
AUTO_ROUND = {
    "quant_method": "auto-round",
    "packing_format": "auto_round:auto_gptq",
    "bits": 4,
    "group_size": 128,
    "sym": True,
    "data_type": "int",
    "iters": 0,
    "model_free": True,
    "low_gpu_mem_usage": True,
    "autoround_version": "0.14.2",
    "block_name_to_quantize": "model.layers",
    "extra_config": {DOWN: {"bits": 16, "data_type": "float"}, "lm_head": {"bits": 16, "data_type": "fp"}},
}
"""As AutoRound writes it for its own."""


@pytest.mark.parametrize(
    ("section", "scheme", "excludes"),
    [
        (GPTQMODEL, Int4("gptq", 128, True), {DOWN}),
        (GPTQMODEL | {"checkpoint_format": None, "format": "gptq_v2"}, Int4("gptq_v2", 128, True), {DOWN}),
        (
            GPTQMODEL | {"quant_method": "awq", "method": "awq", "format": "gemm", "checkpoint_format": "gemm"},
            Int4("awq", 128, True),
            {DOWN},
        ),
        (AUTO_GPTQ, Int4("gptq", 128, True), set()),
        (AUTO_ROUND, Int4("gptq", 128, True), {DOWN}),
        (AUTO_ROUND | {"packing_format": "auto_round:auto_awq"}, Int4("awq", 128, True), {DOWN}),
    ],
)
def test_sections_of_tools_are_read_with_what_they_leave_out(
    section: dict[str, Any], scheme: Int4, excludes: set[str]
) -> None:
    published = read(section)
    assert published is not None
    assert published.of(Q) == scheme
    assert {module for module in (Q, DOWN) if published.of(module) is None} == excludes
    assert published.of("lm_head") is None


@pytest.mark.parametrize(
    ("name", "excludes"),
    [
        (DOWN, {DOWN}),
        ("down_proj", {DOWN}),
        ("layers.1.mlp", {DOWN}),
        ("model.layers.1", {DOWN}),
        ("model.layers.10", set()),
        ("layers.1.ml", set()),
        ("proj", set()),
        ("re:.*q_proj", {Q}),
        (r"re:model\.layers\.\d\.mlp\.", {DOWN}),
        ("re:mlp", set()),
        ("Linear", {Q, DOWN}),
    ],
)
def test_excluded_modules_are_named_by_parts_or_by_patterns(name: str, excludes: set[str]) -> None:
    for section in (BLOCKS | {"modules_to_not_convert": [name]}, FLOAT | {"ignore": [name]}):
        published = read(section)
        assert published is not None
        assert {module for module in (Q, DOWN) if published.of(module) is None} == excludes


def test_a_head_is_quantized_where_compressed_tensors_does_not_leave_it_out() -> None:
    assert read(FLOAT | {"ignore": []}).of("lm_head") == Fp8("channel")
    assert read(BLOCKS).of("lm_head") is None


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_of_several_groups_the_first_that_names_a_module_holds_and_then_the_class(order: str) -> None:
    group = FLOAT["config_groups"]["group_0"]
    tensor = group | {"targets": ["re:.*mlp.*"], "weights": group["weights"] | {"strategy": "tensor"}}
    groups = {"a": tensor, "b": group}
    published = read(FLOAT | {"config_groups": {name: groups[name] for name in order}})
    assert (published.of(Q), published.of(DOWN)) == (Fp8("channel"), Fp8("tensor"))
    words = [f"fp8 with a scale per {one}" for one in ("tensor", "channel")]
    assert str(published) == " and ".join(words if order == "ab" else reversed(words))


MODELOPT = {
    "config_groups": {
        "group_0": {
            "input_activations": {"dynamic": False, "num_bits": 8, "type": "float"},
            "weights": {"dynamic": False, "num_bits": 8, "type": "float"},
            "targets": ["Linear"],
        }
    },
    "ignore": ["lm_head", "model.layers.1.mlp*"],
    "quant_algo": "FP8",
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.47.0"},
    "quant_method": "modelopt",
}
"""As ModelOpt writes it into config.json."""
OF_FILE = {
    "quant_method": "modelopt",
    "producer": {"name": "modelopt", "version": "0.19.0"},
    "quantization": {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head", "*.1.mlp.down_proj"],
    },
}
"""As read_config makes of ModelOpt's own file."""


@pytest.mark.parametrize("section", [MODELOPT, OF_FILE])
def test_modelopt_says_it_in_either_form_with_wildcards(section: dict[str, Any]) -> None:
    published = read(section)
    assert published is not None
    assert published.of(Q) == Fp8("tensor")
    assert published.of(DOWN) is published.of("lm_head") is None
    assert published.of("model.layers.11.mlp.down_proj") == Fp8("tensor")
    assert quantization_words({"quantization_config": section}) == "fp8 with a scale per tensor"


def test_modelopt_s_older_files_which_exclude_nothing_leave_the_head_as_it_is() -> None:
    published = read({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}})
    assert published is not None
    assert published.of(Q) == Fp8("tensor") and published.of("lm_head") is None


def test_a_wildcard_is_no_pattern_of_other_characters() -> None:
    published = read(MODELOPT | {"ignore": ["model*q.proj", "model.layers.1.*proj"]})
    assert published.of(Q) == Fp8("tensor"), "a point is a point"
    assert published.of(DOWN) is None
    assert published.of("lm_head") == Fp8("tensor")


def test_modelopt_may_quantize_keys_and_values_alone() -> None:
    assert read(OF_FILE | {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}) is None


REFUSED = [
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes is not supported; take a checkpoint in FP8"),
    ({"quant_method": "gguf"}, "GGUF is not supported; take a checkpoint in FP8"),
    (
        {"quant_method": "hqq"},
        "quant_method must be one of fp8, compressed-tensors, awq, gptq, auto-round, modelopt, got 'hqq'; take",
    ),
    ({"quant_method": ["fp8"]}, "quant_method must be one of fp8"),
    ({"bits": 4}, "quant_method must be one of fp8.* got nothing"),
    (BLOCKS | {"fmt": "e5m2"}, "fmt must be 'e4m3' or 'float8_e4m3fn', got 'e5m2'; fp8 of e5m2 is not supported"),
    (BLOCKS | {"weight_block_size": [64, 128]}, r"weight_block_size must be \[128, 128\], got \[64, 128\]"),
    (BLOCKS | {"unheard_of": 1}, "quantization_config.unheard_of is not a key"),
    (BLOCKS | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert must be a list of names"),
    (BLOCKS | {"modules_to_not_convert": [1]}, "modules_to_not_convert must be a list of names"),
    (FLOAT | {"ignore": ["re:(a+)+$"]}, "ignore has the pattern 're:.*which must repeat no group"),
    (FLOAT | {"ignore": ["re:" + ".*" * 5]}, "quantization_config must have patterns that may be tried in at most"),
    (FLOAT | {"ignore": ["re:" + "a" * 201]}, "at most 200 characters"),
    (FLOAT | {"ignore": ["re:["]}, "which is none: unterminated"),
    (FLOAT | {"format": "marlin-24"}, "they are format 'marlin-24' of 8 bits and type 'float', got .*; take"),
    (FLOAT | {"sparsity_config": {"format": "sparse-24-bitmask"}}, r"sparse weights \(2:4\) are not supported"),
    (FLOAT | {"transform_config": {"config_groups": {}}}, "rotated weights are not supported"),
    (FLOAT | {"config_groups": {}}, "config_groups must name the groups of modules"),
    (FLOAT | {"config_groups": {"a": 1}}, "config_groups.a must be an object"),
    (compressed("float-quantized", num_bits=8, type="float", strategy="group"), "strategy must be one of block"),
    (compressed("float-quantized", **CHANNEL, symmetric=False), "weights with zero points are not supported in fp8"),
    (compressed("int-quantized", num_bits=8, type="int", strategy="channel", symmetric=False), "zero points .* int8"),
    (compressed("int-quantized", num_bits=8, type="int", strategy="block"), "strategy must be one of channel, tensor"),
    (compressed("int-quantized", num_bits=4, type="int", strategy="channel"), "'int-quantized' of 4 bits and type"),
    (
        compressed("pack-quantized", num_bits=8, type="int", strategy="group", group_size=128),
        "strategy must be one of channel, tensor, got 'group'; int8 in groups is not supported",
    ),
    (AWQ | {"bits": 8}, "bits must be 4, got 8; only 4 bits are supported"),
    (AWQ | {"bits": None}, "bits must be 4, got nothing"),
    (AWQ | {"version": "gemv"}, "version must be 'gemm'"),
    (AWQ | {"zero_point": False}, "AWQ without zero points"),
    (AWQ | {"group_size": 48}, "group_size must be one of 32, 64, 128, or -1"),
    (AWQ | {"group_size": [64]}, "group_size must be one of"),
    (AWQ | {"group_size": 64.0}, "group_size must be one of .* got 64.0"),
    (AWQ | {"bits": 4.0}, "bits must be 4, got 4.0"),
    (AWQ | {"zero_point": 1}, "zero_point must be true, got 1"),
    (GPTQ | {"desc_act": 0.0}, "desc_act must be false, got 0.0"),
    (BLOCKS | {"weight_block_size": [128.0, 128.0]}, r"weight_block_size must be \[128, 128\], got \[128.0, 128.0\]"),
    (compressed("float-quantized", **CHANNEL | {"num_bits": 8.0}), "of 8.0 bits and type 'float'"),
    (compressed("float-quantized", **CHANNEL | {"strategy": "block", "block_structure": [128.0, 128]}), "block_struct"),
    (compressed("float-quantized", **CHANNEL, dynamic=0), "dynamic must be false, got 0"),
    (compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=True), "group_size must be one"),
    (GPTQ | {"bits": 3}, "bits must be 4, got 3"),
    (GPTQ | {"desc_act": True}, "desc_act must be false, got true; columns in another order are not supported; take"),
    (GPTQ | {"lm_head": True}, "a head in 4 bits"),
    (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format must be 'gptq' or 'gptq_v2', got 'marlin'"),
    (GPTQ | {"checkpoint_format": ["gptq"]}, "checkpoint_format must be"),
    (GPTQ | {"dynamic": {"+:.*down.*": {"bits": 8}}}, r"dynamic must only leave out modules \(-:\)"),
    (GPTQ | {"dynamic": {"-:.*up.*": {}, ".*down.*": {"bits": 8}}}, "other bits for some are not supported"),
    (GPTQ | {"dynamic": [1]}, "dynamic must only leave out modules"),
    (GPTQ | {"dynamic": {"-:(.|.)*": {}}}, "dynamic has the pattern .* which must repeat no group"),
    (GPTQ | {"format": "marlin"}, "format must be 'gptq' or 'gptq_v2', got 'marlin'"),
    (GPTQ | {"format": "gptq", "checkpoint_format": "gptq_v2"}, "format must be checkpoint_format, 'gptq_v2', got"),
    (GPTQ | {"method": "qqq"}, "method must be 'gptq', got 'qqq'"),
    (GPTQ | {"adapter": {"rank": 64}}, "adapter is not a key"),
    (GPTQ | {"data_type": "mx_fp"}, "data_type must be 'int', got 'mx_fp'"),
    (
        AUTO_ROUND | {"packing_format": "auto_round:gptqmodel"},
        "packing_format must be one of auto_round:auto_gptq, .*awq",
    ),
    (AUTO_ROUND | {"packing_format": ["a"]}, "packing_format must be one of"),
    (AUTO_ROUND | {"super_bits": 6}, "super_bits must be empty, got 6"),
    (AUTO_ROUND | {"extra_config": {DOWN: {"bits": 8}}}, "extra_config must say of each module, by its name, that it"),
    (AUTO_ROUND | {"extra_config": {".*down.*": {"bits": 16}}}, r"which '\.\*down\.\*' does not"),
    (AUTO_ROUND | {"extra_config": [1]}, "extra_config must be an object of objects"),
    (compressed("pack-quantized", num_bits=4, type="int", strategy="tensor"), "strategy must be one of group, channel"),
    (
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=64, actorder="group"),
        "columns in another order are not supported",
    ),
    (compressed("pack-quantized", num_bits=3, type="int", strategy="group"), "of 3 bits and type 'int'"),
    (MODELOPT | {"quant_algo": "W4A8_AWQ"}, "quant_algo must be one of FP8, NVFP4, got 'W4A8_AWQ'; take"),
    (MODELOPT | {"quant_algo": ["FP8"]}, "quant_algo must be one of FP8"),
    (MODELOPT | {"quant_algo": None}, "quant_algo must be one of FP8, NVFP4, got nothing"),
    (MODELOPT | {"group_size": 16}, "group_size must be absent, got 16"),
    (MODELOPT | {"quant_algo": "NVFP4"}, "weights.num_bits must be 4, got 8; quant_algo says otherwise"),
    (MODELOPT | {"quant_algo": "NVFP4", "config_groups": None, "group_size": 32}, "group_size must be 16, got 32"),
    (
        compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32),
        "strategy must be 'tensor_group', got 'group'",
    ),
    (
        compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=16),
        "group_size must be 32, got 16",
    ),
    (MODELOPT | {"ignore": ["*" * 5]}, "must have patterns that may be tried in at most"),
    (MODELOPT | {"quantized_layers": {"a": {}}}, "quantized_layers is not a key"),
    (MODELOPT | {"config_groups": {"a": {"targets": ["Embedding"]}}}, r"targets must be \['Linear'\], got"),
    (
        MODELOPT | {"config_groups": {"a": {"weights": {"num_bits": 4}}}},
        "weights.num_bits must be 8, got 4; quant_algo says otherwise",
    ),
    (OF_FILE | {"quantization": {"quant_algo": "MIXED_PRECISION"}}, "tion.quant_algo must be one of FP8, NVFP4"),
    (OF_FILE | {"quantization": {"quant_algo": "FP8", "pre_quant_scale": True}}, "pre_quant_scale is not a key"),
]


@pytest.mark.parametrize(("section", "words"), REFUSED)
def test_what_is_not_read_is_refused_by_its_name_with_what_to_take_instead(section: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(section)
    assert isinstance(quantization_words({"quantization_config": section}), str)


def test_a_second_quantization_is_refused() -> None:
    raw = model_config("qwen3", **SIZES, quantization_config=BLOCKS)
    with pytest.raises(ConfigError, match=r"quantized already \(fp8 with a scale per 128 x 128 weights\), got int8"):
        dense.model(raw, "int8")


def test_matrices_of_one_product_that_are_not_stored_alike_are_refused() -> None:
    raw = model_config("qwen3", **SIZES, quantization_config=BLOCKS | {"modules_to_not_convert": ["q_proj"]})
    with pytest.raises(CheckpointError, match="must be stored alike") as refused:
        dense.specs(dense.model(raw))
    assert f"{Q} is not quantized" in str(refused.value)
    assert "model.layers.1.self_attn.v_proj is fp8 with a scale per 128 x 128 weights" in str(refused.value)
