"""The requests under way, and POST /abort_request and GET /load, which speak of them."""

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.protocol.abort import read_abort
from jaxinfer.protocol.responses import encode_json
from jaxinfer.server.body import read_json, unread
from jaxinfer.server.generation import Generation

Key = tuple[str, str]  # tenant, request id


class Running:
    """Generations by who asked and under which id, which several may share. Those that are closed are not here."""

    def __init__(self) -> None:
        self._by_key: dict[Key, set[Generation]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def track(self, key: Key, generation: Generation) -> None:
        """Know this one until it is closed."""
        self._by_key.setdefault(key, set()).add(generation)
        generation.on_close = lambda: self._forget(key, generation)

    def _forget(self, key: Key, generation: Generation) -> None:
        same = self._by_key.get(key, set())
        same.discard(generation)
        if not same:
            self._by_key.pop(key, None)

    async def abort(self, key: Key) -> int:
        """End their choices with finish_reason "abort"; how many requests that were."""
        found = tuple(self._by_key.get(key, ()))
        for generation in found:
            await generation.abort()
        return len(found)


async def abort_request(request: Request) -> Response:
    """End the requests that this tenant has under way under an id; 0 of them is no error, they may have just ended."""
    state = request.app.state
    request_id, unknown = read_abort(await read_json(request, state.settings.max_body_bytes))
    headers = unread(request, unknown)
    num_aborted = await state.running.abort((request.state.tenant.name, request_id))
    return Response(encode_json({"aborted": num_aborted}), headers=headers, media_type="application/json")


async def load(request: Request) -> Response:
    """How many requests are being answered, waiting ones included; answers in every status."""
    return Response(encode_json({"server_load": len(request.app.state.running)}), media_type="application/json")
