"""`jaxinfer connect`: settings for clients of a running server, made from what it says of itself."""

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.bench_serve import base_of, key_of
from jaxinfer.cli.checklist import QUIET_OPTION, Checklist, screen_for
from jaxinfer.cli.options import GroupedCommand
from jaxinfer.cli.servers import say
from jaxinfer.cli.snippets import CLIENTS, Server
from jaxinfer.cli.verbs import WholeFault
from jaxinfer.errors import ConfigError, EngineError
from jaxinfer.llm.events import Event
from jaxinfer.protocol.served_names import spellings

if TYPE_CHECKING:
    from jaxinfer.bench.http_client import Reply, Target

REFUSED = 401


def run(**params: Any) -> int:
    """Ask the server, print each client's settings; one client's alone, without a heading, where one is named."""
    server = asked(base_of("--url", params["url"]), params["model"], params["api_key_env"])
    if name := params["client"]:
        if not server.offers(CLIENTS[name].route):
            fact = f"{name} needs {CLIENTS[name].route}, {server.base} does not offer it"
            raise EngineError(f"{fact}; `jaxinfer connect` shows the clients that it serves")
        click.echo(CLIENTS[name].settings(server))
        return 0
    click.echo(f"{server.model} at {server.v1}; {about_key(server)}")
    for name, client in CLIENTS.items():
        click.echo(f"\n## {client.title} (`jaxinfer connect {name}`)\n")
        if server.offers(client.route):
            click.echo(f"```{client.kind}\n{client.settings(server)}\n```")
        else:
            click.echo(f"needs {client.route}, which this server does not offer")
    return 0


def about_key(server: Server) -> str:
    return f"it asks for a key, read from ${server.key_env}" if server.key_env else "it asks for no key"


def asked(base: str, model: str | None, key_env: str | None) -> Server:
    """What a server says. Raises EngineError when it does not answer, ConfigError when it wants a key or has no such
    model.
    """
    from jaxinfer.bench.http_client import Target
    from jaxinfer.bench.serve import MODELS, models_of

    target = Target(base, "")
    reply = looked_up(target, MODELS)
    needs_key = reply.status == REFUSED
    if needs_key:
        if key_env is None:
            raise ConfigError(f"{base} asks for a key; name the variable that holds it, as in --api-key-env MY_KEY")
        target = Target(base, key_of(key_env))
        reply = looked_up(target, MODELS)
    cards = models_of(target, reply)
    names = [card.id for card in cards]
    if model is not None:
        model = next((each for each in spellings(model) if each in names), model)
    if model is not None and model not in names:
        law = f"the model must be one that {base} serves, which are {', '.join(names)}"
        raise ConfigError(f"{law}, got {model!r}; name one of them, or none for the first")
    card = cards[names.index(model) if model else 0]
    variable = key_env if needs_key and key_env else ""
    return Server(base, card.id, variable, routes(target), card.max_model_len, card.owned_by == "jaxinfer")


def looked_up(target: "Target", path: str) -> "Reply":
    """look_up, with what it waits for on standard error unless -q: a line, or a spinner while the server starts."""
    from jaxinfer.bench.serve import look_up

    context = click.get_current_context(silent=True)
    is_quiet = context is not None and context.params.get("quiet", False)
    with contextlib.ExitStack() as stack:
        shown: list[Checklist] = []

        def show(event: Event) -> None:
            if shown:
                shown[0](event)
            else:
                shown.append(stack.enter_context(Checklist(screen_for(sys.stderr, {"quiet": is_quiet}), first=event)))

        return look_up(target, path, say, show)


def routes(target: "Target") -> frozenset[str] | None:
    """The paths of /openapi.json; None where there is none."""
    import msgspec

    reply = looked_up(target, "/openapi.json")
    if reply.error:
        return None
    try:
        return frozenset(msgspec.json.decode(reply.body)["paths"])
    except (ValueError, LookupError, TypeError) as error:
        fact = f"{target.base}/openapi.json must list paths, reading it failed with: {error}"
        raise EngineError(f"{fact}; name the server of another --url") from error


OTHERS = ("zed", "cursor", "continue", "cline", "roo", "kilo", "vscode", "jan", "lmstudio", "librechat", "aider")


class ClientName(click.Choice[str]):
    """A client that connect has settings for; others of which it is known that they ask for an address are told it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if isinstance(value, str) and value.casefold() in OTHERS:
            law = f"connect has no settings of {value}, which speaks OpenAI's or Ollama's API"
            enter = "enter http://127.0.0.1:8000/v1 for OpenAI's, http://127.0.0.1:8000 for Ollama's"
            cure = f"{enter}, and a served model (`jaxinfer connect` shows them of a running server)"
            raise WholeFault(f"{law}; {cure}", ctx)
        return super().convert(value, param, ctx)


command = GroupedCommand(
    "connect",
    run,
    [
        click.Argument(["client"], required=False, type=ClientName(list(CLIENTS)), metavar="[CLIENT]"),
        click.Option(
            ["--url"], default="http://127.0.0.1:8000", help="Address of the server.  [http://127.0.0.1:8000]"
        ),
        click.Option(["--model"], metavar="NAME", help="Name of the model.  [the server's first]"),
        click.Option(["--api-key-env"], metavar="NAME", help="Variable that holds the server's key."),
        QUIET_OPTION,
    ],
    help=f"Print settings for clients of a running server, ready to paste. CLIENT is one of {', '.join(CLIENTS)}; "
    "without it all are printed. "
    "Keys are never printed.",
)
