"""The grammars of tool calls, as the text that llguidance compiles."""

import pytest

from jaxinfer.text.tools.grammar import tool_grammar
from jaxinfer.text.tools.reader import ToolUse

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
USE = ToolUse({"weather": CITY, "now": {}})
CONTROL = {"<tool_call>": 7, "</tool_call>": 8}
HOW = r'"x-guidance": {"whitespace_pattern": "[\\x20\\x0A\\x0D\\x09]{1,8}", "coerce_one_of": true, "lenient": true}'
HERMES = r"""%llguidance {}
start: tagged_3 ("\n" tagged_3)*
value_0: %json {"type": "object", HOW}
tool_1: "\n{\"name\": \"now\", \"arguments\": " value_0 "}\n"
call_2: tool_1
tagged_3: <[7]> call_2 <[8]>"""
FREE = r"""%llguidance {}
start: tagged_3? tail
tail: TEXT
value_0: %json {"type": "object", HOW}
tool_1: "\n{\"name\": \"now\", \"arguments\": " value_0 "}\n"
call_2: tool_1
TEXT: /(.|\n)*/
opening[lazy]: TEXT "<tool_call>"
tagged_3: opening call_2 "</tool_call>"
"""
XML = r"""%llguidance {}
start: tagged_10
end_0: ""
value_1: %json {"type": "integer", HOW}
parameter_2: "<parameter=days>\n" value_1 "\n</parameter>\n"
first_3: parameter_2 end_0 | end_0
later_4: parameter_2 end_0 | end_0
value[lazy]: /(.|\n)*<\/parameter>/
parameter_5: "<parameter=city>\n" value "\n"
first_6: parameter_5 later_4
later_7: parameter_5 later_4
tool_8: "\n<function=weather>\n" first_6 "</function>\n"
call_9: tool_8
tagged_10: <[7]> call_9 <[8]>"""


def test_calls_that_are_due_are_all_there_is():
    use = ToolUse({"now": {}})
    assert tool_grammar("hermes", use, due=True, control_tokens=CONTROL) == HERMES.replace("HOW", HOW)


def test_free_text_goes_before_and_after_a_call_that_may_come():
    use = ToolUse({"now": {}}, parallel=False)
    assert tool_grammar("hermes", use, due=False, control_tokens={}) == FREE.rstrip().replace("HOW", HOW)


def test_parameters_come_in_order_each_by_its_schema():
    use = ToolUse({"weather": CITY}, parallel=False, named=True)
    assert tool_grammar("qwen3_coder", use, due=True, control_tokens=CONTROL) == XML.replace("HOW", HOW)


@pytest.mark.parametrize("form", ["llama3_json", "pythonic"])
def test_a_form_without_tags_is_free_text_unless_a_call_is_due(form):
    assert tool_grammar(form, USE, due=False, control_tokens={}) is None
    grammar = tool_grammar(form, USE, due=True, control_tokens={})
    assert grammar.splitlines()[1].startswith('start: "[" call_' if form == "pythonic" else "start: call_")
    assert ")*" in grammar.splitlines()[1]
    one = ToolUse(USE.schemas, parallel=False)
    assert ")*" not in tool_grammar(form, one, due=True, control_tokens={}).splitlines()[1]


def test_only_a_strict_tools_schema_is_kept_to_the_letter():
    use = ToolUse({"weather": CITY, "now": {}}, strict=frozenset({"now"}))
    grammar = tool_grammar("hermes", use, due=True, control_tokens=CONTROL)
    assert [line.count('"lenient": false') for line in grammar.splitlines() if "%json" in line] == [0, 1]


def test_a_call_that_has_begun_goes_before_free_text_and_other_calls():
    grammar = tool_grammar("hermes", ToolUse({"now": {}}), due=False, control_tokens=CONTROL, begun=True)
    assert grammar.splitlines()[1:3] == ["start: call_2 <[8]> tagged_3* tail", "tail: TEXT"]
    one = ToolUse({"now": {}}, parallel=False)
    grammar = tool_grammar("hermes", one, due=False, control_tokens=CONTROL, begun=True)
    assert grammar.splitlines()[1] == "start: call_2 <[8]> tail"
