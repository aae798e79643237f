"""Routes that official clients call beside ours, and that are not here: each says so by its name, lest a client takes a
405 for a server that has another version of the route.
"""

import dataclasses

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jaxinfer.errors import NotFound


@dataclasses.dataclass(frozen=True, slots=True)
class Absent:
    """what: is not here.    cure: what to do instead."""

    methods: tuple[str, ...]
    path: str
    what: str
    cure: str

    @property
    def route(self) -> Route:
        async def refuse(request: Request) -> Response:
            raise NotFound(f"there are no {self.what} here; {self.cure}", code="not_served")

        route = Route(self.path, refuse, methods=list(self.methods))
        route.methods = set(self.methods)  # Starlette adds HEAD to GET, also where another route has the path's POST
        return route


_STORED = "stored chat completions", "ask /v1/responses, whose answers are stored"
_BATCHES = "message batches", "ask /v1/messages for each, or put chat completions into /v1/batches"
_AGENTS = "sessions of agents", "a session here begins with a request that has a session_id"
_SERVE = "start a server with `jaxinfer serve MODEL`"
_DOWNLOADS = "downloads of models by request", f"download it with `jaxinfer pull MODEL`, and {_SERVE}"
_UPLOADS = "uploads of models", f"put the folder on this machine, and {_SERVE}"
_NAMES = "new models by request", f"{_SERVE} and --served-model-name NAME"
_ANY = (
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
)  # of a path of which nothing is here: a 405 would send to another method
ABSENT = (
    Absent(_ANY, "/api/pull", *_DOWNLOADS),
    Absent(_ANY, "/api/push", *_UPLOADS),
    *(Absent(_ANY, f"/api/{verb}", *_NAMES) for verb in ("create", "copy")),
    Absent(_ANY, "/api/delete", "deletions of models by request", "remove it with `jaxinfer rm MODEL`"),
    Absent(_ANY, "/api/blobs/{id:path}", *_UPLOADS),
    Absent(("GET",), "/v1/chat/completions", *_STORED),
    Absent(("GET", "POST", "DELETE"), "/v1/chat/completions/{id:path}", *_STORED),
    Absent(("DELETE",), "/v1/models/{id:path}", "models that can be deleted", "stop the server that serves it"),
    Absent(("GET",), "/v1/responses/{id}/input_items", "lists of a response's input", "keep what you send"),
    Absent(("POST",), "/v1/responses/compact", "compacted responses", "send what counts, or truncation auto"),
    Absent(("GET", "POST"), "/v1/messages/batches", *_BATCHES),
    Absent(("GET", "POST", "DELETE"), "/v1/messages/batches/{id:path}", *_BATCHES),
    Absent(("POST",), "/v1/sessions", *_AGENTS),
    Absent(("POST",), "/v1/sessions/{id}", *_AGENTS),
    Absent(("GET", "POST", "DELETE"), "/v1/sessions/{id}/{part:path}", *_AGENTS),
)
