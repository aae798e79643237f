"""`jaxinfer bench latency`: single batches through LLM.generate."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.bench import REPORT_OPTIONS, Counts, publish
from jaxinfer.cli.checklist import Checklist
from jaxinfer.cli.options import EngineCommand, check_start
from jaxinfer.config import Resolved
from jaxinfer.engine.interrupts import ended_by_ctrl_c

if TYPE_CHECKING:
    from jaxinfer.bench.report import Report


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Time --prompt-lengths alone, --batch-sizes at each --context, and --shapes; print the report."""
    check_start(resolved.config)

    def make(checklist: Checklist) -> "Report":
        with ended_by_ctrl_c():
            from jaxinfer.bench import latency

        shapes = [latency.BatchShape(*pair) for pair in pairs_of(params)]
        wanted = shapes, params["first_steps"], params["cached_prefix"]
        return latency.run(resolved, *wanted, checklist, checklist.say)

    return publish(make, params)


def pairs_of(params: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(batch, prompt tokens) of each shape, once."""
    lengths, batches, contexts = (
        [count for (count,) in params[name]] for name in ("prompt_lengths", "batch_sizes", "context")
    )
    wanted = [(1, length) for length in lengths if 1 in batches]
    wanted += [(batch, context) for context in contexts for batch in batches if batch > 1]
    return list(dict.fromkeys([*wanted, *(params["shapes"] or ())]))


command = EngineCommand(
    "latency",
    run,
    [
        click.Option(
            ["--prompt-lengths"],
            type=Counts("N", "128,1024"),
            default="128,1024",
            metavar="N,N",
            help="Tokens of prompts timed alone, if --batch-sizes has 1.  [128,1024]",
        ),
        click.Option(
            ["--batch-sizes"], type=Counts("N", "1,4"), default="1,4", metavar="N,N", help="Requests together.  [1,4]"
        ),
        click.Option(
            ["--context"],
            type=Counts("N", "128,1024"),
            default="128",
            metavar="N,N",
            help="Prompts' tokens in batches above 1.  [128]",
        ),
        click.Option(
            ["--shapes"],
            type=Counts("BATCHxPROMPT", "16x4096"),
            metavar="BxP,BxP",
            help="Further batches, as in 16x4096.",
        ),
        click.Option(
            ["--cached-prefix"],
            type=click.IntRange(0),
            default=0,
            metavar="N",
            help="Also time N cached tokens + 32 new ones.",
        ),
        click.Option(
            ["--first-steps"],
            type=click.IntRange(0),
            default=1000,
            metavar="N",
            help="Look at the first N steps after ready for a slow one; 0 skips it.  [1000]",
        ),
        *REPORT_OPTIONS,
    ],
    help="Time single batches of MODEL, by default the bundled demo, through LLM.generate.",
)
