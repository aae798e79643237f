"""Tiny checkpoints that are quantized already, and what their weights stand for: packers of our own, in numpy.

Written from the layouts that transformers (FineGrainedFP8), AutoFP8 and compressed-tensors publish.
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


BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
FORMATS: dict[str, tuple[dict[str, Any], Callable[[np.ndarray], Packed]]] = {
    "fp8 block": (BLOCKS, _fp8_block),
    "fp8 tensor": ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, _fp8_tensor),
    "fp8 channel": (
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        _fp8_channel,
    ),
}
SIZES: dict[str, Any] = dict(hidden_size=128, intermediate_size=192, head_dim=32, tie_word_embeddings=False)
"""Of the models here: a fused product of 128 + 64 + 64 rows, blocks that are not full, and several of them."""


def write_published(
    folder: Path, name: str, family: Any = "qwen3", *, excluded: tuple[str, ...] = (), **overrides: Any
) -> dict[str, np.ndarray]:
    """Write a checkpoint in one of FORMATS; returns its weights as they are without quantization, in float32.

    excluded: modules, by a part of their names, that stay as they were.    overrides: keys of config.json.
    """
    section, pack = FORMATS[name]
    sizes = SIZES | {"quantization_config": section} | overrides
    write_checkpoint(folder, family, **sizes)
    config = json.loads((folder / "config.json").read_text())
    stored, wide = pack_all(random_tensors(config), pack, excluded)
    write_safetensors(folder / "model.safetensors", stored)
    return wide


def pack_all(
    tensors: Mapping[str, np.ndarray], pack: Callable[[np.ndarray], Packed], excluded: tuple[str, ...] = ()
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(tensors as stored, what they stand for)."""
    stored, wide = {}, {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if not name.endswith("_proj.weight") or any(part in module for part in excluded):
            stored[name] = wide[name] = tensor
            continue
        packed, wide[name] = pack(tensor.astype(np.float32))
        stored |= {f"{module}.{last}": array for last, array in packed.items()}
    return stored, wide


def write_plain(folder: Path, wide: Mapping[str, np.ndarray], family: Any = "qwen3", **overrides: Any) -> Path:
    """Write the checkpoint of those weights, not quantized."""
    write_checkpoint(folder, family, **(SIZES | overrides))
    write_safetensors(folder / "model.safetensors", wide)
    return folder
