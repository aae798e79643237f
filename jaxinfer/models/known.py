"""Shapes of published models: the facts of their config.json that a plan needs, for machines that cannot reach the hub.

The names are those of the hub. A checkpoint is never loaded with these: its own config.json decides.

Compared on 2026-11-27 with copies of those files, and tables made of them, in public repositories: mlc-ai/mlc-llm at
79d603f0 (python/mlc_llm/model/model_preset.py: Llama, small Qwen3, Qwen2.5-Instruct), citsjtu2020/LLM-Prof at 8434c8d1
(sglang/Model_Config.md: Qwen3, Qwen2.5), Lightning-AI/litgpt at 0006c973 (litgpt/config.py: Qwen3, Qwen2.5, R1 of
Llama; also Qwen3's Base and 2507, Qwen2.5-Coder and QwQ). Qwen3's Base has 32,768 positions by its model cards. QwQ was
published with 131,072 positions, which litgpt still has; its config.json has had 40,960 since (QwenLM/QwQ issue 26).
Qwen3-Embedding has fewer rows than Qwen3: 151,669 in the 0.6B, 151,665 in the 4B and 8B, by copies of its config.json
in public code. Of R1's Qwen models only sizes and positions were found. Of Qwen3's -FP8 versions only the method and
its blocks of 128 x 128 were found, in public code that reads them. No plan depends on rope_theta and rms_norm_eps.
"""

import difflib
import re
from typing import Any

COMMON = {"hidden_act": "silu", "torch_dtype": "bfloat16"}
QWEN2 = COMMON | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6}
QWEN3 = COMMON | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "rms_norm_eps": 1e-6,
    "vocab_size": 151936,
    "head_dim": 128,
    "rope_theta": 1000000,
    "max_position_embeddings": 40960,
}
FP8 = {
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
}
QWEN3_BASE = {"max_position_embeddings": 32768}
QWEN3_2507 = {"rope_theta": 5000000, "max_position_embeddings": 262144}
R1_0528_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
R1_0528 = {
    "max_position_embeddings": 131072,
    "rope_scaling": R1_0528_YARN | {"attn_factor": 0.8782488562869419},
}
QWEN25 = QWEN2 | {"rope_theta": 1000000, "max_position_embeddings": 131072}
QWEN25_SHORT = QWEN25 | {"max_position_embeddings": 32768}
QWEN25_LARGE = QWEN25 | {"rms_norm_eps": 1e-5, "vocab_size": 152064}
QWEN25_INSTRUCT = {"rms_norm_eps": 1e-6, "max_position_embeddings": 32768}  # where an -Instruct version differs
R1_QWEN = QWEN2 | {"rope_theta": 10000, "max_position_embeddings": 131072, "tie_word_embeddings": False}
LLAMA3 = COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "vocab_size": 128256,
    "rope_theta": 500000,
    "max_position_embeddings": 131072,
}
SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")


def _scaled(factor: float) -> dict[str, Any]:
    """Llama 3's stretching of positions."""
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return {"rope_scaling": scaling | {"original_max_position_embeddings": 8192}}


def _of(base: dict[str, Any], *sizes: int, tied: bool = False, **more: Any) -> dict[str, Any]:
    return base | dict(zip(SIZES, sizes, strict=True)) | {"tie_word_embeddings": tied} | more


_QWEN3 = {
    "0.6B": _of(QWEN3, 28, 1024, 3072, 16, 8, tied=True),
    "1.7B": _of(QWEN3, 28, 2048, 6144, 16, 8, tied=True),
    "4B": _of(QWEN3, 36, 2560, 9728, 32, 8, tied=True),
    "8B": _of(QWEN3, 36, 4096, 12288, 32, 8),
    "14B": _of(QWEN3, 40, 5120, 17408, 40, 8),
    "32B": _of(QWEN3, 64, 5120, 25600, 64, 8),
}
_QWEN25 = {
    "0.5B": _of(QWEN25_SHORT, 24, 896, 4864, 14, 2, tied=True, vocab_size=151936),
    "1.5B": _of(QWEN25, 28, 1536, 8960, 12, 2, tied=True, vocab_size=151936),
    "3B": _of(QWEN25_SHORT, 36, 2048, 11008, 16, 2, tied=True, vocab_size=151936),
    "7B": _of(QWEN25, 28, 3584, 18944, 28, 4, vocab_size=152064),
    "14B": _of(QWEN25_LARGE, 48, 5120, 13824, 40, 8),
    "32B": _of(QWEN25_LARGE, 64, 5120, 27648, 40, 8),
    "72B": _of(QWEN25_LARGE, 80, 8192, 29568, 64, 8),
}
_R1 = {
    "Qwen-1.5B": _of(R1_QWEN, 28, 1536, 8960, 12, 2, vocab_size=151936),
    "Qwen-7B": _of(R1_QWEN, 28, 3584, 18944, 28, 4, vocab_size=152064),
    "Qwen-14B": _of(R1_QWEN, 48, 5120, 13824, 40, 8, vocab_size=152064, rope_theta=1000000, rms_norm_eps=1e-5),
    "Qwen-32B": _of(R1_QWEN, 64, 5120, 27648, 40, 8, vocab_size=152064, rope_theta=1000000, rms_norm_eps=1e-5),
    "Llama-8B": _of(LLAMA3, 32, 4096, 14336, 32, 8, **_scaled(8.0)),
    "Llama-70B": _of(LLAMA3, 80, 8192, 28672, 64, 8, **_scaled(8.0)),
}
_LLAMA = {
    "3.1-8B": _of(LLAMA3, 32, 4096, 14336, 32, 8, **_scaled(8.0)),
    "3.1-70B": _of(LLAMA3, 80, 8192, 28672, 64, 8, **_scaled(8.0)),
    "3.2-1B": _of(LLAMA3, 16, 2048, 8192, 32, 8, tied=True, head_dim=64, **_scaled(32.0)),
    "3.2-3B": _of(LLAMA3, 28, 3072, 8192, 24, 8, tied=True, head_dim=128, **_scaled(32.0)),
    "3.3-70B-Instruct": _of(LLAMA3, 80, 8192, 28672, 64, 8, **_scaled(8.0)),
}
_EMBEDDING = {
    "0.6B": _QWEN3["0.6B"] | {"vocab_size": 151669, "max_position_embeddings": 32768},
    "4B": _QWEN3["4B"] | {"vocab_size": 151665},
    "8B": _QWEN3["8B"] | {"vocab_size": 151665},
}
_CODER = {size: shape | {"max_position_embeddings": 32768} for size, shape in _QWEN25.items() if size != "72B"}
_LLAMA30 = {
    "8B": _of(LLAMA3, 32, 4096, 14336, 32, 8, max_position_embeddings=8192),
    "70B": _of(LLAMA3, 80, 8192, 28672, 64, 8, max_position_embeddings=8192),
}
KNOWN: dict[str, dict[str, Any]] = (
    {f"Qwen/Qwen3-{size}": shape for size, shape in _QWEN3.items()}
    | {f"Qwen/Qwen2.5-{size}": shape for size, shape in _QWEN25.items()}
    | {f"deepseek-ai/DeepSeek-R1-Distill-{size}": shape for size, shape in _R1.items()}
    | {f"meta-llama/Llama-{size}": shape for size, shape in _LLAMA.items()}
    | {f"Qwen/Qwen3-{size}-Base": shape | QWEN3_BASE for size, shape in _QWEN3.items() if size != "32B"}
    | {f"Qwen/Qwen3-4B-{kind}-2507": _QWEN3["4B"] | QWEN3_2507 for kind in ("Instruct", "Thinking")}
    | {f"Qwen/Qwen3-{size}-FP8": shape | FP8 for size, shape in _QWEN3.items()}
    | {f"Qwen/Qwen3-Embedding-{size}": shape for size, shape in _EMBEDDING.items()}
    | {"deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": _QWEN3["8B"] | R1_0528}
    | {f"Qwen/Qwen2.5-Coder-{size}": shape for size, shape in _CODER.items()}
    | {"Qwen/QwQ-32B": _QWEN25["32B"] | {"max_position_embeddings": 40960}}
    | {f"meta-llama/Meta-Llama-3-{size}": shape for size, shape in _LLAMA30.items()}
)
_BY_FOLDED = {name.casefold(): name for name in KNOWN}
_INSTRUCT = re.compile(r"((qwen/qwen2\.5|meta-llama/(?:meta-)?llama)-.*)-instruct")
_QUANTIZED = r"[-_.](gptq-int8|w4a8|bnb|exl[23])\b"
_EXPERTS = r"-a\d+(\.\d+)?b\b|mixtral|gpt-oss|qwen3-(next|coder-)|deepseek-(v[23]|r1)(\.\d|-0528|-zero|-base)*$"
# what a name says of a model that cannot run here
_UNSUPPORTED = (
    (re.compile(r"gguf"), "GGUF is not supported; take the safetensors version"),
    (re.compile(_QUANTIZED), "of quantized weights FP8, FP4, w8a8, AWQ and GPTQ of 4 bits are read; take one"),
    (re.compile(_EXPERTS), "models of experts are not supported; take a dense one, as Qwen/Qwen3-8B"),
)


def known_config(name: str) -> dict[str, Any] | None:
    """What config.json of this hub id says, of a model or its -Instruct version; None where we ship no facts of it.

    A name is found whatever its case, as on the hub.
    """
    folded = name.casefold()
    match = _INSTRUCT.fullmatch(folded)
    if match is None or match[1] not in _BY_FOLDED or folded in _BY_FOLDED:
        return KNOWN[_BY_FOLDED[folded]] if folded in _BY_FOLDED else None
    return KNOWN[_BY_FOLDED[match[1]]] | (QWEN25_INSTRUCT if match[2].startswith("qwen") else {})


def unsupported(name: str) -> str | None:
    """Why a model of this name cannot run here, and what to take instead; None where the name does not say."""
    return next((reason for pattern, reason in _UNSUPPORTED if pattern.search(name.casefold())), None)


def nearest(name: str) -> str | None:
    """The known name that is spelt most like this one, with or without its organisation."""
    folded = {known.rpartition("/")[2]: known for known in _BY_FOLDED} | {known: known for known in _BY_FOLDED}
    folded = {spelt.removesuffix("-instruct"): known for spelt, known in folded.items()}
    match = difflib.get_close_matches(name.casefold().removesuffix("-instruct"), folded, n=1, cutoff=0.8)
    return _BY_FOLDED[folded[match[0]]] if match else None
