"""The engine process of tests, an ordinary one but faulty: `python -m tests.support.faulty_child FD BASE FAULTS [PATH]`

BASE: "real", or "dry run", which starts in no time and takes 5 ms a step.    FAULTS: a JSON file of those that each one
starts with.    PATH: of a datagram socket on which it takes orders while it runs. Nothing in jaxinfer leads here.
"""

import contextlib
import dataclasses
import socket
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from jaxinfer.config import EngineConfig
from jaxinfer.engine.engine import Engine
from jaxinfer.llm import child
from jaxinfer.llm.core import Core, StartCore
from jaxinfer.llm.events import OnEvent
from jaxinfer.runtime.plan import Pending, Plan
from jaxinfer.testing.faults import Fault, Faults, FaultyRunner

MODULE = "tests.support.faulty_child"


@contextlib.contextmanager
def faultless(base: str) -> Iterator[tuple[str, ...]]:
    """The module and arguments of a child without faults until it gets orders, on the last of them."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own paths are too long for a socket
        faults = Path(folder, "faults")
        faults.write_text("[]")
        yield MODULE, base, str(faults), str(Path(folder, "orders"))


class Order(msgspec.Struct):
    """add: a fault whose steps are counted from now.    clear: forget all faults.    poison: see Poisoned."""

    add: Fault | None = None
    clear: bool = False
    poison: bool | None = None


class Orders:
    """The test's end: each order is in force from the next step on."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def send(self, order: Order) -> None:
        self._socket.sendto(msgspec.json.encode(order), self._path)

    def close(self) -> None:
        self._socket.close()


class OrderedRunner(FaultyRunner):
    """A FaultyRunner that looks for orders before each step. poison: fill every page without content with NaN then."""

    def __init__(self, core: Core, faults: Faults, orders: socket.socket | None) -> None:
        super().__init__(core.runner, faults)
        self._orders = orders
        self._poison = False
        self._core = core

    def run(self, plan: Plan) -> Pending:
        while (order := self._order()) is not None:
            if order.clear:
                self.faults = Faults()
            if order.add is not None:
                self.faults.add(dataclasses.replace(order.add, step=order.add.step + self.num_steps))
            self._poison = self._poison if order.poison is None else order.poison
        if self._poison and any(row.sampling is not None for row in plan.rows):
            poison(self._core.runner, blank_pages(self._core.engine, plan))
        return super().run(plan)

    def _order(self) -> Order | None:
        if self._orders is None:
            return None
        try:
            return msgspec.json.decode(self._orders.recv(65536), type=Order)
        except BlockingIOError:
            return None


def blank_pages(engine: Engine, plan: Plan) -> list[int]:
    """Page 0, the pages that are nobody's and not findable, and those that this step gives to someone."""
    scheduler = engine.scheduler
    owners = [*(s.cache for s in scheduler.running), *scheduler.cache.deferred]
    used = {page for s in owners for page in s.page_ids()}
    fresh = set()
    for row in plan.rows:
        size = engine.limits.page_size
        fresh |= {page for i, page in row.new_pages if i * size >= row.start}
    pages = range(1, engine.limits.num_pages)
    return [0, *(page for page in pages if scheduler.cache.pool.key_of(page) is None and page not in used - fresh)]


def poison(runner: Any, pages: list[int]) -> None:
    """Fill pages of a DeviceRunner with NaN, whatever their layout; compiles nothing."""
    import jax
    import numpy as np

    def filled(leaf: jax.Array) -> jax.Array:
        values = np.array(leaf)
        axis = values.shape.index(runner.limits.num_pages)
        np.moveaxis(values, axis, 0)[pages] = np.nan
        return jax.device_put(values, leaf.sharding)

    state = runner._state
    runner._state = state.replace(store=jax.tree.map(filled, state.store))


def base_start(name: str) -> StartCore:
    if name == "dry run":
        from jaxinfer.llm.dry_run import start_dry_run

        return partial(start_dry_run, step_s=0.005)
    from jaxinfer.llm.build import start_core

    return start_core


def main() -> None:
    base, faults, *path = sys.argv[2:]

    def start(config: EngineConfig, on_event: OnEvent) -> Core:
        core = base_start(base)(config, on_event)
        orders = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if path else None
        if orders is not None:
            Path(path[0]).unlink(missing_ok=True)  # of an engine process before this one
            orders.bind(path[0])
            orders.setblocking(False)
        armed = Faults(*msgspec.json.decode(Path(faults).read_bytes(), type=list[Fault]))
        core.engine = Engine(OrderedRunner(core, armed, orders), core.limits, core.grammars)
        return core

    child.main(start)


if __name__ == "__main__":
    main()
