"""Turns: callbacks taken in order, a few in each round of an event loop, so that nothing else waits for all of them."""

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """Invariant: at most `at_once` callbacks are made between two looks of the loop at its sockets; none is forgotten.

    Belongs to one event loop.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = self._left = at_once
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, call: Callable[[], None]) -> None:
        """Make this call now, or when its turn comes."""
        self._waiting.append(call)
        if self._left == self._at_once:  # no round has begun
            asyncio.get_running_loop().call_soon(self._next_round)
        if self._left:
            self._go_on()

    async def wait(self) -> None:
        """Return when it is the caller's turn."""
        turn = asyncio.Event()
        self.take(turn.set)
        await turn.wait()

    def _next_round(self) -> None:
        self._left = self._at_once
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next_round)
            self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._left:
            self._left -= 1
            self._waiting.popleft()()
