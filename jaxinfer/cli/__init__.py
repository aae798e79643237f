"""The command line: `jaxinfer VERB`. One file per verb, imported when it is asked for; nothing here imports jax.

`jaxinfer --help` must take less than 150 ms, of which click is a third, so the rest is imported where it is needed.
"""

import re
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from jaxinfer.cli.streams import drop_output, guard_streams
from jaxinfer.cli.verbs import Verbs, WholeFault, is_one_slip
from jaxinfer.engine.interrupts import INTERRUPTED
from jaxinfer.errors import JaxInferError, OutputClosed, OutputError
from jaxinfer.version import __version__

VERBS = {
    "run": "Answer one prompt and exit; without one, chat.",
    "chat": "Talk to a model in the terminal.",
    "serve": "Serve a model over an OpenAI-compatible HTTP API.",
    "ps": "Show your running servers.",
    "stop": "Stop a running server of yours.",
    "connect": "Print settings for clients of a running server.",
    "list": "Show the models on this machine.",
    "pull": "Download a model.",
    "show": "Show what is known of a model on this machine.",
    "rm": "Remove a downloaded model.",
    "plan": "Show what a model needs of a device, from its config.json alone.",
    "batch": "Answer every row of a file: JSONL, CSV or Parquet.",
    "ppl": "Compute the perplexity of texts.",
    "sanity": "Load models, ask each something, time it and check it.",
    "bench": "Measure engines, servers and kernels.",
    "profile": "Trace steps of a model: device time by kernel, host time by phase.",
    "warmup": "Compile every step of a model into the cache.",
    "notebooks": "Put the notebooks about jaxinfer into a folder.",
    "doctor": "Show what jaxinfer finds on this machine.",
    "version": "Show the version.",
    "help": "Show the help of a verb.",
}

# verbs of other programs that have no namesake here: what to do instead
VERBS_OF_OTHERS = {
    "create": "name settings in a file: `jaxinfer serve MODEL --config FILE.toml`",
    "push": "jaxinfer uploads nothing; `hf upload` does",
    "cp": "give a model another name with `jaxinfer serve MODEL --served-model-name NAME`",
    "launch": "`jaxinfer connect` prints the settings of clients",
    "convert": "not needed, safetensors are read as they are: `jaxinfer serve FOLDER`",
    "quantize": "weights are rounded as they are loaded: `jaxinfer serve MODEL --quantization int8`",
    "complete": "`jaxinfer run MODEL PROMPT --raw` completes a text",
    "generate": "`jaxinfer run MODEL PROMPT` answers a prompt",
    "run-batch": "`jaxinfer batch MODEL FILE -o FILE` answers the rows of a file",
    "download": "`jaxinfer pull MODEL` downloads a model",
    "ls": "`jaxinfer list` shows the models on this machine",
    "models": "`jaxinfer list` shows the models on this machine, `jaxinfer plan --list` those that need no hub",
    "search": "names are at https://huggingface.co/models; `jaxinfer plan --list` says which models fit a card",
    "start": "`jaxinfer serve MODEL` starts a server",
    "restart": "`jaxinfer stop` ends the server, then `jaxinfer serve MODEL` starts it",
    "kill": "`jaxinfer stop` ends a server of yours, when its running answers are finished",
    "status": "`jaxinfer ps` shows your running servers",
    "logs": "a server's log is its standard error: `jaxinfer serve MODEL 2>> FILE` keeps it",
    "info": "`jaxinfer show MODEL` shows what is known of a model",
    "inspect": "`jaxinfer show MODEL` shows what is known of a model",
    "install": "`jaxinfer pull MODEL` downloads a model",
    "remove": "`jaxinfer rm MODEL` removes a downloaded model",
    "delete": "`jaxinfer rm MODEL` removes a downloaded model",
    "signin": "`hf auth login` keeps a token of the hub",
    "signout": "`hf auth logout` removes the token of the hub",
    "collect-env": "`jaxinfer doctor` shows what jaxinfer finds on this machine",
    "env": "`jaxinfer doctor` shows what jaxinfer finds on this machine",
    "login": "`hf auth login` keeps a token of the hub",
}

START_MENU = """\
jaxinfer serve             the bundled demo model on http://127.0.0.1:8000
jaxinfer chat              talk to it here
jaxinfer serve Qwen/Qwen3-0.6B      a real model, from the Hugging Face hub
jaxinfer --help            everything else
"""


def meant(word: str, rest: Sequence[str] = ()) -> str | None:
    """What to say of a prompt or a model in the place of a verb; None for every other word.    rest: behind it."""
    from jaxinfer.cli.run import name_here, names_a_model

    if word in VERBS_OF_OTHERS:
        return f"jaxinfer has no command {word!r}; {VERBS_OF_OTHERS[word]}"
    is_text = any(map(str.isspace, word.strip()))
    if not is_text and not names_a_model(word):
        return None
    what, line = ("the prompt", [word, *rest]) if is_text else ("the model", [name_here(word), *rest])
    if is_text and rest and names_a_model(rest[0]):
        line = [name_here(rest[0]), word, *rest[1:]]
    return f"the first word must be a verb, got {what} {word!r}; write `jaxinfer run {shlex.join(line)}`"


@click.group(cls=Verbs, verbs=VERBS, modules="jaxinfer.cli.", otherwise=meant, invoke_without_command=True)
@click.version_option(__version__, message="jaxinfer %(version)s")
@click.pass_context
def jaxinfer(ctx: click.Context) -> None:
    """Run open-weight language models with JAX, on NVIDIA GPUs or the CPU.

    Without a model, serve, chat and run use a tiny bundled demo. `jaxinfer VERB --help` shows a verb's options.
    """
    if ctx.invoked_subcommand is None:
        click.echo(START_MENU, nl=False)


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit: 0, or the code of jaxinfer/errors.py with the cause as the last line."""
    state = {"debug": False, "began_s": time.monotonic()}  # BEGAN_S of checklist.py
    guard_streams()
    try:
        code = jaxinfer.main(args=args, prog_name="jaxinfer", standalone_mode=False, obj=state)
        sys.stdout.flush()
    except OutputError as error:
        drop_output()
        code = error.exit_code if isinstance(error, OutputClosed) else _fail(str(error), error.exit_code)
    except JaxInferError as error:
        if state["debug"]:
            sys.excepthook(type(error), error, error.__traceback__)
        code = _fail(str(error), error.exit_code)
    except click.ClickException as error:
        code = _fail(_usage(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except Exception as error:
        if not _follows_interrupt(error):
            raise
        code = INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)


def _follows_interrupt(error: BaseException | None) -> bool:
    """Whether a Ctrl-C is behind it, as of an event loop that a second one has stopped while it was closing."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _fail(message: str, code: int) -> int:
    click.echo(f"error: {message}", err=True)
    return code


# click's sentence of a value that its type does not take
_WRONG = re.compile(r"(.*) is not (a valid (float|integer)( range)?|in the range \S+|one of .*)\.", re.DOTALL)


def _law(kind: click.ParamType[Any]) -> str:
    """What a value of this type must be."""
    if isinstance(kind, click.Choice):
        return f"one of {', '.join(map(str, kind.choices))}"
    noun = "an integer" if isinstance(kind, click.IntRange | click.types.IntParamType) else "a number"
    if not isinstance(kind, click.IntRange | click.FloatRange) or kind.min is None:
        return noun
    return f"{noun} above {kind.min:g}" if kind.min_open else f"{noun} of at least {kind.min:g}"


def _word(param: click.Parameter) -> str:
    """What a fault calls an argument: its metavar, unless that lists its values."""
    metavar = str(param.metavar).strip("[]")
    return str(param.name).upper() if "|" in metavar else metavar


def _wrong_value(param: click.Parameter, got: str, context: click.Context | None) -> str:
    """Requirement, value, cure of an option, of the variable that set it, or of an argument."""
    law = f"{_law(param.type)}, got {got}"
    if isinstance(param, click.Argument):
        return f"{_word(param)} must be {law}; name one of them"
    source = context.get_parameter_source(str(param.name)) if context else None
    if source is click.core.ParameterSource.ENVIRONMENT:
        return f"{param.envvar} must be {law}; unset it for its default"
    return f"{param.opts[0]} must be {law}; leave it out for its default"


_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)", re.DOTALL)  # click's sentence


def _too_many(context: click.Context, extra: str) -> str:
    """What a verb takes, the words that it does not, and what to do with them."""
    path, params = context.command_path, context.command.get_params(context)
    takes = [_word(param) for param in params if isinstance(param, click.Argument)]
    if "PROMPT" in takes:
        cure = "put a prompt of several words in quotes"
    elif "MODEL" not in takes and any("--model" in param.opts for param in params):
        cure = f"leave it out or name a model with --model, see `{path} --help`"
    else:
        cure = f"leave it out, see `{path} --help`"
    allowed = " and ".join(f"one {name}" for name in takes) or "only options"
    return f"{path} takes {allowed}, got {extra!r}{' too' if takes else ''}; {cure}"


_SENSE = re.compile(r"--((?:no-|disable-|enable-|use-)*)(.*)")


def _sense(flag: str) -> tuple[str, bool]:
    """A flag without dashes and words of its sense, and whether it turns something off."""
    found = _SENSE.fullmatch(flag)
    return (found[2], bool(re.search("no-|disable-", found[1]))) if found else (flag, False)


def _meant_flag(option: str, own: list[str], switches: list[str], others: list[str]) -> str | None:
    """One slip away from an own flag or from another program's, or of its sense and spelt much like an own one, or with
    some of its words. A slip spares the first letter, and a word of three letters has none.

    switches: the own flags without a value, which are all that can be turned on and off.
    """
    from jaxinfer.config import are_among, nearest_name

    slips = [flag for flag in (*own, *others) if flag[2:3] == option[2:3] and is_one_slip(option, flag)]
    if slips and (slips[0] in own or len(option) > 5):
        return slips[0]
    name, is_off = _sense(option)
    kind = own if option == f"--{name}" else switches
    alike = {_sense(flag)[0]: flag for flag in kind if _sense(flag)[1] == is_off}
    if near := nearest_name(name, [each for each in alike if _are_spelt_alike(name, each)], 0.75):
        return alike[near]
    ending = [flag for each, flag in alike.items() if each.endswith(f"-{name}")]
    longer = [flag for each, flag in alike.items() if are_among(name.split("-"), each.split("-"))]
    return next((flags[0] for flags in (ending, longer) if len(flags) == 1), None)


def _are_spelt_alike(name: str, other: str) -> bool:
    """Whether no word of one stands in the place of quite another word: max-batch-size is not max-batch-rows."""
    from jaxinfer.config import nearest_name

    words, others = name.split("-"), other.split("-")
    if len(words) != len(others):
        return True
    return all(nearest_name(word, [each], 0.65) for word, each in zip(words, others, strict=True))


def _near(option: str, context: click.Context) -> str:
    """The option of a verb, or of another program, that one it has not seems to mean; else where its options are
    listed.
    """
    from jaxinfer.cli.foreign import flags_of_others, refusal
    from jaxinfer.cli.foreign_bench import bench_flags

    options = [param for param in context.command.get_params(context) if isinstance(param, click.Option)]
    names = [name for each in options for name in each.opts + each.secondary_opts]
    long = [name for name in names if name.startswith("--")]
    verb = context.command_path.partition(" ")[2]
    near, option = None, option.replace("_", "-")
    if option.startswith("--") and option not in bench_flags():  # of those it is known what they mean
        switches = [name for each in options if each.is_flag for name in each.opts + each.secondary_opts]
        near = _meant_flag(option, long, switches, flags_of_others(names, verb))
    is_group = isinstance(context.command, click.Group)
    if len(option) == 2 and (is_group or "--help-all" not in names):  # among dozens a letter means nothing
        begin = [name for name in long if name.startswith(f"-{option.lower()}")]
        near = begin[0] if len(begin) == 1 else None
    name, is_off = _sense(option)
    if near is None and is_off and f"--{name}" in long:
        return f"leave --{name} out instead"
    if near is not None:
        reason = refusal(near, "", names, verb) if near not in names else None
        return f"did you mean {near!r}?" + (f" {reason}" if reason else "")
    return f"see `{context.command_path} {'--help-all' if '--help-all' in names and not is_group else '--help'}`"


def _usage(error: click.ClickException) -> str:
    """A wrong use of the command line in our form: what was wrong, then what to do."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "jaxinfer"
    if isinstance(error, click.NoSuchOption) and context:
        return f"unknown option of {path} {error.option_name!r}, {_near(error.option_name, context)}"
    message = error.format_message()
    if isinstance(error, WholeFault):
        return message
    if (
        isinstance(error, click.MissingParameter)
        and error.param is not None
        and isinstance(error.param.type, click.Choice)
    ):
        return f"{_word(error.param)} must be {_law(error.param.type)}, got none; name one of them"
    if isinstance(error, click.BadOptionUsage) and "requires an argument" in error.message:
        return f"{error.option_name} needs a value, got none; see `{path} --help`"
    if context and (extra := _EXTRA.fullmatch(error.message)):
        return _too_many(context, extra[1])
    if isinstance(error, click.BadParameter) and error.param is not None and (found := _WRONG.fullmatch(error.message)):
        return _wrong_value(error.param, found[1], context)
    if isinstance(error, click.BadParameter) and error.param is not None and error.message.startswith("must be "):
        return f"{error.param.opts[0]} {error.message}"  # of a type of ours
    message = f"{message[0].lower()}{message[1:].rstrip('.')}"
    return message if message.endswith("?") else f"{message}; see `{path} --help`"
