"""chat_template, default_chat_template_kwargs and reasoning_parser: what a model's text side makes of them."""

import pytest

from jaxinfer.checkpoint.resolve import DEMO_FOLDER
from jaxinfer.config import EngineConfig
from jaxinfer.errors import CheckpointError, ConfigError
from jaxinfer.llm.text_side import load_text

TEMPLATE = "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if enable_thinking %}think{% else %}plain{% endif %}"
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
