"""Chat templates: byte for byte what transformers renders, and a clear refusal for everything else."""

import datetime
import functools
import json
from pathlib import Path

import pytest

from jaxinfer.errors import CheckpointError, InvalidRequest
from jaxinfer.text.chat_template import ChatTemplate
from tests.support.attempts import assert_below, processor_s

GOLDEN = Path(__file__).parent / "golden"
GIVEN = json.loads((GOLDEN / "cases.json").read_text("utf-8"))
RENDERED = json.loads((GOLDEN / "rendered.json").read_text("utf-8"))["rendered"]
CLOCK = datetime.datetime(2025, 3, 4, 5, 6, 7)
HELLO = [{"role": "user", "content": "Hello"}]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@functools.cache
def golden_template(name: str) -> ChatTemplate:
    return ChatTemplate((GOLDEN / f"{name}.jinja").read_text("utf-8"), GIVEN["config"], now=lambda: CLOCK)


def golden_cases() -> list[object]:
    return [pytest.param(name, case, id=f"{name}: {case}") for name, cases in RENDERED.items() for case in cases]


@pytest.mark.parametrize(("name", "case"), golden_cases())
def test_a_chat_is_rendered_as_transformers_renders_it(name: str, case: str) -> None:
    template, given, want = golden_template(name), GIVEN["cases"][case], RENDERED[name][case]
    before = json.dumps(given)
    options = {key: given[key] for key in ("tools", "add_generation_prompt", "continue_final_message") if key in given}
    variables = {key: value for key, value in given.get("template_kwargs", {}).items() if key in template.variables}

    if "error" in want:
        with pytest.raises(InvalidRequest) as refusal:
            template.render(given["messages"], template_kwargs=variables, **options)
        assert want["error"] in str(refusal.value)
    else:
        assert template.render(given["messages"], template_kwargs=variables, **options) == want["text"]
    assert json.dumps(given) == before, "the caller's messages were changed"


def test_every_golden_template_has_its_cases() -> None:
    assert sorted(RENDERED) == sorted(file.stem for file in GOLDEN.glob("*.jinja"))
    assert sum(map(len, RENDERED.values())) > 150


def test_the_template_is_found_in_each_place_that_checkpoints_keep_it(tmp_path: Path) -> None:
    config = {"chat_template": "from config", "eos_token": {"content": "<eos>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTemplate.from_folder(tmp_path).render(HELLO) == "from config"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "from json {{ eos_token }}"}))
    assert ChatTemplate.from_folder(tmp_path).render(HELLO) == "from json <eos>"
    (tmp_path / "chat_template.jinja").write_text("from jinja")
    assert ChatTemplate.from_folder(tmp_path).render(HELLO) == "from jinja"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("for tools")
    template = ChatTemplate.from_folder(tmp_path)
    assert template.render(HELLO) == "from jinja"
    assert template.render(HELLO, tools=[]) == "for tools"


def test_of_a_list_of_named_templates_tools_choose(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = ChatTemplate.from_folder(tmp_path)
    assert template.render(HELLO) == "plain"
    assert template.render(HELLO, tools=[{"type": "function"}]) == "tools"


def test_without_a_template_a_chat_is_refused_with_the_cure(tmp_path: Path) -> None:
    template = ChatTemplate.from_folder(tmp_path)
    assert not template.exists
    with pytest.raises(InvalidRequest, match="/v1/completions, or put a chat_template.jinja"):
        template.render(HELLO)


@pytest.mark.parametrize(
    "config",
    [
        {"chat_template": 5},
        {"chat_template": [{"name": "x"}]},
        {"chat_template": "{% if %}"},
        {"chat_template": {"a": 1}},
    ],
)
def test_a_broken_template_is_refused_when_loaded(tmp_path: Path, config: dict) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="chat template"):
        ChatTemplate.from_folder(tmp_path)


def test_a_template_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match="must be UTF-8"):
        ChatTemplate.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        ("Hello", "messages"),
        (["Hello"], "messages[0]"),
        ([{"content": "x"}], "messages[0]"),
        ([{"role": 1, "content": "x"}], "messages[0]"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        (
            [*HELLO, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[1].content[0]",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": object()}], "messages[0]"),
        ([{"role": "assistant", "tool_calls": ["x"]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": 5}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "x", "n": float("inf")}], "messages[0]"),
        (
            [
                *HELLO,
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": float("nan")}}}]},
            ],
            f"messages[{len(HELLO)}]",
        ),
    ],
)
def test_messages_that_are_none_are_refused_by_name(messages: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        ChatTemplate(CHATML).render(messages)
    assert refusal.value.param == param
    assert refusal.value.status == 400


def test_deeply_nested_data_is_refused() -> None:
    nested: object = "x"
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(InvalidRequest, match="nested that deeply"):
        ChatTemplate(CHATML).render([{"role": "user", "content": "x", "extra": nested}])
    with pytest.raises(InvalidRequest, match="nested that deeply"):
        ChatTemplate(CHATML).render(HELLO, tools=[{"x": nested}])


def test_tools_and_documents_must_be_lists_of_objects() -> None:
    for tools in ("x", {}, ["x"], 5):
        with pytest.raises(InvalidRequest, match="tools must be a list of objects"):
            ChatTemplate(CHATML).render(HELLO, tools=tools)
        with pytest.raises(InvalidRequest, match="documents must be a list of objects"):
            ChatTemplate(CHATML).render(HELLO, template_kwargs={"documents": tools})


def test_a_request_cannot_both_continue_and_begin_a_message() -> None:
    with pytest.raises(InvalidRequest, match="set one of them to false") as refusal:
        ChatTemplate(CHATML).render(HELLO, continue_final_message=True)
    assert refusal.value.param == "continue_final_message"


def test_a_message_that_the_template_does_not_show_cannot_be_continued() -> None:
    with pytest.raises(InvalidRequest, match="shows the last message unchanged"):
        ChatTemplate("nothing").render(HELLO, continue_final_message=True, add_generation_prompt=False)


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("read", ["enable_thinking", "thinking"])
@pytest.mark.parametrize("given", ["enable_thinking", "thinking"])
def test_either_name_of_the_switch_of_thinking_is_read_by_every_template(given, read, value):
    template = ChatTemplate(f"{{% if {read} is defined %}}{{{{ {read} }}}}{{% endif %}}")
    assert template.render(HELLO, template_kwargs={given: value}) == str(value)
    both = {given: value, "enable_thinking" if given == "thinking" else "thinking": not value}
    assert template.render(HELLO, template_kwargs=both) == str(both[read])
    assert template.render(HELLO) == ""


def test_template_variables_are_an_allow_list_with_a_suggestion() -> None:
    template = golden_template("headers")
    assert template.variables == {"date_string", "tools_in_user_message", "documents", "enable_thinking", "thinking"}
    with pytest.raises(InvalidRequest, match="Did you mean 'date_string'"):
        template.render(HELLO, template_kwargs={"date_strin": "x"})
    for name in ("messages", "tools", "add_generation_prompt", "bos_token", "raise_exception", "namespace", "self"):
        with pytest.raises(InvalidRequest, match="chat_template_kwargs must name variables"):
            template.render(HELLO, template_kwargs={name: "x"})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(__init__=1) }}",
        "{{ dict.__class__.__mro__ }}",
        "{{ strftime_now.__globals__.x }}",
        "{{ self.__init__.__globals__ }}",
        "{% include 'x' %}",
        "{{ lipsum(1000000000) }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template refused"):
        ChatTemplate(source).render(HELLO)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set r = range(99999) | list %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "{% for a in range(10**9) %}{% endfor %}",
        "{{ 'A' * 10**10 }}",
        "{{ [1] * 10**10 }}",
        "{{ 10**(10**10) }}",
        "{{ '%1000000000d' % 1 }}",
        "{% set ns = namespace(s='x') %}{% for a in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for a in range(99999) %}{{ 'x' * 999999 }}{% endfor %}",
    ],
)
def test_a_template_that_runs_away_is_stopped(source: str) -> None:
    def refused() -> None:
        with pytest.raises(InvalidRequest, match="chat template refused"):
            ChatTemplate(source, max_render_s=0.2).render(HELLO)

    assert_below(1, lambda: processor_s(refused), "the processor time of a template that runs away")


def test_formatting_does_not_show_what_the_sandbox_hides() -> None:
    assert ChatTemplate("{{ ('{0.__class__}' | attr('format'))(messages) }}").render(HELLO) == ""
    assert ChatTemplate("{{ strftime_now.__globals__ }}").render(HELLO) == ""


def test_a_template_that_reads_parts_only_gets_parts() -> None:
    template = ChatTemplate("{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}")
    assert template.render([{"role": "user", "content": "Hello"}]) == "Hello;"
    assert template.render([{"role": "user", "content": ["a", {"type": "text", "text": "b"}]}]) == "a;b;"


def test_refusals_and_bare_strings_are_parts_too() -> None:
    content = ["I", {"type": "refusal", "refusal": "won't"}]
    assert "I\nwon't<|im_end|>" in ChatTemplate(CHATML).render([{"role": "assistant", "content": content}])


OLDER = "{{ functions + '; ' + datetime + '; ' + messages[0].content }}"  # as Firefunction's template reads its tools
ADD = {"name": "add", "description": "é", "parameters": {"type": "object"}}


def test_a_template_that_shows_functions_gets_the_tools_as_json_and_the_day_of_the_clock():
    template = ChatTemplate(OLDER, now=lambda: CLOCK)
    assert template.reads_tools
    spelt = json.dumps([ADD], indent=4, ensure_ascii=False)
    assert template.render(HELLO, tools=[{"type": "function", "function": ADD}]) == f"{spelt}; 2025-03-04; Hello"
    assert template.render(HELLO) == "[]; 2025-03-04; Hello"
    assert template.render(HELLO, template_kwargs={"functions": "none", "datetime": "noon"}) == "none; noon; Hello"


@pytest.mark.parametrize(
    "source",
    [
        "{% for f in functions %}{{ f.name }}{% endfor %}{{ datetime }}",
        "{{ functions | string | length }}",
        "{{ tools }}{{ functions }}{{ datetime }}",
    ],
)
def test_a_template_that_reads_functions_another_way_gets_none(source):
    template = ChatTemplate(source)
    assert template.reads_tools == ("tools" in source)
    tools = [{"type": "function", "function": ADD}]
    assert "{" not in template.render(HELLO, tools=tools).removeprefix(str(tools))


CALLS = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ WHAT }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("c.function.arguments | tojson", '{"a": 1}'),
        ("'x' + c.function.arguments", 'x{"a": 1}'),
        ("c.function.arguments", '{"a": 1}'),
    ],
)
def test_arguments_of_calls_are_objects_or_text_as_the_template_wants(what, shown):
    template = ChatTemplate(CALLS.replace("WHAT", what))
    for arguments in ('{"a": 1}', {"a": 1}):
        call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        assert template.render(messages) == shown
        assert call["function"]["arguments"] == arguments


@pytest.mark.parametrize("text", ['{"a": 1e999}', '{"a": -Infinity}', '{"a": NaN}', r'{"a": "\ud800"}', "{"])
def test_arguments_that_no_json_can_carry_are_shown_as_they_were_sent(text):
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": text}}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    for what in ("c.function.arguments", "c.function.arguments | string"):
        assert ChatTemplate(CALLS.replace("WHAT", what)).render(messages) == text


ITEMS = "{% for name, value in c.function.arguments.items() %}{{ name }}={{ value }}{% endfor %}"


@pytest.mark.parametrize("text", ['{"a":', "[1]", "null", '{"a":1}{"b":2}', '{"a":NaN}'])
def test_arguments_that_a_template_reads_as_an_object_are_named_where_they_are_none(text):
    calls = [{"function": {"name": "f", "arguments": given}} for given in ('{"a": 1}', text)]
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    with pytest.raises(InvalidRequest, match="must be a JSON object.*Send the whole object") as refusal:
        ChatTemplate(CALLS.replace("WHAT", "''") + CALLS.replace("{{ WHAT }}", ITEMS)).render(messages)
    assert refusal.value.param == "messages[1].tool_calls[1].function.arguments"
    assert repr(text) in str(refusal.value)
    with pytest.raises(InvalidRequest, match="refused these messages: no"):  # for another reason
        ChatTemplate("{{ raise_exception('no') }}").render(messages)
