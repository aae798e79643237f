"""Record how real tools store a matrix quantized, and what they say that it stands for.

Run by hand, in an environment of its own (torch is no dependency of jaxinfer or its tests), from the repository root:

    python3.12 -m venv /tmp/tools && /tmp/tools/bin/pip install compressed-tensors==0.20.1 transformers==5.24.0
    /tmp/tools/bin/pip install gptqmodel==7.7.0 && /tmp/tools/bin/pip install --no-deps autoawq==0.2.9
    /tmp/tools/bin/pip install nvidia-modelopt==0.47.0
    PYTHONPATH=. /tmp/tools/bin/python tests/golden/record_quantized.py [NAME ...]

Writes tests/golden/quantized.npz, or in it the forms that are named, whose tools alone are needed then: by tool and
form the tensors that it stores, bits of 8-bit floats as u8 and of bfloat16 as u16, and `exact`: the SHA-256 of what the
tool's own function dequantizes, f32[N, K], made of its dtype. CPU alone; packers are called as they are. autoawq needs
accelerate too.
"""

import hashlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

ROWS, COLUMNS = 128, 256


def matrix() -> torch.Tensor:
    """Normal, with a row and a column of others' sizes."""
    values = torch.from_numpy(np.random.default_rng(38).normal(size=(ROWS, COLUMNS)).astype(np.float32)) * 0.05
    values[3] *= 40
    values[:, 7] *= 12
    return values.to(torch.bfloat16)


def extremes(weights: torch.Tensor, args: QuantizationArgs) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the most of what shares a scale."""
    if args.strategy == "tensor":
        return weights.amin().reshape(1), weights.amax().reshape(1)
    if args.strategy == "block":
        blocks = weights.reshape(ROWS // 128, 128, COLUMNS // 128, 128)
        return blocks.amin((1, 3)), blocks.amax((1, 3))
    groups = weights.reshape(ROWS, -1, args.group_size or COLUMNS)
    return groups.amin(-1), groups.amax(-1)


def compressed(form: str, **arguments: Any) -> dict[str, torch.Tensor]:
    args = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=form)
    weights = matrix()
    of_all = generate_gparam(weights.amin(), weights.amax()) if args.strategy == "tensor_group" else None
    scale, zero = calculate_qparams(*extremes(weights, args), args, of_all)
    scale = scale.to(torch.bfloat16) if of_all is None else scale
    state = {"weight": weights, "weight_scale": scale, "weight_zero_point": zero}
    state |= {} if of_all is None else {"weight_global_scale": of_all}
    tool = BaseCompressor.get_value_from_registry(form)
    stored = tool.compress(state, scheme)
    return stored | {"exact": tool.decompress(dict(stored), scheme)["weight"]}


def fine_grained(scale_fmt: str) -> dict[str, torch.Tensor]:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    quantizer = SimpleNamespace(
        quantization_config=SimpleNamespace(weight_block_size=(128, 128), scale_fmt=scale_fmt), dequantize=True
    )
    stored = Fp8Quantize(quantizer).convert({"a.weight": matrix().float()})
    values, scale = stored["a.weight"], stored["a.weight_scale_inv"]
    exact = Fp8Dequantize(quantizer)._dequantize_one(values, scale, torch.float32)
    return {"weight": values, "weight_scale_inv": scale, "exact": exact}


def awq() -> dict[str, torch.Tensor]:
    """The package itself imports models of older versions of transformers; its packer needs none of them."""
    spec = importlib.util.find_spec("awq")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    for name in ("awq", "awq.modules", "awq.modules.linear", "awq.utils"):
        module = types.ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    gemm = importlib.import_module("awq.modules.linear.gemm")
    packing = importlib.import_module("awq.utils.packing_utils")
    weights, group = matrix().half(), 64
    groups = weights.reshape(ROWS, -1, group)
    most, least = groups.amax(-1), groups.amin(-1)
    scales = (most - least).clamp(min=1e-5) / 15
    zeros = (-torch.round(least / scales)).clamp(0, 15)
    values = torch.clamp(torch.round(groups / scales[..., None]) + zeros[..., None], 0, 15) - zeros[..., None]
    linear = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    linear.weight.data = (values * scales[..., None]).reshape(ROWS, COLUMNS)
    across = dict(scales=scales.t().contiguous(), zeros=zeros.t().contiguous())
    made = gemm.WQLinear_GEMM.from_linear(linear, 4, group, **across)
    stored = {"qweight": made.qweight, "qzeros": made.qzeros, "scales": made.scales}
    exact = packing.dequantize_gemm(made.qweight, made.qzeros, made.scales, 4, group)
    return stored | {"exact": exact.t().contiguous()}


def gptq(version: int) -> dict[str, torch.Tensor]:
    """A zero of 0 is among them: the first version borrows for it from the next."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    weights, group = matrix().float(), 128
    weights[5] = weights[5].abs()
    groups = weights.reshape(ROWS, -1, group)
    most, least = groups.amax(-1).clamp(min=0), groups.amin(-1).clamp(max=0)
    scales = ((most - least) / 15).half().float()
    zeros = torch.round(-least / scales).clamp(0, 15)
    assert (zeros == 0).any()
    linear = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    linear.weight.data = weights
    made = TorchLinear(4, group, False, False, COLUMNS, ROWS)
    made.pack_original(linear, scales=scales, zeros=zeros)
    made.post_init()
    exact = made.dequantize_weight().t().contiguous()
    if version == 1:
        convert_gptq_v2_to_v1_format_module(made, SimpleNamespace(bits=4, pack_dtype=torch.int32))
    names = ("qweight", "qzeros", "scales", "g_idx")
    return {name: getattr(made, name) for name in names} | {"exact": exact}


def modelopt_fp8() -> dict[str, torch.Tensor]:
    from modelopt.torch.quantization.qtensor import FP8QTensor

    made, scale = FP8QTensor.quantize(matrix().float())
    exact = made.dequantize(torch.float32, scale=scale)
    return {"weight": made._quantized_data, "weight_scale": scale.float().reshape(()), "exact": exact}


def modelopt_nvfp4() -> dict[str, torch.Tensor]:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    made, scale, of_all = NVFP4QTensor.quantize(matrix().float(), 16)
    exact = made.dequantize(torch.float32, scale=scale, double_scale=of_all, block_sizes={-1: 16})
    return {"weight": made._quantized_data, "weight_scale": scale, "weight_scale_2": of_all, "exact": exact}


def digest(exact: torch.Tensor) -> np.ndarray:
    return np.frombuffer(hashlib.sha256(exact.float().contiguous().numpy().tobytes()).digest(), np.uint8)


def bits(tensor: torch.Tensor) -> np.ndarray:
    """numpy's array, or its bits where numpy has no such type."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    return (tensor.view(torch.uint8) if tensor.is_floating_point() and tensor.itemsize == 1 else tensor).numpy()


EIGHT, WHOLE, FOUR = dict(num_bits=8, type="float"), dict(num_bits=8, type="int"), dict(num_bits=4, type="int")
FP4 = dict(num_bits=4, type="float")
FORMS: dict[str, Callable[[], dict[str, torch.Tensor]]] = {
    "compressed-tensors fp8 channel": partial(compressed, "float-quantized", strategy="channel", **EIGHT),
    "compressed-tensors fp8 tensor": partial(compressed, "float-quantized", strategy="tensor", **EIGHT),
    "compressed-tensors fp8 block": partial(
        compressed, "float-quantized", strategy="block", block_structure=[128, 128], **EIGHT
    ),
    "compressed-tensors int8 channel": partial(compressed, "int-quantized", strategy="channel", **WHOLE),
    "compressed-tensors int8 tensor": partial(compressed, "int-quantized", strategy="tensor", **WHOLE),
    "compressed-tensors int8 packed": partial(compressed, "pack-quantized", strategy="channel", **WHOLE),
    "compressed-tensors int4 group": partial(compressed, "pack-quantized", strategy="group", group_size=32, **FOUR),
    "compressed-tensors int4 zeros": partial(
        compressed, "pack-quantized", strategy="group", group_size=128, symmetric=False, **FOUR
    ),
    "compressed-tensors int4 channel": partial(compressed, "pack-quantized", strategy="channel", **FOUR),
    "transformers fp8 block": partial(fine_grained, "float"),
    "transformers fp8 block ue8m0": partial(fine_grained, "ue8m0"),
    "autoawq": awq,
    "gptqmodel v1": partial(gptq, 1),
    "gptqmodel v2": partial(gptq, 2),
    "modelopt fp8": modelopt_fp8,
    "modelopt nvfp4": modelopt_nvfp4,
    "compressed-tensors mxfp4": partial(
        compressed, "mxfp4-pack-quantized", strategy="group", group_size=32, scale_dtype=torch.uint8, **FP4
    ),
    "compressed-tensors nvfp4": partial(
        compressed,
        "nvfp4-pack-quantized",
        strategy="tensor_group",
        group_size=16,
        scale_dtype=torch.float8_e4m3fn,
        **FP4,
    ),
}


def main(names: list[str]) -> None:
    path = Path(__file__).with_name("quantized.npz")
    arrays = {}
    if names:
        with np.load(path) as file:
            arrays = {key: file[key] for key in file if key.partition("/")[0] not in names}
    for name in names or FORMS:
        for last, tensor in FORMS[name]().items():
            arrays[f"{name}/{last}"] = digest(tensor) if last == "exact" else bits(tensor)
            print(name, last, tuple(tensor.shape), tensor.dtype)
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    main(sys.argv[1:])
