"""The options that every verb with a model has, made from EngineConfig, and the verbs that have them."""

import math
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from jaxinfer.cli.flags import FLAGS
from jaxinfer.cli.values import refuse_empty
from jaxinfer.cli.verbs import WholeFault, verb_of_faults
from jaxinfer.cli.words import (
    MANY_NAMES,
    NAME_FLAG,
    keep_given,
    refuse_flag_as_value,
    refuse_many_names,
    refuse_stray,
    refuse_strays_as_models,
    typed_flags,
    words_of,
)
from jaxinfer.config import SETTINGS, EngineConfig, Resolved, Setting, config_from_sources, flag_of
from jaxinfer.engine.interrupts import interrupts_held
from jaxinfer.errors import CheckpointError, ConfigError, DeviceError, JaxInferError
from jaxinfer.files import check_file

if TYPE_CHECKING:
    from jaxinfer.checkpoint.resolve import Part

# JAXINFER_* variables that are no engine settings: they belong to single verbs
OTHER_ENV = frozenset(
    f"JAXINFER_{name}"
    for name in (
        *("HOST", "PORT", "DRAIN_TIMEOUT_S", "SERVE_EARLY", "IN_PROCESS", "DRY_RUN", "DRY_RUN_STEP_MS"),
        *("STALL_TIMEOUT_S", "LOG_FORMAT", "LOG_REQUESTS", "PROFILE_DIR", "OTLP_TRACES_ENDPOINT"),
        *("API_KEY", "API_KEY_FILE", "ALLOWED_HOSTS", "ALLOWED_ORIGINS", "SSL_CERTFILE", "SSL_KEYFILE"),
        *("MAX_REQUESTS_PER_KEY", "MAX_REQUESTS_PER_MINUTE_PER_KEY", "MAX_BODY_BYTES", "STRICT"),
        *("MAX_SESSIONS_PER_KEY", "MAX_SESSION_IDLE_S"),
        *("MAX_STORED_RESPONSES", "MAX_STORED_BYTES", "MAX_STORED_AGE_S"),
        *("FILES_DIR", "MAX_FILE_BYTES", "MAX_FILES_PER_KEY", "MAX_FILES_BYTES_PER_KEY", "MAX_BATCHES_PER_KEY"),
        *("MAX_BATCH_ROWS", "MAX_FILE_AGE_S", "DATA_PARALLEL_SIZE"),
    )
)


class GroupedOption(click.Option):
    """An option that knows the heading of its help, and whether --help shows it or --help-all alone."""

    group = "Options"
    in_short_help = False


class SettingOption(GroupedOption):
    """The option of a setting, whose value config.py judges."""


class FiniteRange(click.FloatRange):
    """A range in which neither NaN, which click finds in every range, nor infinity lies."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not in the range {self._describe_range()}.", param, ctx)
        return number


COUNT: dict[str, Any] = {"type": click.IntRange(1), "metavar": "N"}
SECONDS: dict[str, Any] = {"type": FiniteRange(0.0, min_open=True), "metavar": "X"}


def server_option(
    flag: str,
    help: str,  # noqa: A002 click's word
    group: str = "Options",
    name: str = "",
    *,
    in_short_help: bool = False,
    **settings: Any,
) -> GroupedOption:
    """An option of serve that is a variable too: --max-body-bytes is JAXINFER_MAX_BODY_BYTES. name: its parameter's."""
    variable = f"JAXINFER_{flag.removeprefix('--').replace('-', '_').upper()}"
    option = GroupedOption([*filter(None, [name]), flag], help=help, **{"envvar": variable} | settings)
    option.group, option.in_short_help = group, in_short_help
    return option


def count_option(flag: str, default: int | None, help: str, least: int = 1) -> click.Option:  # noqa: A002 click's word
    """An option that is a number of at least `least`."""
    shown = "" if default is None else f"  [{default}]"
    return click.Option([flag], type=click.IntRange(least), default=default, metavar="N", help=help + shown)


ALL_HELP = "jaxinfer.all_help"  # in a context's meta: every option is shown


class GroupedCommand(click.Command):
    """A verb whose --help fits a screen, and whose --help-all lists every option under its heading.

    run: called with the options' values by name.
    """

    def __init__(
        self,
        name: str,
        run: Callable[..., int] | None,
        params: Sequence[click.Parameter] = (),
        *,
        help: str,  # noqa: A002 click's word
        epilog: str | None = None,
    ) -> None:
        super().__init__(
            name,
            callback=run,
            params=[*params, debug_option(), _help_all_option()],
            help=help,
            epilog=epilog,
            context_settings={"help_option_names": ["-h", "--help"]},
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with verb_of_faults(ctx):
            options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
            args = with_dashes(options, args)
            refuse_flag_as_value(ctx, options, args)
            own = without_foreign(self, ctx, args)
            keep_given(ctx, own)
            try:
                rest = super().parse_args(ctx, own)
            except click.UsageError:
                refuse_stray(self, ctx, words_of(self, ctx))
                raise
        refuse_empty((param for param in self.get_params(ctx) if not isinstance(param, SettingOption)), ctx)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        refuse_strays_as_models(self, ctx)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        is_all = ctx.meta.get(ALL_HELP, False)
        for param in self.get_params(ctx):
            record = _help_record(param, ctx)
            if record is not None and record[1] and (is_all or _in_short_help(param)):
                group = param.group if is_all and isinstance(param, GroupedOption) else "Options"
                groups.setdefault(group, []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        hidden = [param for param in self.get_params(ctx) if not _in_short_help(param)]
        if ctx.meta.get(ALL_HELP, False):
            super().format_epilog(ctx, formatter)
        elif len(hidden) > 2:  # --debug and --help-all are not worth a line
            formatter.write_paragraph()
            formatter.write_text(f"`{ctx.command_path} --help-all` shows {len(hidden)} more options.")


_RANGE = re.compile(r"  \[x>=?(\S+)\]$")  # click's words of a range, at the end of a help text


def _help_record(param: click.Parameter, ctx: click.Context) -> tuple[str, str] | None:
    """click's, with its range in words; one from 0 or 1 on goes without saying."""
    record = param.get_help_record(ctx)
    if record is None or not isinstance(param.type, click.IntRange | click.FloatRange):
        return record
    return record[0], _RANGE.sub("" if param.type.min in (0, 1) else r"  [at least \1]", record[1])


def _in_short_help(param: click.Parameter) -> bool:
    return param.in_short_help if isinstance(param, GroupedOption) else True


def _help_all_option() -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            ctx.meta[ALL_HELP] = True
            click.echo(ctx.get_help())
            ctx.exit()

    return GroupedOption(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show, help="Show every option."
    )


def _say(line: str, is_quiet: bool) -> None:
    if not is_quiet:
        click.echo(line, err=True)


def with_dashes(params: Sequence[click.Parameter], args: list[str]) -> list[str]:
    """The words with the flags of ours that are written with underscores, as vLLM takes them, written with dashes."""
    options = [param for param in params if isinstance(param, click.Option)]
    known = {name for option in options for name in option.opts + option.secondary_opts}
    end = args.index("--") if "--" in args else len(args)
    written: list[str] = []
    for word in args[:end]:
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        is_flag = dashed in known and name.startswith("--")  # behind a flag too, whose value it cannot be
        written.append(f"{dashed}{equals}{value}" if is_flag else word)
    return written + args[end:]


def without_foreign(command: click.Command, ctx: click.Context, args: list[str]) -> list[str]:
    """The words without those flags of other programs that ask for what is so anyway; standard error names them. Raises
    UsageError for every other flag that other programs have and this verb has not, by its own name.

    click would take -ngl for -n with a value, and a flag it does not know for another that is spelt a little like it.
    """
    from jaxinfer.cli.foreign import FALSE, changes_nothing, refusal

    verb = ctx.command_path.partition(" ")[2]
    options = [param for param in command.get_params(ctx) if isinstance(param, click.Option)]
    known = {name for option in options for name in option.opts + option.secondary_opts}
    takes_value = {name for option in options if not option.is_flag for name in option.opts}
    is_quiet = any(name in args for option in options if option.name == "quiet" for name in option.opts)
    kept: list[str] = []
    words = iter(range(len(args)))
    for at in words:
        word, before, after = args[at], kept[-1] if kept else "", args[at + 1] if at + 1 < len(args) else ""
        if word == "--":
            return kept + args[at:]
        name, _, value = word.partition("=")
        is_foreign = word.startswith("-") and before not in takes_value and name not in known
        given = value or ("" if name.startswith("--no-") else after)  # the negation of a switch has no value
        said = refusal(name, given, known, verb) if is_foreign else None
        if said is None:
            kept.append(word)
        elif changes_nothing(said, ""):  # it has no value, so what follows is not its own
            _say(f"{word} changes nothing here", is_quiet)
            if given and not value and given.lower() in FALSE and refusal(name, "", known, verb) != said:
                next(words)
        elif changes_nothing(said, given, verb):
            _say(f"{name} {given} changes nothing here", is_quiet)
            if not value:
                next(words)
        else:
            raise WholeFault(said, ctx)
    return kept


class EngineCommand(GroupedCommand):
    """A verb that needs an engine's settings. It runs as `run(resolved, params)`, `params` being the verb's own."""

    def __init__(
        self,
        name: str,
        run: Callable[[Resolved, Mapping[str, Any]], int],
        params: Sequence[click.Parameter] = (),
        *,
        model_argument: bool = True,
        help: str,  # noqa: A002 click's word
    ) -> None:
        model = [click.Argument(["model_argument"], required=False, metavar="[MODEL]")] if model_argument else []
        config = GroupedOption(
            ["config_file", "--config"], metavar="FILE.toml|NAME", help="Settings by name; a NAME is one of configs/."
        )
        super().__init__(name, None, [*model, *params, config], help=help, epilog=EPILOG)
        self.params += [_option(setting) for setting in SETTINGS.values()]
        self.params.sort(key=_help_order)
        self._run = run
        self._own = [param.name for param in params if param.name and param.expose_value]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = with_dashes(self.get_params(ctx), args)  # click empties the list
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            if "unexpected extra argument" in error.message and NAME_FLAG in given:
                raise WholeFault(MANY_NAMES, ctx) from error  # vLLM takes several names after the flag
            raise
        refuse_many_names(ctx, given)
        return rest

    def invoke(self, ctx: click.Context) -> int:
        refuse_strays_as_models(self, ctx)
        flags = {name: None if (value := ctx.params[name]) == () else value for name in SETTINGS}
        sources: Mapping[str, str] = {}
        typed = typed_flags(self, ctx)
        try:
            resolved = resolve_config(ctx.params.get("model_argument"), ctx.params["config_file"], flags)
            sources = {
                name: typed.get(name, source) if source.startswith("--") else source
                for name, source in resolved.sources.items()
            }
            resolved = replace(resolved, sources=sources)
            if not ctx.params.get("url"):  # whose server knows its models by any name
                check_paths(resolved.config)
            return self._run(resolved, {name: ctx.params[name] for name in self._own})
        except JaxInferError as error:  # found by rooms that know a setting's name, and not who has set it
            sources = (error.sources if isinstance(error, ConfigError) else None) or sources
            if not error.is_quoted:
                error.args = tuple(_as_typed(as_given(str(text), sources), typed) for text in error.args)
            raise


def _as_typed(message: str, typed: Mapping[str, str]) -> str:
    """A message with the flags of settings as the user has spelt them. The two of a switch do not mean the same."""
    for name, flag in typed.items():
        if name in _SWITCHES:
            continue
        message = re.sub(rf"(?<![\w-]){flag_of(name)}(?![\w-])", flag, message)
    return message


_SWITCHES = [name for name, setting in SETTINGS.items() if setting.type is bool]
_FAULT = "  - "  # begins a line on what stands in a file, whose keys may have the names of settings
# of more than one word, since the others are words too; no part of a path, a quoted word or a file's "x.toml: NAME";
# taken with the flag where that stands behind already, and a switch with the value that it is to have
_NAMED = re.compile(
    rf"\bset ({'|'.join(_SWITCHES)}) to (true|false)\b"
    rf"|(?<![\w/.'-])(?<!: )({'|'.join(name for name in SETTINGS if '_' in name)}"
    r"|(?<=set )(?:quantization|dtype)(?= to )|quantization(?= must be | int)"
    r"|(?:(?<=out )|(?<=and ))dtype(?= and |, or |$))"
    r"(?: \(--[\w-]+\))?(?!\w|/|\.\w)"
)


def as_given(message: str, sources: Mapping[str, str]) -> str:
    """A message with its settings spelt as the user may spell them: the variable that set one, else the flag.

    sources: of Resolved. A key of the --config file is the name itself, and so is one of the model's files.
    """

    def given(found: re.Match[str]) -> str:
        switch, value, other = found.groups()
        name = switch or other
        source = sources.get(name, flag_of(name))
        if switch and source.startswith("--"):  # which has no value: on is a flag, and off another
            return f"pass {flag_of(name, off=value == 'false')}"
        spelt = source if source.startswith(("--", "JAXINFER_")) else name
        return f"set {spelt} to {value}" if switch else spelt

    def line_given(line: str) -> str:
        is_of_file = line.startswith(_FAULT)
        return line.replace("(hf_overrides)", "(--hf-overrides)", 1) if is_of_file else _NAMED.sub(given, line)

    return "\n".join(map(line_given, message.split("\n")))


EPILOG = (
    "Each option from Model on is also a key of the --config file and a variable: --max-num-seqs is max_num_seqs and "
    "JAXINFER_MAX_NUM_SEQS. Flags win over variables, variables over the file."
)


def resolve_config(model_argument: str | None, config_file: str | None, flags: dict[str, Any]) -> Resolved:
    """The settings of this call and of the process's environment. Raises ConfigError."""
    from jaxinfer.cli.servers import without_latest

    if model_argument is not None:
        if flags.get("model") not in (None, model_argument):
            both = f"{model_argument!r} and --model {flags['model']!r}"
            raise ConfigError(f"there must be one model, got {both}; drop one")
        flags = flags | {"model": model_argument}
    resolved = config_from_sources(config_file, os.environ, flags, OTHER_ENV)
    return replace(resolved, config=replace(resolved.config, model=without_latest(resolved.config.model)))


def check_paths(config: EngineConfig) -> None:
    """Before any start: raise CheckpointError for a model or tokenizer that is no folder and cannot be a hub id,
    ConfigError for a chat template that cannot be read or is no Jinja.
    """
    from jaxinfer.checkpoint.resolve import TAGGED, TOKENIZER_FLAG, local_folder
    from jaxinfer.cli.servers import presences, serves

    if any(map(str.isspace, config.model)) and not config.model.startswith(("/", ".", "~")):
        fact = f"got the text {config.model!r}; ask it with `jaxinfer run {shlex.quote(config.model)}`"
        if not os.path.isdir(config.model):
            raise CheckpointError(f"the model must be a folder, a hub id or 'demo', {fact}")
    if not TAGGED.fullmatch(config.model) or not any(serves(each, config.model) for each in presences()):
        local_folder(config.model)  # a server of ours may have a model under a name of Ollama's
    if config.tokenizer is not None:
        local_folder(config.tokenizer, what=TOKENIZER_FLAG)
    if config.chat_template is not None:
        check_file(config.chat_template, "--chat-template")
        if os.path.isfile(config.chat_template):  # a pipe can be read once
            from jaxinfer.text.chat_template import read_template

            read_template(config.chat_template, "--chat-template")


def check_start(config: EngineConfig, *, needs_device: bool = True, max_tokens: int | None = None) -> None:
    """Raise ConfigError, CheckpointError or DeviceError for what a start would refuse seconds later and files alone
    tell: a GPU without a driver, a folder that is no whole model, a tokenizer.json that cannot be read, a name that
    neither the cache nor the hub has, a context that config.json rules out.

    max_tokens: of each answer, which no context may be too short for.
    """
    from jaxinfer.cli.checklist import telling

    _check_answer(max_tokens, config.max_model_len, "max_model_len")
    with interrupts_held(), telling("the model's files"):
        from jaxinfer.checkpoint.contents import TOKENIZER
        from jaxinfer.checkpoint.resolve import Part, local_folder, needed_parts, resolve, tokenizer_of
        from jaxinfer.checkpoint.safetensors_file import SafetensorsFile
        from jaxinfer.runtime import nvidia
        from jaxinfer.text.tokenizer import check_tokenizer_file

    if needs_device and config.device == "cuda" and not nvidia.driver_present() and not nvidia.list_gpus():
        raise DeviceError(nvidia.NO_DRIVER)
    tokenizer: tuple[Part, ...] = ("tokenizer",)
    if config.tokenizer is not None:
        with tokenizer_of(config.tokenizer):
            if local_folder(config.tokenizer) is None:
                check_hub_name(config.tokenizer, None, None, tokenizer)
            else:
                check_tokenizer_file((resolve(config.tokenizer, needs=tokenizer).folder / TOKENIZER).read_bytes())
    needs, overrides = needed_parts(config), config.hf_overrides
    if local_folder(config.model) is None:
        check_hub_name(config.model, config.revision, config.download_dir, needs)
        return
    found = resolve(config.model, revision=config.revision, needs=needs, overrides=overrides)
    if "tokenizer" in needs:
        check_tokenizer_file((found.folder / TOKENIZER).read_bytes())
    for path in found.weight_files:
        SafetensorsFile(path)
    most = found.config.get("max_position_embeddings")
    if not isinstance(most, int) or found.config.get("rope_scaling"):
        return
    _check_answer(max_tokens, most, "what the model can address")
    if config.max_model_len is not None and config.max_model_len > most:
        law = f"max_model_len must be at most what the model can address, {most}"
        raise ConfigError(f"{law}, got {config.max_model_len}; lower it, or leave it out for what fits")


def _check_answer(max_tokens: int | None, context: int | None, what: str) -> None:
    """Raise ConfigError for an answer that leaves no token of the context for a prompt.    what: the context is."""
    if max_tokens is not None and context is not None and max_tokens >= context:
        law = f"--max-tokens must be below {what}, {context}"
        raise ConfigError(f"{law}, got {max_tokens}; lower it, or leave it out for what the prompt leaves")


def check_hub_name(model: str, revision: str | None, download_dir: str | None, needs: "tuple[Part, ...]") -> None:
    """Raise CheckpointError for a hub id that the hub does not have. One of which the cache has something is not looked
    up: its start needs no hub.
    """
    from jaxinfer.checkpoint.cached import cached_ids
    from jaxinfer.checkpoint.resolve import find_repo
    from jaxinfer.cli.checklist import telling

    if model not in cached_ids(download_dir):
        with telling(f"{model} on the hub"):
            find_repo(model, revision, download_dir, needs)


def debug_option() -> click.Option:
    """--debug: show the traceback of an error that jaxinfer raised on purpose."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        state = ctx.find_root().obj
        if value and isinstance(state, dict):
            state["debug"] = True

    return GroupedOption(["--debug"], is_flag=True, expose_value=False, callback=remember, help="Show tracebacks.")


def _option(setting: Setting) -> SettingOption:
    """The option of one setting. Its value stays text: config.py reads and judges flags, variables and files alike."""
    flag, name = FLAGS[setting.name], flag_of(setting.name)
    auto = setting.default is None and setting.type is int
    default = "" if setting.default in (None, "", ()) else str(setting.default).lower()
    choices = "|".join(setting.choices)
    listed = "" if len(choices) <= MOST_CHOICES else f" One of {', '.join(setting.choices)}."
    option = SettingOption(
        [setting.name, f"{name}/{flag_of(setting.name, off=True)}" if setting.type is bool else name, *flag.also],
        help=flag.help + listed + (f"  [{'auto' if auto else default}]" if auto or default else ""),
        default=None,
        multiple=setting.type is tuple,
        metavar=None if setting.type is bool else ("" if listed else choices) or _METAVARS[setting.type],
    )
    option.group, option.in_short_help = flag.group, flag.in_short_help
    return option


MOST_CHOICES = 60  # characters of values in the place of a metavar, of a terminal's 80
_METAVARS = {int: "N", float: "X", str: "TEXT", tuple: "NAME", dict: "JSON"}


def _help_order(param: click.Parameter) -> int:
    """Settings in the order of FLAGS, after everything else."""
    return list(FLAGS).index(param.name) if param.name in FLAGS else -1
