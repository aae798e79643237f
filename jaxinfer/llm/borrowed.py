"""An AsyncLLM for a while over an engine that somebody has: asynchronous work for a caller that is not."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.core import Core
from jaxinfer.llm.events import Event, OnEvent
from jaxinfer.llm.thread import EngineThread

Work = Callable[[AsyncLLM], Coroutine[None, None, None]]


def run_over(config: EngineConfig, core: Core, work: Work) -> None:
    """Do the work, over an engine that nobody else steps until this returns; what it leaves behind is aborted.

    It has an event loop in a thread of its own, since the caller may be inside of one. An interrupt cancels it.
    """

    def start_core(config: EngineConfig, on_event: OnEvent) -> Core:
        on_event(Event("ready"))
        return core

    async def serve() -> None:
        llm = AsyncLLM(config, new_transport=partial(EngineThread, start_core=start_core))
        try:
            await llm.start()
            await work(llm)
        finally:
            await llm.close()

    _in_thread(serve())


def _in_thread(work: Coroutine[None, None, None]) -> None:
    loop, failures, ended = asyncio.new_event_loop(), list[BaseException](), threading.Event()
    task = loop.create_task(work)

    def run() -> None:
        try:
            loop.run_until_complete(task)
        except BaseException as error:
            failures.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, name="jaxinfer-batch").start()
    try:
        ended.wait()  # an interrupted Thread.join takes the thread for ended (Python 3.12)
    except BaseException:
        loop.call_soon_threadsafe(task.cancel)
        ended.wait()
        raise
    finally:
        loop.close()
    if failures:
        raise failures[0]
