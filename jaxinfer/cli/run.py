"""`jaxinfer run`: one prompt, its answer on standard output, everything else on standard error."""

import os
import re
import shlex
import stat
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import click

from jaxinfer.cli import chat
from jaxinfer.cli.options import EngineCommand
from jaxinfer.cli.session import ANSWER_OPTIONS, first_messages, sampling_params, template_kwargs
from jaxinfer.cli.talker import SERVER_OPTIONS, talker
from jaxinfer.cli.words import refuse_swapped
from jaxinfer.config import Resolved, counted
from jaxinfer.errors import ConfigError

# a path, a hub id with its organisation, or a URL, which the error that follows explains
_NAME_FORM = re.compile(
    r"(/|\./|\.\./|~|https?://|hf\.co/|huggingface\.co/)\S*|[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|\S+\.gguf"
)


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Answer the prompt. A model without a chat template completes it. Without a prompt a terminal gets a chat."""
    piped = piped_text(sys.stdin)
    if not params["prompt"] and not piped and sys.stdin.isatty():
        return chat.run(resolved, params)
    prompt = full_prompt(params["prompt"], piped, resolved.config.model if "model" in resolved.sources else None)
    sampling = sampling_params(resolved, params)
    with talker(resolved, params) as talks:
        if talks.has_chat_template and not params["raw"]:
            messages = [*first_messages(params), {"role": "user", "content": prompt}]
            said = talks.chat(messages, sampling, template_kwargs(params), sys.stdout)
        else:
            said = talks.complete(prompt, sampling, sys.stdout)
        if said.reason == "length" and not params["quiet"]:
            click.echo(
                f"(stopped at {counted(said.speed.num_tokens, 'token')}; --max-tokens sets how many it may have)",
                err=True,
            )
        if params["stats"]:
            click.echo(f"({said.speed})", err=True)
    return 0


def names_a_model(word: str) -> bool:
    """Whether one word alone is meant as a model: a folder, a name's form, or a name known on this machine."""
    if word == "demo" or os.path.isdir(os.path.expanduser(word)) or _NAME_FORM.fullmatch(word):
        return True
    if not word or any(char.isspace() for char in word):
        return False
    from jaxinfer.checkpoint.cached import cached_ids
    from jaxinfer.checkpoint.resolve import TAGGED, UNTAGGED
    from jaxinfer.cli.servers import presences, serves

    if TAGGED.fullmatch(word) or UNTAGGED.fullmatch(word):
        return True
    return any(serves(presence, word) for presence in presences()) or word in cached_ids(None)


def name_here(word: str) -> str:
    """A model as a command that is suggested names it: Ollama's names by the hub's, unless something here has the name.

    Raises CheckpointError for a name of Ollama's of which we know no other.
    """
    from jaxinfer.checkpoint.cached import cached_ids
    from jaxinfer.checkpoint.resolve import hub_name
    from jaxinfer.cli.servers import presences, serves, without_latest

    word = without_latest(word)
    if word == "demo" or os.path.isdir(os.path.expanduser(word)) or word in cached_ids(None):
        return word
    if any(serves(presence, word) for presence in presences()):
        return word
    return hub_name(word) or word


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
        fault = f"what is piped in must be text in {stream.encoding}, got bytes that are none"
        raise ConfigError(f"{fault}; convert it, as with `iconv -f latin1 -t {stream.encoding}`") from error
    return text


def full_prompt(prompt: str | None, piped: str, model: str | None = None) -> str:
    """The argument, then what was piped in. Raises ConfigError when both are empty.    model: as it was named."""
    parts = [part for part in (prompt, piped.rstrip("\n")) if part]
    if not parts:
        fact = "none" if model is None else f"none beside the model {model!r}"
        shown, named = ("MODEL", "MODEL") if model is None else map(shlex.quote, (model, name_here(model)))
        cure = f'write it last: jaxinfer run {named} "What is 7 plus 5?"'
        if model is not None and _NAME_FORM.fullmatch(model) and not os.path.isdir(os.path.expanduser(model)):
            cure += f", or if {shown} is the prompt, jaxinfer run demo {shown}"
        raise ConfigError(f"run needs a prompt, got {fact}; {cure}")
    return "\n\n".join(parts)


class RunCommand(EngineCommand):
    """`run [MODEL] [PROMPT]`: one word alone is the prompt unless it names a model, or -m has named one."""

    def invoke(self, ctx: click.Context) -> int:
        word = ctx.params["model_argument"]
        if word is not None and ctx.params["prompt"] is None and (ctx.params["model"] or not names_a_model(word)):
            ctx.params |= {"model_argument": None, "prompt": word}
        elif word is not None and ctx.params["prompt"] is not None:
            refuse_swapped(ctx, word, ctx.params["prompt"], "PROMPT", lambda each: not names_a_model(each))
        return super().invoke(ctx)


command = RunCommand(
    "run",
    run,
    [
        click.Argument(["prompt"], required=False, metavar="[PROMPT]"),
        click.Option(["--raw"], is_flag=True, help="Complete the text as it is, without the chat template."),
        click.Option(["--stats"], is_flag=True, help="Show tokens and speed at the end."),
        *ANSWER_OPTIONS,
        *SERVER_OPTIONS,
    ],
    help="Answer PROMPT, and what is piped in, with MODEL or the bundled demo. Without PROMPT and pipe it is a chat. "
    "If a server of yours has MODEL, this server answers. Otherwise the model is loaded here.",
)
