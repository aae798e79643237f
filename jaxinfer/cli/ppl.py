"""`jaxinfer ppl`: the perplexity of the texts in files."""

import contextlib
import csv
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.bench.report import columns_of, markdown_of
from jaxinfer.cli.checklist import VOLUME_OPTIONS, Checklist, screen_for
from jaxinfer.cli.options import EngineCommand
from jaxinfer.cli.run import names_a_model
from jaxinfer.cli.session import started
from jaxinfer.cli.values import TargetFile
from jaxinfer.cli.words import refuse_swapped
from jaxinfer.config import Resolved, counted
from jaxinfer.engine.interrupts import run_on
from jaxinfer.errors import ConfigError, file_fault
from jaxinfer.llm.events import Event

if TYPE_CHECKING:
    from jaxinfer.llm.async_llm import AsyncLLM
    from jaxinfer.offline.perplexity import Fit
    from jaxinfer.protocol.logprobs import TokenLogprob

HEAD = ("file", "texts", "tokens scored", "nats/token", "+-", "perplexity", "+-", "bits/byte")
TOKEN_HEAD = ("file", "text", "position", "token_id", "token", "logprob")

type OnText = Callable[[Path, int, Sequence[TokenLogprob]], None]


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Read every text and print a line for each file."""
    from jaxinfer.offline.perplexity import Fit
    from jaxinfer.offline.texts import check_text_file

    paths: list[Path] = [Path(file) for file in params["files"]]
    for path in paths:
        check_text_file(path)
    with started(resolved, screen_for(sys.stderr, params)) as (runner, llm), token_table(params["csv_file"]) as on_text:
        width, stride = window_of(params, llm.info.max_model_len)
        rows = []
        with Checklist(screen_for(sys.stderr, params)) as checklist:
            for number, path in enumerate(paths):
                checklist(Event("measure", path.name, number, len(paths) if len(paths) > 1 else 0))
                rows.append(run_on(runner, partial(fit_of, llm, path, params["column"], width, stride, on_text)))
        click.echo(f"windows of {counted(width, 'token')}, {stride} apart; each text's first token is not scored")
    lines = [line_of(path.name, *row) for path, row in zip(paths, rows, strict=True)]
    if len(rows) > 1:
        lines.append(line_of("all", sum(count for count, _ in rows), sum((fit for _, fit in rows), Fit())))
    click.echo((columns_of if sys.stdout.isatty() else markdown_of)(HEAD, lines))
    return 0


def window_of(params: Mapping[str, Any], max_model_len: int) -> tuple[int, int]:
    """Tokens of a window, and between the beginnings of two. Raises ConfigError."""
    width = params["window"] or max_model_len
    stride = params["stride"] or max(1, width // 2)
    if not 2 <= width <= max_model_len:
        law = f"--window must be 2 to {max_model_len}, the model's context"
        raise ConfigError(f"{law}, got {width}; leave it out for all of the context")
    if not stride < width:
        fact = f"got {stride} of {width}"
        law = "--stride must be less than the window, or tokens would have nothing before them"
        raise ConfigError(f"{law}, {fact}; leave it out for half a window")
    return width, stride


async def fit_of(
    llm: "AsyncLLM", path: Path, column: str, width: int, stride: int, on_text: OnText
) -> tuple[int, "Fit"]:
    """How many texts a file has, and how likely the model finds them."""
    from jaxinfer.offline.perplexity import Fit, Reader
    from jaxinfer.offline.texts import read_texts

    reader, count, fit = Reader(llm, width, stride, 2 * llm.limits.max_num_seqs), 0, Fit()
    for count, text in enumerate(read_texts(path, column), 1):
        entries = await reader.read(await llm.encode(text, must_fit=False))
        fit += Fit.of([entry.logprob for entry in entries if entry.logprob is not None], len(text.encode()))
        on_text(path, count, entries)
    return count, fit


@contextlib.contextmanager
def token_table(target: Path | None) -> Iterator[OnText]:
    """What writes every scored token into `target`, if there is one. Raises ConfigError."""
    from jaxinfer.protocol.logprobs import token_text

    if target is None:
        yield lambda *_: None
        return
    try:
        file = target.open("x", encoding="utf-8", newline="")
    except OSError as error:
        raise ConfigError(f"{file_fault('write', target, error)}; name another for --csv") from error
    with file:
        writer = csv.writer(file)
        writer.writerow(TOKEN_HEAD)

        def write(path: Path, number: int, entries: Sequence["TokenLogprob"]) -> None:
            for position, entry in enumerate(entries, 1):
                said = entry.token_id, token_text(entry.token), f"{entry.logprob:.6f}"
                writer.writerow((path.name, number, position, *said))

        yield write


def line_of(name: str, num_texts: int, fit: "Fit") -> list[str]:
    """One row under HEAD; the error of a perplexity follows from that of the mean."""
    error = fit.perplexity * fit.standard_error
    figures = (fit.mean, fit.standard_error, fit.perplexity, error, fit.bits_per_byte)
    counts = f"{num_texts:,}", f"{fit.num_tokens:,}"
    return [name, *counts, *("-" if math.isnan(value) else f"{value:.4f}" for value in figures)]


class PplCommand(EngineCommand):
    """`ppl [MODEL] FILE...`: the first word is the model unless it is meant as a file, or -m has named one."""

    def invoke(self, ctx: click.Context) -> int:
        word, files = ctx.params["model_argument"], ctx.params["files"]
        if word is not None and (ctx.params["model"] is not None or is_file_of_texts(word)):
            if ctx.params["model"] is None:
                for other in (each for each in files if names_a_model(each)):
                    refuse_swapped(ctx, word, other, "FILE", is_file_of_texts)
            word, files = None, (word, *files)
            ctx.params |= {"model_argument": word, "files": files}
        if not files:
            fact = "none" if word is None else f"none beside the model {word!r}"
            raise ConfigError(f"ppl needs a file of texts, got {fact}; name one: jaxinfer ppl [MODEL] text.txt")
        return super().invoke(ctx)


def is_file_of_texts(word: str) -> bool:
    """Whether a word is meant as a file: one that is there, or a name with the ending of one."""
    from jaxinfer.offline.texts import SUFFIXES

    path = Path(word)
    return path.suffix.lower() in SUFFIXES or path.is_file()


command = PplCommand(
    "ppl",
    run,
    [
        click.Argument(["files"], nargs=-1, metavar="FILE..."),
        click.Option(
            ["--window"], type=click.IntRange(2), metavar="N", help="Tokens read together.  [the model's context]"
        ),
        click.Option(
            ["--stride"], type=click.IntRange(1), metavar="N", help="Tokens between two windows.  [half a window]"
        ),
        click.Option(
            ["--column"], default="text", metavar="NAME", help="Column with the texts in .jsonl and .csv.  [text]"
        ),
        click.Option(
            ["csv_file", "--csv"],
            type=TargetFile(is_new=True),
            metavar="FILE",
            help="Write each token's log-probability to FILE.",
        ),
        *VOLUME_OPTIONS,
    ],
    help="Compute the perplexity of the texts in .txt, .jsonl and .csv files, with MODEL or the bundled demo: "
    "mean negative log-likelihood and perplexity with standard errors, bits per byte.",
)
