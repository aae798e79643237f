"""Ctrl-C in the middle of the host's work would leave that half done; it is heard when the work is whole, or ends all.

An import of an extension such as numpy's is such work too: it makes an ImportError of a KeyboardInterrupt.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

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
