"""`jaxinfer bench compare`: two settings or two servers, asked the same in turns."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.bench import REPORT_OPTIONS, publish
from jaxinfer.cli.bench_serve import base_of, key_of
from jaxinfer.cli.options import EngineCommand, count_option
from jaxinfer.cli.servers import say
from jaxinfer.config import Resolved
from jaxinfer.engine.interrupts import ended_by_ctrl_c
from jaxinfer.errors import ConfigError
from jaxinfer.files import read_text
from jaxinfer.llm.events import Event

if TYPE_CHECKING:
    from jaxinfer.bench.compare import Prompt


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Compare --a with --b and print the report."""
    with ended_by_ctrl_c():
        from jaxinfer.bench import compare

    whats = params["a"], params["b"]
    flags = [source for source in resolved.sources.values() if source.startswith("--")]
    if all(map(compare.is_url, whats)) and flags:
        law = "settings must be of a server that is started here"
        raise ConfigError(f"{law}, got two that run already and {', '.join(flags)}; drop them")
    for flag, what in zip(("--a", "--b"), whats, strict=True):  # refused before anything starts
        if compare.is_url(what):
            base_of(flag, what)
        else:
            compare.changed(resolved.config, what)
    wanted = compare.Wanted(prompts_of(resolved, params), params["output_tokens"], params["at_once"])
    key = key_of(params["api_key_env"])
    first = Event("measure", "two sides in turns")
    return publish(lambda checklist: compare.run(resolved, whats, key, wanted, checklist.say), params, first)


def prompts_of(resolved: Resolved, params: Mapping[str, Any]) -> "list[Prompt]":
    """The lines of --prompts, or random ids. Raises ConfigError."""
    from jaxinfer.bench.prompts import Prompts

    if params["prompts"] is not None:
        texts = [line for line in read_text(params["prompts"], "--prompts").splitlines() if line.strip()]
        if not texts:
            raise ConfigError(f"--prompts must name a file of lines, {params['prompts']} has none; write one a prompt")
        return [*texts]
    vocab_size = params["vocab_size"]
    if vocab_size is None:
        vocab_size = vocab_of(resolved, params)
    prompts = Prompts(vocab_size, resolved.config.seed)
    return [*prompts.many(params["requests"], params["input_tokens"])]


def vocab_of(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Ids that both sides know: the servers' that run already, and the model's that is started here."""
    from jaxinfer.bench.compare import is_url
    from jaxinfer.bench.http_client import Target
    from jaxinfer.bench.serve import common_vocab

    key = key_of(params["api_key_env"])
    sides = {"--a": params["a"], "--b": params["b"]}
    running = [Target(base_of(flag, what), key) for flag, what in sides.items() if is_url(what)]
    sizes = [common_vocab(running, say)] if running else []
    if len(running) < len(sides):
        from jaxinfer.bench.work import work_of

        sizes.append(work_of(resolved.config).vocab_size)
    return min(sizes)


SIDE = "A URL of a running server, or settings of one to start here: name=value,name=value; '' is the given ones."

command = EngineCommand(
    "compare",
    run,
    [
        click.Option(["--a"], required=True, metavar="URL|SETTINGS", help=SIDE),
        click.Option(["--b"], required=True, metavar="URL|SETTINGS", help="The other side."),
        count_option("--requests", 32, "Prompts, each asked of both sides."),
        count_option("--input-tokens", 128, "Tokens of each prompt, random ids."),
        count_option("--output-tokens", 64, "Tokens of each answer."),
        count_option("--at-once", 1, "Prompts of a side's turn."),
        click.Option(
            ["--prompts"],
            metavar="FILE",
            help="File with a prompt in each line. Without --prompts, prompts are random ids.",
        ),
        count_option("--vocab-size", None, "Prompts have ids below N.  [of the model]"),
        click.Option(["--api-key-env"], metavar="NAME", help="Variable that holds the servers' key."),
        *REPORT_OPTIONS,
    ],
    help="Ask two servers, or MODEL (by default the bundled demo) with two settings, the same in turns: times in "
    "pairs, and whether the texts are equal.",
)
