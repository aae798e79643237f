"""Mailbox: the deltas of one request on their way to whoever reads its stream."""

import asyncio

from jaxinfer.llm.types import Delta


class Mailbox:
    """Of what has not been fetched yet, a choice's deltas become one, so that a server that falls behind catches up: a
    frame of five tokens costs hardly more than one of one. An error stays by itself, behind the text before it.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, bool], Delta] = {}
        self._filled = asyncio.Event()

    def put(self, delta: Delta) -> bool:
        """Returns whether it was empty: then `wake` must follow, until when more may be put."""
        was_empty = not self._waiting
        key = (delta.index, delta.finish_reason == "error")
        if key in self._waiting:
            self._waiting[key].extend(delta)
        else:
            self._waiting[key] = delta
        return was_empty

    def wake(self) -> None:
        """Let the reader have what is there."""
        self._filled.set()

    async def get(self) -> Delta:
        """The oldest; waits for it and to be woken."""
        await self._filled.wait()
        delta = self._waiting.pop(next(iter(self._waiting)))
        if not self._waiting:
            self._filled.clear()
        return delta
