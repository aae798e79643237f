"""The door: which host name, which site, which key, how often. What it refuses has reached no handler and no engine.

Every path is closed unless OPEN names it. It decides from the scope's own path and headers, never from a URL put
together of them: a Host header may hold `localhost/health?`. Plain ASGI, as in context.py.
"""

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from jaxinfer.errors import ApiError, Forbidden, InvalidRequest, Unauthorized
from jaxinfer.server.context import HEALTH_PATHS
from jaxinfer.server.cors import Cors
from jaxinfer.server.errors import error_response
from jaxinfer.server.quota import Quota
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import EVERYBODY, Tenant, Tenants

OPEN = HEALTH_PATHS | {"/"}  # the chat page is the same for everybody
UNCOUNTED = ("/abort_request", "/cancel")  # who has too much under way must be able to end some of it
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")


class Guard:
    """Lets a request through with `tenant` in its state, or answers it."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, tenants: Tenants | None) -> None:
        """tenants: None is everybody."""
        self.app = app
        self._settings = settings
        self._tenants = tenants
        self._cors = Cors(settings.allowed_origins)
        self._quota = Quota(settings.max_requests_per_key, settings.max_requests_per_minute_per_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        origin = _header(scope, b"origin")
        if origin is not None and self._cors.allows(origin):
            send = self._cors.marked(origin, send)
        try:
            self._check_host(scope)
            if origin is not None and _is_preflight(scope):
                wanted = _header(scope, b"access-control-request-headers") or b""
                await self._cors.preflight(origin, wanted)(scope, receive, send)
                return
            tenant = scope["state"]["tenant"] = self._tenant(scope)
            is_counted = scope["method"] == "POST" and not scope["path"].endswith(UNCOUNTED)
            if is_counted:
                self._quota.take(tenant)
        except ApiError as error:
            await error_response(error, scope)(scope, receive, send)
            return
        try:
            await self.app(scope, receive, send)
        finally:
            if is_counted:
                self._quota.give_back(tenant)

    def _check_host(self, scope: Scope) -> None:
        """Raise unless the Host header is one well-formed name, and an allowed one if only some are."""
        given = [value for name, value in scope["headers"] if name == b"host"]
        match = _HOST.fullmatch(given[0]) if given else None
        if len(given) > 1:
            law = "the host header must be sent once"
            raise InvalidRequest(f"{law}, got {len(given)} of them; send the server's alone", code="invalid_host")
        if match is None and given not in ([], [b""]):
            raise InvalidRequest(
                f"the host header must be one name and perhaps a port, got {_shown(given[0])}; send the server's",
                code="invalid_host",
            )
        allowed = self._settings.allowed_hosts
        if not given and scope["http_version"] == "1.0":
            return  # from no browser: each sends a host, the name that a page has bent to this machine among them
        if not given:
            raise InvalidRequest("the host header must be sent with HTTP/1.1, got none; send one", code="invalid_host")
        if allowed and (match is None or match[1].decode().rstrip(".").lower() not in allowed):
            raise Forbidden(
                f"this server answers to {', '.join(allowed)}, got host {_shown(given[0]) if given else 'none'}; name "
                "it with --allowed-hosts, or set an API key",
                code="host_not_allowed",
            )

    def _tenant(self, scope: Scope) -> Tenant:
        """Who asks. Raises Unauthorized."""
        if self._tenants is None or scope["path"] in OPEN:
            return EVERYBODY
        given = {secret for name, value in scope["headers"] if (secret := _secret(name, value)) is not None}
        tenant = self._tenants.of(next(iter(given))) if len(given) == 1 else None
        if tenant is None:
            fault = "an unknown key" if len(given) == 1 else "several" if given else "none"
            raise Unauthorized(
                f"this server asks for an API key, got {fault}; send it as the header Authorization: Bearer KEY, or as "
                "x-api-key",
                code="invalid_api_key",
            )
        return tenant


def _secret(name: bytes, value: bytes) -> bytes | None:
    """What a header holds of a key, perhaps nothing; None for headers that hold none."""
    if name == b"x-api-key":  # Anthropic's
        return value.strip()  # white space around a key is no part of it, wherever it is given
    if name != b"authorization":
        return None
    scheme, *secret = value.split(maxsplit=1) or [b""]
    return b"".join(secret).strip() if scheme.lower() == b"bearer" else b""


def _is_preflight(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" and _header(scope, b"access-control-request-method") is not None


def _header(scope: Scope, wanted: bytes) -> bytes | None:
    return next((value for name, value in scope["headers"] if name == wanted), None)


def _shown(value: bytes) -> str:
    return ascii(value.decode("latin-1"))[:80]
