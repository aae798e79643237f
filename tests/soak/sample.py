"""One look at a server under load: what its processes hold, what it says of itself, and how fast the machine is."""

import asyncio
import dataclasses
import hashlib
import os
import re
import time

import msgspec

from jaxinfer.bench.http_client import Reply, Target
from tests.server.http import CHAT, COMPLETIONS
from tests.soak.program import Program
from tests.support.processes import Footprint

CONTROL_BYTES = b"x" * 2**25
RARE = re.compile('status="[45]')  # the first client who leaves, and the first fault, begins a series whenever it comes
CANARY = {"max_tokens": 32, "temperature": 0, "ignore_eos": True}


@dataclasses.dataclass(frozen=True)
class Sample:
    """at_s: since the load began.    engine: the one that serves, None while another starts.    control_s: what a
      fixed piece of work took, so that a slower machine shows.
    labels_bytes: of /metrics without its values, whose digits may grow, and without RARE.    load: over a minute.
    """

    at_s: float
    server: Footprint
    engine: Footprint | None
    labels_bytes: int
    control_s: float
    load: float


class Observer:
    """Looks at one server."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._target = Target(f"http://127.0.0.1:{program.port}")
        self._begun_s = time.monotonic()
        self._serving = (0.0, program.engine_pid())  # how often an engine was replaced, and the one since

    async def sample(self) -> Sample:
        page = await self.metrics()
        if (restarts := value_in(page, "engine_restarts_total")) != self._serving[0]:
            self._serving = restarts, self._program.engine_pid()
        engine = self._program.engine()
        control_s = await asyncio.to_thread(control)
        return Sample(
            at_s=time.monotonic() - self._begun_s,
            server=self._program.server(),
            engine=engine if engine is not None and engine.pid == self._serving[1] else None,
            labels_bytes=len("".join(line.rpartition(" ")[0] for line in page.splitlines() if not RARE.search(line))),
            control_s=control_s,
            load=os.getloadavg()[0],
        )

    async def metrics(self) -> str:
        return (await self._ask("GET", "/metrics")).body.decode()

    async def value(self, name: str, **labels: str) -> float:
        """One value of /metrics."""
        return value_in(await self.metrics(), name, **labels)

    async def canary(self) -> list[str]:
        """What the model says to a fixed prompt, at both of the paths that the crowd goes to.

        Asked before the crowd comes it also begins their series in /metrics: on a slow machine the first whole answer
        of a crowd's chat can take longer than the law waits.
        """
        said = {"prompt": "7 plus 5 is"}, {"messages": [{"role": "user", "content": "7 plus 5 is"}]}
        replies = [
            await self._ask("POST", path, msgspec.json.encode(CANARY | prompt))
            for path, prompt in zip((COMPLETIONS, CHAT), said, strict=True)
        ]
        completion, chat = (msgspec.json.decode(reply.body)["choices"][0] for reply in replies)
        return [completion["text"], chat["message"]["content"]]

    async def _ask(self, method: str, path: str, body: bytes = b"") -> Reply:
        connection = await self._target.connect()
        try:
            return await connection.ask(self._target.request(method, path, body))
        finally:
            connection.close()


def value_in(page: str, name: str, **labels: str) -> float:
    """One value of a page of metrics."""
    pattern = rf"^jaxinfer:{name}{{[^}}]*" + "".join(f'{key}="{value}"' for key, value in labels.items())
    found = re.findall(pattern + r"[^}]*} (\S+)$", page, re.MULTILINE)
    assert len(found) == 1, (name, found)
    return float(found[0])


def control() -> float:
    """Seconds for a fixed piece of work; the interpreter is free meanwhile."""
    begun_s = time.monotonic()
    hashlib.sha256(CONTROL_BYTES).digest()
    return time.monotonic() - begun_s
