"""The options of `jaxinfer serve` that say who may ask, how much, and over which connection."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.options import COUNT, SECONDS, server_option
from jaxinfer.config import counted, parse_int
from jaxinfer.errors import ConfigError, file_fault
from jaxinfer.files import read_text

if TYPE_CHECKING:
    from jaxinfer.server.settings import ServerSettings
    from jaxinfer.server.tenants import ApiKey
    from jaxinfer.server.tls import Tls

KEY_VARIABLE = "JAXINFER_API_KEY"
LOOPBACK = {"127.0.0.1", "::1", "localhost"}
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


def server_settings(params: Mapping[str, Any]) -> "ServerSettings":
    """What the options of `jaxinfer serve` ask for. Raises ConfigError."""
    from jaxinfer.server.large_bodies import MAX_LARGE_BODIES_MIB_PER_KEY
    from jaxinfer.server.settings import ServerSettings

    keys = tuple(read_keys(params))
    if (params["max_body_bytes"] or 0) > MAX_LARGE_BODIES_MIB_PER_KEY * 2**20:
        most = f"{MAX_LARGE_BODIES_MIB_PER_KEY}M, what large bodies of one key may have together"
        raise ConfigError(f"--max-body-bytes must be at most {most}, got {params['max_body_bytes']}; lower it")
    given = {
        name: params[name]
        for name in (
            *("max_body_bytes", "max_requests_per_key", "max_requests_per_minute_per_key"),
            *("max_sessions_per_key", "max_session_idle_s"),
            *("max_stored_responses", "max_stored_bytes", "max_stored_age_s"),
        )
        if params[name] is not None
    }
    return ServerSettings(
        serve_early=params["serve_early"],
        stall_timeout_s=params["stall_timeout_s"],
        log_requests=params["log_requests"],
        strict=params["strict"],
        api_keys=keys,
        allowed_hosts=_hosts(params["allowed_hosts"], is_open_at_home=params["host"] in LOOPBACK and not keys),
        allowed_origins=_origins(params["allowed_origins"]),
        profile_folder=_profile_folder(params["profile_dir"]),
        **given,
    )


def _profile_folder(given: str | None) -> Path | None:
    if given is None:
        return None
    folder = Path(given).absolute()  # the engine process may stand elsewhere
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{file_fault('make', given, error)}; name another folder for --profile-dir") from error
    return folder


def read_keys(params: Mapping[str, Any], env: Mapping[str, str] = os.environ) -> "Iterator[ApiKey]":
    """The keys of --api-key, of the variable and of the file. Raises ConfigError for one that is given twice."""
    from jaxinfer.server.tenants import ApiKey

    secrets = [secret.strip() for secret in params["api_keys"]]
    if KEY_VARIABLE in env:  # set and empty is a mistake that must not open the server
        secrets += env[KEY_VARIABLE].split() or [""]
    pairs = [(f"key {number}", secret) for number, secret in enumerate(secrets, 1)]
    if params["api_key_file"] is not None:
        pairs += _pairs_of(params["api_key_file"])
    if len({secret for _, secret in pairs}) != len(pairs):
        raise ConfigError("each API key must be given once, one is given twice; drop one of the two")
    # a name is one word; what has none is called by its place, in two
    return (ApiKey(tenant, secret, is_named=" " not in tenant) for tenant, secret in pairs)


def _pairs_of(file: str) -> list[tuple[str, str]]:
    """(tenant, secret) of each line `KEY` or `TENANT KEY`; blank lines and those that begin with # are left out."""
    lines = read_text(file, "--api-key-file").splitlines()
    pairs = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            law = f"{file}, line {number}: must be KEY or TENANT KEY"
            raise ConfigError(f"{law}, got {counted(len(words), 'word')}; write each key in a line of its own")
        pairs.append((words[0] if len(words) == 2 else f"line {number}", words[-1]))
    if not pairs:
        raise ConfigError(f"--api-key-file must hold a key, {file} holds none; write one, or leave the option out")
    return pairs


def _hosts(given: Iterable[str], *, is_open_at_home: bool) -> tuple[str, ...]:
    """Without keys, loopback alone keeps strangers out, and a page whose name leads here would be let in by it."""
    hosts = _entries(given)
    for host in hosts:
        if host != "*" and not _HOST.fullmatch(host):
            law = "--allowed-hosts must be names without port, or *"
            raise ConfigError(f"{law}, got {host!r}; write them as in localhost,[::1]")
    if "*" in hosts:
        return ()
    return tuple(host.lower() for host in hosts) or (LOOPBACK_NAMES if is_open_at_home else ())


def _origins(given: Iterable[str]) -> tuple[str, ...]:
    origins = _entries(given)
    for origin in origins:
        if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
            law = "--allowed-origins must be *, or scheme://host as browsers send it"
            raise ConfigError(f"{law}, got {origin!r}; write it as in https://app.example")
    return tuple(origins)


def _entries(given: Iterable[str]) -> list[str]:
    return [entry.strip() for value in given for entry in value.split(",") if entry.strip()]


def tls(params: Mapping[str, Any]) -> "Tls | None":
    """The certificate to serve with, if any. Raises ConfigError."""
    from jaxinfer.server.tls import Tls

    certfile, keyfile = params["ssl_certfile"], params["ssl_keyfile"]
    if certfile is None and keyfile is not None:
        raise ConfigError(f"--ssl-keyfile needs --ssl-certfile, got {keyfile} alone; add it")
    return None if certfile is None else Tls(certfile, keyfile)


def size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A number of bytes, as in 16M."""
    try:
        parsed = None if value is None else parse_int(value)
    except ValueError:
        parsed = 0
    if parsed is not None and parsed < 1:
        law = f"{param.opts[0]} must be a number of bytes of at least 1"
        raise ConfigError(f"{law}, got {value!r}; write it as in 16M, or leave it out for its default")
    return parsed


_option = partial(server_option, group="Protection")
SIZE: dict[str, Any] = {"callback": size, "metavar": "N"}

OPTIONS: tuple[click.Option, ...] = (
    _option(
        "--api-key",
        f"Require this key on every request. Visible in the process list; prefer {KEY_VARIABLE}.",
        name="api_keys",
        envvar=None,  # read apart: it may hold several
        in_short_help=True,
        multiple=True,
        metavar="KEY",
    ),
    _option(
        "--api-key-file",
        "Lines of KEY, or TENANT KEY; keys of one tenant share limits and cached prompts.",
        metavar="FILE",
    ),
    _option(
        "--allowed-hosts",
        "Host headers to answer to.  [*; on loopback without a key: localhost]",
        multiple=True,
        metavar="NAMES",
    ),
    _option(
        "--allowed-origins",
        "Sites whose pages may read answers (CORS), or *.  [none]",
        in_short_help=True,
        multiple=True,
        metavar="ORIGINS",
    ),
    _option("--max-requests-per-key", "Requests of one tenant running at once; more are refused with 429.", **COUNT),
    _option(
        "--max-requests-per-minute-per-key",
        "Requests that one tenant may begin in a minute; more are refused with 429.",
        **COUNT,
    ),
    _option(
        "--max-sessions-per-key",
        "Sessions of one tenant; a further one takes the place of the one idle for longest.  [100]",
        **COUNT,
    ),
    _option("--max-session-idle-s", "How long a session may be idle before it is dropped.  [1800]", **SECONDS),
    _option("--max-body-bytes", "Most bytes of one request; larger ones are refused with 413.  [16M]", **SIZE),
    _option(
        "--max-stored-responses",
        "Responses kept for previous_response_id and /v1/responses/ID, of all tenants.  [1000]",
        type=click.IntRange(0),
        metavar="N",
    ),
    _option("--max-stored-bytes", "Most bytes of stored responses and their conversations.  [64M]", **SIZE),
    _option("--max-stored-age-s", "How long stored responses are kept.  [86400]", **SECONDS),
    _option(
        "--strict",
        "Refuse bodies with fields that this server does not know. Without it a header of the answer names them.",
        is_flag=True,
    ),
    _option("--ssl-certfile", "Certificate chain in PEM: serve over HTTPS.", metavar="FILE"),
    _option("--ssl-keyfile", "Private key of the certificate, if it is in another file.", metavar="FILE"),
)
