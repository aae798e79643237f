"""Record what Hugging Face transformers answers for the tiny models of tests/support/golden_models.py.

Run by hand, in an environment of its own (torch is no dependency of jaxinfer or its tests), from the repository root:

    python3.11 -m venv /tmp/hf && /tmp/hf/bin/pip install torch==2.13.0 transformers==5.23.0 numpy safetensors
    PYTHONPATH=. /tmp/hf/bin/python tests/golden/record.py

Writes tests/golden/<model>.npz: prompts of 5, 40 and 300 tokens, log-probabilities f32[T, V] at every position of each,
and 64 greedy tokens after it; tests/golden/long.npz: the same of a prompt of 600 tokens for one model of each family,
with the log-probabilities of eight tokens a position; tests/golden/windows.npz: those of its own tokens, read in
windows; tests/golden/embeddings.npz: of all these models and their prompts the last token's hidden state after the
final norm, and the mean of all; and tests/golden/rope.json: frequencies and attention factors. Float32, CPU.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.support.golden_models import (
    GOLDEN,
    LONG,
    LONG_LENGTH,
    MODELS,
    NUM_GREEDY,
    PROMPT_LENGTHS,
    ROPE_CASES,
    STRIDE,
    WINDOW,
    GoldenModel,
    picked,
    tensor,
)

MIN_MARGIN = 0.005  # between the two best tokens of every greedy step: five times what the parity test allows


def hf_config(raw: dict) -> PreTrainedConfig:
    """Read as from a checkpoint folder, so that both styles of config.json go through transformers' own reader."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(raw))
        return AutoConfig.from_pretrained(folder)


def build(model: GoldenModel) -> torch.nn.Module:
    config = hf_config({**model.raw, **model.recorded})
    net = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(torch.from_numpy(tensor(model, name, tuple(parameter.shape))))
    return net


@torch.no_grad()
def log_probs(net: torch.nn.Module, tokens: list[int]) -> np.ndarray:
    return torch.log_softmax(net(torch.tensor([tokens]), use_cache=False).logits[0].float(), dim=-1).numpy()


def greedy(net: torch.nn.Module, tokens: list[int]) -> list[int] | None:
    """The next NUM_GREEDY tokens, each from a whole forward pass; None if one of them was too close to call."""
    chosen: list[int] = []
    for _ in range(NUM_GREEDY):
        row = log_probs(net, tokens + chosen)[-1]
        second, first = np.sort(row)[-2:]
        if first - second < MIN_MARGIN:
            return None
        chosen.append(int(row.argmax()))
    return chosen


def answer(
    model: GoldenModel, net: torch.nn.Module, length: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A prompt, the log-probabilities at its positions, and the greedy tokens after it."""
    chosen = None
    while chosen is None:
        tokens = random.integers(0, model.raw["vocab_size"], length).tolist()
        chosen = greedy(net, tokens)
    print(f"{model.name}: prompt of {length}, {len(set(chosen))} different tokens among {NUM_GREEDY} greedy ones")
    return np.array(tokens, np.int32), log_probs(net, tokens), np.array(chosen, np.int32)


def record_model(model: GoldenModel) -> None:
    net, arrays, random = build(model), {}, np.random.Generator(np.random.PCG64(0))
    for length in PROMPT_LENGTHS:
        found = answer(model, net, length, random)
        arrays |= dict(zip((f"prompt_{length}", f"logprobs_{length}", f"greedy_{length}"), found, strict=True))
    np.savez_compressed(GOLDEN / f"{model.name}.npz", **arrays)


def record_long() -> None:
    arrays = {}
    for model in (model for model in MODELS if model.name in LONG):
        random = np.random.Generator(np.random.PCG64(1))
        prompt, all_log_probs, chosen = answer(model, build(model), LONG_LENGTH, random)
        kept = np.take_along_axis(all_log_probs, picked(prompt, model.raw["vocab_size"]), axis=-1)
        parts = {"prompt": prompt, "logprobs": kept, "greedy": chosen}
        arrays |= {f"{model.name}_{part}": array for part, array in parts.items()}
    np.savez_compressed(GOLDEN / "long.npz", **arrays)


def record_windows() -> None:
    """Each window is a forward pass of its own and answers for the tokens that the one before it did not reach."""
    arrays = {}
    for model in (model for model in MODELS if model.name in LONG):
        tokens, net, scored, end = np.load(GOLDEN / "long.npz")[f"{model.name}_prompt"], build(model), [], 1
        for begin in range(0, LONG_LENGTH, STRIDE):
            window = tokens[begin : begin + WINDOW]
            own = np.take_along_axis(log_probs(net, window.tolist())[:-1], window[1:, None], axis=-1)[:, 0]
            scored.append(own[end - begin - 1 :])
            if (end := begin + len(window)) == LONG_LENGTH:
                break
        arrays[model.name] = np.concatenate(scored)
    np.savez_compressed(GOLDEN / "windows.npz", **arrays)


@torch.no_grad()
def record_embeddings() -> None:
    arrays = {}
    for model in MODELS:
        net = build(model).model
        with np.load(GOLDEN / f"{model.name}.npz") as file:
            prompts = {length: file[f"prompt_{length}"] for length in PROMPT_LENGTHS}
        for length, prompt in prompts.items():
            hidden = net(torch.tensor(prompt[None].astype(np.int64)), use_cache=False).last_hidden_state[0]
            arrays[f"{model.name}_last_{length}"] = hidden[-1].numpy()
            arrays[f"{model.name}_mean_{length}"] = hidden.mean(dim=0).numpy()
    np.savez_compressed(GOLDEN / "embeddings.npz", **arrays)


def record_rope() -> None:
    shape = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": 128}
    answers = {}
    for name, section in ROPE_CASES.items():
        rope = LlamaRotaryEmbedding(hf_config({**shape, **section}))
        answers[name] = {"frequencies": rope.inv_freq.tolist(), "attention_factor": float(rope.attention_scaling)}
    text = ",\n".join(f"  {json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items())
    (GOLDEN / "rope.json").write_text(f"{{\n{text}\n}}\n")


if __name__ == "__main__":
    torch.manual_seed(0)
    for golden_model in MODELS:
        record_model(golden_model)
    record_long()
    record_windows()
    record_embeddings()
    record_rope()
