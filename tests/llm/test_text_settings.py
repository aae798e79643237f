"""chat_template, default_chat_template_kwargs and reasoning_parser: what a model's text side makes of them."""

import dataclasses
import json

import pytest

from jaxinfer.checkpoint.resolve import DEMO_FOLDER
from jaxinfer.config import EngineConfig
from jaxinfer.errors import CheckpointError, ConfigError
from jaxinfer.llm.text_side import TextSide, load_text
from jaxinfer.llm.types import ModelInfo
from jaxinfer.protocol.sampling import GenerationDefaults
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.checkpoints import tokenizer_json

TEMPLATE = "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if enable_thinking %}think{% else %}plain{% endif %}"
FACTS = {"served_names": ("m",), "root": "m", "max_model_len": 100, "vocab_size": 384, "hidden_size": 32}
INFO = ModelInfo(**FACTS, eos_token_ids=(), defaults=GenerationDefaults(), fingerprint="", created=0)
ASKED = [{"role": "user", "content": "hi"}]


@pytest.fixture
def template(tmp_path) -> str:
    (tmp_path / "mine.jinja").write_text(TEMPLATE)
    return str(tmp_path / "mine.jinja")


def text_of(**settings: object):
    return load_text(EngineConfig(**settings), DEMO_FOLDER)


def test_a_template_from_a_file_stands_in_the_place_of_the_checkpoint_s(template):
    assert text_of(chat_template=template).template.render(ASKED) == "[hi]plain"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "^file not found: .* \\(chat_template\\)"),
        ("{% if %}", r"^\S*bad.jinja \(chat_template\) must be valid Jinja2: [^.]*; mend it"),
        ("{{ 'a' * 10**10 }}", r"^\S*bad.jinja \(chat_template\) must render within its limits, and [^.]*\. Mend it"),
    ],
)
def test_a_file_that_is_no_sound_template_is_refused(tmp_path, source, words):
    if source is not None:
        (tmp_path / "bad.jinja").write_text(source)
    with pytest.raises(CheckpointError, match=words):
        text_of(chat_template=str(tmp_path / "bad.jinja"))


@pytest.mark.parametrize("name", ["enable_thinking", "thinking"])
def test_a_request_s_variables_win_over_the_defaults_in_either_spelling(template, name):
    text = text_of(chat_template=template, default_chat_template_kwargs={"enable_thinking": True})
    assert text.template.render(ASKED) == "[hi]think"
    assert text.template.render(ASKED, template_kwargs={name: False}) == "[hi]plain"


def test_defaults_that_the_template_does_not_read_are_refused(template):
    with pytest.raises(ConfigError, match="default_chat_template_kwargs must name variables of .*, got 'thinkin'"):
        text_of(chat_template=template, default_chat_template_kwargs={"thinkin": True})


@pytest.mark.parametrize("name", ["qwen3", "deepseek_r1"])
def test_a_reasoning_parser_needs_a_model_that_marks_its_thoughts(template, name):
    assert text_of(reasoning_parser=name).thinking is not None
    with pytest.raises(
        ConfigError, match=f"reasoning_parser {name} needs a model that marks its thoughts with <think>"
    ):
        text_of(reasoning_parser=name, chat_template=template)


def test_a_reasoning_parser_that_nothing_detects_is_named_with_those_that_are():
    with pytest.raises(ConfigError, match="reasoning_parser must be one of auto, qwen3, deepseek_r1, got 'granite'"):
        EngineConfig(reasoning_parser="granite")


def text_with(**parts: object) -> TextSide:
    file = json.loads(tokenizer_json()) | parts
    return dataclasses.replace(text_of(), tokenizer=Tokenizer(json.dumps(file).encode()))


@pytest.mark.parametrize("token_id", [384, 4_000_000_000])
@pytest.mark.parametrize("kind", ["TemplateProcessing", "BertProcessing", "RobertaProcessing"])
def test_a_post_processor_that_adds_an_id_beyond_the_logits_is_refused_at_start(kind, token_id):
    one = {"id": "x", "ids": [token_id], "tokens": ["x"]}
    single = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "x", "type_id": 0}}]
    parts = {"single": single, "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {"x": one}}
    if kind != "TemplateProcessing":
        parts = {"sep": ["x", token_id], "cls": ["y", 0], "trim_offsets": True, "add_prefix_space": False}
    text = text_with(post_processor={"type": kind} | parts)
    with pytest.raises(CheckpointError, match=rf"vocab_size \(384\), and it adds {token_id}. Use the tokenizer.json"):
        text.facts_for(INFO)


@pytest.mark.parametrize("token_id", [383, 384, 1535, 2**32 - 1])
def test_a_vocabulary_with_an_id_beyond_the_logits_is_refused_at_start(token_id):
    model = json.loads(tokenizer_json())["model"]
    model["vocab"] |= {"zq": token_id}
    text = text_with(model=model)
    if token_id < INFO.vocab_size:
        text.facts_for(INFO)
        return
    with pytest.raises(CheckpointError, match=rf"vocab_size \(384\), and its highest is {token_id}. Use the tokenizer"):
        text.facts_for(INFO)


def test_added_tokens_beyond_the_logits_are_named_at_start(caplog):
    given = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized", "special"], False)
    added = json.loads(tokenizer_json())["added_tokens"]
    more = [{"id": token_id, "content": f"<x{token_id}>"} | given for token_id in range(327, 386)]
    text_with(added_tokens=added + more).facts_for(INFO)
    assert (
        "2 added tokens of tokenizer.json are not below the model's vocab_size (384), such as '<x384>'" in caplog.text
    )
