"""The watch over the client that an answer is for."""

import asyncio

from starlette.types import Message

from jaxinfer.server.watch import while_connected


async def stay() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


async def seven() -> int:
    return 7


def test_what_need_not_wait_is_done_before_anything_else_of_the_loop():
    """A request of token ids waited for a round of the loop, 80 us of its first token."""
    others = []

    async def work() -> int:
        asyncio.get_running_loop().call_soon(others.append, "other")
        found = await while_connected(stay, seven())
        assert not others
        return found

    assert asyncio.run(work()) == 7
