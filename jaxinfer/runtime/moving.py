"""Pages on their way between the device and pinned host memory, and how many of them may be under way.

What is under way takes device memory twice, in the pool and beside it, so its bytes are bounded: more waits until the
oldest has arrived. That is rare: what was saved for one step has arrived by the next.
"""

from collections import deque

import jax

PAGES_MOVED = 8  # that one program saves or loads
STAGED_BYTES = 2**27  # under way in one direction, unless a single program's are more


def staged_bytes(page_bytes: int) -> int:
    """The most that is under way in both directions."""
    return 2 * _most(page_bytes) * PAGES_MOVED * page_bytes


def _most(page_bytes: int) -> int:
    """How many programs' pages may be under way in one direction."""
    return max(1, STAGED_BYTES // (PAGES_MOVED * page_bytes))


class Staging:
    """What is under way in one direction, oldest first: at most `_most` programs' worth."""

    def __init__(self, page_bytes: int) -> None:
        self._most = _most(page_bytes)
        self._under_way: deque[object] = deque()

    def make_room(self) -> None:
        """Wait until one more may be under way."""
        while len(self._under_way) >= self._most:
            jax.block_until_ready(self._under_way.popleft())

    def add(self, arrays: object) -> None:
        """These arrays are ready once it has arrived."""
        self._under_way.append(arrays)

    def clear(self) -> None:
        """The device's state is lost, and so is what was under way."""
        self._under_way.clear()
