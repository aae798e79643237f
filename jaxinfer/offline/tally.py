"""What a job has done so far, and what it says at its end."""

import dataclasses
import html
import time
from collections import Counter

from jaxinfer.config import counted
from jaxinfer.errors import ApiError
from jaxinfer.protocol.forms import Usage

MAX_NAMES = 16  # of columns nobody reads
HAD_ERRORS = 7  # the exit code of a job that is done and has rows that could not be answered


@dataclasses.dataclass(slots=True)
class Tally:
    """num_before, num_errors_before: of the rows that were answered before this run began.

    num_read: of this run, those still unanswered included.
    share_before: of the input, answered before this run's first row.
    errors: rows by status and code.    unknown: columns and fields that nobody read, by name, the first of them.
    """

    num_before: int = 0
    num_errors_before: int = 0
    num_rows: int = 0
    num_read: int = 0
    usage: Usage = dataclasses.field(default_factory=Usage)
    errors: Counter[tuple[int, str]] = dataclasses.field(default_factory=Counter)
    unknown: Counter[str] = dataclasses.field(default_factory=Counter)
    began_s: float = dataclasses.field(default_factory=time.monotonic)
    seconds: float = 0.0
    share_before: float | None = None
    notes: list[str] = dataclasses.field(default_factory=list)

    def answered(self, usage: Usage) -> None:
        self.usage.prompt_tokens += usage.prompt_tokens
        self.usage.cached_tokens += usage.cached_tokens
        self.usage.completion_tokens += usage.completion_tokens

    def refused(self, error: ApiError) -> None:
        self.errors[error.status, error.code or error.type] += 1

    def ignored(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name in self.unknown or len(self.unknown) < MAX_NAMES:
                self.unknown[name] += 1

    @property
    def num_errors(self) -> int:
        """Of all rows, those before this run included."""
        return self.num_errors_before + self.errors.total()

    @property
    def exit_code(self) -> int:
        return HAD_ERRORS if self.num_errors else 0

    def progress(self, share: float | None) -> str:
        """One line. share: of the input, how much has been read, of which some may wait for its answer."""
        elapsed_s = time.monotonic() - self.began_s
        rows = self.num_before + self.num_rows
        parts = [counted(rows, "row") if rows else "no row is answered yet"]
        if self.num_rows:
            parts.append(f"{_rate(self.num_rows, elapsed_s)} rows/s")
            parts.append(f"{_rate(self.usage.completion_tokens, elapsed_s)} tok/s")
        if share is not None:
            answered = share * rows / max(rows, self.num_before + self.num_read, 1)
            if not self.num_rows:  # what was answered before says nothing of the speed
                self.share_before = answered
            before = self.share_before or 0.0
            parts.insert(0, f"{bar(answered)} {answered:4.0%}")
            if self.num_rows and before < answered < 1:
                parts.append(f"{clock(elapsed_s * (1 - answered) / (answered - before))} left")
        if self.num_errors:
            parts.append(counted(self.num_errors, "error"))
        return ", ".join(parts)

    def lines_looking_back(self, output: str) -> list[str]:
        """The summary of a job that an earlier run has finished."""
        left = (
            f"{output} is there and nothing is left of its job to resume; --overwrite instead of --resume begins anew"
        )
        return [self._done, f"finished {left}"]

    @property
    def _done(self) -> str:
        rows = self.num_before + self.num_rows
        answered = f"{rows - self.num_errors:,} answered, {counted(self.num_errors, 'error')}"
        return f"done     {counted(rows, 'row')}: {answered}"

    def lines(self, output: str) -> list[str]:
        """The summary."""
        usage = self.usage
        lines = [
            self._done,
            f"speed    {counted(self.num_rows, 'row')} in {self.seconds:.1f} s, "
            f"{_rate(self.num_rows, self.seconds)} rows/s; "
            f"{usage.prompt_tokens:,} prompt tokens, {usage.cached_tokens:,} of them cached; "
            f"{counted(usage.completion_tokens, 'token')}, {_rate(usage.completion_tokens, self.seconds)} tok/s",
        ]
        if self.num_before:
            were = "row was" if self.num_before == 1 else "rows were"
            before = f"{self.num_before:,} {were} answered before, with {counted(self.num_errors_before, 'error')}"
            lines.insert(0, f"resumed  {before}")
        lines += [
            f"errors   {counted(count, 'row')} with {status} {code}"
            for (status, code), count in self.errors.most_common()
        ]
        if self.unknown:
            named = ", ".join(f"{ascii(name)[1:-1][:40]} ({count:,})" for name, count in self.unknown.most_common())
            lines.append(f"warning  nobody reads these columns or fields: {named}")
        return [*lines, *self.notes, f"output   {output}"]

    def _repr_html_(self) -> str:
        """The summary, as a notebook shows it."""
        usage = self.usage
        cells = {
            "rows": self.num_before + self.num_rows,
            "answered before": self.num_before,
            "errors": self.num_errors,
            "prompt tokens": usage.prompt_tokens,
            "cached": usage.cached_tokens,
            "tokens": usage.completion_tokens,
            "seconds": round(self.seconds, 1),
        }
        rows = [*cells.items(), *((f"{status} {code}", count) for (status, code), count in self.errors.most_common())]
        rows += [(f"nobody reads {name}", count) for name, count in self.unknown.most_common()]
        lines = "".join(f"<tr><th>{html.escape(name)}</th><td>{count:,}</td></tr>" for name, count in rows)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<div><table>{lines}</table>{notes}</div>"


def bar(share: float, width: int = 10) -> str:
    """So wide that a line of it and what follows fits into 80 columns."""
    full = min(width, int(share * width))
    return f"[{'#' * full}{'.' * (width - full)}]"


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _rate(count: int, seconds: float) -> str:
    rate = count / seconds if seconds else 0.0
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"
