"""The reference, as Markdown, read off the code that it is about: nothing here is written twice.

Each function of MAKERS fills the place of `<!-- made by: NAME -->` in a page of docs/.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

import jaxinfer
from docs.site.http_reference import errors, http, metrics
from docs.site.markdown import mark, plain, table
from jaxinfer.cli import jaxinfer as program
from jaxinfer.cli.flags import FLAGS
from jaxinfer.cli.options import EngineCommand
from jaxinfer.config import SETTINGS

ROOT = Path(__file__).resolve().parents[2]


def settings() -> str:
    """Every field of EngineConfig, below the headings of --help."""
    groups: dict[str, list[list[str]]] = {}
    for name, setting in SETTINGS.items():
        flag = name.replace("_", "-")
        spellings = (f"--{flag}", *([f"--no-{flag}"] if setting.type is bool else []), *FLAGS[name].also)
        default = "" if setting.default in (None, ()) else str(setting.default).lower()
        groups.setdefault(FLAGS[name].group, []).append(
            [
                " ".join(map(mark, spellings)),
                mark(name),
                plain(setting.law),
                mark("auto" if setting.default is None and setting.type is int else default),
                plain(FLAGS[name].help),
            ]
        )
    head = ["flag", "key", "must be", "default", "what it does"]
    return "\n".join(f"## {group}\n{table(head, rows)}" for group, rows in groups.items())


def command_line() -> str:
    """Every verb with its own arguments and options."""
    return "\n".join(_verb(program, ["jaxinfer"], None))


def _verb(command: click.Command, path: list[str], above: click.Context | None) -> Iterator[str]:
    ctx = click.Context(command, parent=above, info_name=path[-1])
    yield f"## {' '.join(path)}"
    yield f"```\n{' '.join([*path, *command.collect_usage_pieces(ctx)])}\n```\n{plain(command.help or '')}\n"
    own = [param for param in command.get_params(ctx) if param.name not in SETTINGS]
    rows = [_param(param, ctx) for param in own if param.name != "help"]
    if rows:
        yield table(["option", "variable", "what it does"], rows)
    if isinstance(command, EngineCommand):
        yield "And every [setting of the engine](settings.md).\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from _verb(below, [*path, name], ctx)


def _param(param: click.Parameter, ctx: click.Context) -> list[str]:
    if isinstance(param, click.Argument):
        return [
            mark(param.make_metavar(ctx)),
            "",
            "named `model` among the settings" if "MODEL" in str(param.metavar) else "",
        ]
    assert isinstance(param, click.Option)
    record = param.get_help_record(ctx)
    assert record is not None, f"{param.name} is hidden"
    variables = [param.envvar] if isinstance(param.envvar, str) else list(param.envvar or ())
    return [mark(record[0]), " ".join(map(mark, variables)), plain(record[1])]


def python() -> str:
    """What `from jaxinfer import ...` gives."""
    parts = []
    for name in (name for name in jaxinfer.__all__ if name not in ("__version__", "EngineConfig")):
        found = getattr(jaxinfer, name)
        parts.append(f"## {name}\n{_text(inspect.getdoc(found) or '')}\n")
        if issubclass(found, msgspec.Struct):
            fields = [
                [mark(field.name), mark(_type(field.type)), mark(field.default)]
                for field in msgspec.structs.fields(found)
            ]
            parts.append(table(["field", "type", "default"], fields))
        else:
            parts += list(_methods(found))
    return "\n".join(parts)


def _methods(found: type[Any]) -> Iterator[str]:
    for name, member in vars(found).items():
        documented = inspect.getdoc(inspect.unwrap(member)) if inspect.isroutine(member) else None
        if documented and (name == "__init__" or not name.startswith("_")):
            title = found.__name__ if name == "__init__" else f"{found.__name__}.{name}"
            heading = "" if name == "__init__" else f"### {title}\n"
            yield f"{heading}```python\n{_signature(member, title)}\n```\n{_text(documented)}\n"


def _signature(function: Any, title: str) -> str:
    function = inspect.unwrap(function)
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(function)))
    (node,) = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    node.args.args = node.args.args[1:]
    arguments = ast.unparse(node.args)
    before = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    answer = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    return f"{before}{title}({arguments}){answer}"


def _type(annotation: Any) -> str:
    return (
        annotation.__name__ if isinstance(annotation, type) and not hasattr(annotation, "__args__") else str(annotation)
    )


def _text(documented: str) -> str:
    """A docstring as Markdown. Our docstrings put fields side by side, four spaces apart: each gets its line."""
    paragraphs = re.split(r"\n\n+", documented)
    return "\n\n".join("  \n".join(plain(part) for part in re.split(r" {4}|(?<=\.)\n", text)) for text in paragraphs)


def decisions() -> str:
    """The pages of docs/decisions, by number."""
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    titles = [(page.name, page.read_text().partition("\n")[0].removeprefix("# ")) for page in pages]
    return "\n".join(f"- [{title}]({name})" for name, title in titles)


MAKERS: dict[str, Callable[[], str]] = {
    maker.__name__: maker for maker in (settings, command_line, http, metrics, errors, python, decisions)
}
