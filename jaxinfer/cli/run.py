"""`jaxinfer run`: one prompt, its answer on standard output, everything else on standard error."""

import os
import stat
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import click

from jaxinfer.cli.options import EngineCommand
from jaxinfer.cli.session import (
    ANSWER_OPTIONS,
    answer,
    first_messages,
    sampling_params,
    started,
    template_kwargs,
)
from jaxinfer.config import Resolved
from jaxinfer.errors import ConfigError


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Answer the prompt. A model without a chat template completes it."""
    prompt = full_prompt(params["prompt"], piped_text(sys.stdin))
    sampling = sampling_params(resolved, params)
    with started(resolved, sys.stderr) as (runner, llm):
        chat = llm.info.has_chat_template and not params["raw"]
        if chat:
            messages = [*first_messages(params), {"role": "user", "content": prompt}]
            ids = runner.run(llm.render(messages, template_kwargs=template_kwargs(params)))
        else:
            ids = runner.run(llm.encode(prompt))
        _, reason, speed = runner.run(answer(llm, ids, sampling, chat=chat, out=sys.stdout))
        if reason == "length":
            click.echo(f"(stopped at {speed.num_tokens} tokens; --max-tokens sets how many it may have)", err=True)
        if params["stats"]:
            click.echo(f"({speed})", err=True)
    return 0


def piped_text(stream: TextIO) -> str:
    """What was piped or redirected into the program. Nothing is read from a terminal, a null device or a socket.

    Raises ConfigError for what is no text.
    """
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):  # closed, or no file at all
        return ""
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
        return ""
    try:
        text = stream.read()
        text.encode()  # in some locales bytes that are no text are kept as half characters
    except UnicodeError as error:
        raise ConfigError(f"what is piped in must be text in {stream.encoding}, {error}; convert it") from error
    return text


def full_prompt(prompt: str | None, piped: str) -> str:
    """The argument, then what was piped in. Raises ConfigError when both are empty."""
    parts = [part for part in (prompt, piped.rstrip("\n")) if part]
    if not parts:
        raise ConfigError('run needs a prompt, got none; write it after the options: jaxinfer run "What is 7 plus 5?"')
    return "\n\n".join(parts)


command = EngineCommand(
    "run",
    run,
    [
        click.Argument(["prompt"], required=False, metavar="[PROMPT]"),
        click.Option(["--raw"], is_flag=True, help="Complete the text as it is, without the chat template."),
        *ANSWER_OPTIONS,
        click.Option(["--stats"], is_flag=True, help="Show tokens and speed at the end."),
    ],
    model_argument=False,
    help="Answer PROMPT, and what is piped in, with the model of -m or the bundled demo.",
)
