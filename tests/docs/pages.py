"""What the documentation shows: its pages, their blocks of code, and the commands in them and between them."""

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from jaxinfer.cli import VERBS
from jaxinfer.cli import jaxinfer as program

ROOT = Path(__file__).resolve().parents[2]
# Records of what was, and the contract, which is ahead of the program. What they link to is checked all the same.
RECORDS = ("docs/decisions/", "docs/design.md", "benchmarks/", "CHANGELOG.md")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")
COMMENT = re.compile(r"\s+#\s.*$")
OPERATOR = {"|", "||", "&&", ";", "&", ">", "<", ">>"}
PROGRAMS = (
    "jaxinfer",
    "make",
    "curl",
    "pip",
    "python",
    "python3",
    "docker",
    "kubectl",
    "pytest",
    "eval",
    "jupyter",
    "sh",
)
TYPED = re.compile(
    rf"(?:[A-Z_]+=\S+ )*(?:(?:\.venv/bin/)?(?:{'|'.join(PROGRAMS)})|(?:benchmarks|scripts|\.ci)/[\w./-]+) "
)
# Its tables' first column has verbs and flags of other programs
FOREIGN = "docs/coming-from.md"
FIRST_CELL = re.compile(r"^\|[^|\n]*\|", re.MULTILINE)
VERB = re.compile(r"[a-z][a-z-]*")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")


@dataclasses.dataclass(frozen=True)
class Block:
    """language: as the fence names it.    shown: what comes out, as a block without a language right behind it says.

    Of a session, whose commands begin with `$ `, that is the line behind each: a table's head, say.
    """

    page: str
    language: str
    text: str
    shown: str = ""

    @property
    def commands(self) -> list[str]:
        """Of a shell's block, without comments; a line that ends in \\ goes on. `$ ` begins those of a session."""
        text = self.text.replace("\\\n", " ")
        if self.language != "sh":
            return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
        return [
            line for raw in text.splitlines() if (line := COMMENT.sub("", raw).strip()) and not line.startswith("#")
        ]


def notebooks() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"))


def pages() -> list[str]:
    """Every page of the documentation, as paths in the repository."""
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "jaxinfer").rglob("README.md")]
    names = (str(path.relative_to(ROOT)) for path in found)
    return sorted(name for name in names if not name.startswith(RECORDS))


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    found: list[Block] = []
    end = -1
    for match in FENCE.finditer(text):
        if not match[1] and found and not text[end : match.start()].strip():
            found[-1] = dataclasses.replace(found[-1], shown=match[2])
        else:
            session = re.findall(r"^\$ .*\n(.*)", match[2], re.MULTILINE)
            found.append(Block(page, match[1], match[2], "\n".join(session)))
        end = match.end()
    return found


def spans(page: str) -> list[str]:
    """The pieces of code between words, but for other programs'."""
    text = FENCE.sub("", (ROOT / page).read_text())
    text = FIRST_CELL.sub("|", text) if page == FOREIGN else text
    return [" ".join(span.split()) for span in INLINE.findall(text)]


def sentences(page: str) -> list[str]:
    """The commands between words, those with something behind the program's name; a notebook's too."""
    if not page.endswith(".ipynb"):
        return [span for span in spans(page) if TYPED.match(span)]
    cells = json.loads((ROOT / page).read_text())["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return [span for span in map(" ".join, map(str.split, INLINE.findall(text))) if TYPED.match(span)]


def does(typed: str, command: str) -> bool:
    """Whether what is typed is, or begins with, a page's command; MODEL, FOLDER, URL stand for any one word."""
    pattern = PLACEHOLDER.sub(r"\\S+", re.escape(command))
    return bool(re.match(rf"{pattern}(?:\s|$)", typed.removeprefix(".venv/bin/")))


def words(command: str) -> list[str]:
    """As a shell reads them. Raises ValueError for a quote without end."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def invocations(command: str) -> Iterator[list[str]]:
    """What jaxinfer is given, in each place of a command where it is run, in a container too."""
    found = words(command)
    for at, word in enumerate(found):
        if word.rpartition("/")[2] == "jaxinfer" and found[at + 1 : at + 2]:
            rest = found[at + 1 :]
            is_program = at == 0 or found[at - 1] in OPERATOR or "=" in found[at - 1]
            if rest[0] in {*VERBS, "--help"} or is_program and VERB.fullmatch(rest[0]):
                yield rest[: next((end for end, word in enumerate(rest) if word in OPERATOR), len(rest))]


def parse(arguments: list[str]) -> None:
    """Raise click.UsageError unless every verb and option exists, and takes a value where one is given."""
    command: click.Command = program
    ctx = click.Context(command, info_name="jaxinfer")
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        below = command.get_command(ctx, arguments[0])
        assert below is not None
        command, ctx, arguments = below, click.Context(below, parent=ctx, info_name=arguments[0]), arguments[1:]
    command.make_parser(ctx).parse_args(list(arguments))


def flags() -> set[str]:
    """Every option of every verb."""

    def below(command: click.Command, ctx: click.Context) -> Iterator[str]:
        for param in command.get_params(ctx):
            yield from (*param.opts, *param.secondary_opts) if isinstance(param, click.Option) else ()
        if isinstance(command, click.Group):
            for name in command.list_commands(ctx):
                found = command.get_command(ctx, name)
                assert found is not None
                yield from below(found, click.Context(found, parent=ctx, info_name=name))

    return set(below(program, click.Context(program)))
