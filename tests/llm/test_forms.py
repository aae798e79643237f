"""Requests that wait for their grammars, and what a long message is."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxinfer.errors import EngineError, InvalidRequest, Overloaded
from jaxinfer.llm.structure import MAX_WAITING_TRIALS, Forms
from jaxinfer.llm.text_side import num_chars
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.text.grammar.trial import Tried
from jaxinfer.text.reading import Reading
from jaxinfer.text.tools.reader import ToolUse


class SlowTrial:
    """Says of every grammar that it is good, once it may."""

    def __init__(self) -> None:
        self.may = threading.Event()

    def known(self, constraint):
        return None

    def check(self, constraint):
        assert self.may.wait(20)
        return Tried(constraint.value)

    def close(self):
        self.may.set()


def test_new_grammars_wait_for_each_other_but_not_without_end():
    asyncio.run(wait_for_each_other())


async def wait_for_each_other() -> None:
    side = SimpleNamespace(folder=Path("nowhere"), tokenizer=SimpleNamespace(control_tokens={}))
    forms = Forms(side, SimpleNamespace(vocab_size=8, eos_token_ids=(0,)))
    forms._trial = trial = SlowTrial()
    try:
        asked = [SamplingParams(regex=f"a{i}") for i in range(MAX_WAITING_TRIALS + 1)]
        waiting = [asyncio.create_task(forms.check(params, None)) for params in asked[:-1]]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as refusal:
            await forms.check(asked[-1], None)
        assert (refusal.value.code, refusal.value.retry_after_s) == ("grammars_full", 1.0)
        trial.may.set()
        assert [tried.text for tried in await asyncio.gather(*waiting)] == [params.regex for params in asked[:-1]]
        assert (await forms.check(asked[-1], None)).text == asked[-1].regex
    finally:
        forms.close()


def test_all_that_a_message_holds_makes_it_long():
    call = {"function": {"name": "f" * 3, "arguments": {"a": ["b" * 5, 1, None]}}}
    message = {"role": "assistant", "content": "x" * 7, "reasoning_content": "y" * 11, "tool_calls": [call]}
    named = len("roleassistantcontentreasoning_contenttool_callsfunctionnameargumentsa")
    assert num_chars([message]) == 3 + 5 + 7 + 11 + named


class NoTrial(SlowTrial):
    """Cannot use the tokenizer, and says so in its own time."""

    def check(self, constraint):
        assert self.may.wait(20)
        raise InvalidRequest("a tokenizer that nobody can read", code="unsupported_parameter")


def test_calls_that_nobody_demanded_are_left_free_where_their_grammar_cannot_be_had():
    asyncio.run(are_left_free())


async def are_left_free() -> None:
    control_tokens = {"<tool_call>": 5, "</tool_call>": 6}
    side = SimpleNamespace(folder=Path("nowhere"), tokenizer=SimpleNamespace(control_tokens=control_tokens))
    forms = Forms(side, SimpleNamespace(vocab_size=8, eos_token_ids=(0,)))
    forms._trial = trial = NoTrial()
    try:
        readings = [
            Reading(form="hermes", tools=ToolUse({f"f{i}": {"type": "object"}})) for i in range(MAX_WAITING_TRIALS + 1)
        ]
        waiting = [asyncio.create_task(forms.check(SamplingParams(), reading)) for reading in readings[:-1]]
        await asyncio.sleep(0)
        found = [await forms.check(SamplingParams(), readings[-1])]
        assert "try again shortly" in found[0].warnings[0]
        trial.may.set()
        found += await asyncio.gather(*waiting)
        assert "nobody can read" in found[1].warnings[0]
        assert all(tried.text == "" and len(tried.warnings) == 1 for tried in found)
        assert await forms.structure(SamplingParams(), readings[0], found[1], [1], chat=True) is None
        strict = Reading(form="hermes", tools=ToolUse({"f": {}}, strict=frozenset({"f"})))
        with pytest.raises(InvalidRequest, match="nobody can read"):
            await forms.check(SamplingParams(), strict)
    finally:
        forms.close()


def test_calls_that_nobody_demanded_are_left_free_where_no_grammar_can_be_tried():
    asyncio.run(are_left_free_without_a_child())


async def are_left_free_without_a_child() -> None:
    """The child ends at once: its tokenizer is not there."""
    side = SimpleNamespace(folder=Path("nowhere"), tokenizer=SimpleNamespace(control_tokens={"<tool_call>": 5}))
    forms = Forms(side, SimpleNamespace(vocab_size=8, eos_token_ids=(0,)))
    try:
        found = await forms.check(SamplingParams(), Reading(form="hermes", tools=ToolUse({"f": {"type": "object"}})))
        assert found.text == "" and "a grammar's trial must start, it did not" in found.warnings[0]
        with pytest.raises(EngineError, match="must start"):
            await forms.check(SamplingParams(regex="a"), None)
    finally:
        forms.close()
