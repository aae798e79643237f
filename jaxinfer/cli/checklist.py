"""What a starting engine does, step by step, for a person who waits: a spinner on a terminal, plain lines elsewhere."""

import contextlib
import logging
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TextIO

import click

from jaxinfer.engine.interrupts import ended_by_ctrl_c
from jaxinfer.errors import EngineError
from jaxinfer.llm.events import Event

logger = logging.getLogger("jaxinfer.start")
START = Event("start", "the engine")
BEGAN_S = "began_s"  # of a root context's obj: when the command line began, by time.monotonic
MOST_COLUMNS = 100  # of a table at a terminal, where longer lines are hard to read
LEAST_ROOM = 30  # columns of a value, however narrow the terminal is
BAR_WIDTH = 24  # characters of a progress bar
SILENCE_S = 1.75  # after which the current step is shown again: nobody should wonder for 3 s whether it hangs


class Screen(Protocol):
    """Where a checklist is shown."""

    def say(self, line: str) -> None:
        """A line that stays."""

    def note(self, line: str) -> None:
        """A line that the reader must not miss; unlike those of `say` it stays when a start is shown in brief."""

    def show(self, status: str) -> None:
        """What is going on now; the next `show` may overwrite it."""

    def close(self) -> None:
        """End the status, keep the lines."""


class PlainScreen:
    """Lines only: a status is printed when nothing else was for SILENCE_S."""

    def __init__(
        self, stream: TextIO, now: Callable[[], float] = time.monotonic, printed_s: float | None = None
    ) -> None:
        """printed_s: since when nothing has been printed, by the same clock; now if it is not given."""
        self._stream = stream
        self._now = now
        self._printed_s = now() if printed_s is None else printed_s

    def say(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()
        self._printed_s = self._now()

    def note(self, line: str) -> None:
        self.say(line)

    def show(self, status: str) -> None:
        if self._now() - self._printed_s >= SILENCE_S:
            self.say(status)

    def close(self) -> None:
        self._stream.flush()


class LogScreen:
    """Lines as records of the log, for what reads nothing else; a status when nothing was for SILENCE_S."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._said_s = now()

    def say(self, line: str) -> None:
        logger.info("%s", " ".join(line.split()))
        self._said_s = self._now()

    def note(self, line: str) -> None:
        self.say(line)

    def show(self, status: str) -> None:
        if self._now() - self._said_s >= SILENCE_S:
            self.say(status)

    def close(self) -> None:
        """Nothing to end: there is no status line."""


class LiveScreen:
    """rich's spinner in the last line, finished steps above it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._status = self._console.status("")
        self._running = False

    def say(self, line: str) -> None:
        self._console.print(line, markup=False)

    def note(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=False)  # between words

    def show(self, status: str) -> None:
        from rich.text import Text

        self._status.update(Text(status))
        if not self._running:
            self._status.start()
            self._running = True

    def close(self) -> None:
        if self._running:
            self._status.stop()
            self._running = False


class BriefScreen:
    """The first line and notes stay; other lines are shown as what is going on now, but for rows of tables."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._has_said = False

    def say(self, line: str) -> None:
        if not self._has_said:
            self._screen.say(line)
        elif not line.startswith(" "):
            self._screen.show(line)
        self._has_said = True

    def note(self, line: str) -> None:
        self._screen.note(line)

    def show(self, status: str) -> None:
        self._screen.show(status)

    def close(self) -> None:
        self._screen.close()


class SilentScreen:
    """Shows nothing."""

    def say(self, line: str) -> None:
        """Nothing."""

    def note(self, line: str) -> None:
        """Nothing."""

    def show(self, status: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing was begun."""


def screen_for(stream: TextIO, params: Mapping[str, Any] | None = None) -> Screen:
    """Where progress is shown. params: with the values of VOLUME_OPTIONS, or of QUIET_OPTION alone, which leaves every
    line in view as -v does; so does None.
    """
    if params is not None and params["quiet"]:
        return SilentScreen()
    screen = LiveScreen(stream) if stream.isatty() else PlainScreen(stream)
    return screen if params is None or params.get("verbose", True) else BriefScreen(screen)


def _one_volume(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value and ctx.params.get("verbose"):
        raise click.UsageError("there must be one of --verbose and --quiet, got both; drop one", ctx)
    return value


QUIET_OPTION = click.Option(
    ["-q", "--quiet"], is_flag=True, callback=_one_volume, help="Show nothing but answers and errors."
)
VOLUME_OPTIONS: tuple[click.Option, ...] = (
    click.Option(["-v", "--verbose"], is_flag=True, is_eager=True, help="Show each step of a start, all of a report."),
    QUIET_OPTION,
)


class Checklist:
    """Takes the events of one start, from any thread. Use as a context manager.

    first: what goes on until an event comes, since began_s or from now on.    until_serving: whoever waits goes on when
    the model serves, so the count of executables is of those that serving needs.

    Invariant: while it is open, something is shown at least every 3 s; when it is closed, nothing is.
    """

    def __init__(
        self,
        screen: Screen | None = None,
        tick_s: float = 0.25,
        first: Event = START,
        *,
        until_serving: bool = False,
        began_s: float | None = None,
    ) -> None:
        self._screen = screen or screen_for(sys.stderr)
        self._tick_s = tick_s
        self._until_serving = until_serving
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep_talking, name="jaxinfer-checklist", daemon=True)
        self._event = first
        self._began_s = time.monotonic() if began_s is None else began_s
        self._cached = 0
        self._reads = ""  # what is read before the model can serve, while steps are compiled or run
        self._reads_since_s = 0.0
        self._downloading = False
        self._stopped = False

    def __enter__(self) -> "Checklist":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closed.set()
        self._thread.join()
        with self._lock:
            self._screen.close()

    def __call__(self, event: Event) -> None:
        if self._stopped:
            raise EngineError("the start was interrupted")
        with self._lock:
            if self._closed.is_set():
                return
            goes_on = self._event.kind == "compile" or (self._event.kind == "run" and self._steps_are_left())
            if event.kind == "read" and goes_on:
                self._reads, self._reads_since_s = event.detail, time.monotonic()
                return
            if event.kind in ("serving", "ready"):
                self._reads = ""
            if event.kind == "serving":  # in the middle of compiling, which goes on
                self._until_serving = False
                if self._event.kind == "compile":
                    said = f"the smallest steps are compiled after {event.seconds:.1f} s, others follow"
                    self._screen.say(f"compile  {said}")
                self._screen.show(self._status())
                return
            is_next = event.kind == "measure" and event.detail != self._event.detail
            if event.kind != self._event.kind or is_next:
                self._finish()
                self._began_s, self._cached = time.monotonic(), 0
            self._event = event
            self._cached += event.cached
            self._begin(event)

    def say(self, line: str) -> None:
        with self._lock:
            self._screen.say(line)

    def note(self, text: str, *, is_told: bool = False) -> None:
        """What the reader must know about the model. is_told: by the first line, so a start in brief leaves it out."""
        with self._lock:
            if not (is_told and isinstance(self._screen, BriefScreen)):
                self._screen.note(f"note     {text}")

    def stop_start(self) -> None:
        """Make the start end at its next event, with an EngineError in its own thread."""
        self._stopped = True

    def _begin(self, event: Event) -> None:
        # the hub draws its own progress bars while it downloads; a spinner would fight with them
        self._downloading = event.kind == "resolve" and event.detail.startswith("fetching")
        if event.kind == "resolve":
            self._screen.close()
            self._screen.say(f"resolve  {event.detail}")
        elif event.rows:
            self._screen.say(f"device   {event.detail}")
            for line in table(event.rows, indent="         "):
                self._screen.say(line)
        elif event.kind == "ready":
            self._screen.close()
            self._screen.say(f"ready    in {event.seconds:.1f} s")
        elif event.kind == "load" and 0 < event.total <= event.done:
            self._screen.say(f"load     {_load_text(event)}")
            self._event = Event("compile", "preparing")  # what happens now, although nothing says so yet
        else:
            self._screen.show(self._status())

    def _finish(self) -> None:
        """One line for a step that took part in `show` only."""
        event, seconds = self._event, time.monotonic() - self._began_s
        if event.kind == "load":
            self._screen.say(f"load     {event.detail or _load_text(event)}, {seconds:.1f} s")
        elif event.kind == "compile":
            cached = f", {self._cached} from the cache" if self._cached else ""
            self._screen.say(f"compile  {event.done} of {event.total} in {seconds:.1f} s{cached}")
        elif event.kind == "run" and event.total:
            self._screen.say(f"run      {event.done} of {event.total} once more in {seconds:.1f} s")

    def _status(self) -> str:
        if not self._reads:
            return self._stage_status()
        reads = f"{self._reads}  ({time.monotonic() - self._reads_since_s:.0f} s)"
        return f"{self._stage_status()}, read {reads}" if self._steps_are_left() else f"read     {reads}"

    def _steps_are_left(self) -> bool:
        """Of those that are waited for."""
        return self._event.done < self._num_awaited()

    def _num_awaited(self) -> int:
        event = self._event
        return event.num_serving if self._until_serving and event.done <= event.num_serving else event.total

    def _stage_status(self) -> str:
        event, seconds = self._event, time.monotonic() - self._began_s
        if event.kind == "load" and event.total:
            return f"load     {_load_text(event)}"
        if event.kind == "measure" and event.total:
            count = f"{event.done:,} of {event.total:,} {event.detail}"
            return f"measure  {count}  {_bar(event.done / event.total)}  ({seconds:.0f} s)"
        total = self._num_awaited()
        count = f"{event.done} of {total}  " if total else ""
        unnamed = "once more" if event.kind == "run" else "preparing"  # of compiling, before the first step is done
        detail = event.detail or unnamed
        return f"{event.kind:<8} {count}{detail}  ({seconds:.0f} s)"

    def _keep_talking(self) -> None:
        while not self._closed.wait(self._tick_s):
            with self._lock:
                if not self._downloading and self._event.kind != "ready":
                    self._screen.show(self._status())


def telling(what: str) -> Checklist:
    """For what reads facts before or without a start: SILENCE_S after the verb has begun, a line on stderr says what it
    reads, unless -q.
    """
    context = click.get_current_context(silent=True)
    began_s = (context.find_root().obj or {}).get(BEGAN_S) if context else None
    is_quiet = context is not None and context.params.get("quiet", False)
    screen = SilentScreen() if is_quiet else PlainScreen(sys.stderr, printed_s=began_s)
    return Checklist(screen, first=Event("read", what), began_s=began_s)


@contextlib.contextmanager
def reading(what: str) -> Iterator[Checklist]:
    """The same for a verb that does nothing else, and so leaves nothing half done when Ctrl-C ends it at once: the
    imports of JAX, which lie within, would make an ImportError of a KeyboardInterrupt or lose it in a callback.
    """
    with ended_by_ctrl_c(), telling(what) as checklist:
        yield checklist


def _bar(share: float) -> str:
    full = int(min(share, 1.0) * BAR_WIDTH)
    return f"[{'#' * full}{'-' * (BAR_WIDTH - full)}] {min(share, 1.0):4.0%}"


def _load_text(event: Event) -> str:
    speed = f", {event.done / event.seconds / 1e9:.2f} GB/s" if event.seconds > 0 else ""
    return f"{event.done / 1e9:.2f} of {event.total / 1e9:.2f} GB in {event.seconds:.1f} s{speed}"


def table(rows: Sequence[tuple[str, str]], indent: str = "", columns: int | None = None) -> list[str]:
    """Two aligned columns, one line for each row; with `columns` a longer row goes on below its value."""
    width = max((len(name) for name, _ in rows), default=0)
    if columns is None:
        return [f"{indent}{name:<{width}}  {value}".rstrip() for name, value in rows]
    left = len(indent) + width + 2
    room = max(columns - left, LEAST_ROOM)
    lines = []
    for name, value in rows:
        parts = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False) or [""]
        lines.append(f"{indent}{name:<{width}}  {parts[0]}".rstrip())
        lines += [" " * left + part for part in parts[1:]]
    return lines


def show_table(rows: Sequence[tuple[str, str]], indent: str = "") -> None:
    """Print a table: for a terminal in lines that fit, elsewhere one line for each row."""
    columns = min(shutil.get_terminal_size().columns, MOST_COLUMNS) if sys.stdout.isatty() else None
    for line in table(rows, indent, columns):
        click.echo(line)
