"""Ctrl-C in the middle of the host's work would leave that half done; it is heard when the work is whole, or ends all.

An import of an extension such as numpy's is such work too: it makes an ImportError of a KeyboardInterrupt.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

INTERRUPTED = 130  # as shells report a program that Ctrl-C ended

type _Handler = Callable[[int, FrameType | None], object]
# where SIGINT is ignored, what Ctrl-C would do, for SIGTERM to do it: of each block of sigterm_as_ctrl_c
_unheard: list[_Handler] = []


def _at_ctrl_c() -> _Handler | None:
    """What a Ctrl-C does now, or a SIGTERM in its place; None if nobody listens to either."""
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        return handler
    return _unheard[-1] if _unheard else None


def _set_at_ctrl_c(handler: _Handler) -> None:
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, handler)
    else:
        _unheard[-1] = handler


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Let a Ctrl-C that comes within be heard at the end, by whom it would have been; a second one at once, for a step
    that does not end. Only the main thread hears any, and only if somebody listens."""
    handler = _at_ctrl_c()
    if threading.current_thread() is not threading.main_thread() or handler is None:
        yield
        return
    came: list[int] = []  # no Event, whose lock a second one would wait for

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            handler(number, frame)

    _set_at_ctrl_c(hold)
    try:
        yield
    finally:
        _set_at_ctrl_c(handler)
        if len(came) == 1:
            handler(signal.SIGINT, None)


def run_on[T](runner: "asyncio.Runner", make: "Callable[[], Coroutine[Any, Any, T]]") -> T:
    """As runner.run(make()), and a Ctrl-C before the loop has the task cancels it as one after that does: a
    KeyboardInterrupt there would leave a coroutine that nobody awaits. A second one is a KeyboardInterrupt at once.
    """
    import asyncio

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or _at_ctrl_c() is not signal.default_int_handler:
        return runner.run(make())
    loop, came, tasks = runner.get_loop(), list[int](), list["asyncio.Task[T]"]()

    def cancel(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt
        for task in tasks:
            task.cancel()
            loop.call_soon_threadsafe(lambda: None)  # it may wait for its sockets

    _set_at_ctrl_c(cancel)
    try:
        tasks.append(loop.create_task(make()))
        if came:
            tasks[0].cancel()
        result = loop.run_until_complete(tasks[0])
    except asyncio.CancelledError:
        if not came:
            raise
    finally:
        _set_at_ctrl_c(signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
    return result


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Iterator[list[int]]:
    """Let SIGTERM do within what Ctrl-C does, also in a shell's background job, which hears no Ctrl-C. Gives a list
    that has the signal once it came."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        handler = _at_ctrl_c()
        assert handler is not None, "this block has one where SIGINT has none"
        handler(signal.SIGINT, frame)

    is_unheard = not callable(signal.getsignal(signal.SIGINT))
    if is_unheard:
        _unheard.append(signal.default_int_handler)
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)
        if is_unheard:
            _unheard.pop()


@contextlib.contextmanager
def ended_by_sigterm(said: str) -> Iterator[None]:
    """Let SIGTERM end the process within as it does unheard, and say this line first."""

    def end(number: int, frame: FrameType | None) -> None:
        _show_cursor()
        os.write(2, f"{said}\n".encode())
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_at_ctrl_c() -> bool:
    """Let Ctrl-C end the process at once and without a word from now on. Returns False, and changes nothing, where no
    KeyboardInterrupt would have come: in another thread, in a shell's background job, in a notebook.

    By a handler, since a process that is a container's first is not ended by a signal that it does not handle.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    signal.signal(signal.SIGINT, _end)
    return True


def end_now() -> None:
    """End the process as Ctrl-C does, with what is written so far and whatever its threads do."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # of a pipe that nobody reads, as at any end by a signal
            stream.flush()
    os._exit(INTERRUPTED)


def _end(number: int, frame: FrameType | None) -> None:
    _show_cursor()
    os._exit(INTERRUPTED)


def _show_cursor() -> None:
    if os.isatty(2):
        os.write(2, b"\x1b[?25h")  # a spinner has hidden it


@contextlib.contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """The same for as long as the block lasts, as of imports that take seconds, before anything is begun."""
    is_changed = end_at_ctrl_c()
    try:
        yield
    finally:
        if is_changed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
