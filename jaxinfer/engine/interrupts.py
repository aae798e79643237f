"""Ctrl-C in the middle of the host's work would leave that half done; it is heard when the work is whole.

An import of an extension such as numpy's is such work too: it makes an ImportError of a KeyboardInterrupt.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


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
