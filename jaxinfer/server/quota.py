"""How much one tenant may ask for: requests running together, and requests begun in a minute."""

import time
from collections import Counter
from collections.abc import Callable

from jaxinfer.config import counted
from jaxinfer.errors import Overloaded
from jaxinfer.server.tenants import Tenant


class Quota:
    """Counts by tenant, so it holds no more entries than there are tenants. None is no limit."""

    def __init__(
        self,
        max_running: int | None,
        max_per_minute: int | None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_running = max_running
        self._max_per_minute = max_per_minute
        self._now_s = now_s
        self._running: Counter[str] = Counter()
        self._full_at_s: dict[str, float] = {}  # when a tenant's minute will be whole again if it asks for nothing

    def take(self, tenant: Tenant) -> None:
        """Count a request that begins. Raises Overloaded, and counts nothing, when it is one too many."""
        most = self._max_running
        if most is not None and self._running[tenant.name] >= most:
            raise Overloaded(
                f"a key may have at most {counted(most, 'request')} running at once (--max-requests-per-key), and as "
                "many are; wait for one of them to end",
                code="concurrency_limit_exceeded",
            )
        if self._max_per_minute is not None:
            self._take_turn(tenant, self._max_per_minute)
        self._running[tenant.name] += 1

    def give_back(self, tenant: Tenant) -> None:
        """A request has ended."""
        self._running[tenant.name] -= 1

    def _take_turn(self, tenant: Tenant, most: int) -> None:
        """A leaky bucket: a whole minute's requests may come at once, then one each minute / most."""
        now_s, turn_s = self._now_s(), 60 / most
        full_at_s = max(self._full_at_s.get(tenant.name, now_s), now_s) + turn_s
        wait_s = full_at_s - now_s - 60
        if wait_s > 1e-6:  # sums of turns are not exact
            raise Overloaded(
                f"a key may begin at most {counted(most, 'request')} a minute (--max-requests-per-minute-per-key), and "
                f"has; try again in {wait_s:.1f} s",
                code="rate_limit_exceeded",
                retry_after_s=wait_s,
            )
        self._full_at_s[tenant.name] = full_at_s
