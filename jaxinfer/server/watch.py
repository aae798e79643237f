"""The watch over the client that an answer is for: what it leaves behind ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive


async def while_connected[T](receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, cancelled when the client leaves first; then raises ClientDisconnect."""
    task = asyncio.Task(work, loop=asyncio.get_running_loop(), eager_start=True)
    if task.done():  # most need not wait for anything
        return task.result()
    gone = asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await stop(task, gone)
    if task.cancelled():
        raise ClientDisconnect
    return task.result()


async def disconnected(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def stop(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what still runs and wait until it has ended."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
