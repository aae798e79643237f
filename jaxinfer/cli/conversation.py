"""A conversation at the terminal: its turns, its settings, its file, and the commands that begin with a slash."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from jaxinfer.cli.session import checked
from jaxinfer.config import counted, parse_int, unknown_name
from jaxinfer.errors import ApiError, ConfigError
from jaxinfer.files import read_file

if TYPE_CHECKING:
    from jaxinfer.cli.talker import Talker
    from jaxinfer.protocol.sampling import SamplingParams

FENCE = '"""'
COMMANDS = {
    "/help": "show this",
    "/set [NAME VALUE]": "set a sampling field; VALUE default: the model's; without a name: show them",
    "/system [TEXT]": "set the system message and forget the conversation; without TEXT: none",
    "/save FILE": "write the conversation to a file; --overwrite before FILE replaces another conversation there",
    "/load FILE": "go on with a saved conversation",
    "/reset": "forget the conversation",
    "/exit": "end; exit, quit and Ctrl-D too",
}
OVERWRITE = "--overwrite"
FULL = "context_length_exceeded"  # in what the engine and every server of ours says
ALIASES = {"/bye": "/exit", "/quit": "/exit", "/clear": "/reset", "/?": "/help"}
LEAVING = ("exit", "quit", "bye", "exit()", "quit()", ":q")  # typed alone at a terminal: no message to a model
Role = Literal["system", "user", "assistant"]
READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("max_tokens", "top_k", "seed"), parse_int),
    **dict.fromkeys(("temperature", "top_p", "min_p"), float),
    "stop": lambda text: [unquoted(text)],
}
KINDS = {parse_int: "an integer", float: "a number"}
HINT = f"(/help: commands; {FENCE}: several lines; Ctrl-C ends an answer, Ctrl-D the chat)"


class Conversation:
    """The turns so far. Invariant: user and assistant alternate after the system message; a failed turn leaves none."""

    def __init__(
        self,
        talker: "Talker",
        sampling: "SamplingParams",
        first: list[dict[str, Any]],
        kwargs: dict[str, Any] | None,
        *,
        is_quiet: bool = False,
    ) -> None:
        """is_quiet: shows nothing but answers, errors and what its commands say."""
        self.is_quiet = is_quiet
        self._talker = talker
        self._kwargs = kwargs
        self.sampling = sampling
        self.first = first
        self.messages = list(first)
        self.file: Path | None = None  # what /load read or /save wrote, which /save may replace

    def say(self, text: str) -> None:
        """Send one text and show the answer; Ctrl-C ends the answer, a refusal is shown, and the chat goes on."""
        messages = [*self.messages, {"role": "user", "content": text}]
        try:
            said = self._talker.chat(messages, self.sampling, self._kwargs, sys.stdout)
        except KeyboardInterrupt:
            click.echo("\n(stopped; this turn is forgotten)", err=True)
        except ApiError as error:
            is_full = FULL in str(error) and self.messages != self.first
            click.echo(f"error: {error}{'; /reset forgets the conversation' if is_full else ''}", err=True)
        else:
            self.messages = [*messages, {"role": "assistant", "content": said.text}]
            if not self.is_quiet:
                click.echo(f"({said.speed})", err=True)

    def obey(self, line: str) -> bool:
        """Do what a line that begins with a slash says; a mistake is shown and changes nothing. False: end."""
        word, _, rest = line.partition(" ")
        word, rest = ALIASES.get(word, word), rest.strip()
        try:
            match word:
                case "/exit":
                    return False
                case "/help":
                    click.echo("\n".join(f"{name:<18} {meaning}" for name, meaning in COMMANDS.items()), err=True)
                case "/reset":
                    self.messages, self.file = list(self.first), None
                    click.echo("(forgotten)", err=True)
                case "/system":
                    self.first = [{"role": "system", "content": rest}] if rest else []
                    self.messages, self.file = list(self.first), None
                    click.echo("(a new conversation)", err=True)
                case "/set":
                    self._set(rest)
                case "/save":
                    first, _, behind = rest.partition(" ")
                    overwrite = first == OVERWRITE
                    rest = behind.strip() if overwrite else rest
                    save(Path(need_file(word, rest)), self, overwrite=overwrite)
                    click.echo(f"(saved to {rest})", err=True)
                case "/load":
                    load(Path(need_file(word, rest)), self)
                    click.echo(f"({counted(len(self.messages), 'message')} of {rest})", err=True)
                case _:
                    raise ConfigError(unknown_name(word, [name.split()[0] for name in COMMANDS], "command"))
        except (ConfigError, ApiError) as error:
            click.echo(f"error: {error}", err=True)
        return True

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        name = name.replace("-", "_")
        if name:
            self.sampling = changed(self.sampling, name, value.strip())
        shown = {field: getattr(self.sampling, field) for field in ([name] if name else READERS)}
        words = (f"{field} {'default' if given is None else given}" for field, given in shown.items())
        click.echo(f"({', '.join(words)})", err=True)


def changed(sampling: "SamplingParams", name: str, value: str) -> "SamplingParams":
    """With one field set to what a text says. Raises ConfigError, InvalidRequest."""
    import msgspec

    if name not in READERS:
        raise ConfigError(unknown_name(name, READERS, "sampling field"))
    if not value:
        raise ConfigError(f"/set {name} needs a value, got none; add one, or default")
    cure = f"`/set {name} default` restores its default"
    try:
        wanted = None if value == "default" else READERS[name](value)
    except (ValueError, OverflowError):
        kind = KINDS[READERS[name]]
        raise ConfigError(f"{name} must be {kind} or default, got {value!r}; {cure}") from None
    return checked(msgspec.structs.replace(sampling, **{name: wanted}), cure=cure)


def unquoted(text: str) -> str:
    """A text that may stand in double quotes, as in JSON: for spaces at its ends, and for \\n."""
    import msgspec

    try:
        return msgspec.json.decode(text, type=str) if text.startswith('"') else text
    except msgspec.MsgspecError:
        return text


def need_file(word: str, rest: str) -> str:
    if not rest:
        raise ConfigError(f"{word} needs a file, got none; name one, as in {word} talk.json")
    return os.path.expanduser(rest)


def save(path: Path, talk: Conversation, *, overwrite: bool = False) -> None:
    """Write messages and settings, whole or not at all. Raises ConfigError.

    A file that is there is replaced if it is this conversation's own, or a saved one and `overwrite` is set.
    """
    import msgspec

    settings = {name: value for name in READERS if (value := getattr(talk.sampling, name)) is not None}
    if path.exists():
        read_saved(path)
        if not overwrite and path.resolve() != talk.file:
            raise ConfigError(f"{path} has another conversation; name another file, or `/save {OVERWRITE} {path}`")
    try:
        with tempfile.NamedTemporaryFile("wb", dir=path.absolute().parent, delete=False) as file:
            try:
                file.write(msgspec.json.format(msgspec.json.encode({"messages": talk.messages, "settings": settings})))
                file.close()
                os.replace(file.name, path)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(file.name)
                raise
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; name another file") from error
    talk.file = path.resolve()


def load(path: Path, talk: Conversation) -> None:
    """Take messages and settings from a saved conversation. Raises ConfigError, and then nothing has changed."""
    import msgspec

    messages, settings = read_saved(path)
    sampling = msgspec.structs.replace(talk.sampling, **dict.fromkeys(READERS) | settings)
    talk.sampling, talk.messages = sampling, messages
    talk.first = messages[:1] if messages and messages[0]["role"] == "system" else []
    talk.file = path.resolve()


def read_saved(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The messages and the sampling fields of a saved conversation. Raises ConfigError."""
    import msgspec

    from jaxinfer.protocol.sampling import SamplingParams

    message = msgspec.defstruct("Message", [("role", Role), ("content", str)], forbid_unknown_fields=True)
    fields = [("messages", list[message]), ("settings", dict[str, Any])]  # type: ignore[valid-type]
    form = msgspec.defstruct("Saved", fields, forbid_unknown_fields=True)
    content = read_file(path)
    try:
        saved = msgspec.to_builtins(msgspec.json.decode(content, type=form))
        messages, settings = saved["messages"], saved["settings"]
        if unknown := settings.keys() - READERS.keys():
            raise ValueError(unknown_name(min(unknown), READERS, "sampling field"))
        checked(SamplingParams(**settings))
        roles = [message["role"] for message in messages]
        turns = roles[1:] if roles[:1] == ["system"] else roles
        if turns != ["user", "assistant"] * (len(turns) // 2):
            raise ValueError("its messages are not of user and assistant in turns, behind one of system at most")
    except (ValueError, LookupError, TypeError, AttributeError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} is no saved conversation: {error}; name a file that /save wrote") from error
    return messages, settings


def talk_at_terminal(talk: Conversation) -> None:
    """Read lines until /exit or the end of the input. At a terminal, Ctrl-C drops what was typed; the second ends."""
    if not talk.is_quiet:
        click.echo(HINT, err=True)
    is_second = not at_terminal()
    while True:
        try:
            text = read_text()
        except KeyboardInterrupt:
            if is_second:
                raise
            is_second = True
            click.echo("\n(Ctrl-C once more, or Ctrl-D, ends the chat)", err=True)
            continue
        is_second = not at_terminal()
        if text is None:
            return
        if at_terminal() and text.casefold() in LEAVING:
            return
        if text.startswith("/"):
            if not talk.obey(text):
                return
        elif text:
            talk.say(text)


def at_terminal() -> bool:
    return sys.stdin.isatty()


def read_text() -> str | None:
    """The next line, or the lines between two FENCEs; None at the end of the input."""
    line = read_line("> ")
    if line is None or not line.startswith(FENCE):
        return line
    line, lines = line.removeprefix(FENCE), []
    while not line.endswith(FENCE):
        lines.append(line)
        following = read_line("... ", strip=False)
        if following is None:
            break
        line = following.rstrip()
    else:
        lines.append(line.removesuffix(FENCE))
    return "\n".join(lines).strip("\n")


def read_line(prompt: str, *, strip: bool = True) -> str | None:
    """The next line without its ends, None when there is none. A terminal gets a prompt and line editing."""
    if not at_terminal():
        line = sys.stdin.readline()
        return (line.strip() if strip else line.rstrip("\n")) if line else None
    import readline  # noqa: F401 importing it gives input() its history and editing

    try:
        line = input(prompt)
    except EOFError:
        click.echo(err=True)  # Ctrl-D leaves the cursor behind the prompt
        return None
    return line.strip() if strip else line
