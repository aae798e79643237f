"""Two servers asked the same, in turns: paired times with their spread, and whether they say the same. No jax.

A turn is a few prompts to one side, then the same ones to the other; who begins changes from turn to turn, so that
whatever else the machine does, and whatever changes slowly, falls on both alike. A side is a server that runs, or
settings, with which one is started here.
"""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from jaxinfer.bench import machine
from jaxinfer.bench.client import PATH
from jaxinfer.bench.http_client import Connection, Outcome, Target, read_stream, read_text
from jaxinfer.bench.outcomes import first_tokens, mean_cached, paces, per_token_s, ttft_s, whole_s, wholes
from jaxinfer.bench.program import serving
from jaxinfer.bench.report import Report, Table, Value, percentile
from jaxinfer.bench.serve import first_model
from jaxinfer.config import SETTINGS, EngineConfig, Resolved, counted, unknown_name
from jaxinfer.errors import ConfigError, EngineError
from jaxinfer.runtime import nvidia

AGAIN, SHOWN, NEAR = 4, 8, 24  # prompts asked twice, differences shown, characters of them

type Prompt = str | list[int]


@dataclasses.dataclass(frozen=True)
class Side:
    """A server that answers. what: the URL or the settings that were asked for."""

    name: str
    what: str
    target: Target
    model: str


@dataclasses.dataclass(frozen=True)
class Wanted:
    """output_tokens: of every answer.    at_once: prompts of a turn."""

    prompts: Sequence[Prompt]
    output_tokens: int
    at_once: int


@dataclasses.dataclass(frozen=True)
class TimedAnswer:
    outcome: Outcome
    text: str


def run(resolved: Resolved, whats: tuple[str, str], key: str, wanted: Wanted, say: Callable[[str], None]) -> Report:
    """Ask both and describe the difference. Raises ConfigError, and EngineError when a request is not answered."""
    loads = os.getloadavg()
    with contextlib.ExitStack() as stack:
        configs = configs_of(resolved.config, whats)
        sides = []
        for name, what, config in zip("ab", whats, configs, strict=True):
            url = what if config is None else stack.enter_context(serving(config)).url
            target = Target(url.rstrip("/").removesuffix("/v1"), key if config is None else "")
            sides.append(Side(name, what or "as given", target, first_model(target)))
            say(f"{name}: {sides[-1].what}, {sides[-1].model} at {target.base}")
        first, second = sides
        told = asyncio.run(answers(first, second, wanted))
        again = [asyncio.run(repeated(side, wanted)) for side in sides]
    facts = [(side.name, f"{side.what}; model {side.model}") for side in sides] + machine.facts(resolved=resolved)
    facts += [("load average", f"{loads[0]:.2f} before, {os.getloadavg()[0]:.2f} after")]
    tokens = counted(wanted.output_tokens, "token")
    facts += [("requests", f"{len(wanted.prompts)} to each, {wanted.at_once} at once, {tokens}")]
    tables = [Table("sides", SIDES, [of_side(side, one) for side, one in zip(sides, told, strict=True)])]
    tables += [Table("pairs", PAIRS, pairs(*told)), Table("texts", TEXTS, texts(*told, *again))]
    if different := differences(*told):
        tables.append(Table("differences", DIFFERENCES, different[:SHOWN]))
    return Report("jaxinfer bench compare", facts, tables, NOTES)


SIDES = ("side", "output tok/s", "first token p50 ms", "p90 ms", "ms a token p50", "whole request p50 ms", "cached")
PAIRS = ("of each request", "a, median", "b, median", "b / a, median", "half of them within", "b less in")
TEXTS = ("texts", "equal", "of")
DIFFERENCES = ("request", "equal characters", "then a says", "then b says")
NOTES = (
    "Both sides get the same requests in turns (a b, b a, ...), greedy, ignore_eos, streamed from /v1/completions; b / "
    "a is of each request's own pair, and its middle half says how far pairs differ. Fresh random ids unless prompts "
    "were given, so that cached prompt tokens are 0 unless a side has seen them before.",
    "Texts: a side that does not say the same twice (the second time with its prompt cached) cannot be expected "
    "to agree with another. In bfloat16 the last bits depend on what is computed together, and one of them is enough "
    "for another word.",
)


def configs_of(common: EngineConfig, whats: tuple[str, str]) -> tuple[EngineConfig | None, EngineConfig | None]:
    """The settings of each side that is to be started; where both are on one GPU, each with half of its memory."""
    first, second = (None if is_url(what) else changed(common, what) for what in whats)
    if first is None or second is None or common.device == "cpu" or not nvidia.visible_gpus(nvidia.list_gpus()):
        return first, second
    half = first.gpu_memory_utilization / 2
    shares = half, second.gpu_memory_utilization / 2 / (1 - half)  # the second sees what the first has left
    halved = [
        dataclasses.replace(config, gpu_memory_utilization=share)
        for config, share in zip((first, second), shares, strict=True)
    ]
    return halved[0], halved[1]


def is_url(what: str) -> bool:
    return what.startswith(("http://", "https://"))


def changed(config: EngineConfig, text: str) -> EngineConfig:
    """The config with name=value,name=value in it. Raises ConfigError."""
    changes: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, sign, value = part.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if not sign:
            raise ConfigError(f"a side must be a URL or name=value,name=value, got {part!r} in {text!r}")
        if name not in SETTINGS:
            raise ConfigError(unknown_name(name, SETTINGS, "setting"))
        changes[name] = SETTINGS[name].parse(value.strip())
    return dataclasses.replace(config, **changes)


async def answers(first: Side, second: Side, wanted: Wanted) -> tuple[list[TimedAnswer], list[TimedAnswer]]:
    """What each side said to every prompt, in turns."""
    for side in (first, second):  # both awake before the clock starts
        await ask(side, [wanted.prompts[-1][::-1]], wanted)  # which neither will find in its prefix cache
    told: dict[str, list[TimedAnswer]] = {first.name: [], second.name: []}
    for turn, start in enumerate(range(0, len(wanted.prompts), wanted.at_once)):
        prompts = wanted.prompts[start : start + wanted.at_once]
        for side in (first, second) if turn % 2 == 0 else (second, first):
            told[side.name] += await ask(side, prompts, wanted)
    return told[first.name], told[second.name]


async def repeated(side: Side, wanted: Wanted) -> list[TimedAnswer]:
    """What a side says to the first prompts when it is asked again, as many at once as before."""
    found: list[TimedAnswer] = []
    for start in range(0, max(AGAIN, wanted.at_once), wanted.at_once):
        found += await ask(side, wanted.prompts[start : start + wanted.at_once], wanted)
    return found


async def ask(side: Side, prompts: Sequence[Prompt], wanted: Wanted) -> list[TimedAnswer]:
    """All of them at once, each on a connection of its own. Raises EngineError."""
    fixed = {"model": side.model, "max_tokens": wanted.output_tokens, "temperature": 0, "ignore_eos": True}
    fixed |= {"stream": True, "stream_options": {"include_usage": True}}
    try:
        connections = [await side.target.connect() for _ in prompts]
    except OSError as error:
        raise EngineError(f"{side.name} must be reachable, {side.target.base} said: {error}") from error
    bodies = [msgspec.json.encode(fixed | {"prompt": prompt}) for prompt in prompts]
    pairs = zip(connections, bodies, strict=True)
    return list(await asyncio.gather(*(one(side, connection, body) for connection, body in pairs)))


async def one(side: Side, connection: Connection, body: bytes) -> TimedAnswer:
    reply = await connection.ask(side.target.request("POST", PATH, body))
    connection.close()
    outcome = read_stream(reply)
    if outcome.error:
        raise EngineError(f"{side.name} ({side.what}) must answer every request, it said: {outcome.error}")
    return TimedAnswer(outcome, read_text(reply))


def of_side(side: Side, told: Sequence[TimedAnswer]) -> tuple[Value, ...]:
    """Of SIDES. The rate is of its turns alone: its tokens by the time that they took, one after another."""
    outcomes = [answer.outcome for answer in told]
    firsts = first_tokens(outcomes)
    times = (
        percentile(firsts, 50),
        percentile(firsts, 90),
        percentile(paces(outcomes), 50),
        percentile(wholes(outcomes), 50),
    )
    ms = [None if seconds is None else seconds * 1e3 for seconds in times]
    return side.name, busy_rate(outcomes), *ms, mean_cached(outcomes)


def busy_rate(outcomes: Sequence[Outcome]) -> float:
    """Tokens per second of the time in which at least one request of this side was under way."""
    busy_s, until_s = 0.0, 0.0
    for outcome in sorted(outcomes, key=lambda outcome: outcome.sent_s):
        busy_s += max(0.0, outcome.times_s[-1] - max(until_s, outcome.sent_s))
        until_s = max(until_s, outcome.times_s[-1])
    return sum(outcome.tokens for outcome in outcomes) / busy_s


def pairs(first: Sequence[TimedAnswer], second: Sequence[TimedAnswer]) -> list[tuple[Value, ...]]:
    """Of PAIRS."""
    kinds: dict[str, Callable[[Outcome], float | None]] = {
        "first token ms": ttft_s,
        "ms a token": per_token_s,
        "whole request ms": whole_s,
    }
    rows: list[tuple[Value, ...]] = []
    for kind, value in kinds.items():
        both = [(value(a.outcome), value(b.outcome)) for a, b in zip(first, second, strict=True)]
        known = [(a, b) for a, b in both if a and b]
        if not known:
            continue
        ratios = [b / a for a, b in known]
        medians = [percentile([pair[side] * 1e3 for pair in known], 50) for side in range(2)]
        half = f"{percentile(ratios, 25):.3f}, {percentile(ratios, 75):.3f}"
        rows.append((kind, *medians, percentile(ratios, 50), half, f"{sum(r < 1 for r in ratios)} of {len(ratios)}"))
    return rows


def texts(
    first: Sequence[TimedAnswer],
    second: Sequence[TimedAnswer],
    first_again: Sequence[TimedAnswer],
    second_again: Sequence[TimedAnswer],
) -> list[tuple[Value, ...]]:
    """Of TEXTS."""

    def row(name: str, one: Sequence[TimedAnswer], other: Sequence[TimedAnswer]) -> tuple[Value, ...]:
        both = list(zip(one, other, strict=False))
        return name, sum(a.text == b.text for a, b in both), len(both)

    return [
        row("a and b", first, second),
        row("a and a again", first, first_again),
        row("b and b again", second, second_again),
    ]


def differences(first: Sequence[TimedAnswer], second: Sequence[TimedAnswer]) -> list[tuple[Value, ...]]:
    """Of DIFFERENCES: where the texts of a request part."""
    rows: list[tuple[Value, ...]] = []
    for number, (a, b) in enumerate(zip(first, second, strict=True), 1):
        if a.text != b.text:
            place = len(os.path.commonprefix([a.text, b.text]))
            near = [repr(answer.text[place : place + NEAR]).replace("|", r"\|") for answer in (a, b)]
            rows.append((str(number), place, *near))
    return rows
