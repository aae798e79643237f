"""`jaxinfer bench serve`: load any OpenAI-compatible server."""

import os
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from jaxinfer.cli.bench import QUIET_REPORT_OPTIONS, publish
from jaxinfer.cli.checklist import Checklist
from jaxinfer.cli.options import FiniteRange, GroupedCommand, count_option
from jaxinfer.config import counted
from jaxinfer.errors import ConfigError

if TYPE_CHECKING:
    from jaxinfer.bench.load import Load
    from jaxinfer.bench.report import Report


def run(**params: Any) -> int:
    """Load the server and print the report."""
    load = load_of(params)

    def make(checklist: Checklist) -> "Report":
        checklist.say(f"bench    {counted(load.requests, 'request')} to {load.url}")
        from jaxinfer.bench import serve

        goals = serve.Goals(params["ttft_limit_ms"], params["itl_limit_ms"])
        return serve.run(load, params["processes"], params["warm_up"], goals, params["check_client"], checklist)

    return publish(make, params)


def load_of(params: Mapping[str, Any]) -> "Load":
    """What the options ask of the server. Raises ConfigError."""
    from jaxinfer.bench.load import Load

    base = base_of("--url", params["url"])
    if "" in params["stop"]:
        raise ConfigError("--stop must be texts that are not empty, got ''; leave that one out")
    if params["shared_prefix_tokens"] >= params["input_tokens"]:
        fact = f"got {params['shared_prefix_tokens']} of {params['input_tokens']}"
        raise ConfigError(f"--shared-prefix-tokens must be less than --input-tokens, {fact}; raise --input-tokens")
    return Load(
        url=base,
        model=params["model"] or "",
        key=key_of(params["api_key_env"]),
        requests=params["requests"],
        concurrency=params["concurrency"] or 0,
        rate=params["rate"] or 0.0,
        input_tokens=params["input_tokens"],
        output_tokens=params["output_tokens"],
        shared_tokens=params["shared_prefix_tokens"],
        prefixes=params["shared_prefixes"],
        vocab_size=params["vocab_size"] or 0,
        seed=secrets.randbits(31) if params["seed"] is None else params["seed"],
        interrupt_tokens=params["interrupt_tokens"],
        interrupt_after_s=params["interrupt_after_s"],
        fields=({"stop": params["stop"]},) if params["stop"] else (),
    )


def base_of(flag: str, url: str) -> str:
    """A server's URL, up to and without /v1. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port, or a bracket
        is_one = False
    if not is_one:
        law = f"{flag} must begin with http:// or https://, then name a host and perhaps a port"
        raise ConfigError(f"{law}, got {url!r}; write it as in http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def key_of(variable: str | None) -> str:
    """The key that a variable of the environment holds; never in an argument, which other users of a machine see."""
    if variable is None:
        return ""
    if not os.environ.get(variable):
        raise ConfigError(f"--api-key-env must name a variable that holds a key, {variable} holds none; set it")
    return os.environ[variable]


def _number(name: str, help: str, default: float | None = None) -> click.Option:  # noqa: A002 click's word
    kind = FiniteRange(0, min_open=default is None)
    return click.Option([name], type=kind, default=default, metavar="X", help=help)


command = GroupedCommand(
    "serve",
    run,
    [
        click.Option(
            ["--url"], default="http://127.0.0.1:8000", help="Address of the server.  [http://127.0.0.1:8000]"
        ),
        click.Option(["--model"], metavar="NAME", help="Name of the model.  [the server's first]"),
        click.Option(["--api-key-env"], metavar="NAME", help="Variable that holds the server's key."),
        count_option("--concurrency", None, "Requests at once; all of them if neither this nor --rate is given."),
        _number("--rate", "Requests per second on average, as a Poisson process."),
        count_option("--requests", 64, "Number of requests."),
        count_option("--input-tokens", 512, "Tokens of each prompt, random ids."),
        count_option("--output-tokens", 128, "Tokens of each answer."),
        count_option("--shared-prefix-tokens", 0, "First tokens that prompts share.", 0),
        count_option("--shared-prefixes", 1, "Different shared beginnings."),
        count_option("--vocab-size", None, "Prompts have ids below N.  [as the server says]"),
        count_option("--interrupt-tokens", 0, "Send one more prompt of this length and look for the gap it makes.", 0),
        _number("--interrupt-after-s", "Seconds until this prompt is sent.  [3]", 3.0),
        click.Option(
            ["--stop"], multiple=True, metavar="TEXT", help="A stop string of every request; may be repeated."
        ),
        _number("--ttft-limit-ms", "A request is good if its first token comes in X ms."),
        _number("--itl-limit-ms", "A request is good if each further token takes X ms."),
        count_option("--processes", 4, "Client processes."),
        count_option("--warm-up", 2, "Requests before the clock starts, one after the other.", 0),
        click.Option(["--check-client"], is_flag=True, help="Show what the same clients read from mock servers."),
        click.Option(["--seed"], type=click.IntRange(0), metavar="N", help="Seed of prompts and arrivals.  [new]"),
        *QUIET_REPORT_OPTIONS,
    ],
    help="Load any OpenAI-compatible server from several processes.",
)
