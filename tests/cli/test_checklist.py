"""The checklist: never silent for 3 s, whatever the start is doing, and stoppable."""

import io
import logging
import re
import time

import click
import pytest

from jaxinfer.cli.checklist import SILENCE_S, BriefScreen, Checklist, LiveScreen, PlainScreen, screen_for, table
from jaxinfer.cli.serve import log_handler
from jaxinfer.errors import EngineError
from jaxinfer.llm.about import DEMO_NOTE, DUMMY_NOTE, HEADLESS_NOTE
from jaxinfer.llm.dry_run import NOTE as DRY_RUN_NOTE
from jaxinfer.llm.events import TEXTS, Event
from tests.cli.conftest import EVENTS
from tests.server.http import wait_until


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_status_is_printed_only_after_a_silence():
    stream, clock = io.StringIO(), Clock()
    screen = PlainScreen(stream, clock)
    screen.say("first")
    screen.show("too soon")
    clock.now = SILENCE_S
    screen.show("still at it")
    screen.show("too soon again")
    assert stream.getvalue() == "first\nstill at it\n"


def test_a_step_that_takes_long_is_shown_again_and_again():
    stream = io.StringIO()
    with Checklist(PlainScreen(stream), tick_s=0.05) as checklist:
        checklist(Event("compile", "decode 8", done=1, total=3))
        time.sleep(SILENCE_S + 0.4)
    assert re.fullmatch(r"compile  1 of 3  decode 8  \([23] s\)\n", stream.getvalue())


def test_until_the_first_event_it_says_what_the_verb_began_with():
    stream, clock = io.StringIO(), Clock()
    with Checklist(PlainScreen(stream, clock), tick_s=0.001, first=Event("read", "the model")):
        clock.now += SILENCE_S
        wait_until(stream.getvalue)
    assert stream.getvalue() == "read     the model  (0 s)\n"


@pytest.mark.parametrize("kind", ["compile", "run"])
@pytest.mark.parametrize("done", [1, 2])
def test_what_is_read_has_its_own_time_and_hides_no_count(monkeypatch, kind, done):
    """Beside steps that go on; behind the last one it is what is waited for."""
    stream, clock = io.StringIO(), Clock()
    monkeypatch.setattr("jaxinfer.cli.checklist.time.monotonic", clock)
    with Checklist(PlainScreen(stream, clock), tick_s=60) as checklist:
        checklist(Event(kind, "decode 1", 0, 2))
        clock.now += 60
        checklist(Event(kind, "decode 1", done, 2))
        checklist(Event("read", "the tokenizer"))
        clock.now += 5
        checklist._screen.show(checklist._status())
    last = stream.getvalue().splitlines()[-1]
    alone, beside = "read     the tokenizer  (5 s)", f"{kind:<8} 1 of 2  decode 1  (65 s), read the tokenizer  (5 s)"
    assert last == (alone if done == 2 else beside)


def test_a_measurement_after_ready_is_shown_with_its_share_and_its_own_time():
    stream, clock = io.StringIO(), Clock()
    with Checklist(PlainScreen(stream, clock), tick_s=60) as checklist:
        for done, detail in enumerate(("1x8", "1x8", "4x8"), 1):
            clock.now += SILENCE_S
            checklist(Event("ready") if done == 2 else Event("measure", detail, done, 4))
    assert stream.getvalue().splitlines() == [
        "measure  1 of 4 1x8  [######------------------]  25%  (0 s)",
        "ready    in 0.0 s",
        "measure  3 of 4 4x8  [##################------]  75%  (0 s)",
    ]


def test_nothing_is_added_after_ready():
    stream, clock = io.StringIO(), Clock()
    with Checklist(PlainScreen(stream, clock), tick_s=0.01) as checklist:
        checklist(Event("ready", seconds=1.0))
        clock.now = 100.0
        time.sleep(0.1)
    assert stream.getvalue() == "ready    in 1.0 s\n"


def test_a_download_s_own_progress_bars_are_left_alone():
    stream, clock = io.StringIO(), Clock()
    with Checklist(PlainScreen(stream, clock), tick_s=0.01) as checklist:
        checklist(Event("resolve", "fetching the weights of tiny: 1 file, 1.0 GB"))
        clock.now = 100.0
        time.sleep(0.1)
    assert stream.getvalue() == "resolve  fetching the weights of tiny: 1 file, 1.0 GB\n"


def test_serving_comes_in_the_middle_of_compiling():
    stream = io.StringIO()
    with Checklist(PlainScreen(stream)) as checklist:
        checklist(Event("compile", "decode 2", done=1, total=2, cached=True))
        checklist(Event("serving", seconds=1.5))
        checklist(Event("compile", "decode 1", done=2, total=2, cached=True))
        checklist(Event("ready", seconds=2.0))
    assert stream.getvalue().splitlines() == [
        "compile  the smallest steps are compiled after 1.5 s, others follow",
        "compile  2 of 2 in 0.0 s, 2 from the cache",
        "ready    in 2.0 s",
    ]


def test_who_waits_until_it_serves_sees_the_count_of_what_serving_needs():
    stream, clock = io.StringIO(), Clock()
    for until_serving in (True, False):
        with Checklist(PlainScreen(stream, clock), tick_s=60, until_serving=until_serving) as checklist:
            for done, name in ((0, ""), (11, "decode 8"), (12, "decode 4")):
                clock.now += SILENCE_S
                checklist(Event("compile", name, done, 27, num_serving=11))
    assert [line.rpartition("  ")[0] for line in stream.getvalue().splitlines()] == [
        "compile  0 of 11  preparing",
        "compile  11 of 11  decode 8",
        "compile  12 of 27  decode 4",
        "compile  0 of 27  preparing",
        "compile  11 of 27  decode 8",
        "compile  12 of 27  decode 4",
    ]


def test_what_follows_serving_is_counted_with_all_executables():
    stream, clock = io.StringIO(), Clock()
    with Checklist(PlainScreen(stream, clock), tick_s=60, until_serving=True) as checklist:
        checklist(Event("compile", "draw 16 wide", 7, 27, num_serving=7))
        checklist(Event("serving", seconds=1.5))
        clock.now += SILENCE_S
        checklist(Event("compile", "draw 16 wide", 7, 27, num_serving=7))
    assert "compile  7 of 27  draw 16 wide" in stream.getvalue()


def test_what_follows_the_last_compiled_step_is_not_called_compiling():
    stream, clock = io.StringIO(), Clock()
    with Checklist(PlainScreen(stream, clock), tick_s=60, until_serving=True) as checklist:
        for event in (
            Event("compile", "decode 1", 2, 2, num_serving=2),
            TEXTS,  # a status is shown with the next event, or tick
            Event("compile", "decode 1", 2, 2, num_serving=2),
            Event("serving", seconds=1.5),
            Event("run", "decode 2", 1, 2),
            Event("run", "", 2, 2),
            Event("wait", "engines are ready", 1, 3),
            Event("wait", "engines are ready", 2, 3),
            Event("ready", seconds=2.0),
        ):
            clock.now += SILENCE_S
            checklist(event)
    assert [line.partition("  (")[0] for line in stream.getvalue().splitlines()] == [
        "compile  2 of 2  decode 1",
        "read     the tokenizer and the chat template",
        "compile  the smallest steps are compiled after 1.5 s, others follow",
        "compile  2 of 2 in 0.0 s",
        "run      2 of 2  once more",
        "run      2 of 2 once more in 0.0 s",
        "wait     2 of 3  engines are ready",
        "ready    in 2.0 s",
    ]


def test_a_start_in_brief_shows_no_rows_of_tables():
    stream, clock = io.StringIO(), Clock()
    screen = BriefScreen(PlainScreen(stream, clock))
    for line in ("first", "         model  demo (--model)", "load     1 GB"):
        clock.now += SILENCE_S
        screen.say(line)
    assert stream.getvalue() == "first\nload     1 GB\n"


def test_what_follows_the_last_byte_is_not_called_loading():
    stream, clock = io.StringIO(), Clock()
    with Checklist(PlainScreen(stream, clock), tick_s=0.01) as checklist:
        checklist(Event("load", done=10**9, total=10**9, seconds=0.5))
        clock.now = SILENCE_S
        wait_until(lambda: "preparing" in stream.getvalue())
    assert stream.getvalue().splitlines() == [
        "load     1.00 of 1.00 GB in 0.5 s, 2.00 GB/s",
        "compile  preparing  (0 s)",
    ]


def test_random_weights_are_called_that():
    stream = io.StringIO()
    with Checklist(PlainScreen(stream)) as checklist:
        checklist(Event("load", "random weights"))
        checklist(Event("compile", "decode 1", done=1, total=1))
    assert stream.getvalue().startswith("load     random weights, 0.0 s\n")


def test_a_start_that_was_given_up_ends_at_its_next_event():
    with Checklist(PlainScreen(io.StringIO())) as checklist:
        checklist(EVENTS[0])
        checklist.stop_start()
        with pytest.raises(EngineError, match="interrupted"):
            checklist(EVENTS[1])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines_on(shown: str) -> list[str]:
    """What a terminal shows after these characters, by its lines."""
    lines, row = [""], 0
    for part in re.split(r"(\r|\n|\x1b\[[0-9;?]*[A-Za-z])", shown):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part != "\r" and not part.startswith("\x1b"):
            lines[row] += part
    return lines


@pytest.mark.parametrize("is_logged", [True, False])
def test_what_is_told_while_a_spinner_turns_has_a_line_of_its_own(monkeypatch, is_logged):
    """A server's log began behind the words of the spinner."""
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    log = logging.Logger("a server's")
    log.addHandler(log_handler("text"))
    with Checklist() as checklist:
        checklist(Event("compile", "draw 16 wide", 7, 27))
        time.sleep(0.2)
        log.info("stopping") if is_logged else click.echo("stopping", err=True)
        time.sleep(0.2)
    assert stream.getvalue().count("draw 16 wide") > 1
    (said,) = [line.rstrip() for line in lines_on(stream.getvalue()) if line.strip()]
    assert said.endswith("INFO a server's: stopping" if is_logged else "stopping") and "draw" not in said


def words_of(shown: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).split()


@pytest.mark.parametrize("note", [DEMO_NOTE, HEADLESS_NOTE, DUMMY_NOTE, DRY_RUN_NOTE])
@pytest.mark.parametrize("columns", [24, 40, 80])
@pytest.mark.parametrize("verbose", [True, False])
def test_a_note_is_whole_and_broken_between_words_on_every_terminal(monkeypatch, note, columns, verbose):
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    with Checklist(screen_for(stream, {"quiet": False, "verbose": verbose})) as checklist:
        checklist.say("the first line")
        before = len(stream.getvalue())
        checklist.note(note)
        shown = stream.getvalue()[before:]
    assert words_of(shown) == ["note", *note.split()]
    assert all(len(line) <= max(columns, *map(len, note.split())) for line in shown.splitlines())


def test_the_demo_s_note_is_one_line_of_80_characters():
    assert len(f"note     {DEMO_NOTE}") <= 80


def test_a_terminal_gets_the_same_lines():
    stream = Terminal()
    with Checklist(LiveScreen(stream)) as checklist:
        for event in EVENTS:
            checklist(event)
    shown = stream.getvalue()
    for line in ("weights   1.2 GiB", "load     1.00 of 1.00 GB in 0.5 s, 2.00 GB/s", "ready    in 3.2 s"):
        assert line in shown


def test_a_table_s_columns_are_aligned():
    assert table([("a", "1"), ("long", "2")], indent="  ") == ["  a     1", "  long  2"]


def test_a_row_that_is_longer_than_the_terminal_goes_on_below_its_value_and_a_path_is_whole():
    rows = [("folder", "/a-long/path/of-a/model"), ("steps", "decode 1 2 4 8 16; extend 16x16 32x16")]
    assert table(rows, indent="  ", columns=40) == [
        "  folder  /a-long/path/of-a/model",
        "  steps   decode 1 2 4 8 16; extend",
        "          16x16 32x16",
    ]
