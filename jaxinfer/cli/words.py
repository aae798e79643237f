"""Words in wrong places of a command line: a model behind what it stands before, a value without its flag."""

import re
import shlex
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Any, NamedTuple

import click

from jaxinfer.cli.verbs import WholeFault
from jaxinfer.errors import ConfigError

NAME_FLAG = "--served-model-name"
MANY_NAMES = (
    "--served-model-name must have one name, got several; give it again for each: "
    "--served-model-name A --served-model-name B"
)
_GIVEN = "jaxinfer.given"  # in a context's meta: the words behind the verb


def keep_given(ctx: click.Context, args: Sequence[str]) -> None:
    """Know the words of a verb, which a cure repeats in their right order."""
    ctx.meta[_GIVEN] = [*args]


def typed_flags(command: click.Command, ctx: click.Context) -> dict[str, str]:
    """The flag of each option that was typed by another long name than its first, as a switch that was turned off is,
    by the option's name."""
    spelt = {word.partition("=")[0] for word in ctx.meta.get(_GIVEN, ())}
    options = [param for param in command.get_params(ctx) if isinstance(param, click.Option)]
    other = {
        str(param.name): [
            flag
            for flag in [*param.opts[1:], *(param.secondary_opts if ctx.params.get(str(param.name)) is False else ())]
            if flag in spelt and flag[:2] == "--"
        ]
        for param in options
    }
    return {name: flags[0] for name, flags in other.items() if flags}


def refuse_swapped(ctx: click.Context, model: str, other: str, noun: str, is_other: Callable[[str], bool]) -> None:
    """Raise ConfigError for a word in the place of the model that is meant as another, and the model in its place.

    noun: what the other is called.    is_other: whether a word is meant as that, and not as a model.
    """
    if is_other(model) and not is_other(other):
        rest = _without(ctx.meta.get(_GIVEN) or [model, other], other)
        law = f"MODEL must stand before {noun}, got {other!r} behind it"
        raise ConfigError(f"{law}; write `{_command(ctx, [_name_here(other), *rest])}`")


def refuse_many_names(ctx: click.Context, given: Sequence[str]) -> None:
    """Raise WholeFault where the model is a word behind a served name, and nothing says that it is a model."""
    from jaxinfer.cli.run import names_a_model

    word = ctx.params.get("model_argument")
    behind = [third for flag, _, third in zip(given, given[1:], given[2:], strict=False) if flag == NAME_FLAG]
    if word is not None and word in behind and not names_a_model(word):
        raise WholeFault(f"{MANY_NAMES}; where {word!r} is the model, write it first", ctx)


def refuse_flag_as_value(ctx: click.Context, options: Sequence[click.Option], args: Sequence[str]) -> None:
    """Raise WholeFault for a flag in the place of another one's value, which click would take as that."""
    takes_value: dict[str, Any] = {name: option for option in options if not option.is_flag for name in option.opts}
    known = {name for option in options for name in option.opts + option.secondary_opts}
    words = iter(range(len(args)))
    for at in words:
        word = args[at]
        if word == "--":
            return
        if word not in takes_value or at + 1 == len(args):
            continue
        value = args[next(words)]
        is_text = takes_value[word].metavar in ("TEXT", "JSON")
        if value.partition("=")[0] in known or (not is_text and re.match(r"--[a-z]", value)):
            raise WholeFault(f"{word} needs a value, got none before {value}; see `{ctx.command_path} --help`", ctx)


def refuse_stray(command: click.Command, ctx: click.Context, words: Sequence[str]) -> None:
    """Raise WholeFault for a word that no model has for its name and that is a value of one of the verb's flags, or
    means a card in a verb of this machine alone.

    words: of a command line with a fault, or the one that is about to be taken for a model.
    """
    flags = {name for param in command.get_params(ctx) for name in param.opts}
    if "help" in words and not _names_a_model("help"):
        verb = ctx.command_path.partition(" ")[2]
        raise WholeFault(f"there is no model 'help' here; `jaxinfer help {verb}` shows the help of {verb}", ctx)
    files = [word for word in words if word.endswith(".json")]
    if ctx.command_path.endswith("bench compare") and files:
        law = "bench compare asks two servers, --a URL and --b URL, got a file"
        old, new = map(shlex.quote, files[:2]) if len(files) > 1 else ("OLD.json", shlex.quote(files[0]))
        raise WholeFault(f"{law}; of reports write `jaxinfer bench show {new} --compare {old}`", ctx)
    found = {word: stray for word in words if (stray := _stray(word, flags)) is not None}
    if found:
        word, stray = next(iter(found.items()))
        alike = [other for other, each in found.items() if each.flag == stray.flag]
        if len(alike) > 1:
            law = f"{stray.noun} must be named with {stray.flag}, and one alone, got {' and '.join(alike)}"
        else:
            law = f"{stray.noun} must be named with {stray.flag}, got {word!r} alone"
        raise WholeFault(f"{law}; {_with_flags(command, ctx, found)}", ctx)
    card = next((word for word in words if "--max-model-len" in flags and _is_card(word)), None)
    if card is not None and not _names_a_model(card):
        law = f"the model must be a folder, a hub id or 'demo', got the card {card!r}"
        cure = f"this machine's own GPU is taken, `jaxinfer plan --for {shlex.quote(card)}` plans for another"
        if _is_port(card) and "--port" in flags:
            cure += f"; for the port write `{ctx.command_path} --port {card}`"
        raise WholeFault(f"{law}; {cure}", ctx)


def refuse_strays_as_models(command: click.Command, ctx: click.Context) -> None:
    """Raise WholeFault for a card, a port, a device or an address among what is about to be taken for models."""
    names = [str(param.name) for param in command.get_params(ctx) if "MODEL" in str(param.metavar)]
    values = [ctx.params[name] for name in names if isinstance(ctx.params.get(name), str | tuple)]
    for value in values:
        refuse_stray(command, ctx, [value] if isinstance(value, str) else value)


def _with_flags(command: click.Command, ctx: click.Context, found: "dict[str, _Stray]") -> str:
    """The cure: the words of the verb with the first stray of each flag behind its flag, if that is a command line."""
    rest: list[str] = list(ctx.meta[_GIVEN])
    behind: dict[str, str] = {}
    for word, stray in found.items():
        at = rest.index(word) if word in rest else len(rest)
        names = {stray.flag.removeprefix("--"), stray.noun.split(" ")[-1]}
        is_named = at and rest[at - 1].casefold() in names  # as in `port 8001`
        rest = [*rest[: at - is_named], *rest[at + 1 :]]
        behind.setdefault(stray.flag, stray.value)
    models = {word: _name_here(word) for word in words_of(command, ctx) if word in rest}
    line = [*(models.get(word, word) for word in rest), *(word for pair in behind.items() for word in pair)]
    return f"write `{_command(ctx, line)}`" if _parses(command, line) else f"see `{ctx.command_path} --help`"


def _parses(command: click.Command, line: Sequence[str]) -> bool:
    """Whether a verb takes these words, as far as one can tell before it runs."""
    with click.Context(command, info_name=command.name, resilient_parsing=True) as trial:
        try:
            values, rest, _ = command.make_parser(trial).parse_args([*line])
            for param in command.get_params(trial):
                value = values.get(str(param.name))
                if isinstance(param.type, click.Choice) and isinstance(value, str):
                    param.type.convert(value, param, trial)
        except click.UsageError:
            return False
    return not rest


def words_of(command: click.Command, ctx: click.Context) -> list[str]:
    """Those that are neither flags nor values of them; the first alone where one is a prompt, which may be any."""
    try:
        values, rest, _ = command.make_parser(ctx).parse_args([*ctx.meta.get(_GIVEN, ())])
    except click.UsageError:  # it is told by itself
        return []
    arguments = [param for param in command.get_params(ctx) if isinstance(param, click.Argument)]
    places = [values.get(str(param.name)) for param in arguments]
    words: list[Any] = []
    for place in places:
        words += place if isinstance(place, list | tuple) else [place]
    words = [word for word in (*words, *rest) if isinstance(word, str)]  # click has a mark of its own for none
    return words[:1] if any(param.name == "prompt" for param in arguments) else words


class _Stray(NamedTuple):
    """A word that is no model.    noun: what it is.    value: what the flag takes for it."""

    noun: str
    flag: str
    value: str


def _stray(word: str, flags: set[str]) -> _Stray | None:
    """What a word is and the flag that takes it; None for a word that may be something else."""
    if "--url" in flags and re.fullmatch(r"https?://(?!(www\.)?(huggingface\.co|hf\.co)\b)[^/]+(/v1)?/?", word):
        return _Stray("a server", "--url", word)
    kinds = (
        ("a card", "--for", _is_card),
        ("a port", "--port", lambda word: _is_port(word) and not _is_card(word)),
        ("an address", "--host", _is_address),
        ("a device", "--device", ("cpu", "cuda").__contains__),
    )
    found = next((_Stray(noun, flag, word) for noun, flag, fits in kinds if flag in flags and fits(word)), None)
    if found is None and "--url" in flags and _is_port(word) and not _is_card(word):
        found = _Stray("a port", "--url", f"http://127.0.0.1:{word}")
    return None if found is None or _names_a_model(word) else found


def _names_a_model(word: str) -> bool:
    from jaxinfer.cli.run import names_a_model

    return names_a_model(word)


def _name_here(word: str) -> str:
    from jaxinfer.cli.run import name_here

    return name_here(word)


def _is_card(word: str) -> bool:
    from jaxinfer.cli.cards import named_target

    try:
        named_target(word)
    except ConfigError:
        return False
    return True


def _is_port(word: str) -> bool:
    return re.fullmatch(r"[1-9]\d{1,4}", word, re.ASCII) is not None and int(word) < 2**16


def _is_address(word: str) -> bool:
    try:
        return word == "localhost" or bool(ip_address(word))
    except ValueError:
        return False


def _without(words: Sequence[str], word: str) -> list[str]:
    """All but the last of these."""
    at = len(words) - 1 - [*reversed(words)].index(word) if word in words else len(words)
    return [*words[:at], *words[at + 1 :]]


def _command(ctx: click.Context, words: Sequence[str]) -> str:
    return f"{ctx.command_path} {shlex.join(words)}"
