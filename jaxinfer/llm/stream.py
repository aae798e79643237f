"""What a caller of AsyncLLM.generate iterates over."""

from collections.abc import Callable

from jaxinfer.llm.mailbox import Mailbox
from jaxinfer.llm.types import Delta


class Stream:
    """The deltas of one request, in order, until every choice has ended. Leaving it early aborts the request."""

    def __init__(self, mailbox: Mailbox, num_choices: int, abort: Callable[[], None]) -> None:
        self._mailbox = mailbox
        self._num_open = num_choices
        self._abort = abort

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Delta:
        if not self._num_open:
            raise StopAsyncIteration
        delta = await self._mailbox.get()
        self._num_open -= delta.finish_reason is not None
        return delta

    async def aclose(self) -> None:
        """Abort what has not ended; nothing to do otherwise."""
        self.close()

    def close(self) -> None:
        """The same without awaiting, for callers that are being cancelled."""
        if self._num_open:
            self._num_open = 0
            self._abort()

    def __del__(self) -> None:
        # a stream that nobody ever iterated must not keep its pages: the server may drop it before its first byte
        self.close()
