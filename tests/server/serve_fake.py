"""A program for test_serve.py: run_server over a FakeLLM, as `jaxinfer serve` does it. Prints its port, then "exit N".

Arguments: the drain timeout in seconds, and how the start goes: ready, gated by a line on stdin, slow or broken.
"""

import asyncio
import sys

from jaxinfer.errors import CheckpointError
from jaxinfer.llm.types import Delta
from jaxinfer.server.app import create_app
from jaxinfer.server.serve import run_server
from tests.server.fakes import FakeLLM


def script(prompt_ids, params):
    """So many tokens in three seconds, or for ever when the seed is 1."""
    sent = 0
    while sent < NUM_TOKENS or params.seed == 1:
        yield Delta(0, "x", [1])
        yield 0.05
        sent += 1
    yield Delta(0, "", [2], "stop")


NUM_TOKENS = 60


class DrainingFake(FakeLLM):
    async def drain(self, timeout_s: float) -> None:
        """Like AsyncLLM: what still runs after the timeout is aborted, not an error."""
        try:
            await super().drain(timeout_s)
        except TimeoutError:
            self.running.clear()


def main() -> None:
    llm = DrainingFake(script, status="starting")

    async def start() -> None:
        if sys.argv[2] == "broken":
            await asyncio.sleep(0.2)
            llm.status = "failed"
            raise CheckpointError("config.json: no such model")
        if sys.argv[2] == "gated":
            await asyncio.to_thread(sys.stdin.readline)
        await asyncio.sleep(60 if sys.argv[2] == "slow" else 0.0)
        llm.status = "ready"

    def say(host: str, port: int) -> None:
        print(port, flush=True)

    try:
        code = run_server(create_app(llm), "127.0.0.1", 0, float(sys.argv[1]), start=start, on_bound=say)
    except CheckpointError as error:
        print(error, flush=True)
        code = error.exit_code
    print("exit", code, flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
