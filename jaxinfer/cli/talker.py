"""Who answers `chat` and `run`: a model loaded for the command, or a server that has it already."""

import contextlib
import http.client
import os
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TextIO
from urllib.parse import urlsplit

import click

from jaxinfer.cli.bench_serve import base_of
from jaxinfer.cli.checklist import Checklist, screen_for
from jaxinfer.cli.options import GroupedOption
from jaxinfer.cli.protection import KEY_VARIABLE
from jaxinfer.cli.session import SessionAnswer, Speed, answer, started, unnamed
from jaxinfer.config import Resolved
from jaxinfer.engine.interrupts import run_on
from jaxinfer.errors import ConfigError, EngineError, InvalidRequest, JaxInferError
from jaxinfer.llm.events import Event

if TYPE_CHECKING:
    import asyncio

    from jaxinfer.cli.snippets import Server
    from jaxinfer.llm.async_llm import AsyncLLM
    from jaxinfer.protocol.sampling import SamplingParams

# settings of this command that a server which runs already need not share
NOT_OF_THE_ENGINE = frozenset({"model", "seed", "compile_cache_dir", "download_dir"})
STARTING = ("starting", "compiling")  # states in which a server does not answer yet, nor know its served name
TIMEOUT_S = 600.0  # without a byte: a request may wait in the queue

SERVER_OPTIONS: tuple[click.Option, ...] = (
    click.Option(["--url"], metavar="URL", help="Ask this server for MODEL.  [the server's first model]"),
    GroupedOption(["--api-key-env"], metavar="NAME", help=f"Variable with the server's key.  [{KEY_VARIABLE}]"),
    click.Option(["--own-engine"], is_flag=True, help="Load the model here even if a server of yours has it."),
)


class Talker(Protocol):
    """Something that answers, each time into a stream as the text comes.

    Raises InvalidRequest for what it refuses, EngineError for an answer that broke off.
    """

    name: str
    has_chat_template: bool

    def chat(
        self, messages: list[dict[str, Any]], params: "SamplingParams", kwargs: dict[str, Any] | None, out: TextIO
    ) -> SessionAnswer:
        """Answer a conversation. kwargs: switches of the chat template."""

    def complete(self, prompt: str, params: "SamplingParams", out: TextIO) -> SessionAnswer:
        """Write a text on, without a chat template."""


class Local:
    """A model loaded for this command."""

    def __init__(self, runner: "asyncio.Runner", llm: "AsyncLLM") -> None:
        self._runner = runner
        self._llm = llm
        self.name = llm.info.root
        self.has_chat_template = llm.info.has_chat_template

    def chat(
        self, messages: list[dict[str, Any]], params: "SamplingParams", kwargs: dict[str, Any] | None, out: TextIO
    ) -> SessionAnswer:
        ids = run_on(self._runner, lambda: self._llm.render(messages, template_kwargs=kwargs))
        return run_on(self._runner, lambda: answer(self._llm, ids, params, chat=True, out=out))

    def complete(self, prompt: str, params: "SamplingParams", out: TextIO) -> SessionAnswer:
        ids = run_on(self._runner, lambda: self._llm.encode(prompt))
        return run_on(self._runner, lambda: answer(self._llm, ids, params, chat=False, out=out))


class Remote:
    """An OpenAI-compatible server. When an answer is left, its connection is closed, which ends it there.

    Until the answer begins, standard error says that it is waited for, unless is_quiet.
    """

    def __init__(self, server: "Server", *, is_quiet: bool = False) -> None:
        self._server = server
        self._is_quiet = is_quiet
        self.name = server.model
        self.has_chat_template = server.offers("/v1/chat/completions")

    def chat(
        self, messages: list[dict[str, Any]], params: "SamplingParams", kwargs: dict[str, Any] | None, out: TextIO
    ) -> SessionAnswer:
        body = {"messages": messages} | ({"chat_template_kwargs": kwargs} if kwargs else {})
        return self._stream("/v1/chat/completions", body, params, out)

    def complete(self, prompt: str, params: "SamplingParams", out: TextIO) -> SessionAnswer:
        return self._stream("/v1/completions", {"prompt": prompt}, params, out)

    def _stream(self, path: str, body: dict[str, Any], params: "SamplingParams", out: TextIO) -> SessionAnswer:
        import msgspec

        fields = {name: value for name in FIELDS if (value := getattr(params, name)) is not None}
        body |= {"model": self.name, "stream": True, "stream_options": {"include_usage": True}} | fields
        body |= {"include_metrics": True} if self._server.is_jaxinfer else {}
        parts = urlsplit(self._server.base)
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if key := os.environ.get(self._server.key_env) if self._server.key_env else None:
            headers["Authorization"] = f"Bearer {key}"
        waited_for = Event("wait", f"the answer of {self._server.base}")
        with contextlib.closing(_connection(self._server.base)) as connection, contextlib.ExitStack() as waiting:
            waiting.enter_context(Checklist(screen_for(sys.stderr, {"quiet": self._is_quiet}), first=waited_for))
            try:
                speed = Speed()
                connection.connect()
                # a server that reads no more may have said why
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.request("POST", f"{parts.path}{path}", msgspec.json.encode(body), headers)
                response = connection.getresponse()
                if response.status != 200:
                    raise _refusal(response)
                return read_answer(response, out, speed, waiting.close)
            except (OSError, http.client.HTTPException) as error:
                raise EngineError(
                    f"the answer of {self._server.base} broke off: {error}; see `jaxinfer ps` and its log"
                ) from error


FIELDS = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "seed")


def _connection(base: str) -> http.client.HTTPConnection:
    parts = urlsplit(base)
    host = parts.hostname or ""
    if parts.scheme == "https":
        return http.client.HTTPSConnection(host, parts.port, timeout=TIMEOUT_S, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_S)


def _refusal(response: http.client.HTTPResponse) -> JaxInferError:
    from jaxinfer.bench.http_client import sentence_of

    sentence = sentence_of(response.read())
    if 400 <= response.status < 500:
        return _quoted(InvalidRequest(sentence))
    return _quoted(EngineError(f"the server answered {response.status}: {sentence}; see its log"))


def _quoted(error: JaxInferError) -> JaxInferError:
    error.is_quoted = True
    return error


def read_answer(
    lines: "Iterator[bytes]", out: TextIO, speed: Speed, begins: Callable[[], None] = lambda: None
) -> SessionAnswer:
    """Write a streamed answer out as it comes. Raises EngineError when it ends in an error, or in the middle.

    begins: called before each piece is written.
    """
    import msgspec

    text, reason, thinks = "", "", False
    for line in lines:
        payload = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
        if payload == b"[DONE]":
            break
        event = msgspec.json.decode(payload) if payload else {}
        if error := event.get("error"):
            raise _quoted(EngineError(f"the server ended the answer: {error.get('message', error)}; see its log"))
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
            content = delta.get("content") or choice.get("text") or ""
            shown = ("<think>" if thought and not thinks else "") + thought
            shown += ("</think>\n" if content and thinks else "") + content
            thinks = bool(thought) or (thinks and not content)
            if shown:
                speed.add(1, 0, 0)
                begins()
                out.write(shown)
                out.flush()
            text, reason = text + content, choice.get("finish_reason") or reason
        if usage := event.get("usage"):
            details = usage.get("prompt_tokens_details") or {}
            speed.correct(usage["completion_tokens"], usage["prompt_tokens"], details.get("cached_tokens") or 0)
        took_ms = (event.get("metrics") or {}).get("generation_time_ms")
        if took_ms is not None:
            speed.engine_took(took_ms / 1000)
    if not reason:
        raise EngineError("the server ended the answer in the middle; see its log")
    begins()
    out.write("" if text.endswith("\n") else "\n")
    out.flush()
    return SessionAnswer(text, reason, speed)


@contextlib.contextmanager
def talker(resolved: Resolved, params: Mapping[str, Any]) -> Iterator[Talker]:
    """Who answers: the server of --url, one of this user's that has the model, or a model loaded for this command."""
    server = server_for(resolved, params)
    if server is not None:
        yield Remote(server, is_quiet=params["quiet"])
        return
    prompt, screen = params.get("prompt") or "", screen_for(sys.stderr, params)
    with started(resolved, screen, prompt=prompt, max_tokens=params["max_tokens"]) as (runner, llm):
        yield Local(runner, llm)


def server_for(resolved: Resolved, params: Mapping[str, Any]) -> "Server | None":
    """The server to ask, if any. Raises ConfigError for one that wants a key, EngineError for one that is gone."""
    from jaxinfer.cli.connect import asked

    key_env = params["api_key_env"] or (KEY_VARIABLE if os.environ.get(KEY_VARIABLE) else None)
    if params["url"] is not None:
        if params["own_engine"]:
            raise ConfigError("there must be one of --url and --own-engine, got both; drop one")
        given = resolved.sources.items()
        if own := [source for name, source in given if name not in ("model", "seed") and source.startswith("--")]:
            law = f"a server that --url names has its own settings, got {', '.join(own)}"
            raise ConfigError(f"{law}; leave it out, or leave --url out to load the model here")
        name = resolved.config.model if "model" in resolved.sources else None
        return asked(base_of("--url", params["url"]), name, key_env)
    if params["own_engine"]:
        return None
    from jaxinfer.cli.servers import presences, serves

    apart = [source for name, source in resolved.sources.items() if name not in NOT_OF_THE_ENGINE]
    for presence in presences():
        if serves(presence, resolved.config.model) and presence.status in (*STARTING, "serving", "ready"):
            starts = presence.status in STARTING
            which = f"the server at {presence.url} ({presence.model}, pid {presence.pid})"
            state = f"{', which still starts' if starts else ''}{unnamed(resolved, params.get('prompt') or '')}"
            said = f"using {which}{state}; --own-engine loads the model here"
            if apart:
                said = f"loading the model here: {which} may have another {', '.join(apart)}"
            if not params["quiet"]:
                click.echo(said, err=True)
            return None if apart else asked(presence.url, None if starts else presence.model, key_env)
    return None
