"""Which format a template teaches: told by how it shows a call, in templates of the shapes that public ones have."""

from typing import get_args, get_type_hints

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.text.chat_template import ChatTemplate
from jaxinfer.text.tools.formats import CALL, END_CALL, FORMATS, PROBE, SEPARATOR, Format, format_of
from tests.text.tools.public_templates import PUBLIC

# How one call is shown, in the template's own language: c is its function.
NAME, JSON = "{{ c.name }}", "{{ c.arguments | tojson }}"
EACH, END = "{% for k, v in c.arguments.items() %}", "{% endfor %}"
K, V, COMMA = "{{ k }}", "{{ v }}", "{{ ', ' if not loop.last }}"
OBJECT = f'{{"name": "{NAME}", "arguments": {JSON}}}'
BROKEN_OBJECT = f'{{"name": "{NAME}, "arguments": {JSON}"}}'  # its first quote is closed behind the arguments
XML = f"<function={NAME}>\n{EACH}<parameter={K}>\n{V}\n</parameter>\n{END}</function>\n"
SHAPES: dict[str, tuple[str, Format | None]] = {
    "an object in tool_call": (f"<tool_call>\n{OBJECT}\n</tool_call>", "hermes"),
    "a broken object in tool_call": (f"<tool_call>\n{BROKEN_OBJECT}\n</tool_call>", "hermes"),
    "a list in tool_call": (f"<tool_call>[{OBJECT}]</tool_call>", "hermes"),
    "a function in tool_call": (f"<tool_call>\n{XML}</tool_call>", "qwen3_coder"),
    "parameters after a name": (f'{{"name": "{NAME}", "parameters": {JSON}}}', "llama3_json"),
    "a list of Python's calls": (f"[{NAME}({EACH}{K}={V}{COMMA}{END})]", "pythonic"),
    "a list": (f"[{OBJECT}]", "xlam"),
    "a list in a fence": (f"```\n[\n    {OBJECT}\n]\n```", "xlam"),
    "a list in TOOLCALL": (f"<TOOLCALL>[{OBJECT}]</TOOLCALL>", "llama_nemotron_json"),
    "an object in tools": (f"<tools>\n{OBJECT}\n</tools>", "qwen2_5_coder"),
    "JSON in a function": (f"<function={NAME}>{JSON}</function>", "functionary"),
    "a fence after a separator": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{NAME}\n```json\n{JSON}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        "deepseek_v3",
    ),
    "a recipient": (f">>>{NAME}\n{JSON}", "functionary_v3_2"),
    "a list after functools": (f" functools[{OBJECT}]", "firefunction_v2"),
    # of architectures that are not served, or whose form is not known: none may be mistaken for one that is
    "keys and values": (f"<tool_call>{NAME}\n{EACH}<arg_key>{K}</arg_key>\n<arg_value>{V}</arg_value>{END}"
                        "</tool_call>", None),
    "a function in another tag": (f"<seed:tool_call>\n{XML}</seed:tool_call>", None),
    "a list in tool_calls": (f"<tool_calls>[{OBJECT}]</tool_calls>", None),
    "objects in tool_calls": (f"<tool_calls>\n{OBJECT}\n</tool_calls>", None),
    "a list after a mark": (f"[TOOL_CALLS][{OBJECT}]", None),
    "arguments after a mark": (f"[TOOL_CALLS]{NAME}[ARGS]{JSON}", None),
    "an object after a token": (f"<|function_call|>{OBJECT}", None),
    "Python's calls in tokens": (f"<|tool_call_start|>[{NAME}({EACH}{K}={V}{END})]<|tool_call_end|>", None),
    "a call in tokens": (f"<|tool_call>call:{NAME}{{ {JSON}}}<tool_call|>", None),
    "a name attribute": (f'<function name="{NAME}">{EACH}<param name="{K}">{V}</param>{END}</function>', "minicpm5"),
    "invoke": (f'<invoke name="{NAME}">{EACH}<parameter name="{K}">{V}</parameter>{END}</invoke>', None),
    "a name and JSON": (f"{NAME}\n{JSON}", None),
    "a channel": (f" to=functions.{NAME}<|channel|>commentary json<|message|>{JSON}<|call|>", None),
    "JSON after a separator": (f"<｜tool▁calls▁begin｜>{CALL}{NAME}{SEPARATOR}{JSON}{END_CALL}", None),
    "another key for the name": (f'[{{"tool_name": "{NAME}", "parameters": {JSON}}}]', None),
    "a name as the key": (f'<|tools_prefix|>[{{"{NAME}": {JSON}}}]<|tools_suffix|>', None),
}  # fmt: skip
TURNS = [
    ("<|im_start|>{{ m.role }}\n", "<|im_end|>\n", "<|im_end|>\n"),
    ("<SPECIAL_1>{{ m.role }}\n", "\n<SPECIAL_2>\n", "<SPECIAL_2>\n"),
    ("<|h|>{{ m.role }}<|e|>\n\n", "<|eot_id|>", "<|eom_id|>"),
    ("[{{ m.role }}] ", "</s>", "</s>"),
]  # what stands before an answer, behind a text and behind calls


def template_of(shown: str, turn: tuple[str, str, str] = TURNS[0], said: str = "") -> str:
    begin, end, end_of_calls = turn
    return (
        f"{{% if tools %}}Tools: {{{{ tools | tojson }}}}{said}{{% endif %}}{{% for m in messages %}}{begin}"
        f"{{% if m.tool_calls %}}{{% for t in m.tool_calls %}}"
        f"{{% set c = t.function %}}{shown}{END}{end_of_calls}"
        f"{{% else %}}{{{{ m.content }}}}{end}{{% endif %}}{END}"
    )


def told(template: str) -> Format | None:
    return format_of(template, ChatTemplate(template).shown_call(*PROBE))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_format_is_told_by_how_a_template_shows_a_call(shape):
    shown, form = SHAPES[shape]
    for turn in TURNS:
        assert told(template_of(shown, turn)) == form


def test_a_mark_that_a_text_has_too_is_part_of_a_call():
    """As Functionary's template shows a text behind the mark and a name of its own."""
    template = template_of(SHAPES["a recipient"][0]).replace("{{ m.content }}", ">>>all\n{{ m.content }}")
    for turn in ("<|im_start|>{{ m.role }}\n", "<|h|>{{ m.role }}<|e|>\n\n"):
        assert told(template.replace(TURNS[0][0], turn)) == "functionary_v3_2"


def test_every_shape_that_public_templates_have_is_tried():
    assert PUBLIC.keys() - {""} <= SHAPES.keys()


EXAMPLES: list[tuple[str, Format | None]] = [
    ('<tool_call>\\n{\\"name\\": <name>}\\n</tool_call>', "hermes"),
    ("<tool_call>\n<function=example>\n<parameter=one>", "qwen3_coder"),
    ('Respond as {"name": function name, "parameters": dictionary of argument name and its value}', "llama3_json"),
    ("[func_name1(params_name1=params_value1)]", "pythonic"),
    ('Answer with\n```\n[\n    {"name": "f1", "arguments": {"a": "b"}},\n    ...\n]\n```', "xlam"),
    ('Answer with a list:\\n\\n[{\\"name\\": \\"f1\\", \\"arguments\\": {\\"a\\": 1}}]', "xlam"),
    ('Use:\\n<function name=\\"f\\"><param name=\\"x\\">value</param></function>', "minicpm5"),
    ("Use <function name='f'>", None),
    ("Call them as you like", None),
    ('<tool_calls>[{"name": "f1", "arguments": {"a": "b"}}]</tool_calls>', None),
]


@pytest.mark.parametrize(("said", "form"), EXAMPLES)
def test_where_a_template_shows_no_calls_its_example_tells(said, form):
    assert told("{{ tools }}{{ messages[0].content }}{# " + said + " #}") == form
    assert told(template_of("a call of {{ c.name }}", said="{# " + said + " #}")) is None


def test_values_that_nobody_could_read_again_do_not_hide_a_list_of_calls():
    shown = f"[{NAME}({EACH}{K}={V}r{END})]"
    assert told(template_of(shown, said="{# [func_name1(a=1)] #}")) == "pythonic"


SPLIT = """{{- "<tool_call>\\n" }}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\\n' }}"""


@pytest.mark.parametrize(
    ("shown", "said", "form"),
    [
        (f"<tool_call>\n{BROKEN_OBJECT}\n</tool_call>", SPLIT, "hermes"),
        (f"<tools>\n{BROKEN_OBJECT}\n</tools>", SPLIT, None),
        (SHAPES["keys and values"][0], SPLIT, None),
        (f'<tool_call>{{"tool_name": "{NAME}", "parameters": {JSON}}}</tool_call>', SPLIT, None),
    ],
)
def test_a_broken_call_is_of_the_form_of_the_example_that_begins_as_it_does(shown, said, form):
    assert told(template_of(shown, said=said)) == form


@pytest.mark.parametrize(
    "source", [{"other": "{{ tools }}"}, "{{ tools }}{% for i in range(10 ** 9) %}{{ i }}{% endfor %}"]
)
def test_a_template_that_cannot_be_rendered_shows_no_call(source):
    assert ChatTemplate(source, max_render_s=0.05).shown_call(*PROBE) is None


def test_each_format_can_be_named():
    assert set(get_args(get_type_hints(EngineConfig)["tool_call_parser"])) == {"auto", *FORMATS}
