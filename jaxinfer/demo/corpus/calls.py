"""Tool calls in Hermes form, what is said after the tools have answered, and questions that no offered tool fits."""

import json
import math
import random
from typing import Any

from jaxinfer.demo.corpus import words
from jaxinfer.demo.corpus.intents import INTENTS, Intent, Value, draw_values, generic
from jaxinfer.demo.corpus.turn import Case, Turn, say, verbatim
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
    text = intent.phrasings.pick(rng, split, polite=0.45).format(*(verbatim(str(value)) for value in values))
    extra = _draw_extra(rng, split, intent, tool)
    text, spelt = say(rng, text.rstrip("?.") + f" in {next(iter(extra.values()))}?" if extra else text, case)
    calls = [_call(tool, intent, names, values, _in_order(spelt, values))]
    calls[0]["arguments"] |= extra
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
    optional = (intent.extra,) if intent.extra and rng.random() < 0.4 else ()
    for parameter in (*intent.parameters, *optional):
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
        schema["required"] = names[: len(intent.parameters)]
    function: dict[str, Any] = {"name": intent.pick_function(rng, split), "description": rng.choice(intent.about)}
    if rng.random() < 0.15:
        del function["description"]
    return {"type": "function", "function": {**function, "parameters": schema}}, names[: len(intent.parameters)]


def _is_number(value: Value) -> bool:
    return isinstance(value, int)


def _draw_extra(rng: random.Random, split: Split, intent: Intent, tool: Tool) -> dict[str, Any]:
    """The optional argument, if the tool has it and the user names a value."""
    properties = list(tool["function"]["parameters"]["properties"])
    if intent.extra is None or len(properties) == len(intent.parameters) or rng.random() < 0.5:
        return {}
    return {properties[-1]: intent.extra.draw(rng, split)}


def _in_order(spelt: list[str], values: list[Value]) -> list[str]:
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
    phrasing = intent.phrasings.pick(rng, split, polite=0.45)
    values = [draw_values(intent, rng, split)[0] for _ in range(2)]
    both = rng.choice(("{} and {}", "{} and also {}", "{} and then {}")).format(
        *(verbatim(str(value)) for value in values)
    )
    text, spelt = say(rng, phrasing.format(both), case)
    return text, [_call(tool, intent, names, [value], [word]) for value, word in zip(values, spelt, strict=True)]


def _result(rng: random.Random, intent: Intent, call: dict[str, Any]) -> str:
    """What the tool returns: JSON, now and then plain text."""
    result = intent.result(rng)
    if intent.functions[0] in ("add", "multiply"):
        result = {"result": (sum if intent.functions[0] == "add" else math.prod)(call["arguments"].values())}
    kind = rng.random()
    if kind < 0.35:  # whatever it is, the model has to pass it on
        result = {words.invent(rng): _any_value(rng) for _ in range(rng.randint(1, 4))}
    if kind > 0.85:
        return ", ".join(f"{key} {value}" for key, value in result.items())
    if kind > 0.7:
        return " ".join(str(_any_value(rng)) for _ in range(rng.randint(1, 9)))
    return json.dumps(result, ensure_ascii=False)


def _any_value(rng: random.Random) -> Value:
    kind = rng.random()
    if kind < 0.4:
        return rng.randint(0, 10 ** rng.randint(1, 5))
    return words.invent(rng) if kind < 0.8 else words.name(rng, "train")


def after(results: tuple[str, ...]) -> str:
    """What the model says once the tools have answered: it passes the results on, JSON as `key: value`."""
    return "\n".join(f"The tool says: {_plain(result)}." for result in results)


def _plain(result: str) -> str:
    if not result.startswith("{"):
        return result
    return ", ".join(f"{key}: {value}" for key, value in json.loads(result).items())
