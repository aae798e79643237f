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


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Let a Ctrl-C that comes within be heard at the end, by whom it would have been; a second one at once, for a step
    that does not end. Only the main thread hears any, and only if somebody listens."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[int] = []  # no Event, whose lock a second one would wait for

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if len(came) == 1:
            signal.raise_signal(signal.SIGINT)


def run_on[T](runner: "asyncio.Runner", make: "Callable[[], Coroutine[Any, Any, T]]") -> T:
    """As runner.run(make()), and a Ctrl-C before the loop has the task cancels it as one after that does: a
    KeyboardInterrupt there would leave a coroutine that nobody awaits. A second one is a KeyboardInterrupt at once.
    """
    import asyncio

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return runner.run(make())
    loop, came, tasks = runner.get_loop(), list[int](), list["asyncio.Task[T]"]()

    def cancel(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt
        for task in tasks:
            task.cancel()
            loop.call_soon_threadsafe(lambda: None)  # it may wait for its sockets

    signal.signal(signal.SIGINT, cancel)
    try:
        tasks.append(loop.create_task(make()))
        if came:
            tasks[0].cancel()
        result = loop.run_until_complete(tasks[0])
    except asyncio.CancelledError:
        if not came:
            raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
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
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield came
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
    if os.isatty(2):
        os.write(2, b"\x1b[?25h")  # a spinner has hidden the cursor
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """The same for as long as the block lasts, as of imports that take seconds, before anything is begun."""
    is_changed = end_at_ctrl_c()
    try:
        yield
    finally:
        if is_changed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
