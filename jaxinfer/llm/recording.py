"""What the steps of an LLM's calls were made of, for notebooks: rows, pages and who has them, when.

A step is noted when it has been given to the device: pages are then as that step needs them.
"""

import dataclasses
import html
import time
from collections.abc import Iterator

from jaxinfer.config import counted
from jaxinfer.engine.scheduler import Scheduler, Step

BLANK, CACHED, SHARED = "", "cached", "shared"
SHOWN = 40


@dataclasses.dataclass(frozen=True, slots=True)
class StepRow:
    """One sequence's share of a step. name: the request's number and the choice's, "0.0".

    start, count: the positions computed.    is_decode: one token, known to the device alone.
    """

    name: str
    start: int
    count: int
    is_decode: bool


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedStep:
    """at_s: since the recording began.    pages: of each page but the null page, who has it: a name as in StepRow, or
    SHARED by several, CACHED for whoever asks for its tokens, BLANK.    running, waiting: sequences.
    host_pages: of what sessions keep, in host memory since others took their places.
    preemptions: of sequences, since the recording began.
    """

    at_s: float
    rows: list[StepRow]
    pages: list[str]
    host_pages: int
    running: int
    waiting: int
    preemptions: int

    @property
    def decode_rows(self) -> int:
        return sum(row.is_decode for row in self.rows)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of rows that are no decode rows."""
        return sum(row.count for row in self.rows if not row.is_decode)


class Recording:
    """The steps so far, oldest first. It keeps a list of all pages for each: meant for small pools and short calls."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.steps: list[RecordedStep] = []
        self._scheduler = scheduler
        self._began_s = time.monotonic()
        self._preemptions = scheduler.counters.preemptions
        self._numbers: dict[str, int] = {}

    def note(self, step: Step) -> None:
        """A step that the device has just been given."""
        scheduler = self._scheduler
        rows = [
            StepRow(self._name(sequence.request.id, sequence.index), row.start, row.count, row.tokens is None)
            for row, sequence in zip(step.plan.rows, step.sequences, strict=True)
        ]
        self.steps.append(
            RecordedStep(
                time.monotonic() - self._began_s,
                rows,
                self._pages(),
                len(scheduler.cache.pool.offload),
                len(scheduler.running),
                scheduler.num_unfinished - len(scheduler.running),
                scheduler.counters.preemptions - self._preemptions,
            )
        )

    def _pages(self) -> list[str]:
        cache = self._scheduler.cache
        pages = [CACHED if cache.pool.key_of(page) else BLANK for page in range(cache.pool.num_total + 1)]
        owned: set[int] = set()
        for sequence in (*(running.cache for running in self._scheduler.running), *cache.deferred):
            for page in sequence.page_ids():
                pages[page] = SHARED if page in owned else self._name(*sequence.owner)
                owned.add(page)
        return pages[1:]

    def _name(self, request_id: str, index: int) -> str:
        return f"{self._numbers.setdefault(request_id, len(self._numbers))}.{index}"

    def __iter__(self) -> Iterator[RecordedStep]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        return f"Recording of {counted(len(self), 'step')}"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("step", "ms", "rows", "tokens", "running", "waiting", "pages"))
        lines = [_line(number, step) for number, step in enumerate(self.steps[:SHOWN])]
        more = f"<p>and {len(self) - SHOWN} more</p>" if len(self) > SHOWN else ""
        return f"<table><tr>{head}</tr>{''.join(lines)}</table>{more}"


def _line(number: int, step: RecordedStep) -> str:
    rows = ", ".join(f"{row.name}+{row.count}" + ("" if row.is_decode else f" from {row.start}") for row in step.rows)
    owned = sum(page not in (BLANK, CACHED) for page in step.pages)
    tokens = sum(row.count for row in step.rows)
    cells = number, f"{step.at_s * 1e3:.1f}", rows, tokens, step.running, step.waiting, f"{owned}/{len(step.pages)}"
    return "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>"
