"""One client process: `python -m jaxinfer.bench.client`. Reads a Share as a line of JSON, prepares, says ready, reads
the start time as a second line, loads the server, and writes lines of how many requests have ended, then its Results
as JSON. It ends with its standard input. No jax.
"""

import asyncio
import gc
import sys
import time

import msgspec
import uvloop

from jaxinfer import children
from jaxinfer.bench.http_client import NO_CONNECTION, Connection, Outcome, Reply, Target, read_stream
from jaxinfer.bench.load import Share

PATH = "/v1/completions"
EVERY_S = 0.5  # between two lines of how many requests have ended


class ClientResults(msgspec.Struct):
    """What one client saw. interruption: of the request that is counted apart."""

    outcomes: list[Outcome]
    interruption: Outcome | None = None


def main() -> None:
    children.end_with_parent()
    share = msgspec.json.decode(sys.stdin.buffer.readline(), type=Share)
    uvloop.run(_main(share))


async def _main(share: Share) -> None:
    client = Client(share)
    await client.prepare()
    print("ready", flush=True)
    line = await asyncio.to_thread(sys.stdin.readline)
    if not line:  # the parent has ended, which the process may hear here first
        return
    start_s = float(line)
    telling = asyncio.create_task(client.tell())
    results = await client.run(start_s)
    telling.cancel()
    sys.stdout.buffer.write(msgspec.json.encode(results) + b"\n")
    sys.stdout.buffer.flush()


class Client:
    """Sends its share of a load. Invariant: never more than `at_once` of its requests are under way."""

    def __init__(self, share: Share) -> None:
        self._share, self._load = share, share.load
        self._target = Target(share.load.url, share.load.key)
        self._idle: list[Connection] = []
        self._replies: list[Reply] = []

    async def prepare(self) -> None:
        """Write every request and open the connections, so that the clock sees neither."""
        starts_s = self._load.starts_s()
        self._queue = [(starts_s[i], self._request(self._load.body(i))) for i in self._share.indices]
        self._queue.reverse()
        self._interruption = self._request(self._load.interruption()) if self._share.interrupts else b""
        at_once = min(self._share.at_once, 64 if self._load.rate else self._share.at_once)
        for _ in range(at_once):
            try:
                self._idle.append(await self._target.connect())
            except OSError:
                break  # each request will try again, and its outcome says what went wrong
        gc.freeze()
        gc.disable()  # a collection would stop all streams for a moment; a run makes no cycles worth it

    async def run(self, start_s: float) -> ClientResults:
        async with asyncio.TaskGroup() as tasks:
            interrupting = tasks.create_task(self._interrupt(start_s)) if self._interruption else None
            for _ in range(self._share.at_once):
                tasks.create_task(self._work(start_s))
        interruption = read_stream(interrupting.result()) if interrupting else None
        return ClientResults([read_stream(reply) for reply in self._replies], interruption)

    async def tell(self) -> None:
        """Write how many requests have ended, where that has changed."""
        told = 0
        while True:
            await asyncio.sleep(EVERY_S)
            if len(self._replies) > told:
                told = len(self._replies)
                print(told, flush=True)

    async def _work(self, start_s: float) -> None:
        while self._queue:
            after_s, request = self._queue.pop()
            self._replies.append(await self._send(start_s + after_s, request))

    async def _interrupt(self, start_s: float) -> Reply:
        return await self._send(start_s + self._load.interrupt_after_s, self._interruption)

    async def _send(self, at_s: float, request: bytes) -> Reply:
        await asyncio.sleep(at_s - time.monotonic())
        while self._idle and not self._idle[-1].is_open:
            self._idle.pop()
        try:
            connection = self._idle.pop() if self._idle else await self._target.connect()
        except OSError as error:
            return Reply(time.monotonic(), error=f"{NO_CONNECTION}: {error}")
        reply = await connection.ask(request)
        if connection.is_open:
            self._idle.append(connection)
        return reply

    def _request(self, body: bytes) -> bytes:
        return self._target.request("POST", PATH, body)


if __name__ == "__main__":
    main()
