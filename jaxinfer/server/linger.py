"""The end of a connection whose client still writes. Were it closed at once, the kernel would answer what comes with a
reset, which takes the last answer from a client that has not read it yet (RFC 9112, section 9.6).
"""

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_BYTES = 256 * 2**20  # twice the largest body that a server may be told to take
LINGER_S, MIN_LINGER_BYTES = 2.0, 16 * 2**10  # fewer bytes in such a time, and the client has stopped writing
MAX_LINGER_S = 30.0
DROPPED_BYTES_PER_S = 128 * 2**20  # a tenth of what would take all of a processor


class Lingering:
    """How long connections linger, and how fast they read then: all together, lest many who write without end take the
    processor from everybody else.
    """

    def __init__(self, quiet_s: float = LINGER_S, max_s: float = MAX_LINGER_S, max_bytes: int = LINGER_BYTES) -> None:
        self.quiet_s = quiet_s
        self.max_s = max_s
        self.max_bytes = max_bytes
        self._free_s = 0.0  # of the loop's clock: when all that has been read may have been

    def pause_s(self, now_s: float, num_bytes: int) -> float:
        """Until who has read so many may read again; each waits for its turn."""
        self._free_s = max(self._free_s, now_s) + num_bytes / DROPPED_BYTES_PER_S
        return self._free_s - now_s


class LingeringTransport(asyncio.Transport):
    """A connection's transport, whose close is one of our side alone while more is coming.

    Invariant: once it lingers it counts as closed, nothing is written, and what comes is handed to `drop`.
    """

    def __init__(
        self,
        under: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        is_more_coming: Callable[[], bool],
        lingering: Lingering,
    ) -> None:
        super().__init__()
        self._under = under
        self._loop = loop
        self._is_more_coming = is_more_coming
        self._lingering = lingering
        self._timer: asyncio.TimerHandle | None = None  # while it lingers
        self._turn: asyncio.TimerHandle | None = None  # until which it does not read
        self._until_s = 0.0
        self._dropped_bytes = self._recent_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._under.write(data)

    def is_closing(self) -> bool:
        return self._timer is not None or self._under.is_closing()

    def close(self) -> None:
        """Behind what is written; where more is coming only when it has come, at its bounds."""
        if self._is_more_coming():
            self.linger()
        elif self._timer is None:
            self._under.close()

    def close_at_once(self) -> None:
        """Whatever is coming: answers that are due are given up, or who would send so little reads in time."""
        self._under.close()

    def linger(self) -> None:
        """Write nothing more, and close when the client has, or at the bounds of what is dropped until then."""
        if self.is_closing():
            return
        self._until_s = self._loop.time() + self._lingering.max_s
        self._recent_bytes = 0
        self._timer = self._loop.call_later(self._lingering.quiet_s, self._look)
        self._under.resume_reading()
        if self._under.can_write_eof():  # not of TLS, whose clients go by the answer's length
            self._under.write_eof()

    def _look(self) -> None:
        is_quiet = self._recent_bytes < MIN_LINGER_BYTES and self._turn is None
        if is_quiet or self._loop.time() > self._until_s:
            self._under.close()
        else:
            self._recent_bytes = 0
            self._timer = self._loop.call_later(self._lingering.quiet_s, self._look)

    def drop(self, num_bytes: int) -> None:
        """Count what nobody reads, of which no more comes for a moment."""
        self._dropped_bytes += num_bytes
        self._recent_bytes += num_bytes
        if self._dropped_bytes > self._lingering.max_bytes:
            self._under.abort()
            return
        self._under.pause_reading()
        self._turn = self._loop.call_later(self._lingering.pause_s(self._loop.time(), num_bytes), self._read_on)

    def _read_on(self) -> None:
        self._turn = None
        self._under.resume_reading()

    def lost(self) -> None:
        """The connection is no more."""
        for timer in (self._timer, self._turn):
            if timer is not None:
                timer.cancel()

    def abort(self) -> None:
        self._under.abort()

    def pause_reading(self) -> None:
        self._under.pause_reading()

    def resume_reading(self) -> None:
        self._under.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._under.get_extra_info(name, default)
