"""The requests under way, and POST /abort_request and GET /load, which speak of them."""

import asyncio
from collections.abc import MutableMapping
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.llm.generation import Generation
from jaxinfer.protocol.abort import read_abort
from jaxinfer.protocol.responses import encode_json
from jaxinfer.server.body import read_json, unread
from jaxinfer.server.http_counts import ASKED

_LOOK_S = 0.01  # from one look at the requests that a stop waits for to the next
Key = tuple[str, str]  # tenant, and the request's id or its answer's


class RunningAnswer(Protocol):
    """Of which nothing but what the client will know it by counts here."""

    @property
    def id(self) -> str: ...


State = MutableMapping[str, Any]  # of its HTTP request, as RequestContext has it
Entry = tuple[Generation, RunningAnswer, State]


class Running:
    """Generations by who asked and under which id, which several may share. Those that are closed are not here.

    unanswered: the tasks of requests whose answer has not begun, whatever they ask for.
    """

    def __init__(self) -> None:
        self._by_key: dict[Key, list[Entry]] = {}
        self._all: set[Generation] = set()
        self.unanswered: dict[asyncio.Task[Any], State] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def load(self) -> int:
        """Requests under way: generations, and those whose body has come and is being tokenized, rendered or waits."""
        prepared = (state for state in self.unanswered.values() if "held_body" in state and "generation" not in state)
        return len(self) + sum(1 for _ in prepared)

    def track(self, state: State, generation: Generation, answer: RunningAnswer) -> None:
        """Know this one by both ids until it is closed."""
        tenant = state["tenant"].name
        keys = {(tenant, state["request_id"]), (tenant, answer.id)}
        entry = generation, answer, state
        for key in keys:
            self._by_key.setdefault(key, []).append(entry)
        self._all.add(generation)
        generation.on_close = lambda: self._forget(keys, entry)

    def _forget(self, keys: set[Key], entry: Entry) -> None:
        if entry[0] not in self._all:
            return
        self._all.remove(entry[0])
        for key in keys:
            self._by_key[key].remove(entry)
            if not self._by_key[key]:
                del self._by_key[key]

    def cut_off(self) -> None:
        """The server ends: let all of them that are aborted from now on say so by an error."""
        for generation in self._all:
            generation.is_cut_off = True

    async def until_answered(self) -> None:
        """Return when each request that is here now has begun its answer, or ended."""
        here = set(self.unanswered)
        while not here.isdisjoint(self.unanswered):
            await asyncio.sleep(_LOOK_S)

    def refuse_unanswered(self) -> None:
        """The server ends: let those that no generation answers say so by an error (context.py)."""
        for task, state in self.unanswered.items():
            if "generation" not in state:
                task.cancel()

    def known_as(self, key: Key) -> list[Entry]:
        """Those under way that the tenant knows by that id."""
        return self._by_key.get(key, [])[:]


async def end(entry: Entry) -> None:
    """Abort this one because somebody asked for it. Its request is counted once however often that is."""
    generation, _, state = entry
    state.setdefault("gone", ASKED)
    await generation.abort()


async def abort_request(request: Request) -> Response:
    """End the requests that this tenant has under way under an id, or the one whose answer has it.

    None of them is no error: they may have just ended.
    """
    state = request.app.state
    request_id, unknown = read_abort(await read_json(request, state.settings.max_body_bytes))
    headers = unread(request, unknown)
    found = state.running.known_as((request.state.tenant.name, request_id))
    for entry in found:
        await end(entry)
    return Response(encode_json({"aborted": len(found)}), headers=headers, media_type="application/json")


async def load(request: Request) -> Response:
    """How many requests are under way, waiting ones included, and the pages in use; answers in every status.

    While the model starts, `start` says how far: its stage is "load", in bytes, "compile" or "run", in programs,
    "wait", in engines that are ready, or "read" (of the tokenizer), without a total.
    """
    llm = request.app.state.llm
    answer: dict[str, Any] = {"server_load": request.app.state.running.load}
    if llm.status in ("starting", "serving") and (event := llm.progress) is not None:
        answer["start"] = {"stage": event.kind, "done": event.done, "total": event.total}
    if llm.status not in ("starting", "failed"):
        stats = llm.stats()
        answer |= {
            "pages_owned": stats.pages_owned,
            "pages_cached": stats.pages_cached,
            "pages_total": stats.pages_total,
        }
    return Response(encode_json(answer), media_type="application/json")
