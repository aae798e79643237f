"""The bundled checkpoint: its files, its card, and what it answers."""

import hashlib
import json
import random
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import tokenizers

from jaxinfer.demo import evaluate, weights
from jaxinfer.demo.corpus.dialogues import conversation
from jaxinfer.demo.decode import greedy
from jaxinfer.demo.rendering import CONTROL_TOKENS, MARK_TOKENS, TEMPLATE_FILE, Renderer
from jaxinfer.demo.weights import CHECKPOINT
from jaxinfer.models import dense
from jaxinfer.text.chat_template import ChatTemplate, encode_chat
from jaxinfer.text.tokenizer import Tokenizer
from tests.demo.goldens import GOLDENS

CARD = CHECKPOINT.parent / "README.md"
MAX_TOKENS = 128  # no held-out answer asked for here is longer
BATCH = 32


@pytest.fixture(scope="module")
def model():
    return weights.load(CHECKPOINT, jnp.dtype(jnp.float32))


@pytest.fixture(scope="module")
def backend() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


def test_the_weights_are_small_and_are_those_of_the_card():
    data = (CHECKPOINT / "model.safetensors").read_bytes()
    assert len(data) <= 12e6
    assert hashlib.sha256(data).hexdigest() in CARD.read_text()


def test_the_checkpoint_is_a_qwen3_of_three_to_six_million_parameters(model):
    config, params = model
    assert config.architecture == "Qwen3ForCausalLM"
    assert config.max_position >= 2048
    assert 3e6 <= config.num_params <= 6e6
    shapes = jax.tree.map(lambda spec: spec.shape, dense.parameters(config))
    assert jax.tree.map(jnp.shape, params) == shapes
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == config.num_params


def test_every_parameter_is_finite(model):
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(model[1]))


def test_the_vocabulary_fills_the_embedding_and_has_qwens_control_tokens(model):
    tokenizer = Tokenizer.from_folder(CHECKPOINT)
    assert tokenizer.vocab_size == model[0].vocab_size
    for token in (*CONTROL_TOKENS, *MARK_TOKENS):
        (token_id,) = tokenizer.encode(token)
        assert (token_id in tokenizer.special_ids) == (token in CONTROL_TOKENS)
    assert tokenizer.decode([tokenizer.eos_token_id], skip_special_tokens=False) == "<|im_end|>"


@pytest.mark.parametrize(
    "text",
    ["What is 47 plus 85?", "  two  spaces\n\nand lines\t", "Zoë 你好 🙂", "<think>\n\n</think>\n\nok", '{"a": 1}'],
)
def test_the_tokenizer_round_trips(text):
    tokenizer = Tokenizer.from_folder(CHECKPOINT)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_digit_is_a_token_and_names_are_the_same_after_a_space_and_a_quote(backend):
    assert backend.encode("1234").tokens == list("1234")
    after_space, after_quote = (backend.encode(text).ids for text in ("a Quentin", '"Quentin'))
    assert after_space[2:] == after_quote[1:]


def test_our_renderer_writes_what_the_server_renders():
    rng, renderer = random.Random(0), Renderer()
    template, tokenizer = ChatTemplate.from_folder(CHECKPOINT), Tokenizer.from_folder(CHECKPOINT)
    for _ in range(60):
        dialogue = conversation(rng, 2)
        chat = {"tools": dialogue.tools, "template_kwargs": {"enable_thinking": dialogue.thinking}}
        prompt = renderer.prompt(dialogue)
        assert template.render(dialogue.messages[:-1], **chat) == prompt
        assert encode_chat(tokenizer, template, dialogue.messages[:-1], **chat) == tokenizer.encode(prompt)


def test_the_saved_template_is_the_one_in_the_repository():
    saved = json.loads((CHECKPOINT / "tokenizer_config.json").read_text())["chat_template"]
    assert saved == TEMPLATE_FILE.read_text()


def test_thinking_is_off_unless_asked_for():
    template = ChatTemplate.from_folder(CHECKPOINT)
    messages = [{"role": "user", "content": "Hi"}]
    plain = template.render(messages)
    assert plain == template.render(messages, template_kwargs={"enable_thinking": False})
    assert plain == template.render(messages, template_kwargs={"enable_thinking": True}) + "<think>\n\n</think>\n\n"


def test_a_second_turn_extends_the_first_ones_tokens():
    template = ChatTemplate.from_folder(CHECKPOINT)
    first = [{"role": "user", "content": "What is 1 + 2?"}]
    answer = "1 + 2 = 3.<|im_end|>"
    second = [*first, {"role": "assistant", "content": "1 + 2 = 3."}, {"role": "user", "content": "Thanks!"}]
    assert template.render(second).startswith(template.render(first) + answer)


def test_thoughts_of_earlier_turns_are_dropped_and_their_answers_kept():
    template = ChatTemplate.from_folder(CHECKPOINT)
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\nA greeting.\n</think>\n\nHello!"},
        {"role": "user", "content": "Bye"},
    ]
    rendered = template.render(messages)
    assert "A greeting." not in rendered
    assert "Hello!<|im_end|>" in rendered


def test_tool_calls_with_arguments_as_text_and_as_an_object_render_alike():
    template = ChatTemplate.from_folder(CHECKPOINT)
    rendered = set()
    for arguments in ('{"city": "Paris"}', {"city": "Paris"}):
        call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        messages = [
            {"role": "user", "content": "Weather in Paris?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        ]
        rendered.add(template.render(messages))
    (text,) = rendered
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>' in text
    assert "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>" in text


@pytest.mark.slow
def test_greedy_answers_are_the_goldens(model, backend):
    template = ChatTemplate.from_folder(CHECKPOINT)
    prompts = [
        backend.encode(
            template.render(g.messages, tools=list(g.tools), template_kwargs={"enable_thinking": g.thinking})
        ).ids
        for g in GOLDENS
    ]
    eos = (backend.token_to_id("<|im_end|>"), backend.token_to_id("<|endoftext|>"))
    answers = greedy(*model, prompts, max_tokens=MAX_TOKENS, eos=eos, batch=BATCH)
    assert [backend.decode(answer) for answer in answers] == [g.answer for g in GOLDENS]


@pytest.mark.slow
@pytest.mark.parametrize("task", evaluate.BARS)
def test_held_out_questions_are_answered_right(task, model, backend):
    asked = evaluate.questions(task, 96)
    outcomes = evaluate.evaluate(*model, backend, asked, batch=BATCH, max_tokens=MAX_TOKENS)
    wrong = [(outcome.expected, outcome.answer) for outcome in outcomes if not outcome.right]
    assert len(wrong) <= (1 - evaluate.BARS[task]) * len(asked), wrong


def test_the_card_states_figures_above_the_bars():
    for task, bar in evaluate.BARS.items():
        (stated,) = re.findall(rf"^\| {task} \| \d+ \| ([\d.]+)%", CARD.read_text(), re.M)
        assert float(stated) >= 100 * bar


def test_no_path_of_a_machine_is_in_the_folder():
    for file in Path(CHECKPOINT).glob("*.json"):
        assert not re.search(r"/(home|root|work|tmp)/", file.read_text())
