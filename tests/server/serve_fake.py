"""A program for test_serve.py: run_server over a FakeLLM, as `jaxinfer serve` does it. Prints its port, then "exit N".

Arguments: the drain timeout in seconds, and how the start goes: ready, gated by a line on stdin, slow or broken.
"""

import asyncio
import sys

from jaxinfer.errors import CheckpointError
from jaxinfer.llm.types import Delta
from jaxinfer.server.app import create_app
from jaxinfer.server.serve import run_server
from tests.server.fakes import FakeLLM, hello


def script(prompt_ids, params):
    """So many tokens in three seconds, or as few as are asked for; for ever when the seed is 1."""
    sent = 0
    while sent < min(NUM_TOKENS, params.max_tokens or NUM_TOKENS) or params.seed == 1:
        yield Delta(0, "x", [1])
        yield 0.05
        sent += 1
    yield Delta(0, "", [2], "stop")


NUM_TOKENS = 60


class SlowFake(FakeLLM):
    """Takes its time with texts that say how much."""

    async def encode(self, text, **asked):
        await pause(text)
        return await super().encode(text, **asked)

    async def embed(self, *given, **asked):
        self._script, script = hello, self._script
        try:
            return await super().embed(*given, **asked)
        finally:
            self._script = script

    async def render(self, messages, **asked):
        for message in messages:
            await pause(message["content"])
        return await super().render(messages, **asked)


async def pause(text):
    """So many seconds as the text's number says."""
    await asyncio.sleep(float(text) if text.replace(".", "").isdecimal() else 0)


def main() -> None:
    llm = SlowFake(script, status="starting")

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
