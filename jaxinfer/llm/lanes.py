"""Lanes: the threads that tokenize and render, some for long texts alone, so that short ones wait for none of those.

A text of 8 MB takes fifteen seconds; two threads for all would let every other request wait behind two such texts. A
text of a few words needs no thread: it would take longer to hand it over and to be woken than to tokenize it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

AT_ONCE_CHARS = 128  # a fifth of a millisecond of tokenizing; only of that: a template may run for as long as it likes
LONG_CHARS = 2**16  # a tenth of a second of tokenizing
_THREADS = 2, 1  # of the short and of the long lane
_WAITING = 8, 2  # the same where they wait for processes that encode (text/encoder.py): a slow text keeps one busy


class Lanes:
    """Invariant: what is short never waits for what is long. Belongs to one event loop."""

    def __init__(self, *, is_linear: bool = True) -> None:
        """is_linear: as of the tokenizer."""
        short, long = _THREADS if is_linear else _WAITING
        self._short = ThreadPoolExecutor(short, thread_name_prefix="jaxinfer-tokenize")
        self._long = ThreadPoolExecutor(long, thread_name_prefix="jaxinfer-tokenize-long")

    async def run[T](self, work: Callable[[], T], size: int) -> T:
        """Do it in a thread. size: characters or ids that it is about."""
        lane = self._long if size >= LONG_CHARS else self._short
        return await asyncio.get_running_loop().run_in_executor(lane, work)

    def close(self) -> None:
        """Wait for what is under way, and do nothing of what waits."""
        self._short.shutdown(cancel_futures=True)
        self._long.shutdown(cancel_futures=True)
