"""Tool calls in Hermes form, what is said after the tools have answered, and questions that no offered tool fits."""

import json
import random
from typing import Any

from jaxinfer.demo.corpus.intents import INTENTS, Intent, Value, draw_values, generic
from jaxinfer.demo.corpus.turn import Case, Turn, say, slot
from jaxinfer.demo.corpus.words import Split

Tool = dict[str, Any]


def tool_calls(rng: random.Random, split: Split, case: Case) -> Turn:
    """A question that one of one to four offered tools answers; one in twelve needs the tool twice."""
    intent = _draw_intent(rng, split)
    others = [_draw_intent(rng, split) for _ in range(rng.choices((0, 1, 2, 3), (4, 4, 2, 1))[0])]
    others = [other for other in others if other.functions[0] != intent.functions[0]]
    tool, names = make_tool(rng, split, intent)
    tools = [tool, *(make_tool(rng, split, other)[0] for other in others)]
    rng.shuffle(tools)
    values = draw_values(intent, rng, split)
    text = intent.phrasings.pick(rng, split).format(*(slot(str(value)) for value in values))
    text, spelt = say(rng, text, case)
    calls = [_call(tool, intent, names, values, _in_order(intent, text, spelt, values))]
    if len(values) == 1 and isinstance(values[0], str) and rng.random() < 1 / 12:
        text, calls = _twice(rng, split, case, intent, tool, names)
    results = tuple(_result(rng, intent, call) for call in calls)
    function = tool["function"]["name"]
    return Turn("tool calls", text, after(results), f"The tool {function} fits.", tuple(calls), results, tuple(tools))


def _draw_intent(rng: random.Random, split: Split) -> Intent:
    return generic(rng, split) if rng.random() < 0.25 else rng.choice(INTENTS)


def make_tool(rng: random.Random, split: Split, intent: Intent) -> tuple[Tool, list[str]]:
    """A tool as OpenAI's API takes it, and the names its parameters got, in the intent's order."""
    names: list[str] = []
    properties: dict[str, Any] = {}
    for parameter in intent.parameters:
        name = rng.choice([name for name in parameter.names if name not in names])
        names.append(name)
        kind = "integer" if _is_number(parameter.draw(rng, "train")) else "string"
        properties[name] = {"type": kind}
        if rng.random() < 0.4:
            properties[name]["description"] = parameter.about
        if parameter.options and rng.random() < 0.5:
            properties[name]["enum"] = list(parameter.options)
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if rng.random() < 0.8:
        schema["required"] = list(names)
    function: dict[str, Any] = {"name": intent.pick_function(rng, split), "description": rng.choice(intent.about)}
    if rng.random() < 0.15:
        del function["description"]
    return {"type": "function", "function": {**function, "parameters": schema}}, names


def _is_number(value: Value) -> bool:
    return isinstance(value, int)


def _in_order(intent: Intent, text: str, spelt: list[str], values: list[Value]) -> list[str]:
    """The spelt values by parameter: a phrasing may name the second one first."""
    if len(values) < 2 or spelt[0].lower() == str(values[0]).lower():
        return spelt
    return spelt[::-1]


def _call(tool: Tool, intent: Intent, names: list[str], values: list[Value], spelt: list[str]) -> dict[str, Any]:
    """The call: numbers as numbers, one of several options as the tool spells it, all else as the user spelt it."""
    arguments = {
        name: value if _is_number(value) or parameter.options else text
        for name, parameter, value, text in zip(names, intent.parameters, values, spelt, strict=True)
    }
    return {"name": tool["function"]["name"], "arguments": arguments}


def _twice(
    rng: random.Random, split: Split, case: Case, intent: Intent, tool: Tool, names: list[str]
) -> tuple[str, list[dict[str, Any]]]:
    phrasing = intent.phrasings.pick(rng, split)
    values = [draw_values(intent, rng, split)[0] for _ in range(2)]
    both = rng.choice(("{} and {}", "{} and also {}", "{} and then {}")).format(*(slot(str(value)) for value in values))
    text, spelt = say(rng, phrasing.format(both), case)
    return text, [_call(tool, intent, names, [value], [word]) for value, word in zip(values, spelt, strict=True)]


def _result(rng: random.Random, intent: Intent, call: dict[str, Any]) -> str:
    """What the tool returns: JSON, now and then plain text."""
    result = intent.result(rng)
    if intent.functions[0] == "add":
        result = {"result": sum(call["arguments"].values())}
    if rng.random() < 0.2:
        return ", ".join(f"{key} {value}" for key, value in result.items())
    return json.dumps(result)


def after(results: tuple[str, ...]) -> str:
    """What the model says once the tools have answered: it passes the results on, JSON as `key: value`."""
    return "\n".join(f"The tool says: {_plain(result)}." for result in results)


def _plain(result: str) -> str:
    if not result.startswith("{"):
        return result
    return ", ".join(f"{key}: {value}" for key, value in json.loads(result).items())
