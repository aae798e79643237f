"""Matrices as real tools store them (tests/golden/record_quantized.py), to the bit of what the tools say of them."""

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxinfer.checkpoint.load import load_params
from jaxinfer.models.as_published import as_published
from jaxinfer.models.parameters import ParamSpec
from jaxinfer.models.published import Fp4, Fp8, Int4, Int8, Published, Scheme
from tests.support.checkpoints import write_safetensors
from tests.support.golden_models import GOLDEN

SPEC = ParamSpec((128, 256), (("a.weight",),), (128,), PartitionSpec(None, None), may="be quantized")
E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
# The scheme, the types of what numpy holds as bits, and the dtype in which the tool dequantizes.
MADE: dict[str, tuple[Scheme, dict[str, Any], str]] = {
    "compressed-tensors fp8 channel": (Fp8("channel"), {"weight": E4M3}, "bfloat16"),
    "compressed-tensors fp8 tensor": (Fp8("tensor"), {"weight": E4M3}, "bfloat16"),
    "compressed-tensors fp8 block": (Fp8("block"), {"weight": E4M3}, "bfloat16"),
    "compressed-tensors int8 channel": (Int8("channel"), {}, "bfloat16"),
    "compressed-tensors int8 tensor": (Int8("tensor"), {}, "bfloat16"),
    "compressed-tensors int8 packed": (Int8("channel", packed=True), {}, "bfloat16"),
    "compressed-tensors int4 group": (Int4("compressed-tensors", 32, False), {}, "bfloat16"),
    "compressed-tensors int4 zeros": (Int4("compressed-tensors", 128, True), {}, "bfloat16"),
    "compressed-tensors int4 channel": (Int4("compressed-tensors", None, False), {}, "bfloat16"),
    "transformers fp8 block": (Fp8("block", "weight_scale_inv"), {"weight": E4M3}, "float32"),
    "transformers fp8 block ue8m0": (
        Fp8("block", "weight_scale_inv"),
        {"weight": E4M3, "weight_scale_inv": E8M0},
        "float32",
    ),
    "autoawq": (Int4("awq", 64, True), {}, "float16"),
    "gptqmodel v1": (Int4("gptq", 128, True), {}, "float16"),
    "gptqmodel v2": (Int4("gptq_v2", 128, True), {}, "float16"),
    "modelopt fp8": (Fp8("tensor"), {"weight": E4M3}, "float32"),
    "modelopt nvfp4": (Fp4("modelopt"), {"weight_scale": E4M3}, "float32"),
    "compressed-tensors mxfp4": (Fp4("compressed-tensors", mx=True), {}, "bfloat16"),
    "compressed-tensors nvfp4": (Fp4("compressed-tensors"), {"weight_scale": E4M3}, "bfloat16"),
}


@pytest.mark.parametrize("name", MADE)
def test_what_a_tool_stores_stands_for_what_the_tool_says_to_the_bit(name: str, tmp_path: Path) -> None:
    scheme, of_bits, dtype = MADE[name]
    with np.load(GOLDEN / "quantized.npz") as file:
        held = {key.partition("/")[2]: file[key] for key in file if key.startswith(f"{name}/")}
    exact = held.pop("exact")
    if held.get("weight_scale", np.empty(0)).dtype == np.uint16:
        of_bits = of_bits | {"weight_scale": ml_dtypes.bfloat16}
    tensors = {f"a.{last}": array.view(of_bits.get(last, array.dtype)) for last, array in held.items()}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    checkpoint = SimpleNamespace(weight_files=(tmp_path / "model.safetensors",), weight_map=None)
    specs = as_published({"a": SPEC}, Published(((("Linear",), scheme),)))
    matrix = load_params(checkpoint, specs, dtype, jax.devices("cpu")[0])["a"]
    found = np.asarray(jax.jit(lambda matrix: matrix.widened(dtype))(matrix)).astype(np.float32)
    if name == "modelopt nvfp4":
        found = found + 0  # of it -0 is 0
    assert hashlib.sha256(found.tobytes()).digest() == exact.tobytes()
