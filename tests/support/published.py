"""Tiny checkpoints that are quantized already, and what their weights stand for: packers of our own, in numpy.

Written from the layouts that transformers (FineGrainedFP8), AutoFP8, compressed-tensors, AutoAWQ and GPTQ's tools
publish.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.support.checkpoints import random_tensors, write_checkpoint, write_safetensors

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
MOST = np.float32(448)  # the largest of e4m3

type Packed = tuple[dict[str, np.ndarray], np.ndarray]
"""A matrix's tensors by the last part of their names, and what they stand for, f32[N, K]."""


def fp8(weights: np.ndarray, block: tuple[int, int], scale: str, dtype: Any = np.float32) -> Packed:
    """block: rows and columns that share a scale, which is stored as `scale` in dtype."""
    rows, columns = weights.shape
    down, across = -(-rows // block[0]), -(-columns // block[1])
    padded = np.zeros((down * block[0], across * block[1]), np.float32)
    padded[:rows, :columns] = weights
    most = np.abs(padded).reshape(down, block[0], across, block[1]).max(axis=(1, 3))
    scales = (most / MOST).astype(dtype)
    each = np.repeat(np.repeat(scales.astype(np.float32), block[0], 0), block[1], 1)[:rows, :columns]
    values = np.clip(weights / each, -MOST, MOST).astype(E4M3)
    return {"weight": values, scale: scales}, values.astype(np.float32) * each


def _fp8_block(weights: np.ndarray) -> Packed:
    return fp8(weights, (128, 128), "weight_scale_inv", ml_dtypes.bfloat16)


def _fp8_tensor(weights: np.ndarray) -> Packed:
    tensors, wide = fp8(weights, weights.shape, "weight_scale")
    number = tensors["weight_scale"].reshape(())
    return tensors | {"weight_scale": number, "input_scale": np.ones((), np.float32)}, wide


def _fp8_channel(weights: np.ndarray) -> Packed:
    return fp8(weights, (1, weights.shape[1]), "weight_scale", ml_dtypes.bfloat16)


def compressed(form: str, ignore: list[str] | None = None, **weights: Any) -> dict[str, Any]:
    """quantization_config of compressed-tensors.    weights: the arguments of its one group."""
    arguments = {"dynamic": False, "symmetric": True, "observer": "minmax", "group_size": None} | weights
    group = {"targets": ["Linear"], "weights": arguments, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"] if ignore is None else ignore,
        "kv_cache_scheme": None,
        "global_compression_ratio": 1.5,
    }


def int8(weights: np.ndarray, columns: int, *, packed: bool = False) -> Packed:
    """columns: those of all rows that share a scale, or of one."""
    shared = weights.reshape(-1, columns)
    scales = (np.abs(shared).max(1, keepdims=True) / np.float32(127.5)).astype(ml_dtypes.bfloat16)
    wide = scales.astype(np.float32)
    values = np.clip(np.round(shared / wide), -128, 127)
    exact = (values.astype(np.float32) * wide).reshape(weights.shape)
    values = values.reshape(weights.shape)
    if not packed:
        return {"weight": values.astype(np.int8), "weight_scale": scales}, exact
    four = np.pad(values + 128, ((0, 0), (0, -weights.shape[1] % 4))).astype(np.uint32)
    words = sum(four[:, place::4] << np.uint32(8 * place) for place in range(4))
    shape = np.asarray(weights.shape)
    return {"weight_packed": words.view(np.int32), "weight_scale": scales, "weight_shape": shape}, exact


def _int8_channel(weights: np.ndarray) -> Packed:
    return int8(weights, weights.shape[1])


def _int8_tensor(weights: np.ndarray) -> Packed:
    tensors, wide = int8(weights, weights.size)
    static = {"input_scale": np.ones(1, np.float32), "input_zero_point": np.zeros(1, np.int8)}
    return tensors | static | {"weight_scale": tensors["weight_scale"].reshape(1)}, wide


def _int8_packed(weights: np.ndarray) -> Packed:
    return int8(weights, weights.shape[1], packed=True)


def _rounded4(weights: np.ndarray, group: int, *, zeros: bool, dtype: Any) -> tuple[np.ndarray, ...]:
    """(values u8[N, K], scales [N, G], zeros u8[N, G], what they stand for)."""
    rows, columns = weights.shape
    groups = weights.reshape(rows, columns // group, group)
    least, most = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    scales = ((most - least) / 15 if zeros else np.abs(groups).max(-1) / 7.5).astype(dtype)
    wide = scales.astype(np.float32)
    zero = np.clip(np.round(-least / wide), 0, 15) if zeros else np.full(scales.shape, 8)
    values = np.clip(np.round(groups / wide[..., None]) + zero[..., None], 0, 15)
    exact = (values - zero[..., None]).astype(np.float32) * wide[..., None]
    return values.reshape(rows, columns).astype(np.uint8), scales, zero.astype(np.uint8), exact.reshape(rows, columns)


def words(numbers: np.ndarray, axis: int, order: tuple[int, ...] = tuple(range(8))) -> np.ndarray:
    """int32: eight numbers along an axis in a word, the lowest bits first.    order: which of the eight comes when."""
    moved = np.moveaxis(numbers, axis, -1)
    moved = np.pad(moved, ((0, 0), (0, -moved.shape[-1] % 8)))
    packed = np.zeros((*moved.shape[:-1], moved.shape[-1] // 8), np.uint32)
    for place, number in enumerate(order):
        packed |= moved[..., number::8].astype(np.uint32) << np.uint32(4 * place)
    return np.ascontiguousarray(np.moveaxis(packed, -1, axis)).view(np.int32)


def int4_compressed(weights: np.ndarray, group: int = 32, *, zeros: bool = False) -> Packed:
    values, scales, zero, wide = _rounded4(weights, group, zeros=zeros, dtype=np.float32)
    tensors = {"weight_packed": words(values, 1), "weight_scale": scales, "weight_shape": np.asarray(weights.shape)}
    return tensors | ({"weight_zero_point": words(zero, 0)} if zeros else {}), wide


E2M1 = np.asarray([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def nvfp4(weights: np.ndarray, *, divides: bool = False) -> Packed:
    """divides: the scale of all, by which those of groups are divided, as compressed-tensors has it."""
    groups = weights.reshape(len(weights), -1, 16)
    most = np.abs(groups).max(-1)
    of_all = most.max() / np.float32(6) / MOST
    of_all = np.float32(1) / of_all if divides else of_all
    scales = np.maximum(most / 6 * of_all if divides else most / 6 / of_all, 2.0**-9).astype(E4M3)
    wide = scales.astype(np.float32) / of_all if divides else scales.astype(np.float32) * of_all
    sizes = np.abs(np.abs(groups / wide[..., None])[..., None] - E2M1).argmin(-1)
    exact = (np.where(groups < 0, -E2M1[sizes], E2M1[sizes]) * wide[..., None]).reshape(weights.shape)
    codes = (sizes | np.where(groups < 0, 8, 0)).astype(np.uint8).reshape(weights.shape)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    if divides:
        return {"weight_packed": packed, "weight_scale": scales, "weight_global_scale": of_all.reshape(1)}, exact
    static = {"input_scale": np.ones((), np.float32)}
    return {"weight": packed, "weight_scale": scales, "weight_scale_2": of_all.reshape(())} | static, exact


def _nvfp4_divided(weights: np.ndarray) -> Packed:
    return nvfp4(weights, divides=True)


def mxfp4(weights: np.ndarray) -> Packed:
    groups = weights.reshape(len(weights), -1, 32)
    exponents = np.floor(np.log2(np.abs(groups).max(-1))) - 2
    wide = np.exp2(exponents).astype(np.float32)[..., None]
    sizes = np.abs(np.abs(groups / wide)[..., None] - E2M1).argmin(-1)
    exact = (np.where(groups < 0, -E2M1[sizes], E2M1[sizes]) * wide).reshape(weights.shape)
    codes = (sizes | np.where(groups < 0, 8, 0)).astype(np.uint8).reshape(weights.shape)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return {"weight_packed": packed, "weight_scale": (exponents + 127).astype(np.uint8)}, exact


def _int4_channel(weights: np.ndarray) -> Packed:
    return int4_compressed(weights, weights.shape[1])


def _int4_zeros(weights: np.ndarray) -> Packed:
    return int4_compressed(weights, 64, zeros=True)


def _awq(weights: np.ndarray) -> Packed:
    values, scales, zero, wide = _rounded4(weights, 64, zeros=True, dtype=np.float16)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    tensors = {"qweight": words(values.T, 1, order), "qzeros": words(zero.T, 1, order)}
    return tensors | {"scales": np.ascontiguousarray(scales.T)}, wide


def _gptq(weights: np.ndarray, *, less: int = 1) -> Packed:
    values, scales, zero, wide = _rounded4(weights, 128, zeros=True, dtype=np.float16)
    tensors = {
        "qweight": words(values.T, 0),
        "qzeros": (words(zero.T, 1).view(np.uint32) - np.uint32(less * 0x11111111)).view(np.int32),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": (np.arange(weights.shape[1]) // 128).astype(np.int32),
        "bias": np.zeros(len(weights), np.float16),
    }
    return tensors, wide


def _gptq_v2(weights: np.ndarray) -> Packed:
    return _gptq(weights, less=0)


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": False}
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
FORMATS: dict[str, tuple[dict[str, Any], Callable[[np.ndarray], Packed]]] = {
    "fp8 block": (BLOCKS, _fp8_block),
    "fp8 tensor": ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, _fp8_tensor),
    "fp8 channel": (
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        _fp8_channel,
    ),
    "int8 channel": (compressed("int-quantized", num_bits=8, type="int", strategy="channel"), _int8_channel),
    "int8 tensor": (compressed("int-quantized", num_bits=8, type="int", strategy="tensor"), _int8_tensor),
    "int8 packed": (compressed("pack-quantized", num_bits=8, type="int", strategy="channel"), _int8_packed),
    "int4 group": (
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32),
        int4_compressed,
    ),
    "int4 channel": (compressed("pack-quantized", num_bits=4, type="int", strategy="channel"), _int4_channel),
    "int4 zeros": (
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=64, symmetric=False),
        _int4_zeros,
    ),
    "awq": (AWQ, _awq),
    "gptq": (GPTQ, _gptq),
    "gptq v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, _gptq_v2),
}
FORMATS |= {
    "nvfp4 modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, nvfp4),
    "nvfp4 compressed": (
        compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16),
        _nvfp4_divided,
    ),
    "mxfp4": (
        compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32),
        mxfp4,
    ),
}
ONE_OF_EACH_FORM = ("fp8 block", "fp8 channel", "int8 channel", "int4 group", "int4 zeros", "nvfp4 compressed", "mxfp4")
"""Of those that are alike in memory one, for tests that compile much."""
SIZES: dict[str, Any] = dict(hidden_size=128, intermediate_size=192, head_dim=32, tie_word_embeddings=False)
"""Of the models here: a fused product of 128 + 64 + 64 rows, blocks that are not full, and several of them."""
OF_INT4 = {"intermediate_size": 256}  # tiles of 4 bits are full
OF_TOOLS: dict[str, Any] = OF_INT4 | {"torch_dtype": "float16"}  # AWQ and GPTQ store scales in float16


def sizes_of(name: str) -> dict[str, Any]:
    """Of config.json, of a model in one of FORMATS."""
    in_tiles = OF_INT4 if name.startswith(("int4", "nvfp4", "mxfp4")) else {}
    return SIZES | (OF_TOOLS if name.startswith(("awq", "gptq")) else in_tiles)


def write_published(
    folder: Path,
    name: str,
    family: Any = "qwen3",
    *,
    excluded: tuple[str, ...] = (),
    head: bool = False,
    **overrides: Any,
) -> dict[str, np.ndarray]:
    """Write a checkpoint in one of FORMATS; returns its weights as they are without quantization, in float32.

    excluded: modules, by a part of their names, that stay as they were.    head: it is quantized, too.
    overrides: keys of config.json.
    """
    section, pack = FORMATS[name]
    sizes = sizes_of(name) | {"quantization_config": section} | overrides
    write_checkpoint(folder, family, **sizes)
    config = json.loads((folder / "config.json").read_text())
    stored, wide = pack_all(random_tensors(config), pack, excluded, head=head)
    write_safetensors(folder / "model.safetensors", stored)
    return wide


def pack_all(
    tensors: Mapping[str, np.ndarray],
    pack: Callable[[np.ndarray], Packed],
    excluded: tuple[str, ...] = (),
    *,
    head: bool = False,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(tensors as stored, what they stand for)."""
    stored, wide = {}, {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        is_packed = name.endswith("_proj.weight") or (head and module == "lm_head")
        if not is_packed or any(part in module for part in excluded):
            stored[name] = wide[name] = tensor
            continue
        packed, wide[name] = pack(tensor.astype(np.float32))
        stored |= {f"{module}.{last}": array for last, array in packed.items()}
    return stored, wide


def write_plain(folder: Path, wide: Mapping[str, np.ndarray], name: str, **overrides: Any) -> Path:
    """Write the checkpoint of those weights, not quantized, in the sizes of that format's model."""
    write_checkpoint(folder, **(sizes_of(name) | overrides))
    write_safetensors(folder / "model.safetensors", wide)
    return folder
