"""Write model folders that have everything but weights: the shapes of the targets, for `--load-format dummy`.

    PYTHONPATH=.:kernels python benchmarks/shapes.py FOLDER [--tiny] [--zeros NAME]

FOLDER/1.5b, FOLDER/8b, FOLDER/8b-fp8, FOLDER/8b-awq and FOLDER/0.6b get a config.json and a tokenizer whose every id is
a short word, so that each token of an answer is some text. --tiny keeps the architectures and shrinks the numbers, to
try a script on any machine.
--zeros NAME also writes that model's weights: a real safetensors file of zeros, sparse on disk. Reading it costs what
reading others costs once it is in the page cache; what it computes means nothing.
"""

import argparse
import json
import math
import struct
from pathlib import Path
from typing import Any

import jax

from jaxinfer.models.known import FP8
from jaxinfer.models.parameters import ParamSpec
from jaxinfer.models.registry import family_for

COMMON = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "vocab_size": 151936}
QWEN3 = COMMON | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_theta": 1000000,
    "max_position_embeddings": 40960,
}
SHAPES: dict[str, dict[str, Any]] = {
    # DeepSeek-R1-Distill-Qwen-1.5B
    "1.5b": COMMON
    | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_hidden_layers": 28,
        "hidden_size": 1536,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "intermediate_size": 8960,
        "rope_theta": 10000,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    },
    # Qwen3-8B
    "8b": QWEN3
    | {
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "intermediate_size": 12288,
        "tie_word_embeddings": False,
    },
    # Qwen3-0.6B
    "0.6b": QWEN3
    | {
        "num_hidden_layers": 28,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "intermediate_size": 3072,
        "tie_word_embeddings": True,
    },
}
AWQ = {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 128, "zero_point": True}
SHAPES["8b-fp8"] = SHAPES["8b"] | FP8  # as Qwen publishes it
SHAPES["8b-awq"] = SHAPES["8b"] | {"quantization_config": AWQ}
TINY = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 2048}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16384}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument(
        "--zeros", choices=[name for name, shape in SHAPES.items() if "quantization_config" not in shape]
    )
    arguments = parser.parse_args()
    for name, config in SHAPES.items():
        if arguments.tiny:
            config = config | TINY | ({"head_dim": 16} if "head_dim" in config else {})
        folder = arguments.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1))
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer(config["vocab_size"])))
        if name == arguments.zeros:
            write_zeros(folder / "model.safetensors", config)


def tokenizer(vocab_size: int) -> dict[str, Any]:
    """Byte-level BPE without merges: the printable characters, then words of four letters with a space before them."""
    characters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
    words = ["Ġ" + word(number) for number in range(vocab_size - len(characters))]
    vocab = {token: token_id for token_id, token in enumerate(characters + words)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level} | {
        "model": {"type": "BPE", "vocab": vocab, "merges": []}
    }


def word(number: int) -> str:
    return "".join(chr(97 + number // 26**place % 26) for place in range(4))


def write_zeros(path: Path, config: dict[str, Any]) -> None:
    """A safetensors file with every tensor of the model, all zero."""
    family = family_for(config)
    specs = jax.tree.leaves(
        family.parameters(family.config_from_hf(config)), is_leaf=lambda leaf: isinstance(leaf, ParamSpec)
    )
    header, end = {}, 0
    for spec in specs:
        for group in spec.sources:
            for index, name in enumerate(group):
                shape = spec.source_shape(index)
                begin, end = end, end + 2 * math.prod(shape)
                header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


if __name__ == "__main__":
    main()
