"""A command made of verbs, each in a module of its own. Nothing here imports jax, or anything else that takes time."""

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import click


class Verbs(click.Group):
    """verbs: names and what --help says of them.    modules: what stands before a verb in its module's name.

    A verb's module is imported only to run it or to show its help.
    """

    def __init__(
        self,
        name: str | None,
        *,
        verbs: Mapping[str, str],
        modules: str,
        help: str | None,  # noqa: A002 - click's own name
        callback: Callable[..., Any] | None = None,
        params: list[click.Parameter] | None = None,
        invoke_without_command: bool = False,
    ) -> None:
        super().__init__(
            name,
            help=help,
            callback=callback,
            params=params,
            invoke_without_command=invoke_without_command,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        self._verbs = verbs
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._verbs:
            raise click.UsageError(unknown(cmd_name, self._verbs, "command"), ctx)
        command: click.Command = importlib.import_module(f"{self._modules}{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._verbs.items()))


def unknown(name: str, known: Collection[str], what: str) -> str:
    from jaxinfer.config import unknown_name

    return unknown_name(name, known, what, cutoff=0.6)  # verbs are short: bench is half of nosuch
