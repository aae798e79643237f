"""A command made of verbs, each in a module of its own. Nothing here imports jax, or anything else that takes time."""

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import click

_BEHIND = "jaxinfer.behind"  # in a context's meta: the words behind the verb's
ALIKE = 0.75  # verbs are short: convert is 0.71 of connect, and half of nosuch is bench
ENDING = ("rm", "stop")  # a typo that could mean another verb is not told one that removes or ends something


class WholeFault(click.UsageError):
    """A wrong command line whose message says all there is to say."""


@contextlib.contextmanager
def verb_of_faults(ctx: click.Context) -> Iterator[None]:
    """Say of a wrong command line which verb it was: click leaves that out for an option without its value."""
    try:
        yield
    except click.UsageError as error:
        error.ctx = error.ctx or ctx
        raise


class Verbs(click.Group):
    """verbs: names and what --help says of them.    modules: what stands before a verb in its module's name.

    otherwise: what to say of a word, and those behind it, that is meant as something else than a verb, None for every
    other word.
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
        otherwise: Callable[[str, Sequence[str]], str | None] | None = None,
    ) -> None:
        super().__init__(
            name,
            help=help,
            callback=callback,
            params=[*(params or []), _help_all_option()],
            invoke_without_command=invoke_without_command,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        self._verbs = verbs
        self._modules = modules
        self._otherwise = otherwise

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not self.invoke_without_command:
            click.echo(ctx.get_help())
            ctx.exit()
        with verb_of_faults(ctx):
            return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._verbs)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        ctx.meta[_BEHIND] = args[1:]
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._verbs:
            if self._otherwise is not None and (said := self._otherwise(cmd_name, ctx.meta.get(_BEHIND, ()))):
                raise WholeFault(said, ctx)
            safe = [verb for verb in self._verbs if verb not in ENDING]
            near = nearest_verb(cmd_name, safe) or nearest_verb(cmd_name, list(self._verbs))
            cure = f"did you mean {near!r}?" if near else f"known are {', '.join(sorted(self._verbs))}"
            raise click.UsageError(f"unknown command {cmd_name!r}, {cure}", ctx)
        command: click.Command = importlib.import_module(f"{self._modules}{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._verbs.items()))


def _help_all_option() -> click.Option:
    """--help-all, which verbs have: of a command made of verbs --help shows all."""

    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            click.echo(ctx.get_help())
            ctx.exit()

    return click.Option(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show, help="The same as --help."
    )


def nearest_verb(word: str, verbs: Collection[str]) -> str | None:
    """The verb that is a slip away, begins with the word, or is spelt much like it; None where none is near."""
    from jaxinfer.config import nearest_name

    folded = word.casefold()
    begin = [verb for verb in verbs if len(folded) > 2 and verb.startswith(folded)]
    slips = [verb for verb in verbs if verb == folded or (len(folded) > 2 and is_one_slip(folded, verb))]
    return nearest_name(word, slips, 0.0) or nearest_name(word, verbs, ALIKE) or (begin[0] if len(begin) == 1 else None)


def is_one_slip(name: str, other: str) -> bool:
    """Whether two names differ by one letter: one more, one less, another one, or two that changed places."""
    start = next((at for at, pair in enumerate(zip(name, other, strict=False)) if pair[0] != pair[1]), None)
    if start is None:
        return abs(len(name) - len(other)) == 1
    one, two = name[start:], other[start:]
    return one[1:] in (two, two[1:]) or one == two[1:] or (one[:2] == two[1::-1] and one[2:] == two[2:])
