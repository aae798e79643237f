"""Tool calls that would do harm if anybody carried them out (A26): a model that writes Python where a call's arguments
stand, in every form, whole and in pieces. It is a text among the arguments, or content, at once, and nothing happens.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.server.scripted import ScriptedLLM
from tests.server.test_tools import PIECES, said, streamed, whole
from tests.support.attempts import assert_below

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "run",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}, "number": {"type": "integer"}}},
        },
    }
]
MOST_S = 0.1
# each with Python in the place of a text, of a number, and of all the arguments
CALLS = {
    "hermes": (
        '<tool_call>\n{{"name": "run", "arguments": {{"text": "{code}"}}}}\n</tool_call>',
        '<tool_call>\n{{"arguments": {{"number": {code}}}, "name": "run"}}\n</tool_call>',
        '<tool_call>\n{{"name": "run", "arguments": "{code}"}}\n</tool_call>',
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=run>\n<parameter=text>\n{code}\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=run>\n<parameter=number>\n{code}\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function={code}>\n</function>\n</tool_call>",
    ),
    "llama3_json": (
        '{{"name": "run", "parameters": {{"text": "{code}"}}}}',
        '{{"parameters": {{"number": {code}}}, "name": "run"}}',
        '{{"name": "run", "parameters": "{code}"}}',
    ),
    "pythonic": ('[run(text="{code}")]', "[run(number={code})]", "[{code}]"),
    "functionary": (
        '<function=run>{{"text": "{code}"}}</function>',
        "<function=run>[{code}]</function>",
        "<function=run>{code}</function>",
    ),
    "xlam": (
        '[{{"name": "run", "arguments": {{"text": "{code}"}}}}]',
        '[{{"arguments": {{"number": {code}}}, "name": "run"}}]',
        '[{{"name": "run", "arguments": "{code}"}}]',
    ),
}  # the other forms are read by the same code


def code(mark: Path) -> str:
    """Would leave a file there."""
    return f"__import__('os').system('touch {mark}')"


def expected(form: str, place: int, text: str, mark: Path) -> dict[str, Any]:
    """A text is one; where none may stand the whole is content, but that qwen3_coder's values are all texts."""
    key = ("text", "number", "")[place]
    if place == 0 or (form == "qwen3_coder" and place == 1):
        calls = [("run", json.dumps({key: code(mark)}))]
        return {"content": None, "calls": calls, "reasoning": None, "finish": "tool_calls"}
    return {"content": text, "calls": [], "reasoning": None, "finish": "stop"}


@pytest.mark.parametrize("place", [0, 1, 2], ids=["a text", "a number", "all"])
@pytest.mark.parametrize("form", CALLS)
def test_python_in_a_call_is_text_whole_and_in_pieces_and_at_once(form, place, tmp_path):
    mark = tmp_path / "done"
    text = CALLS[form][place].format(code=code(mark))
    for piece in PIECES:
        for read in (whole, streamed):

            def seconds(read=read, piece=piece) -> float:
                llm = ScriptedLLM(text, piece=piece, form=form)
                began = time.monotonic()
                (choice,) = read(llm, tools=TOOLS)
                took = time.monotonic() - began
                assert said(choice) == expected(form, place, text, mark)
                return took

            assert_below(MOST_S, seconds, f"{form}, {read.__name__}, {piece} tokens at a time, in s")
    assert not mark.exists()
    eval(code(mark))
    assert mark.exists(), "it would have been seen"
