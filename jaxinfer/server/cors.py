"""Which sites' pages may read answers: the headers that browsers look for, and the answer to their question before.

Source: the Fetch standard, https://fetch.spec.whatwg.org/#http-cors-protocol. No credentials are allowed: keys come in
a header that the page itself sets.
"""

import re
from collections.abc import Collection

from starlette.responses import Response
from starlette.types import Message, Send

from jaxinfer.errors import Forbidden

ANY = "*"
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9-]+( ?, ?[A-Za-z0-9-]+){0,63}")
_EXPOSED = b"x-request-id, request-id, x-jaxinfer-warnings, retry-after"


class Cors:
    """The rule for a server's allowed origins."""

    def __init__(self, origins: Collection[str]) -> None:
        self._any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def allows(self, origin: bytes) -> bool:
        return self._any or origin in self._origins

    def marked(self, origin: bytes, send: Send) -> Send:
        """`send`, but answers say that this origin's pages may read them."""
        added = [
            (b"access-control-allow-origin", ANY.encode() if self._any else origin),
            (b"access-control-expose-headers", _EXPOSED),
            *([] if self._any else [(b"vary", b"origin")]),
        ]

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        return send_marked

    def preflight(self, origin: bytes, wanted: bytes) -> Response:
        """The answer to a browser that asks first. wanted: the headers its page would send. Raises Forbidden."""
        if not self.allows(origin):
            raise Forbidden(
                f"pages of other sites must be named by --allowed-origins, got {ascii(origin.decode('latin-1'))[:200]};"
                " start the server with it",
                code="origin_not_allowed",
            )
        headers = {"access-control-allow-methods": "GET, POST, DELETE", "access-control-max-age": "600"}
        if _HEADER_NAMES.fullmatch(wanted):
            headers["access-control-allow-headers"] = wanted.decode()
        return Response(status_code=204, headers=headers)
