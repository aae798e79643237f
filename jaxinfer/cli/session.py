"""A model started for one command: the checklist while it starts, the notes on what it is, a clean end.

Whatever `--help` does not need (asyncio, the engine) is imported where it is used.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import click

from jaxinfer.cli.checklist import VOLUME_OPTIONS, Checklist, Screen, table
from jaxinfer.cli.options import GroupedOption, check_start
from jaxinfer.config import EngineConfig, Resolved, counted, flag_of
from jaxinfer.engine.interrupts import interrupts_held, run_on
from jaxinfer.errors import ConfigError, EngineError, InvalidRequest
from jaxinfer.version import __version__

if TYPE_CHECKING:
    import asyncio

    from jaxinfer.llm.async_llm import AsyncLLM
    from jaxinfer.llm.transport import NewTransport
    from jaxinfer.protocol.sampling import SamplingParams

REQUEST_ID = "cli"
MOST_TOKENS = 2**31  # of a vocabulary: no token id is above it, whatever the model


def opening(resolved: Resolved, prompt: str = "") -> list[str]:
    """What is about to start, and every setting that is not a default with where it came from."""
    first = f"jaxinfer {__version__}: {model_words(resolved.config)}{unnamed(resolved, prompt)}"
    return [first, *table(resolved.rows(), indent="         ")]


def unnamed(resolved: Resolved, prompt: str) -> str:
    """That nobody has named the model, and that a prompt of one word, which could be meant as one, was not taken so."""
    if "model" in resolved.sources:
        return ""
    is_word = bool(prompt) and not any(map(str.isspace, prompt))
    return f" (no MODEL was named, {prompt!r} is the prompt)" if is_word else " (no MODEL was named)"


def model_words(config: EngineConfig) -> str:
    """The model's name, and what it is when it is no real one."""
    words = config.model
    if config.model == "demo":
        words += ", the bundled demo model, no useful assistant"
    return f"{words}, with random weights: its answers mean nothing" if config.load_format == "dummy" else words


async def start_or_stop(llm: "AsyncLLM", checklist: Checklist) -> None:
    """Start the model; when this is cancelled, its thread ends at the next event instead of loading to the end."""
    import asyncio

    try:
        await llm.start()
    except asyncio.CancelledError:
        checklist.stop_start()
        raise


async def start_until_serving(llm: "AsyncLLM", checklist: Checklist) -> "asyncio.Task[None]":
    """Start the model and return when it can answer; the task goes on compiling until it answers at its best.

    Keep the task: nobody else does. Should it fail later, the engine's own failure is what requests are told.
    """
    import asyncio

    task = asyncio.create_task(start_or_stop(llm, checklist))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        while not task.done() and llm.status == "starting":
            await asyncio.wait([task], timeout=0.02)
        if task.done():
            await task
    except asyncio.CancelledError:
        task.cancel()
        raise
    return task


@contextlib.contextmanager
def started(
    resolved: Resolved,
    screen: Screen,
    new_transport: "NewTransport | None" = None,
    prompt: str = "",
    max_tokens: int | None = None,
) -> Iterator[tuple["asyncio.Runner", "AsyncLLM"]]:
    """A model that can answer and the event loop it lives in; `screen` shows the start. Closes both.

    new_transport: of transport_for, which has checked the start; None is a process of its own.    prompt: of the verb.
    max_tokens: of its answers.
    """
    with interrupts_held():
        import asyncio

        from jaxinfer.llm.async_llm import AsyncLLM
        from jaxinfer.llm.process import EngineProcess

    if new_transport is None:
        check_start(resolved.config, max_tokens=max_tokens)
    with asyncio.Runner() as runner:
        with Checklist(screen, until_serving=True) as checklist:
            for line in opening(resolved, prompt):
                checklist.say(line)
            llm = AsyncLLM(resolved.config, checklist, new_transport or EngineProcess)
            try:
                starting = run_on(runner, lambda: start_until_serving(llm, checklist))
            except BaseException:
                runner.run(llm.close())
                raise
            if llm.info.note:
                is_told = resolved.config.model == "demo" or resolved.config.load_format == "dummy"  # in the first line
                checklist.note(llm.info.note, is_told=is_told)
        try:
            yield runner, llm
        finally:
            runner.run(llm.close())
            starting.cancel()


class Speed:
    """How fast one answer came: time to the first token, and tokens per second after it. Made before the request.

    Pieces may wait in a buffer, so the moments at which they are read do not always tell the rate. The engine's own
    time does; without it the rate is told only if most of the time went by after the first piece.
    """

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._generation_s: float | None = None
        self._first_s = 0.0
        self._last_s = 0.0
        self.num_tokens = 0
        self._num_first = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0

    def add(self, num_tokens: int, prompt_tokens: int, cached_tokens: int) -> None:
        """Count the tokens of one delta, at the moment it came."""
        self._last_s = time.perf_counter() - self._began_s
        if not self.num_tokens:
            self._first_s, self._num_first = self._last_s, num_tokens
        self.num_tokens += num_tokens
        self._prompt_tokens, self._cached_tokens = prompt_tokens, cached_tokens

    def correct(self, num_tokens: int, prompt_tokens: int, cached_tokens: int) -> None:
        """Take the counts of a server, whose deltas do not say how many tokens they hold."""
        self.num_tokens, self._prompt_tokens, self._cached_tokens = num_tokens, prompt_tokens, cached_tokens

    def engine_took(self, seconds: float) -> None:
        """Take the engine's own time from its first token to its last."""
        self._generation_s = seconds

    def _rate(self) -> float | None:
        """Tokens per second after the first; None where it is not known."""
        if self._generation_s is not None:
            later, seconds = self.num_tokens - 1, self._generation_s
        else:
            later, seconds = self.num_tokens - self._num_first, self._last_s - self._first_s
            if seconds < self._first_s:  # all but a small part may have waited in a buffer for the first read
                return None
        return later / seconds if later > 0 and seconds > 0 else None

    def __str__(self) -> str:
        rate = self._rate()
        cached = f", {self._cached_tokens} cached" if self._cached_tokens else ""
        said = f"{counted(self._prompt_tokens, 'prompt token')}{cached}; {counted(self.num_tokens, 'token')}"
        return f"{said}, first after {self._first_s:.2f} s" + (f", {rate:.1f} tok/s" if rate is not None else "")


class SessionAnswer(NamedTuple):
    """One answer. reason: its finish_reason."""

    text: str
    reason: str
    speed: Speed


async def answer(
    llm: "AsyncLLM", prompt_ids: Sequence[int], params: "SamplingParams", *, chat: bool, out: TextIO
) -> SessionAnswer:
    """Write one answer to `out` as it comes.

    Raises InvalidRequest before anything is written, EngineError when the answer ended in an error.
    """
    speed, text, reason = Speed(), "", ""
    stream = await llm.generate(prompt_ids, params, request_id=REQUEST_ID, chat=chat)
    try:
        async for delta in stream:
            speed.add(len(delta.token_ids), delta.prompt_tokens, delta.cached_tokens)
            out.write(delta.text)
            out.flush()
            text, reason = text + delta.text, delta.finish_reason or reason
            if delta.timings is not None and delta.timings.num_tokens:
                speed.engine_took(delta.timings.last_s - delta.timings.first_s)
            if reason == "error":
                raise EngineError(f"the answer must end by itself, it was ended: {delta.error}; see the log above")
    finally:
        if not reason:  # Ctrl-C, or nobody reads what we write
            await llm.abort(REQUEST_ID)
    out.write("" if text.endswith("\n") else "\n")
    out.flush()
    return SessionAnswer(text, reason, speed)


ANSWER_OPTIONS: tuple[click.Option, ...] = (
    click.Option(["--max-tokens"], type=int, metavar="N", help="Most tokens of the answer.  [what the context leaves]"),
    click.Option(["--temperature"], type=float, metavar="X", help="0 is greedy.  [the model's default]"),
    click.Option(["--top-p"], type=float, metavar="X", help="Keep the likeliest tokens of this total probability."),
    GroupedOption(["--top-k"], type=int, metavar="N", help="Keep this many tokens; 0 is off."),
    GroupedOption(["--min-p"], type=float, metavar="X", help="Drop tokens less likely than this share of the best."),
    click.Option(["--stop"], multiple=True, metavar="TEXT", help="End before this text; give it again for more."),
    click.Option(["--system"], metavar="TEXT", help="The system message."),
    click.Option(["--think/--no-think"], default=None, help="Switch thinking, where the model's template can."),
    *VOLUME_OPTIONS,
)


def sampling_params(resolved: Resolved, params: Mapping[str, Any]) -> "SamplingParams":
    """The SamplingParams of ANSWER_OPTIONS; --seed seeds the answer too, if it was given.

    Raises ConfigError for a value that no model takes, before any is loaded.
    """
    from jaxinfer.protocol.sampling import SamplingParams

    return checked_flags(
        SamplingParams(
            max_tokens=params["max_tokens"],
            temperature=params["temperature"],
            top_p=params["top_p"],
            top_k=params["top_k"],
            min_p=params["min_p"],
            stop=list(params["stop"]) or None,
            seed=resolved.config.seed if "seed" in resolved.sources else None,
        )
    )


def checked_flags(sampling: "SamplingParams") -> "SamplingParams":
    """The same, when it is possible for some model. Raises ConfigError, which names the flag of the field at fault."""
    try:
        return checked(sampling)
    except InvalidRequest as error:
        name = str(error.param)
        raise ConfigError(f"{flag_of(name)}{str(error).removeprefix(name)}") from error


def checked(sampling: "SamplingParams", *, cure: str = "") -> "SamplingParams":
    """The same, when it is possible for some model. Raises InvalidRequest. cure: as validate_sampling takes it."""
    from jaxinfer.protocol.validate import validate_sampling

    validate_sampling(sampling, vocab_size=MOST_TOKENS, cure=cure)
    return sampling


def template_kwargs(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """What --think and --no-think tell the chat template."""
    return None if params["think"] is None else {"enable_thinking": params["think"]}


def first_messages(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A conversation's beginning: the system message, if there is one."""
    return [{"role": "system", "content": params["system"]}] if params["system"] is not None else []
