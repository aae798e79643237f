"""`jaxinfer serve`: start the engine behind its HTTP server and say how to talk to it."""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from jaxinfer.cli import protection, storage, transport
from jaxinfer.cli.checklist import QUIET_OPTION, Checklist, LogScreen, screen_for
from jaxinfer.cli.options import EngineCommand, FiniteRange, server_option
from jaxinfer.cli.protection import LOOPBACK, server_settings, tls
from jaxinfer.cli.servers import presences
from jaxinfer.cli.session import opening, start_until_serving
from jaxinfer.cli.transport import transport_for
from jaxinfer.config import Resolved, counted
from jaxinfer.errors import ConfigError, PortInUse

if TYPE_CHECKING:
    from jaxinfer.llm.async_llm import AsyncLLM
    from jaxinfer.llm.transport import NewTransport
    from jaxinfer.llm.types import ModelInfo
    from jaxinfer.server.settings import ServerSettings
    from jaxinfer.server.tracing import Tracer

FEWEST_REPLICAS = 2  # that may be asked for, however few CPUs there are


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    replicas, cpus = params["data_parallel_size"], os.cpu_count() or 1
    if params["in_process"] and replicas > 1:
        law = f"--data-parallel-size must be 1 with --in-process, got {replicas}"
        raise ConfigError(f"{law}: replicas are processes of their own; drop one of the two")
    if replicas > (most := max(cpus, FEWEST_REPLICAS)):
        law = f"--data-parallel-size must be at most {most} on this machine of {counted(cpus, 'CPU')}"
        raise ConfigError(f"{law}, got {replicas}: each replica is a process that needs one; lower it")
    with transport_for(resolved.config, params) as new_transport:
        return serve(resolved, params, new_transport)


def serve(resolved: Resolved, params: Mapping[str, Any], new_transport: "NewTransport") -> int:
    """Serve until a signal. Returns 0 after a drain, 1 when a second signal cut it short.

    Raises EngineError when the engine has failed for good.
    """
    import asyncio

    settings, certificate = server_settings(params), tls(params)
    settings = replace(settings, files_folder=storage.files_folder(params), kept=storage.kept_limits(params))
    start_log(params["log_format"])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its news of starting and stopping is ours to tell
    address: list[str] = []
    tasks: list[asyncio.Task[None]] = []
    is_early, is_json = params["serve_early"], params["log_format"] == "json"
    screen = LogScreen() if is_json and not params["quiet"] else screen_for(sys.stderr, {"quiet": params["quiet"]})
    with tracer_for(params["otlp_traces_endpoint"]) as tracer, Checklist(screen, until_serving=is_early) as checklist:
        for line in (*opening(resolved), *unusual(params, settings)):
            checklist.say(line)
        # these take a second: whoever waits has read something by then
        from jaxinfer.llm.async_llm import AsyncLLM
        from jaxinfer.server.app import create_app
        from jaxinfer.server.presence import announce
        from jaxinfer.server.serve import run_server
        from jaxinfer.server.systemd import notify

        llm = AsyncLLM(resolved.config, checklist, new_transport, params["data_parallel_size"])
        app = create_app(llm, settings, tracer)

        def bound(host: str, port: int) -> None:
            address.append(url(host, port, is_secret=certificate is not None))
            until = "it can answer" if is_early else "all is compiled; --serve-early answers before"
            checklist.say(f"listen   {address[0]}  (503 until {until})")

        async def start() -> None:
            tasks.append(asyncio.create_task(close_at_the_end(llm)))
            tasks.append(asyncio.create_task(announce(llm, address[0], settings.stall_timeout_s, serve_early=is_early)))
            starting = await start_until_serving(llm, checklist)
            tasks.append(starting)
            if not is_early:
                await starting
            if app.state.storage is not None:
                tasks.append(asyncio.create_task(app.state.storage.batches.run()))
            notify("READY=1")
            for line in closing(llm.info, address[0], params["host"], has_keys=bool(settings.api_keys)):
                checklist.say(line)

        patience_s = params["drain_timeout_s"]
        with nullcontext() if app.state.storage is None else contextlib.closing(app.state.storage):
            try:
                return run_server(
                    app, params["host"], params["port"], patience_s, start, bound, llm.until_failed, certificate
                )
            except PortInUse as error:
                raise with_owner(error) from error


def with_owner(error: PortInUse) -> PortInUse:
    """The same, with the server of this user that has the port, if it is one."""
    for found in presences():
        if urlsplit(found.url).port == error.port:
            owner = f"jaxinfer with {found.model}, pid {found.pid}"
            return PortInUse(error.port, owner, f"stop it (`jaxinfer stop {error.port}`)")
    return error


def tracer_for(endpoint: str | None) -> "AbstractContextManager[Tracer | None]":
    """What makes spans and sends them there; nothing without an endpoint. Raises ConfigError."""
    if endpoint is None:
        return nullcontext()
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        fact = f"{parts.scheme or 'no scheme'} and {parts.hostname or 'no host'}"  # it may hold a password
        law = "--otlp-traces-endpoint must be an http or https URL (OTLP over HTTP)"
        raise ConfigError(f"{law}, got {fact}; write it as in http://127.0.0.1:4318")
    try:
        from jaxinfer.server.tracing import exporting
    except ModuleNotFoundError as error:
        fault = f"--otlp-traces-endpoint needs the packages of the extra otel, {error.name} is not installed"
        raise ConfigError(f"{fault}; run `pip install 'jaxinfer[otel]'`") from error
    return exporting(endpoint if parts.path.strip("/") else parts._replace(path="/v1/traces").geturl())


def start_log(form: str) -> None:
    """The server's own log, on stderr; that of the engine process stays text."""
    logging.basicConfig(level=logging.INFO, handlers=[log_handler(form)])


def log_handler(form: str) -> logging.Handler:
    from jaxinfer.server.logs import JsonLines

    handler = ErrorStream()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    return handler


class ErrorStream(logging.Handler):
    """Writes each record to standard error as it is then: while a spinner turns, that is rich's stream, which clears
    the spinner's line first. A StreamHandler keeps the stream that it was made with.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def unusual(params: Mapping[str, Any], settings: "ServerSettings") -> list[str]:
    """What makes this server no ordinary one."""
    lines = []
    if settings.api_keys:
        num_tenants = len({key.tenant for key in settings.api_keys})
        lines.append(f"keys     {len(settings.api_keys)}, of {num_tenants} tenant{'s' * (num_tenants != 1)}")
    if params["otlp_traces_endpoint"]:
        lines.append(f"traces   to {urlsplit(params['otlp_traces_endpoint']).hostname}")
    if (count := params["data_parallel_size"]) > 1:
        lines.append(f"replicas {count} engines of this model, each on a GPU of its own where there are GPUs")
    if params["dry_run"]:
        lines.append("dry run  no model is loaded and no device used: the answers are made up")
    if params["in_process"]:
        lines.append("warning  the engine runs in the server's process: slower, and what ends it ends the server")
    return lines


async def close_at_the_end(llm: "AsyncLLM") -> None:
    """Wait for the event loop to end, which cancels its tasks, and close the model while it still can."""
    import asyncio

    try:
        await asyncio.Event().wait()
    finally:
        await llm.close()


def closing(info: "ModelInfo", base: str, host: str, *, has_keys: bool = False) -> list[str]:
    """What a person needs once the server is ready: defaults, warnings, the address and a line to paste."""
    lines = [f"defaults {info.defaults.describe()}"]
    if info.note:
        lines.append(f"note     {info.note}")
    if host not in LOOPBACK and not has_keys:
        lines.append(f"warning  {host} can be reached from other machines and nothing asks for a key")
    return [
        *lines,
        f"serving  {', '.join(info.served_names)} at {base}/v1, a chat page at {base}",
        f"stop it  Ctrl-C, or `jaxinfer stop {urlsplit(base).port}`",
        "try it   " + curl(info, base, has_keys=has_keys),
    ]


def curl(info: "ModelInfo", base: str, *, has_keys: bool = False) -> str:
    """A command to copy: a streamed chat, or a completion for a model without a chat template."""
    body: dict[str, object] = {"model": info.served_names[0], "stream": True}
    if info.has_chat_template:
        path, body = "chat/completions", body | {"messages": [{"role": "user", "content": "What is 7 plus 5?"}]}
    else:
        path, body = "completions", body | {"prompt": "7 plus 5 is", "max_tokens": 16}
    text = json.dumps(body).replace("'", "'\\''")
    key = " -H 'Authorization: Bearer KEY'" if has_keys else ""
    return f"curl -N {base}/v1/{path} -H 'Content-Type: application/json'{key} -d '{text}'"


def url(host: str, port: int, *, is_secret: bool = False) -> str:
    """The address to type: a wildcard is not one, and IPv6 needs brackets."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http{'s' * is_secret}://{shown}:{port}"


def port(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """An integer. In a Kubernetes pod JAXINFER_PORT may be a service's address, which nobody meant for us."""
    if "://" in value:
        return DEFAULT_PORT
    if not value.isdecimal() or int(value) > 65535:
        is_variable = ctx.get_parameter_source(str(param.name)) is click.core.ParameterSource.ENVIRONMENT
        name, cure = ("JAXINFER_PORT", "unset it") if is_variable else ("--port", "leave it out")
        raise ConfigError(f"{name} must be an integer in 0 .. 65535, got {value!r}; {cure} for {DEFAULT_PORT}")
    return int(value)


DEFAULT_PORT = 8000

OPTIONS: tuple[click.Option, ...] = (
    server_option(
        "--host", "Address to listen on.  [127.0.0.1]", default="127.0.0.1", metavar="ADDRESS", in_short_help=True
    ),
    server_option(
        "--port",
        f"0 takes a free one.  [{DEFAULT_PORT}]",
        default=str(DEFAULT_PORT),
        callback=port,
        metavar="N",
        in_short_help=True,
    ),
    server_option(
        "--data-parallel-size",
        "Engines of the model behind this address, each on a GPU of its own; on a CPU they share it.  [1]",
        default=1,
        type=click.IntRange(1),
        metavar="N",
    ),
    server_option(
        "--drain-timeout-s",
        "How long running answers may take after SIGTERM.  [30]",
        default=30.0,
        type=FiniteRange(0.0),
        metavar="X",
    ),
    server_option(
        "--stall-timeout-s",
        "Say 503 to health checks when the engine has work and takes no step for this long.  [10]",
        default=10.0,
        type=FiniteRange(0.1),
        metavar="X",
    ),
    server_option(
        "--serve-early", "Take requests when the smallest set of steps is compiled.", is_flag=True, in_short_help=True
    ),
    server_option(
        "--log-format",
        "json: an object a line, with request ids, never with prompts or keys.  [text]",
        type=click.Choice(["text", "json"]),
        default="text",
    ),
    server_option(
        "--log-requests",
        "A line in the log for each request, but for health checks that went well.",
        is_flag=True,
        in_short_help=True,
    ),
    server_option(
        "--otlp-traces-endpoint",
        "Send a trace of each request to this OpenTelemetry collector (OTLP over HTTP; needs jaxinfer[otel]).",
        metavar="URL",
    ),
    server_option(
        "--profile-dir",
        "Let clients trace the device with /start_profile and /stop_profile, into this folder.",
        metavar="DIR",
    ),
    click.Option(["-v", "--verbose"], is_flag=True, is_eager=True, help="Changes nothing: each step is shown anyway."),
    QUIET_OPTION,
    *transport.OPTIONS,
    *protection.OPTIONS,
    *storage.OPTIONS,
)

command = EngineCommand(
    "serve", run, OPTIONS, help="Serve MODEL, by default the bundled demo, over an OpenAI-compatible HTTP API."
)
