"""How much large bodies may hold together, and which of them gives way when that is full."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from jaxinfer.errors import Overloaded
from jaxinfer.protocol.body import LARGE_BYTES

MAX_LARGE_BODIES_MIB = 256  # of all requests that have not been queued yet, large ones only
MAX_LARGE_BODIES_MIB_PER_KEY = 128  # where there are keys: what one tenant sends leaves room for the others'
MIN_LARGE_BODY_MIB_PER_S = 1  # after its first second; what comes more slowly gives way
FIRST_S = 1.0


class LargeBodies:
    """How much of large bodies is held at once: read, parsed, tokenized, and not yet in the engine's bounded queue.

    The rest of a body may take its client many minutes, and what came first is held meanwhile. So what is late gives
    way when there is no room, the latest first: no client can keep others out by being slow.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s
        self.num_bytes = 0
        self.of_tenants: Counter[str] = Counter()  # no more entries than there are tenants
        self.coming: set[Held] = set()  # large ones of which more is to come

    def add(self, tenant: str, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self.of_tenants[tenant] += num_bytes

    def make_room(self, held: "Held", more: int) -> None:
        """Let others give way until `held`, which is coming too, may have so many bytes more. Raises Overloaded."""
        while True:
            if held.tenant and self.of_tenants[held.tenant] + more > MAX_LARGE_BODIES_MIB_PER_KEY * 2**20:
                law = _law(MAX_LARGE_BODIES_MIB_PER_KEY, "one key's ")
                rivals = {each for each in self.coming if each.tenant == held.tenant}
            elif self.num_bytes + more > MAX_LARGE_BODIES_MIB * 2**20:
                law, rivals = _law(MAX_LARGE_BODIES_MIB, ""), self.coming
            else:
                return
            late = max(rivals, key=Held.num_late)  # held is one of them
            if late is held or late.num_late() <= 0:
                raise _full(law)
            late.give_way(law)


class Held:
    """What one request holds of it. Invariant: given back once, whoever does it."""

    def __init__(self, of: LargeBodies, tenant: str) -> None:
        """tenant: empty where there are no keys."""
        self.tenant = tenant
        self._of = of
        self._begun_s = of.now_s()
        self._num_bytes = 0
        self._reading = asyncio.timeout(None)
        self._refusal: Overloaded | None = None  # once it has given way

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """While its body comes. Raises Overloaded when it had to give way."""
        try:
            async with self._reading:
                yield
        except TimeoutError:
            if self._refusal is None:
                raise
        finally:
            self._of.coming.discard(self)
        if self._refusal is not None:
            raise self._refusal

    def grow(self, size: int) -> None:
        """Its body has so many bytes by now. Raises Overloaded; small bodies are never refused."""
        if size <= LARGE_BYTES or self._refusal is not None:
            return
        self._of.coming.add(self)
        more = size - self._num_bytes
        self._of.make_room(self, more)
        self._of.add(self.tenant, more)
        self._num_bytes = size

    def num_late(self) -> float:
        """How many bytes more should have come by now; below zero when it came faster."""
        due_s = self._of.now_s() - self._begun_s - FIRST_S
        return due_s * MIN_LARGE_BODY_MIB_PER_S * 2**20 - self._num_bytes

    def give_way(self, law: str) -> None:
        """Free what it holds now; whoever reads it is told."""
        slow = f"this one came more slowly than {MIN_LARGE_BODY_MIB_PER_S} MiB a second and others needed its place"
        self._refusal = _full(f"{law}; {slow}")
        self._of.coming.discard(self)
        self._reading.reschedule(0.0)
        self.release()

    def release(self) -> None:
        self._of.add(self.tenant, -self._num_bytes)
        self._num_bytes = 0


def _law(most_mib: int, whose: str) -> str:
    what = f"{whose}bodies of more than {LARGE_BYTES} bytes"
    return f"{what} may have at most {most_mib} MiB together until they are queued"


def _full(why: str) -> Overloaded:
    return Overloaded(f"{why}; try again shortly", code="bodies_full", retry_after_s=1.0)
