"""What /v1/responses keeps for clients to come back to."""

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from jaxinfer.protocol.response_calls import Item
from jaxinfer.protocol.response_items import Messages

ENTRY_BYTES = 512  # what Python needs for an entry beside its bytes
ITEM_BYTES = 384  # and for each item by whose id it is found


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """body: the response object.    history: the conversation up to its end, as JSON.    stored_s: when.
    item_ids: of its output.    previous_id: of the response that it goes on from.
    """

    body: bytes
    history: bytes
    stored_s: float
    item_ids: tuple[str, ...] = ()
    previous_id: str | None = None

    @property
    def num_bytes(self) -> int:
        return len(self.body) + len(self.history) + ENTRY_BYTES + ITEM_BYTES * len(self.item_ids)


class _Output(msgspec.Struct):
    """What is read of a response object."""

    output: list[Item]


class _History(list[dict[str, Any]]):
    """Messages that can be found as long as somebody has them."""


class ResponseStore:
    """Responses by tenant and id. Invariant: after each call at most max_responses are held, of max_bytes together, and
    none older than max_age_s.

    When there are too many, the tenant who holds most gives up its oldest one: nobody can drive out another's by
    asking more often.
    """

    def __init__(
        self, max_responses: int, max_bytes: int, max_age_s: float, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self.max_age_s = max_age_s
        self._now_s = now_s
        self._held: dict[str, dict[str, Stored]] = {}  # oldest first
        self._num_bytes: defaultdict[str, int] = defaultdict(int)
        self._holders: dict[tuple[str, str], str] = {}  # a tenant's item to the response that holds it
        self._read: WeakValueDictionary[tuple[str, str], _History] = WeakValueDictionary()

    def put(
        self,
        tenant: str,
        response_id: str,
        body: bytes,
        history: bytes,
        item_ids: tuple[str, ...] = (),
        previous_id: str | None = None,
    ) -> None:
        """Keep a response, as long as there is room."""
        stored = Stored(body, history, self._now_s(), item_ids, previous_id)
        self._held.setdefault(tenant, {})[response_id] = stored
        self._holders |= dict.fromkeys(((tenant, item_id) for item_id in item_ids), response_id)
        self._num_bytes[tenant] += stored.num_bytes
        self._forget_old()
        while sum(map(len, self._held.values())) > self.max_responses:
            self._forget_oldest(max(self._held, key=lambda name: len(self._held[name])))
        while sum(self._num_bytes.values()) > self.max_bytes:
            self._forget_oldest(max(self._num_bytes, key=self._num_bytes.__getitem__))

    def get(self, tenant: str, response_id: str) -> Stored | None:
        """This tenant's response of that id."""
        self._forget_old()
        return self._held.get(tenant, {}).get(response_id)

    def history(self, tenant: str, response_id: str) -> Messages | None:
        """The conversation up to a response's end, not to be changed: who asks while another has it gets the same."""
        stored = self.get(tenant, response_id)
        if stored is None:
            return None
        found = self._read.get((tenant, response_id))
        if found is None:
            found = self._read[tenant, response_id] = _History(msgspec.json.decode(stored.history))
        return found

    def items(self, tenant: str, item_id: str) -> dict[str, Item]:
        """All that the response of this tenant's said that holds the item, by id; nothing where none holds it."""
        stored = self.get(tenant, self._holders.get((tenant, item_id), ""))
        output = [] if stored is None else msgspec.json.decode(stored.body, type=_Output).output
        return {item["id"]: item for item in output}

    def items_up_to(self, tenant: str, response_id: str) -> set[str]:
        """The ids of what a response said and those before it that are still held."""
        held, found = self._held.get(tenant, {}), set[str]()
        next_id: str | None = response_id
        while next_id and (stored := held.get(next_id)):
            found.update(stored.item_ids)
            next_id = stored.previous_id
        return found

    def forget(self, tenant: str, response_id: str) -> bool:
        """Whether there was such a response; there no longer is."""
        is_there = self.get(tenant, response_id) is not None
        if is_there:
            self._drop(tenant, response_id)
        return is_there

    def counts(self) -> tuple[int, int]:
        """How many are held, and their bytes."""
        self._forget_old()
        return sum(map(len, self._held.values())), sum(self._num_bytes.values())

    def _forget_old(self) -> None:
        since_s = self._now_s() - self.max_age_s
        for tenant in tuple(self._held):
            while tenant in self._held and next(iter(self._held[tenant].values())).stored_s < since_s:
                self._forget_oldest(tenant)

    def _forget_oldest(self, tenant: str) -> None:
        self._drop(tenant, next(iter(self._held[tenant])))

    def _drop(self, tenant: str, response_id: str) -> None:
        stored = self._held[tenant].pop(response_id)
        self._num_bytes[tenant] -= stored.num_bytes
        for item_id in stored.item_ids:
            self._holders.pop((tenant, item_id), None)
        if not self._held[tenant]:
            del self._held[tenant], self._num_bytes[tenant]
