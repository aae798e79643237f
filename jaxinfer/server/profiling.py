"""POST /start_profile and /stop_profile: a trace of the engine's device, where the server was started with a folder.

The folder is the operator's, the trace's name the clock's: a client chooses neither.
"""

import asyncio
import contextlib
import logging
import time
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.errors import ApiError, Conflict, EngineError
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.protocol.responses import encode_json
from jaxinfer.server.completions import open_llm

logger = logging.getLogger("jaxinfer.server")

MAX_PROFILE_S = 10  # a trace of a busy GPU grows by tens of MB a second
MAX_PROFILES = 20  # in the folder


class Profiling:
    """The one trace that may be under way. It ends by itself in time."""

    def __init__(self, llm: AsyncLLM, folder: Path, max_s: float = MAX_PROFILE_S) -> None:
        self._llm = llm
        self._folder = folder
        self._max_s = max_s
        self._changing = asyncio.Lock()
        self._name: str | None = None  # of the trace under way
        self._timer: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """The new trace's name. Raises Conflict or EngineError."""
        async with self._changing:
            if self._name is not None:
                raise Conflict(f"one trace may run at a time, {self._name} does; stop it first", code="profile_running")
            num_there = len(list(self._folder.glob("*")))
            if num_there >= MAX_PROFILES:
                raise Conflict(
                    f"the folder of traces may hold {MAX_PROFILES}, it holds {num_there}; move some away",
                    code="too_many_profiles",
                )
            name = f"{time.strftime('%Y%m%d-%H%M%S')}-{num_there}"
            await self._llm.profile(str(self._folder / name))
            self._name = name
            self._timer = asyncio.create_task(self._stop_in_time())
            return name

    async def stop(self) -> str:
        """The ended trace's name. Raises Conflict or EngineError."""
        async with self._changing:
            if self._name is None:
                raise Conflict("a trace must be running to be stopped, none is", code="no_profile")
            name, self._name = self._name, None
            if self._timer is not None and self._timer is not asyncio.current_task():
                self._timer.cancel()
            await self._llm.profile(None)
            return name

    async def _stop_in_time(self) -> None:
        await asyncio.sleep(self._max_s)
        with contextlib.suppress(Conflict):  # someone was faster
            try:
                logger.info("trace %s stopped after %g s", await self.stop(), self._max_s)
            except EngineError as error:
                logger.error("a trace was lost: %s", error)


async def start_profile(request: Request) -> Response:
    """Begin a trace; it ends at /stop_profile, or by itself."""
    return await _answer(request, starts=True)


async def stop_profile(request: Request) -> Response:
    """End the trace and write it."""
    return await _answer(request, starts=False)


async def _answer(request: Request, *, starts: bool) -> Response:
    open_llm(request)
    profiling: Profiling = request.app.state.profiling
    try:
        name = await (profiling.start() if starts else profiling.stop())
    except EngineError as error:
        logger.error("%s: %s", request.url.path, error)
        raise ApiError("the engine could not do that; the server's log says why", code="profile_failed") from error
    return Response(encode_json({"profile": name}), media_type="application/json")
