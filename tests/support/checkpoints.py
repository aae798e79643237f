"""Tiny Hugging Face folders with deterministic random weights, for every room's tests.

Written from scratch, without transformers or the safetensors library, so that reading them back proves something.
"""

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.support.golden_models import GoldenModel, tensor

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Special: left out of decoded text. Ids 320, 321, 322."""

VISIBLE_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""Added but not special, as in Qwen3: they survive decoding. Ids 323 .. 326."""

PLAIN_VOCAB_SIZE = 320
TOKENIZER_VOCAB_SIZE = PLAIN_VOCAB_SIZE + len(CONTROL_TOKENS) + len(VISIBLE_TOKENS)

CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

_DTYPES: dict[str, tuple[str, np.dtype]] = {
    "bfloat16": ("BF16", np.dtype(ml_dtypes.bfloat16)),
    "float16": ("F16", np.dtype(np.float16)),
    "float32": ("F32", np.dtype(np.float32)),
}
_CODES = {dtype: code for code, dtype in _DTYPES.values()} | {
    np.dtype(np.float64): "F64",
    np.dtype(np.int64): "I64",
    np.dtype(np.int32): "I32",
    np.dtype(np.int8): "I8",
    np.dtype(np.uint8): "U8",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(ml_dtypes.float8_e8m0fnu): "F8_E8M0",
}
_ARCHITECTURES = {
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "llama": ("LlamaForCausalLM", "llama"),
}


def write_checkpoint(
    folder: str | Path,
    family: Literal["qwen2", "qwen3", "llama"] = "qwen3",
    *,
    weights_dtype: str = "float32",
    num_shards: int = 1,
    seed: int = 0,
    template_file: bool = False,
    transformers: Literal[4, 5] = 4,
    **overrides: object,
) -> Path:
    """Write a complete tiny model folder and return its path.

    weights_dtype: "float32", "bfloat16" or "float16". num_shards: more than one adds the index file.
    template_file: the chat template as chat_template.jinja instead of a field of tokenizer_config.json.
    transformers: which style of config.json. overrides: keys of config.json; None removes the key.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = model_config(family, weights_dtype=weights_dtype, transformers=transformers, **overrides)
    eos = [token_id("<|im_end|>"), token_id("<|endoftext|>")]
    generation = {
        "bos_token_id": token_id("<|endoftext|>"),
        "do_sample": True,
        "eos_token_id": eos,
        "pad_token_id": token_id("<|endoftext|>"),
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation)
    write_tokenizer(folder, template_file=template_file)
    write_shards(folder, random_tensors(config, weights_dtype=weights_dtype, seed=seed), num_shards=num_shards)
    return folder


def write_golden(folder: Path, model: GoldenModel) -> Path:
    """Write one of the models that transformers answered for; its tokenizer has a token, for the model has few ids."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", dict(model.raw))
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))
    write_shards(folder, {name: tensor(model, name, shape) for name, shape in tensor_shapes(model.raw).items()})
    return folder


def model_config(
    family: str, *, weights_dtype: str = "float32", transformers: int = 4, **overrides: object
) -> dict[str, object]:
    """The config.json of a tiny model; `overrides` replace keys, None removes them."""
    architecture, model_type = _ARCHITECTURES[family]
    config: dict[str, object] = {
        "architectures": [architecture],
        "model_type": model_type,
        "attention_dropout": 0.0,
        "bos_token_id": token_id("<|endoftext|>"),
        "eos_token_id": token_id("<|im_end|>"),
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "max_position_embeddings": 1024,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": 384,  # padded beyond the tokenizer's 327
    }
    if family == "qwen3":
        config |= {"head_dim": 16, "attention_bias": False}
    if family == "llama":
        config |= {"head_dim": 16, "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1}
    else:
        config |= {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 2}
    if transformers == 4:
        config |= {"rope_theta": 10000.0, "rope_scaling": None, "torch_dtype": weights_dtype}
        config["transformers_version"] = "4.51.0"
    else:
        config |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "dtype": weights_dtype}
        config["transformers_version"] = "5.0.0"
    return {key: value for key, value in (config | overrides).items() if value is not None or key not in overrides}


def random_tensors(
    config: Mapping[str, object], *, weights_dtype: str = "float32", seed: int = 0
) -> dict[str, np.ndarray]:
    """Every tensor of a model of this config, by Hugging Face's name.

    Scaled so that each part matters: attention and MLP outputs are of the residual stream's own size.
    """
    dtype = _DTYPES[weights_dtype][1]
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for name, shape in tensor_shapes(config).items():
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * rng.standard_normal(shape)
        elif len(shape) == 1:
            values = 0.5 * rng.standard_normal(shape)
        else:
            values = rng.standard_normal(shape) / np.sqrt(shape[1])
        tensors[name] = values.astype(np.float32).astype(dtype)
    return tensors


def tensor_shapes(config: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """The names and shapes that a checkpoint of this config holds, in Hugging Face's order."""
    size = {key: value for key, value in config.items() if isinstance(value, int)}
    d, f, vocab = size["hidden_size"], size["intermediate_size"], size["vocab_size"]
    heads, kv_heads = size["num_attention_heads"], size["num_key_value_heads"]
    head_dim = size.get("head_dim", d // heads)
    widths = {"q_proj": heads * head_dim, "k_proj": kv_heads * head_dim, "v_proj": kv_heads * head_dim}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, d)}
    for layer in range(size["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (d,)
        for name, width in widths.items():
            shapes[f"{prefix}self_attn.{name}.weight"] = (width, d)
            if config["model_type"] == "qwen2":
                shapes[f"{prefix}self_attn.{name}.bias"] = (width,)
        shapes[prefix + "self_attn.o_proj.weight"] = (d, heads * head_dim)
        if config["model_type"] == "qwen3":
            shapes[prefix + "self_attn.q_norm.weight"] = (head_dim,)
            shapes[prefix + "self_attn.k_norm.weight"] = (head_dim,)
        shapes[prefix + "post_attention_layernorm.weight"] = (d,)
        shapes[prefix + "mlp.gate_proj.weight"] = (f, d)
        shapes[prefix + "mlp.up_proj.weight"] = (f, d)
        shapes[prefix + "mlp.down_proj.weight"] = (d, f)
    shapes["model.norm.weight"] = (d,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, d)
    return shapes


def write_shards(folder: Path, tensors: Mapping[str, np.ndarray], *, num_shards: int = 1) -> None:
    """Write model.safetensors, or `num_shards` files with model.safetensors.index.json."""
    if num_shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    weight_map: dict[str, str] = {}
    names = list(tensors)
    for shard in range(num_shards):
        filename = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        held = names[shard * len(names) // num_shards : (shard + 1) * len(names) // num_shards]
        write_safetensors(folder / filename, {name: tensors[name] for name in held})
        weight_map |= dict.fromkeys(held, filename)
    total = sum(array.nbytes for array in tensors.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write one safetensors file: 8 bytes of header length, a JSON header padded to 8 bytes, the data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, array in tensors.items():
        span = [offset, offset + array.nbytes]
        header[name] = {"dtype": _CODES[array.dtype], "shape": list(array.shape), "data_offsets": span}
        offset += array.nbytes
    write_raw_safetensors(path, header, (np.ascontiguousarray(array).tobytes() for array in tensors.values()))


def write_raw_safetensors(path: Path, header: Mapping[str, object] | bytes, data: Iterable[bytes]) -> None:
    """Write a file with exactly this header, sound or not, and these bytes after it."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        file.writelines(data)


def write_tokenizer(folder: Path, *, template_file: bool = False) -> None:
    """Write tokenizer.json and tokenizer_config.json, with the chat template in the one or in its own file."""
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    settings: dict[str, object] = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 1024,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    if template_file:
        (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    else:
        settings["chat_template"] = CHAT_TEMPLATE
    _write_json(folder / "tokenizer_config.json", settings)


def token_id(token: str) -> int:
    """The id of an added token."""
    return PLAIN_VOCAB_SIZE + (*CONTROL_TOKENS, *VISIBLE_TOKENS).index(token)


@functools.cache
def tokenizer_json() -> str:
    """A byte-level BPE of 256 bytes and 64 merges, with Qwen's split into words and its control tokens."""
    split = Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(split, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=PLAIN_VOCAB_SIZE,
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_CORPUS], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in VISIBLE_TOKENS])
    if tokenizer.get_vocab_size() != TOKENIZER_VOCAB_SIZE:
        raise ValueError(f"the corpus must give {TOKENIZER_VOCAB_SIZE} tokens, got {tokenizer.get_vocab_size()}")
    return tokenizer.to_str()


_CORPUS = """The engine reads a page of keys and values for each token of the sequence and the answer is the next token.
A small model answers: the capital of France is Paris, the sum of two and three is five, and the sea is blue.
system user assistant hello world the quick brown fox jumps over the lazy dog while the other animals are watching.
"""


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
