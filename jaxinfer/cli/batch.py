"""`jaxinfer batch`: every row of a file answered exactly once, however often the program ends and starts again."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli import transport
from jaxinfer.cli.checklist import VOLUME_OPTIONS, screen_for, telling
from jaxinfer.cli.options import EngineCommand, GroupedOption
from jaxinfer.cli.session import checked_flags, started
from jaxinfer.cli.transport import transport_for
from jaxinfer.cli.words import refuse_swapped
from jaxinfer.config import Resolved
from jaxinfer.engine.interrupts import ended_by_ctrl_c, ended_by_sigterm, run_on, sigterm_as_ctrl_c
from jaxinfer.errors import ConfigError
from jaxinfer.offline.names import FORMATS

if TYPE_CHECKING:
    from jaxinfer.offline.batch import BatchJob, OpenBatch
    from jaxinfer.offline.journal import Journal

# Between two signs of progress: on a terminal; elsewhere, where a line is shown if none was for a while; and there
# after A_WHILE_S, as a file keeps all of a long job
LIVE_S, PLAIN_S, LATER_S, A_WHILE_S = 0.5, 0.25, 10.0, 60.0
DEFAULTS = ("max_tokens", "temperature", "top_p", "top_k", "min_p")


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Open the files, start the model, answer, publish. Returns 0, or HAD_ERRORS when rows could not be answered."""
    more, same = (" more", "goes on") if params["resume"] else ("", "begins anew")
    with contextlib.ExitStack() as stack:
        with ended_by_sigterm(f"stopped  nothing{more} was answered; the same command {same}"):
            with ended_by_ctrl_c(), telling("the rows"):
                from jaxinfer.offline.batch import open_batch
                from jaxinfer.protocol.sampling import SamplingParams

            checked_flags(SamplingParams(**{name: params[name] for name in DEFAULTS}))
            batch = stack.enter_context(open_batch(batch_of(resolved, params)))
        if batch.is_finished:
            batch.look_back()
            tell(batch.tally.lines_looking_back(params["output"]), params)
            return batch.tally.exit_code
        try:
            with sigterm_as_ctrl_c() as terminated:
                answer(resolved, params, batch)
        except KeyboardInterrupt:
            if batch.journal is not None:
                click.echo(f"stopped  {how_to_go_on(batch.journal, overwrite=params['overwrite'])}", err=True)
            if terminated:
                signal.raise_signal(signal.SIGTERM)
            raise
        batch.publish()
        tell(batch.tally.lines(params["output"]), params)
        return batch.tally.exit_code


def how_to_go_on(journal: "Journal", *, overwrite: bool) -> str:
    """What an interrupted job leaves, and the command that goes on. A job without answers leaves nothing to resume."""
    if not journal.num_done:
        return "nothing was answered; the same command begins anew"
    instead = " instead of --overwrite" if overwrite else ""
    answers = f"{journal.num_done:,} {'answer is' if journal.num_done == 1 else 'answers are'}"
    return f"{answers} in {journal.path}; the same command with --resume{instead} goes on"


def tell(lines: Iterable[str], params: Mapping[str, Any]) -> None:
    """Show how it went, unless -q; the exit code says it too."""
    for line in () if params["quiet"] else lines:
        click.echo(line, err=True)


def batch_of(resolved: Resolved, params: Mapping[str, Any]) -> "BatchJob":
    """The job that the options ask for."""
    from jaxinfer.offline.batch import BatchJob

    return BatchJob(
        input=params["input"],
        output=params["output"],
        input_format=params["input_format"],
        output_format=params["output_format"],
        ordered=not params["unordered"],
        window=params["window"],
        resume=params["resume"],
        overwrite=params["overwrite"],
        seed=resolved.config.seed,
        defaults={name: params[name] for name in DEFAULTS if params[name] is not None},
    )


def answer(resolved: Resolved, params: Mapping[str, Any], batch: "OpenBatch") -> None:
    """Run the job over a model of its own, which is gone afterwards."""
    from jaxinfer.offline.batch import with_progress

    async def work() -> None:
        await with_progress(batch.run(llm), lambda: screen.show(f"batch    {batch.progress()}"), pause_s)

    transport, screen = transport_for(resolved.config, params), screen_for(sys.stderr, params)
    with transport as new_transport, started(resolved, screen, new_transport) as (runner, llm):
        try:
            run_on(runner, work)
        finally:
            screen.close()


def pause_s(elapsed_s: float) -> float:
    """Until the next line of progress, of a job that runs for so long."""
    if sys.stderr.isatty():
        return LIVE_S
    return PLAIN_S if elapsed_s < A_WHILE_S else LATER_S


def _format_option(name: str, what: str) -> click.Option:
    return click.Option(
        [f"--{name}"], type=click.Choice(FORMATS), help=f"Format of {what}.  [by the ending of its name]"
    )


def is_file_of_rows(word: str) -> bool:
    """Whether a word is meant as a file: one that is there, a pipe, or a name with the ending of a format."""
    return word == "-" or os.path.isfile(word) or os.path.splitext(word)[1].removeprefix(".") in FORMATS


class BatchCommand(EngineCommand):
    """`batch [MODEL] [FILE]`: one word alone is the file of rows, unless -i has named one."""

    def invoke(self, ctx: click.Context) -> int:
        word, second, given = (ctx.params[name] for name in ("model_argument", "file", "input"))
        if word is not None and second is None and given is None and is_file_of_rows(word):
            ctx.params |= {"model_argument": None, "input": word}
        elif second is not None and given is not None:
            raise ConfigError(f"there must be one file of rows, got {second} and --input {given}; drop one")
        else:
            if word is not None and second is not None:
                refuse_swapped(ctx, word, second, "FILE", is_file_of_rows)
            if word is not None and second is not None and is_file_of_rows(word):
                raise ConfigError(f"there must be one file of rows, got {word} and {second}; drop one")
            ctx.params["input"] = second or given
        if ctx.params["input"] is None:
            raise ConfigError(
                "batch needs a file of rows, got none; name one: jaxinfer batch [MODEL] rows.jsonl -o FILE"
            )
        return super().invoke(ctx)


command = BatchCommand(
    "batch",
    run,
    [
        click.Argument(["file"], required=False, metavar="[FILE]"),
        click.Option(
            ["-i", "--input", "input"],
            metavar="FILE",
            help="The same as FILE; - reads JSONL from a pipe.",
        ),
        click.Option(
            ["-o", "--output", "output"],
            required=True,
            metavar="FILE",
            help="File of answers; - writes JSONL to a pipe.",
        ),
        _format_option("input-format", "the input"),
        _format_option("output-format", "the output"),
        click.Option(["--resume"], is_flag=True, help="Go on where an earlier run of the job ended."),
        click.Option(["--overwrite"], is_flag=True, help="Replace the output, and what an earlier run left."),
        click.Option(["--unordered"], is_flag=True, help="Write answers as they come, not in the order of the rows."),
        GroupedOption(["--window"], type=int, metavar="N", help="Rows in memory at most.  [8 times max-num-seqs]"),
        click.Option(["--max-tokens"], type=int, metavar="N", help="max_tokens, where the row does not say."),
        click.Option(["--temperature"], type=float, metavar="X", help="temperature, where the row does not say."),
        click.Option(["--top-p"], type=float, metavar="X", help="top_p, where the row does not say."),
        GroupedOption(["--top-k"], type=int, metavar="N", help="top_k, where the row does not say."),
        GroupedOption(["--min-p"], type=float, metavar="X", help="min_p, where the row does not say."),
        *VOLUME_OPTIONS,
        *transport.OPTIONS,
    ],
    help="Answer every row of FILE, in JSONL, CSV or Parquet, with MODEL, by default the bundled demo.",
)
