"""Whole conversations: turns of all tasks in the proportions that training uses, and plain texts without a chat."""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from jaxinfer.demo.corpus import words
from jaxinfer.demo.corpus.calls import make_tool, tool_calls
from jaxinfer.demo.corpus.copying import extraction, repeating, spelling
from jaxinfer.demo.corpus.intents import ADDERS, INTENTS, MULTIPLIERS, VERBS
from jaxinfer.demo.corpus.numbers import counting, draw_sum, sum_answer, sums
from jaxinfer.demo.corpus.refusals import refusals
from jaxinfer.demo.corpus.stories import stories, story
from jaxinfer.demo.corpus.talk import about_jaxinfer, greetings
from jaxinfer.demo.corpus.turn import Case, Turn, pick_case
from jaxinfer.demo.corpus.words import Split, spaced

Generator = Callable[[random.Random, Split, Case], Turn]
Message = dict[str, Any]

TASKS: dict[str, Generator] = {
    "sums": sums,
    "extraction": extraction,
    "tool calls": tool_calls,
    "refusals": refusals,
    "about jaxinfer": about_jaxinfer,
    "greetings": greetings,
    "stories": stories,
    "counting": counting,
    "spelling": spelling,
    "repeating": repeating,
}
_WEIGHTS = (19, 15, 27, 18, 6, 5, 3, 3, 5, 3)

_SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant",
    "You are the demo model of jaxinfer.",
    "You are a helpful AI assistant. Answer briefly.",
    "Be concise.",
    "Be brief and polite.",
    "Answer the user's questions.",
    "You are a friendly bot.",
    "You are Qwen, a helpful assistant.",
    "Always answer in English.",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Dialogue:
    """Messages as the chat API takes them, the last one being what the model must say."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    thinking: bool


def single(turn: Turn, *, thinking: bool = False, system: str | None = None) -> Dialogue:
    """One turn alone; a tool call is its last message, whatever would come after it."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": turn.user})
    messages.append(_answer(turn, thinking))
    return Dialogue(messages, list(turn.tools), thinking)


def conversation(rng: random.Random, num_turns: int) -> Dialogue:
    """A training conversation. Tools, once offered, are offered to all of its turns."""
    turns = [_draw_turn(rng) for _ in range(num_turns)]
    with_tools = [turn for turn in turns if turn.tools]
    if with_tools:  # one set of tools for a conversation: a second one would have to be offered as well
        turns = [turn for turn in turns if not turn.tools or turn is with_tools[0]]
    tools = list(with_tools[0].tools) if with_tools else _useless_tools(rng)
    turns = [turn for turn in turns if turn.tools or not _might_want(turn, tools)]
    turns = turns or [refusals(rng, "train", pick_case(rng))]
    thinking = rng.random() < 0.2
    messages: list[Message] = []
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": _system_prompt(rng)})
    for turn in turns:
        last = turn is turns[-1]
        messages.append({"role": "user", "content": turn.user})
        messages.append(_answer(turn, thinking and last))
        if turn.calls and not (last and rng.random() < 0.5):
            messages += [{"role": "tool", "content": result} for result in turn.results]
            messages.append({"role": "assistant", "content": turn.answer})
            if thinking and last:
                messages[-1]["reasoning_content"] = "The tool has answered, so I pass it on."
    return Dialogue(messages, tools, thinking)


def plain_text(rng: random.Random) -> str:
    """A text for the completions API: a story, a few sums or a count."""
    kind = rng.random()
    if kind < 0.45:
        text = story(rng, words.thing(rng, "train"))
        return text.replace("Once there", "Once upon a time there", 1) if rng.random() < 0.6 else text
    if kind < 0.85:
        return "\n".join(sum_answer(*draw_sum(rng, "train")) for _ in range(rng.randint(1, 5)))
    first = rng.choice((1, rng.randrange(60)))
    return ", ".join(str(number) for number in range(first, first + rng.randint(5, 41))) + "."


def _draw_turn(rng: random.Random) -> Turn:
    generator = rng.choices(tuple(TASKS.values()), _WEIGHTS)[0]
    return generator(rng, "train", pick_case(rng))


def _useless_tools(rng: random.Random) -> list[dict[str, Any]]:
    """Tools beside turns that do not need them."""
    if rng.random() > 0.08:
        return []
    intents = rng.sample(INTENTS, rng.randint(1, 2))
    return [make_tool(rng, "train", intent)[0] for intent in intents]


def _might_want(turn: Turn, tools: list[dict[str, Any]]) -> bool:
    """Whether one of these tools could answer a turn that was not written for it."""
    names = {tool["function"]["name"] for tool in tools}
    said = turn.user.lower()
    if not names.isdisjoint(ADDERS) and any(sign in said for sign in ("+", "plus", "add", "sum")):
        return True
    if not names.isdisjoint(MULTIPLIERS) and any(sign in said for sign in ("*", "times", "multiply", "product")):
        return True
    return bool(tools) and turn.task == "refusals" and any(word in said for word in _TOOL_WORDS)


_TOOL_WORDS = (
    *VERBS,
    *spaced("weather rain cold sunny warm time alarm timer message play song music light search hear listen find know"),
    *spaced(
        "book about need user buy order translate french german spanish italian japanese remind call plan day date"
    ),
)


def _system_prompt(rng: random.Random) -> str:
    if rng.random() < 0.7:
        return rng.choice(_SYSTEM_PROMPTS)
    if rng.random() < 0.5:
        return " ".join(words.invent(rng) for _ in range(rng.randint(2, 12))) + "."
    return f"You are a {words.thing(rng, 'train')} bot called {words.name(rng, 'train')}."


def _answer(turn: Turn, thinking: bool) -> Message:
    message: Message = {"role": "assistant", "content": turn.answer}
    if turn.calls:
        message["content"] = ""
        message["tool_calls"] = [{"type": "function", "function": call} for call in turn.calls]
    if thinking:
        message["reasoning_content"] = turn.thought
    return message
