"""What the server may do per request and for whom; every limit is checked before it can cost anything."""

import dataclasses
from pathlib import Path

from jaxinfer.offline.files import KeptLimits
from jaxinfer.server.tenants import ApiKey


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """max_body_bytes: of one request's body.    ping_interval_s: silence in a stream before a comment line is sent.
    serve_early: take requests when the smallest set of steps is compiled, not only when all of it is.
    stall_timeout_s: how long the engine may have work and take no step before the server says that it is ill.
    log_requests: a line in the log for each request, without what it asked and what it was answered.
    strict: refuse a body with fields that nobody reads; else the answer names them in a header.
    api_keys: one of them must come with a request; none: nobody is asked.
    allowed_hosts: names the Host header may hold, in lower case; none: any.    allowed_origins: sites whose pages may
    read answers, "*" being all.    max_requests_per_key, max_requests_per_minute_per_key: POSTs of one tenant running
    together, and begun in a minute; without keys all clients are one tenant.
    max_sessions_per_key: of one tenant; a further one takes the place of the idle one used least recently.
    max_session_idle_s: how long one may be idle before it is dropped.
    max_stored_responses, max_stored_bytes, max_stored_age_s: what /v1/responses keeps of all tenants together.
    files_folder: where files and batches are kept; None: nobody may have any.    kept: how much of them.
    profile_folder: where traces of the device go; None: nobody may ask for any.
    """

    max_body_bytes: int = 16 * 2**20
    ping_interval_s: float = 15.0
    serve_early: bool = False
    stall_timeout_s: float = 10.0
    log_requests: bool = False
    strict: bool = False
    api_keys: tuple[ApiKey, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_requests_per_key: int | None = None
    max_requests_per_minute_per_key: int | None = None
    max_sessions_per_key: int = 100
    max_session_idle_s: float = 1800.0
    max_stored_responses: int = 1000
    max_stored_bytes: int = 64 * 2**20
    max_stored_age_s: float = 24 * 3600.0
    files_folder: Path | None = None
    kept: KeptLimits = KeptLimits()
    profile_folder: Path | None = None
