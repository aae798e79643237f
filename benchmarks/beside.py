"""Any OpenAI-compatible servers and ours, in turns: one client, one list of shapes, one of ways of sampling.

    PYTHONPATH=.:kernels python benchmarks/beside.py --server 'NAME=URL or COMMAND' --server ...
        [--shapes 64:512:256:256] [--variants greedy,mixed] [--rounds 3] [--processes 4] [--check-client]
        [--keep-running] [--json FILE]

A server is a URL that answers already, or a command with {port} in it that is started, awaited (/health or /v1/models)
and ended: for each of its turns, in which it has the machine to itself, or with --keep-running once for all of them.
Servers take turns (A B A B). In a turn each shape is asked in each way of sampling_variants.py, and greedily before and
after them. A shape is concurrency:prompt tokens:output tokens:requests; with 4096+32 prompt tokens the first 4,096 are
cached.

Prompts are fresh random token ids, streamed from /v1/completions with ignore_eos. Prints medians and ranges over the
rounds, the first server's rate by each other's in pairs of one round, and each variant's share of greedy's mean rate in
the same turn. What a server refuses is a row with its sentence.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import os
import re
import secrets
import shlex
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import msgspec
from beside_report import BASE, Case, Measurement, every, rates, summary, times
from sampling_variants import NAMES, fields_of

from jaxinfer.bench import machine
from jaxinfer.bench.client import PATH
from jaxinfer.bench.compare import is_url
from jaxinfer.bench.http_client import Reply, Target
from jaxinfer.bench.load import Load, shares
from jaxinfer.bench.program import PORT, started
from jaxinfer.bench.report import Report
from jaxinfer.bench.serve import ask, client_rate, drive, first_model, label, look_up
from jaxinfer.cli.bench_serve import base_of, key_of
from jaxinfer.errors import ConfigError, EngineError, JaxInferError

SHAPES = "1:128:128:8,1:1024:128:8,8:512:128:32,64:512:256:256,256:128:128:1024,1:4096+32:1:6"
SHAPE = re.compile(r"(\d+):(?:(\d+)\+)?(\d+):(\d+):(\d+)")
CLIENT_TIMES = 2.0  # what the client must read from mock servers, by what it read from the fastest server
NOTES = (
    "Fresh random token ids for every request, streamed from /v1/completions, ignore_eos. Rates are of output tokens, "
    "from the first request to the last piece; medians over the rounds, least to most behind them. Ratios are of two "
    "rates of one round. Of greedy: share of the mean of its rates before and after the variants in the same turn.",
    "Machine, driver and commit are those where the client ran; a server that is a command ran there too.",
)


@dataclasses.dataclass(frozen=True)
class ServerSpec:
    """what: a URL without /v1, or a command with {port} in it.    fact: what else is known of it, "" for nothing."""

    name: str
    what: str
    fact: str = ""
    key: str = ""


@dataclasses.dataclass(frozen=True)
class LiveServer:
    """A server that answers. ready_s: how long it took to start, None if it ran before.

    warm: the shapes and variants that it has been asked for, as Measurement names them.
    """

    target: Target
    model: str
    version: str
    ready_s: float | None
    warm: set[Case] = dataclasses.field(default_factory=set)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=URL or COMMAND")
    parser.add_argument("--fact", action="append", default=[], metavar="NAME=TEXT", help="of a server, for the report")
    parser.add_argument("--shapes", default=SHAPES, help=SHAPES)
    parser.add_argument("--variants", default=",".join(NAMES), help=f"some of {', '.join(NAMES)}; all if not given")
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--processes", type=count, default=4, help="of the client")
    parser.add_argument("--vocab-size", type=count, default=32000, help="ids of prompts are below this")
    parser.add_argument(
        "--seed", type=count, default=1 + secrets.randbits(31), help="of the prompts; a new one if not given"
    )
    parser.add_argument("--api-key-env", metavar="NAME", help="variable that holds the key of servers that run")
    parser.add_argument("--keep-running", action="store_true", help="start each command once, all at the same time")
    parser.add_argument("--check-client", action="store_true", help="show what the client reads from mock servers")
    parser.add_argument("--logs", type=Path, help="folder for what servers print, NAME.log")
    parser.add_argument("--json", type=Path, help="file for the report and every measurement")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers end with this program
    try:
        report, measurements = run(options)
    except JaxInferError as error:
        raise SystemExit(f"error: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    print(report.as_markdown(), end="")
    if options.json is not None:
        options.json.write_text(dataclasses.replace(report, tables=[*report.tables, every(measurements)]).as_json())
    raise SystemExit(report.exit_code)


def run(options: argparse.Namespace) -> tuple[Report, list[Measurement]]:
    """Load all servers and describe them. Raises ConfigError, and EngineError when the first one does not start."""
    servers = servers_of(options.server, options.fact, key_of(options.api_key_env))
    shapes = [load_of(text, options.vocab_size) for text in options.shapes.split(",")]
    variants = variants_of(options.variants)
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise ConfigError(f"--json must name a file in a folder that exists, got {options.json}; make the folder")
    average, seen, early, checked = os.getloadavg()[0], list[tuple[ServerSpec, LiveServer, Measurement]](), "", None
    try:
        with contextlib.closing(take_turns(servers, shapes, variants, options)) as coming:
            for one in coming:
                seen.append(one)
        measurements = [one for *_, one in seen]
        checked = check(shapes, measurements, options.processes) if options.check_client else None
    except (EngineError, KeyboardInterrupt) as error:  # what was measured is worth something
        if not seen:
            raise
        early, measurements = str(error) or "interrupted", [one for *_, one in seen]
    facts = [("ended early", early)] if early else []
    facts += [
        (server.name, conditions(server, [found for one, found, _ in seen if one == server])) for server in servers
    ]
    facts += [*machine.facts(), ("load average", f"{average:.2f} before, {os.getloadavg()[0]:.2f} after")]
    facts += [("client", f"{options.processes} processes, httptools over uvloop; ids below {options.vocab_size}")]
    facts += [("rounds", f"{measurements[-1].number} of {options.rounds}, seed {options.seed}")]
    tables = [rates([server.name for server in servers], measurements, checked), times(measurements)]
    holds = not early and (checked is None or all(times_ >= CLIENT_TIMES for times_ in checked.values()))
    return Report("benchmarks/beside.py", facts, tables, NOTES, 0 if holds else 1), measurements


# What is asked for


def count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"it must be an integer of at least 1, got {text!r}")
    return int(text)


def servers_of(texts: Sequence[str], facts: Sequence[str], key: str) -> list[ServerSpec]:
    """Raises ConfigError."""
    known = [text.partition("=")[::2] for text in facts]
    found = []
    for text in texts:
        name, _, what = text.partition("=")
        if not (name and what):
            raise ConfigError(f"--server must be NAME=URL or NAME=COMMAND, got {text!r}")
        fact = "; ".join(fact for whose, fact in known if whose == name)
        if is_url(what):
            found.append(ServerSpec(name, base_of("--server", what), fact, key))
        elif PORT in what:
            found.append(ServerSpec(name, what, fact))
        else:
            raise ConfigError(f"a server's command must name its port as {PORT}, got {what!r}; add --port {PORT}")
    names = [server.name for server in found]
    if len(set(names)) < len(names):
        raise ConfigError(f"each server must have a name of its own, got {', '.join(names)}")
    if strange := [whose for whose, _ in known if whose not in names]:
        raise ConfigError(f"--fact must be NAME=TEXT, NAME being one of {', '.join(names)}, got {strange[0]!r}")
    return found


def load_of(text: str, vocab_size: int) -> Load:
    """The load of a shape, of no server yet. Raises ConfigError."""
    match = SHAPE.fullmatch(text.strip())
    numbers = [int(number or 0) for number in match.groups()] if match else [0]
    if match is None or not all(numbers[:1] + numbers[2:]):
        law = "a shape must be concurrency:prompt tokens:output tokens:requests, each at least 1"
        raise ConfigError(f"{law}, got {text!r}; 64:512:256:256, or 1:4096+32:1:6 with 4,096 cached tokens")
    at_once, shared, fresh, output_tokens, requests = numbers
    return Load(
        url="",
        model="",
        requests=requests,
        concurrency=at_once,
        input_tokens=shared + fresh,
        output_tokens=output_tokens,
        shared_tokens=shared,
        vocab_size=vocab_size,
    )


def variants_of(text: str) -> list[str]:
    """The names, greedy first, and last too where there are others: a machine may change. Raises ConfigError."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"a variant must be one of {', '.join(NAMES)}, got {name!r}")
    others = [name for name in dict.fromkeys(names) if name != BASE]
    return [BASE, *others, BASE] if others else [BASE]


# Asking


@contextlib.contextmanager
def running(server: ServerSpec, logs: Path) -> Iterator[LiveServer]:
    """A server that answers, started if it is a command. Raises EngineError."""
    with contextlib.ExitStack() as stack:
        target, ready_s = Target(server.what, server.key), None
        if not is_url(server.what):
            command, log = shlex.split(server.what), logs / f"{server.name}.log"
            program = stack.enter_context(started(command, os.environ, log))
            target, ready_s = program.target, program.ready_s
        yield LiveServer(target, first_model(target), version_of(target), ready_s)


def conditions(server: ServerSpec, found: Sequence[LiveServer]) -> str:
    """What a reader must know of a server. found: as it was for each of its loads."""
    starts = dict.fromkeys("ran before" if one.ready_s is None else f"ready after {one.ready_s:.1f} s" for one in found)
    said = dict.fromkeys(f"version {one.version}, model {one.model}" for one in found)
    return "; ".join([server.what, *([server.fact] if server.fact else []), *said, *starts])


class _Version(msgspec.Struct):
    version: str


def version_of(target: Target) -> str:
    reply = look_up(target, "/version")
    try:
        return "unknown, it has no /version" if reply.error else msgspec.json.decode(reply.body, type=_Version).version
    except msgspec.DecodeError:
        return "unknown, its /version says something else"


def take_turns(
    servers: Sequence[ServerSpec], shapes: Sequence[Load], variants: Sequence[str], options: argparse.Namespace
) -> Generator[tuple[ServerSpec, LiveServer, Measurement]]:
    """All servers in turns, in each round. Raises EngineError when one does not start."""
    seeds = itertools.count(options.seed * 10**6)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        logs = options.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        lasting = [server for server in servers if options.keep_running or is_url(server.what)]
        kept = {server.name: stack.enter_context(running(server, logs)) for server in lasting}
        for number, server in itertools.product(range(1, options.rounds + 1), servers):
            there = kept.get(server.name)
            with contextlib.nullcontext(there) if there else running(server, logs) as found:
                for shape, variant in itertools.product(shapes, variants):
                    load = msgspec.structs.replace(shape, fields=tuple(fields_of(variant)), seed=next(seeds))
                    about = Measurement(number, server.name, label(shape), variant)
                    yield server, found, measure(about, found, load, options.processes)


def measure(about: Measurement, found: LiveServer, load: Load, processes: int) -> Measurement:
    """One load of a server that answers, after a warm-up if it has not had one like it."""
    load = msgspec.structs.replace(load, url=found.target.base, key=found.target.key, model=found.model)
    if load.shared_tokens or about.case not in found.warm:  # what is shared is another prefix each time
        asyncio.run(warm_up(load))
        found.warm.add(about.case)
    one = summary(about, drive(shares(load, processes)).outcomes, load.output_tokens)
    rate = one.said or f"{one.rate:,.0f} tok/s"
    print(f"round {one.number}, {one.server}, {', '.join(one.case)}: {rate}", file=sys.stderr, flush=True)
    return one


async def warm_up(load: Load) -> list[Reply]:
    """As many requests as come at once, before the clock starts; what they say is of no interest."""
    bodies = [load.body(-1 - number) for number in range(load.at_once())]
    return await asyncio.gather(*(ask(load.target, "POST", PATH, body) for body in bodies))


def check(shapes: Sequence[Load], measurements: Sequence[Measurement], processes: int) -> dict[Case, float]:
    """For each case, what the client reads from mock servers by the most that it read from a server.

    Only logprobs change what an answer's pieces weigh: cases of a shape that ask for the same ones share a check.
    """
    loads = {label(shape): shape for shape in shapes}
    most: dict[Case, float] = {}
    for one in measurements:
        most[one.case] = max(most.get(one.case, 0.0), one.rate or 0.0)
    read: dict[tuple[str, tuple[int | None, ...]], float] = {}
    found = {}
    for (shape, variant), rate in most.items():
        fields = tuple(fields_of(variant))
        weight = shape, tuple(one.get("logprobs") for one in fields)
        if weight not in read:
            read[weight] = client_rate(msgspec.structs.replace(loads[shape], fields=fields), processes)
        if rate:
            found[shape, variant] = read[weight] / rate
    return found


if __name__ == "__main__":
    main()
