"""`jaxinfer chat`: a conversation in the terminal."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.options import EngineCommand
from jaxinfer.cli.session import (
    ANSWER_OPTIONS,
    answer,
    first_messages,
    need_template,
    sampling_params,
    started,
    template_kwargs,
)
from jaxinfer.config import Resolved, unknown_name
from jaxinfer.errors import ApiError

if TYPE_CHECKING:
    import asyncio

    from jaxinfer.llm.async_llm import AsyncLLM
    from jaxinfer.protocol.sampling import SamplingParams

COMMANDS = {"/exit": "end", "/reset": "forget the conversation", "/help": "show this"}
HELP = "; ".join(f"{name} {meaning}" for name, meaning in COMMANDS.items()) + "; Ctrl-C stops an answer"


class Conversation:
    """The turns so far. Invariant: user and assistant alternate after the system message; a failed turn leaves none."""

    def __init__(
        self,
        runner: "asyncio.Runner",
        llm: "AsyncLLM",
        sampling: "SamplingParams",
        first: list[dict[str, Any]],
        kwargs: dict[str, Any] | None,
    ) -> None:
        self._runner = runner
        self._llm = llm
        self._sampling = sampling
        self._first = first
        self._kwargs = kwargs
        self.messages = list(first)

    def reset(self) -> None:
        self.messages = list(self._first)

    def say(self, text: str) -> None:
        """Send one line and show the answer; Ctrl-C ends the answer, a refusal is shown, and the chat goes on."""
        messages = [*self.messages, {"role": "user", "content": text}]
        try:
            ids = self._runner.run(self._llm.render(messages, template_kwargs=self._kwargs))
            said, _, speed = self._runner.run(answer(self._llm, ids, self._sampling, chat=True, out=sys.stdout))
        except KeyboardInterrupt:
            click.echo("\n(stopped; this turn is forgotten)", err=True)
        except ApiError as error:
            click.echo(f"error: {error}", err=True)
        else:
            self.messages = [*messages, {"role": "assistant", "content": said}]
            click.echo(f"({speed})", err=True)


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Talk until /exit or the end of the input."""
    sampling = sampling_params(resolved, params)
    with started(resolved, sys.stderr) as (runner, llm):
        need_template(llm, "chat")
        talk = Conversation(runner, llm, sampling, first_messages(params), template_kwargs(params))
        click.echo(f"({HELP})", err=True)
        while (line := read_line()) is not None:
            if line.startswith("/"):
                if line == "/exit":
                    break
                obey(line, talk)
            elif line:
                talk.say(line)
    return 0


def obey(line: str, talk: Conversation) -> None:
    """Do what a line that begins with a slash says."""
    if line == "/reset":
        talk.reset()
        click.echo("(forgotten)", err=True)
    elif line == "/help":
        click.echo(f"({HELP})", err=True)
    else:
        click.echo(f"error: {unknown_name(line.split()[0], COMMANDS, 'command')}", err=True)


def read_line() -> str | None:
    """The next line without its ends, None when there is none. A terminal gets a prompt and line editing."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.strip() if line else None
    import readline  # noqa: F401 importing it gives input() its history and editing

    try:
        return input("> ").strip()
    except EOFError:
        return None


command = EngineCommand(
    "chat", run, ANSWER_OPTIONS, help="Talk to MODEL, by default the bundled demo; /exit ends, /reset forgets."
)
