"""Trains the demo checkpoint from nothing: `python -m jaxinfer.demo.train --out FOLDER`.

It writes its own corpus, learns the tokenizer, trains in two stages (short rows, then rows as long as the context)
and measures the held-out sets on the weights as saved. bfloat16 products, float32 weights and AdamW state. The
defaults are those of the bundled checkpoint and want a GPU; `--smoke` runs all of it small, on any machine.
"""

import argparse
import dataclasses
import functools
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tokenizers import Tokenizer

from jaxinfer.demo import evaluate, weights
from jaxinfer.demo.decode import attention
from jaxinfer.demo.packing import Recipe, Rows, build_rows
from jaxinfer.demo.rendering import CONTROL_TOKENS, MARK_TOKENS, TEMPLATE_FILE
from jaxinfer.demo.tokenizer import train_tokenizer
from jaxinfer.layers.attention import over_heads
from jaxinfer.layers.batch import AttentionOp, Batch
from jaxinfer.models import dense
from jaxinfer.models.dense import DenseConfig, Params


@dataclasses.dataclass(frozen=True)
class Stage:
    """A number of steps over rows of one recipe; `learning_rate` falls along a cosine from the first to the second."""

    recipe: Recipe
    steps: int
    rows_per_step: int
    learning_rate: tuple[float, float]
    warmup: int = 0


STAGES = (
    Stage(Recipe(640, 640_000, (1, 2, 3, 4), (0.62, 0.22, 0.11, 0.05)), 7_000, 80, (2e-3, 2e-4), warmup=200),
    Stage(Recipe(2048, 36_000, (1, 2, 4, 8, 16, 32), (0.5, 0.2, 0.1, 0.1, 0.06, 0.04)), 300, 24, (2e-4, 1e-5)),
)
SMOKE = (
    Stage(Recipe(256, 300, (1, 2), (0.8, 0.2), shard_documents=150), 4, 2, (1e-3, 5e-4), warmup=2),
    Stage(Recipe(512, 100, (2, 4), (0.5, 0.5), shard_documents=100), 2, 1, (5e-4, 1e-5)),
)
STEPS_PER_DISPATCH = 50


def loss(config: DenseConfig, params: Params, rows: Rows) -> jax.Array:
    """Mean cross-entropy in nats over the tokens that the model writes; rows as in packing.Rows, on the device."""
    low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    tokens = rows.tokens.astype(jnp.int32)
    # The embedding's gradient is a sum over all tokens of the batch: as a product it is summed in float32 and always
    # in the same order, as a bfloat16 scatter it would be neither.
    one_hot = jax.nn.one_hot(tokens.reshape(-1), config.vocab_size, dtype=jnp.bfloat16)
    embedded = one_hot @ low.embed  # [R * T, D]
    positions = rows.positions.astype(jnp.int32).reshape(-1)
    batch = Batch(jnp.arange(tokens.size), positions, _within_documents(tokens.shape, rows.documents))
    hidden, _ = dense.forward(config, low.replace(embed=embedded), batch, None)
    log_probs = jax.nn.log_softmax(dense.unembed(config, low, hidden)).reshape(*tokens.shape, -1)
    right = jnp.take_along_axis(log_probs[:, :-1], tokens[:, 1:, None], axis=-1)[..., 0]
    counted = rows.written[:, 1:].astype(jnp.float32)
    return -jnp.sum(right * counted) / jnp.maximum(jnp.sum(counted), 1.0)


def _within_documents(shape: tuple[int, ...], documents: jax.Array) -> AttentionOp:
    causal = jnp.tril(jnp.ones((shape[1], shape[1]), bool))
    visible = (documents[:, :, None] == documents[:, None, :]) & causal  # [R, T, T]

    def attend(layer: int, q: jax.Array, k: jax.Array, v: jax.Array, kv: None) -> tuple[jax.Array, None]:
        q, k, v = (x.reshape(*shape, *x.shape[1:]) for x in (q, k, v))
        return attention(q, k, v, visible).reshape(-1, *q.shape[2:]), kv

    return over_heads(attend)


def optimizer(stage: Stage) -> optax.GradientTransformation:
    first, last = stage.learning_rate
    rate = optax.warmup_cosine_decay_schedule(0.0 if stage.warmup else first, first, stage.warmup, stage.steps, last)
    decay = functools.partial(jax.tree.map, lambda leaf: leaf.ndim == 2 and min(leaf.shape) > 64)  # no norm's weight
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b1=0.9, b2=0.98, weight_decay=0.1, mask=decay))


def run_stage(config: DenseConfig, params: Params, stage: Stage, rows: Rows, seed: int) -> tuple[Params, list[float]]:
    """Train; returns the parameters and the loss of every step."""
    update = optimizer(stage)
    on_device = jax.tree.map(jnp.asarray, rows)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def several(params: Params, state: Any, data: Rows, chosen: jax.Array) -> tuple[Params, Any, jax.Array]:
        def step(carry: tuple, indices: jax.Array) -> tuple:
            params, state = carry
            batch = jax.tree.map(lambda array: array[indices], data)
            value, gradient = jax.value_and_grad(functools.partial(loss, config))(params, batch)
            change, state = update.update(gradient, state, params)
            return (optax.apply_updates(params, change), state), value

        (params, state), values = jax.lax.scan(step, (params, state), chosen)
        return params, state, values

    state, losses = update.init(params), []
    order = _order(len(rows.tokens), stage, seed)
    started = time.monotonic()
    for first in range(0, stage.steps, STEPS_PER_DISPATCH):
        params, state, values = several(params, state, on_device, order[first : first + STEPS_PER_DISPATCH])
        losses += np.asarray(values).tolist()
        if first // STEPS_PER_DISPATCH % 10 == 0 or len(losses) == stage.steps:
            recent, seconds = np.mean(losses[-STEPS_PER_DISPATCH:]), time.monotonic() - started
            print(f"step {len(losses):5d}  loss {recent:.4f}  {seconds:6.1f} s", flush=True)
    return params, losses


def _order(num_rows: int, stage: Stage, seed: int) -> np.ndarray:
    """i32[steps, rows_per_step]: which rows each step takes, in a new random order for every pass."""
    rng, needed = np.random.default_rng(seed), stage.steps * stage.rows_per_step
    passes = [rng.permutation(num_rows) for _ in range(-(-needed // num_rows))]
    return np.concatenate(passes)[:needed].reshape(stage.steps, stage.rows_per_step).astype(np.int32)


def write_folder(out: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything but the weights; returns config.json."""
    ids = {token: tokenizer.token_to_id(token) for token in (*CONTROL_TOKENS, *MARK_TOKENS)}
    config = weights.hf_config(ids)
    generation = {
        "bos_token_id": ids["<|endoftext|>"],
        "do_sample": False,
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
        "temperature": 0.0,
    }
    tokenizer_config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(number): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": token in CONTROL_TOKENS,
            }
            for token, number in sorted(ids.items(), key=lambda item: item[1])
        },
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "chat_template": TEMPLATE_FILE.read_text(),
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": config["max_position_embeddings"],
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    files = {"config.json": config, "generation_config.json": generation, "tokenizer_config.json": tokenizer_config}
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write the checkpoint and log.json to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="a few steps on a few documents")
    arguments = parser.parse_args()
    started = time.monotonic()
    tokenizer = train_tokenizer(arguments.seed)
    config = dense.config_from_hf(write_folder(arguments.out, tokenizer))
    stages = SMOKE if arguments.smoke else STAGES
    log = train(config, tokenizer, stages, arguments.out / "model.safetensors", arguments.seed)
    config, params = weights.load(arguments.out, jnp.dtype(jnp.bfloat16))
    asked = evaluate.all_questions(0.01 if arguments.smoke else 1.0)
    outcomes = evaluate.evaluate(config, params, tokenizer, asked, batch=16 if arguments.smoke else 512)
    log |= {"heldout": evaluate.summary(outcomes), "seconds": round(time.monotonic() - started)}
    print(evaluate.markdown(log["heldout"]))
    print(evaluate.wrong_answers(outcomes, 8))
    print(f"sha256 {log['sha256']}, {log['seconds']} s on {log['device']}")
    (arguments.out / "log.json").write_text(json.dumps(log) + "\n")


def train(config: DenseConfig, tokenizer: Tokenizer, stages: tuple[Stage, ...], out: Path, seed: int) -> dict[str, Any]:
    """Generate, train and save; returns what is worth remembering, the loss of every step included."""
    started = time.monotonic()
    corpus = [build_rows(stage.recipe, tokenizer.to_str(), seed) for stage in stages]
    print(f"{config.num_params} parameters; corpus written in {time.monotonic() - started:.0f} s", flush=True)
    params, losses = weights.init_params(config, seed), []
    for number, (stage, rows) in enumerate(zip(stages, corpus, strict=True)):
        written = int(rows.written.sum())
        print(f"{rows.tokens.shape} tokens, {(rows.documents > 0).mean():.1%} full, {written} to write", flush=True)
        params, stage_losses = run_stage(config, params, stage, rows, seed + number)
        losses.append(stage_losses)
    weights.save(out, config, params)
    return {
        "seed": seed,
        "parameters": config.num_params,
        "device": jax.devices()[0].device_kind,
        "rows": [rows.tokens.shape for rows in corpus],
        "losses": losses,
        "sha256": hashlib.sha256(out.read_bytes()).hexdigest(),
    }


if __name__ == "__main__":
    main()
