"""Values of options that are judged as the command line is read, before anything is begun."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from jaxinfer.errors import ConfigError, file_fault
from jaxinfer.files import check_target

# of texts that may be empty, or that say by themselves what is wrong with an empty one
_MAY_BE_EMPTY = frozenset({None, "TEXT", "N", "URL|SETTINGS", "NAME=N,..."})


class TargetFile(click.ParamType[Path]):
    """A file to be written later, which can be written now.

    is_new: what is there already is refused.
    """

    name = "file"

    def __init__(self, *, is_new: bool = False) -> None:
        self._is_new = is_new

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        assert param is not None, "an option has it"
        if value == "":
            raise no_value(param)
        if not _is_completion(ctx):
            check_target(value, param.opts[0], is_new=self._is_new)
        return Path(value)


class TargetFolder(click.ParamType[str]):
    """A folder to write files into later, which is there from now on and takes them."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        assert param is not None, "an option has it"
        if value == "":
            raise no_value(param)
        folder = Path(value)
        if _is_completion(ctx):
            return str(value)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fault = file_fault("make", f"{value} ({param.opts[0]})", error)
            raise ConfigError(f"{fault}; name another folder") from error
        check_target(folder / ".jaxinfer", param.opts[0])
        return str(value)


def _is_completion(ctx: click.Context | None) -> bool:
    """Whether a shell asks what may come next, which must touch no file."""
    return ctx is not None and ctx.resilient_parsing


def refuse_empty(params: Iterable[click.Parameter], ctx: click.Context) -> None:
    """Raise ConfigError for a path or a name that is an empty text, as of a variable that a script has not set."""
    for param in () if _is_completion(ctx) else params:
        value = ctx.params.get(str(param.name))
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(param, click.Option) and param.metavar not in _MAY_BE_EMPTY and "" in values:
            raise no_value(param)


def no_value(param: click.Parameter) -> ConfigError:
    cure = "name one" if param.required else "name one, or leave it out"
    what = _NOUNS.get(str(param.metavar), "a name")
    return ConfigError(f"{param.opts[-1]} must be {what}, got ''; {cure}")


_NOUNS = {
    "FILE": "a file",
    "FILE.toml|NAME": "a file or the name of a preset",
    "DIR": "a folder",
    "FOLDER": "a folder",
    "URL": "a URL",
    "KEY": "a key",
    "ADDRESS": "an address",
    "ORIGINS": "an origin or *",
}
