"""Packing, the training loss, and that the committed tokenizer is the one the script makes."""

import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

from jaxinfer.demo import packing, train, weights
from jaxinfer.demo.corpus.dialogues import conversation
from jaxinfer.demo.packing import Recipe, Rows, pack
from jaxinfer.demo.rendering import AnswerMasks, Renderer
from jaxinfer.demo.tokenizer import train_tokenizer
from jaxinfer.demo.weights import CHECKPOINT
from jaxinfer.models import dense

TINY = {
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 8,
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "vocab_size": 96,
}


@pytest.fixture(scope="module")
def backend() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


def _documents(seed: int, lengths: tuple[int, ...]) -> tuple[list[list[int]], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    encoded = [rng.integers(1, 96, length).tolist() for length in lengths]
    written = [rng.random(length) < 0.5 for length in lengths]
    for mask in written:
        mask[:2] = False, True  # nothing comes before a first token that could predict it
    return encoded, written


def test_packing_keeps_every_document_whole_with_positions_of_its_own():
    encoded, written = _documents(0, (5, 9, 3, 16, 7, 2, 11))
    rows = pack(encoded, written, 16)
    found = []
    for row in range(len(rows.tokens)):
        for number in range(1, rows.documents[row].max() + 1):
            members = rows.documents[row] == number
            assert rows.positions[row][members].tolist() == list(range(members.sum()))
            found.append((rows.tokens[row][members].tolist(), rows.written[row][members].tolist()))
    assert sorted(found) == sorted((ids, mask.tolist()) for ids, mask in zip(encoded, written, strict=True))


def test_packing_leaves_out_what_is_longer_than_a_row():
    encoded, written = _documents(0, (5, 17, 3))
    assert (pack(encoded, written, 16).documents > 0).sum() == 5 + 3


@pytest.mark.slow
def test_neighbours_in_a_row_do_not_change_a_documents_loss():
    config = dense.config_from_hf(TINY)
    params = weights.init_params(config, seed=1)
    encoded, written = _documents(2, (10, 6))
    together = pack(encoded, written, 16)
    alone = [pack([ids], [mask], 16) for ids, mask in zip(encoded, written, strict=True)]
    counts = [int(rows.written[:, 1:].sum()) for rows in alone]
    losses = [float(train.loss(config, params, _on_device(rows))) for rows in alone]
    mean = sum(count * loss for count, loss in zip(counts, losses, strict=True)) / sum(counts)
    assert len(together.tokens) == 1
    packed = float(train.loss(config, params, _on_device(together)))
    assert packed == pytest.approx(mean, rel=3e-3)  # bfloat16
    blind = _on_device(together)._replace(documents=jnp.ones_like(together.documents))
    assert float(train.loss(config, params, blind)) != pytest.approx(packed, rel=1e-4)


def _on_device(rows: Rows) -> Rows:
    return jax.tree.map(jnp.asarray, rows)


@pytest.mark.slow
def test_a_few_steps_lower_the_loss():
    config = dense.config_from_hf(TINY)
    encoded, written = _documents(3, (14, 15, 16, 13))
    stage = train.Stage(Recipe(16, 4, (1,), (1.0,)), 30, 4, (1e-2, 1e-3), warmup=2)
    with jax.numpy_dtype_promotion("standard"):  # optax counts its steps in integers and promotes them
        _, losses = train.run_stage(config, weights.init_params(config, 0), stage, pack(encoded, written, 16), seed=0)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.slow
def test_saved_weights_are_read_back_to_the_bit(tmp_path):
    config = dense.config_from_hf(TINY)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), weights.init_params(config, 5))
    weights.save(tmp_path / "model.safetensors", config, params)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    read_config, read = weights.load(tmp_path, jnp.dtype(jnp.bfloat16))
    assert read_config == config
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), params, read))


def test_only_what_the_model_itself_writes_is_trained(backend):
    dialogue = conversation(random.Random(12), 2)
    ids = backend.encode(Renderer().document(dialogue)).ids
    mask = AnswerMasks(backend).written(ids)
    answers = [message["content"] for message in dialogue.messages if message["role"] == "assistant"]
    written = backend.decode([token for token, own in zip(ids, mask, strict=True) if own], skip_special_tokens=False)
    assert all(answer in written for answer in answers)
    assert written.count("<|im_end|>") == len(answers)
    assert "<|im_start|>" not in written


def test_the_corpus_does_not_depend_on_the_number_of_workers(backend):
    recipe = Recipe(256, 60, (1, 2), (0.7, 0.3), shard_documents=20)
    one, two = (packing.build_rows(recipe, backend.to_str(), 0, num_workers=count) for count in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.slow
def test_the_script_makes_the_committed_tokenizer(backend):
    assert train_tokenizer().to_str() == backend.to_str()
