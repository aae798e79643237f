"""Loading a server as its users would, from several processes, and saying what they saw. No jax.

The same client can be held against mock servers in the same run: a figure near what it reads there is the client's.
"""

import asyncio
import contextlib
import dataclasses
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import msgspec

from jaxinfer import children
from jaxinfer.bench import machine
from jaxinfer.bench.client import PATH, ClientResults
from jaxinfer.bench.http_client import NO_CONNECTION, TIMEOUT_S, Outcome, Reply, Target
from jaxinfer.bench.load import Load, Share, shares
from jaxinfer.bench.outcomes import (
    duration_s,
    first_tokens,
    gaps,
    longest_gap_s,
    mean_cached,
    output_rate,
    paces,
    per_token_s,
    ttft_s,
    wholes,
)
from jaxinfer.bench.report import Report, Table, Value, percentile
from jaxinfer.config import counted
from jaxinfer.errors import ConfigError, EngineError
from jaxinfer.llm.events import Event, OnEvent, ignore

START_IN_S = 0.3  # from the last client's "ready" to the first request
PERCENTS = (50, 90, 99)
USUAL_VOCAB = 32_000  # published models have as many ids; for a server that does not tell its own
LOOK_UP_S = 5.0  # for what a server knows without its model: its names, its routes, its health
SOON_S = 0.5  # after which whoever looks up is told what it waits for
POLL_S = 0.5  # between two questions to a server that starts
NO_ANSWER = "no answer"  # begins the error of a look-up that a server took and did not answer in time
MOST_OF_MOCKS = 64  # requests at once of one client process, when it is the client that is timed


MODELS = "/v1/models"

type Say = Callable[[str], None]


def nobody(_: str) -> None:
    """The Say of a caller that shows by itself what goes on."""


@dataclasses.dataclass(frozen=True)
class Goals:
    """What a good request keeps to, in ms; None is no limit."""

    ttft_ms: float | None = None
    itl_ms: float | None = None

    def are_met(self, outcome: Outcome) -> bool:
        first_ms, per_token = ttft_s(outcome) * 1e3, per_token_s(outcome)
        late = self.ttft_ms is not None and first_ms > self.ttft_ms
        slow = self.itl_ms is not None and per_token is not None and per_token * 1e3 > self.itl_ms
        return not (late or slow)


def run(
    load: Load, processes: int, warm_up: int, goals: Goals, check_client: bool, on_event: OnEvent = ignore
) -> Report:
    """Load a server and describe it. Raises EngineError when no request was answered."""
    on_event(Event("measure", f"asking {load.url} for its models"))
    load, source = completed(load, on_event)
    on_event(Event("measure", f"{counted(warm_up, 'request')} before the clock starts"))
    warmed = [ask_once(load.target, "POST", PATH, load.body(-1 - number)) for number in range(warm_up)]
    detail = f"{'request' if load.requests == 1 else 'requests'} of {load.input_tokens} + {load.output_tokens} tokens"

    def tell(num_done: int) -> None:
        on_event(Event("measure", detail, num_done, load.requests))

    tell(0)
    results = drive(shares(load, processes), tell)
    good = [outcome for outcome in results.outcomes if not outcome.error]
    failed = [reply.error for reply in warmed if reply.error] + [one.error for one in results.outcomes if one.error]
    if not good:
        if failed[0].startswith(NO_CONNECTION):
            raise unreached(load.target, failed[0])
        fact = f"none of {counted(load.requests, 'request')} was, the first failed with: {failed[0]}"
        of_ids = "token id" in failed[0]
        cure = f"lower --vocab-size (now {load.vocab_size})" if of_ids else "mend what it says, or see the server's log"
        raise EngineError(f"requests must be answered, {fact}; {cure}")
    name = label(load)
    rate = output_rate(good)
    tables = [Table("rates", *_rates(name, load, good, len(results.outcomes), goals)), _times(good)]
    if results.interruption is not None:
        tables.append(_interruption(name, results.interruption, good))
        failed += [results.interruption.error] if results.interruption.error else []
    if check_client:
        on_event(Event("measure", "the same clients beside mock servers"))
        tables.append(_client(load, processes, rate, name))
    if failed:
        kinds = [(error, failed.count(error)) for error in dict.fromkeys(failed)]
        tables.append(Table("errors", ("error", "requests"), kinds[:20]))
    at_once = f"{load.at_once()} at once" if load.concurrency or not load.rate else "as they come"
    pace = f", {load.rate:g} a second on average (Poisson)" if load.rate else ""
    facts = [("server", load.url), ("model", load.model), *machine.facts()]
    facts += [("load", f"{counted(load.requests, 'request')}, {at_once}{pace}, seed {load.seed}")]
    facts += [("prompts", f"ids below {load.vocab_size:,}, {source}")]
    facts += [("client", f"{counted(min(processes, load.at_once()), 'process')}, httptools over uvloop")]
    return Report("jaxinfer bench serve", facts, tables, NOTES)


NOTES = (
    "Prompts are random token ids, fresh for every request but for what is meant to be shared; greedy, ignore_eos, "
    "streamed from /v1/completions. Machine and versions are the client's.",
    "Goodput: requests within --ttft-limit-ms and, by their time per token, within --itl-limit-ms. "
    "Token gap: between two pieces of one stream. Time per token: of one request, (last piece - first) / (tokens - 1).",
)


def label(load: Load) -> str:
    """concurrency:in:out:requests, as tables of servers name their rows; @rate where requests come by themselves."""
    at_once = load.at_once() if load.concurrency or not load.rate else f"@{load.rate:g}"
    shared = f"{load.shared_tokens}+{load.input_tokens - load.shared_tokens}" if load.shared_tokens else ""
    return f"{at_once}:{shared or load.input_tokens}:{load.output_tokens}:{load.requests}"


def first_model(target: Target) -> str:
    """The first name that the server serves. Raises EngineError."""
    return models_of(target, look_up(target, MODELS))[0].id


def completed(load: Load, on_event: OnEvent = ignore) -> tuple[Load, str]:
    """The load with the server's model and vocabulary where it names none (vocab_size 0), and who named the vocabulary.

    A server that does not tell its vocabulary is sent ids below USUAL_VOCAB. Raises EngineError, and ConfigError for
    requests that are longer than the context.
    """
    reply = look_up(load.target, MODELS, nobody, on_event)  # also where nothing is asked: a server that hangs is told
    is_told = bool(load.model and load.vocab_size)
    try:
        cards = models_of(load.target, reply, "check --url, or pass --model and --vocab-size")
    except EngineError:
        if not is_told:
            raise
        return load, "as --vocab-size says"
    card = next((card for card in cards if card.id == load.model), cards[0] if not load.model else None)
    if card is None and not is_told:
        names = ", ".join(each.id for each in cards[:5])
        law = f"--model must be a name that {load.url} serves ({names}), got {load.model!r}"
        raise EngineError(f"{law}; name one, or pass --vocab-size if it serves more than it lists")
    if card is not None:
        _check_fits(load, card)
    size, source = load.vocab_size, "as --vocab-size says"
    if not size:
        told = card.told_vocab if card is not None else None
        size, source = (told, "as the server says") if told else (USUAL_VOCAB, "since the server does not say")
    return msgspec.structs.replace(load, model=load.model or cards[0].id, vocab_size=size), source


def _check_fits(load: Load, card: "Card") -> None:
    """Raise ConfigError for a load with a request that the model's context has no room for."""
    most = card.max_model_len
    if most is None or load.longest <= most:
        return
    if load.interrupt_tokens + 1 == load.longest:
        law, got = f"--interrupt-tokens must be below {most:,}", f"{load.interrupt_tokens:,}"
    else:
        law = f"--input-tokens and --output-tokens must be {most:,} together at most"
        got = f"{load.input_tokens:,} and {load.output_tokens:,}"
    raise ConfigError(f"{law}, the context of {card.id} at {load.url}, got {got}; lower them")


def common_vocab(targets: Sequence[Target], say: Say = nobody) -> int:
    """Ids below it are known to all of these servers. say: as of look_up. Raises EngineError."""
    cards = [models_of(target, look_up(target, MODELS, say))[0] for target in targets]
    return min(card.told_vocab or USUAL_VOCAB for card in cards)


class Card(msgspec.Struct):
    """A model as a server describes it."""

    id: str
    max_model_len: int | None = None
    meta: Any = None
    owned_by: Any = None

    @property
    def told_vocab(self) -> int | None:
        """How many ids the model has, as jaxinfer and llama-server say it; None if the server does not."""
        found = self.meta.get("n_vocab") if isinstance(self.meta, dict) else None
        return found if isinstance(found, int) and found > 0 else None


class _Cards(msgspec.Struct):
    data: list[Card]


class Unreached(EngineError):
    """Nothing answers at an address."""


def unreached(target: Target, error: str) -> Unreached:
    """Of a server that a request did not reach. error: as its reply has it."""
    why = error.removeprefix(NO_CONNECTION).removeprefix(": ")
    cure = "start one with `jaxinfer serve`, or pass the --url of one that `jaxinfer ps` lists"
    return Unreached(f"no server answers at {target.base}: {why}; {cure}")


def models_of(target: Target, reply: Reply, cure: str = "check --url") -> list[Card]:
    """The models in an answer of /v1/models, one at least. Raises EngineError.

    cure: what to do where the server answers and names none.
    """
    if reply.status == HTTPStatus.UNAUTHORIZED:
        cure = "give its key: --api-key-env names the variable that holds it"
    if reply.status == HTTPStatus.SERVICE_UNAVAILABLE:
        cure = "see its log"
    try:
        if reply.error:
            raise ValueError(reply.error)
        if cards := msgspec.json.decode(reply.body, type=_Cards).data:
            return cards
        raise ValueError("it names none")
    except ValueError as error:
        raise EngineError(f"{target.base} does not say what it serves: {error}; {cure}") from error


def look_up(target: Target, path: str, say: Say = nobody, on_event: OnEvent | None = None) -> Reply:
    """What a server says of itself at a path, which takes no model and so no time. Verbs look up a server here.

    A server of ours that starts is waited for as long as it lives.    say: told after SOON_S what is waited for.
    on_event: told how far the start is; say, once, without it.

    Raises EngineError for a server that cannot be reached, or that has not answered after LOOK_UP_S: it is hung,
    stopped, or no HTTP server.
    """
    reply = _look_up_once(target, path, say)
    if starts(reply) and on_event is None:
        say(f"waiting for {target.base}, which still starts")
    while starts(reply):
        if on_event is not None:
            on_event(Event("wait", f"{target.base}, {progress_of(target)}"))
        time.sleep(POLL_S)
        try:
            reply = _look_up_once(target, path, nobody)
        except Unreached as error:
            fact = f"the server at {target.base} ended before it was ready"
            raise EngineError(f"{fact}; see its log, then start it again") from error
    return reply


class _Code(msgspec.Struct):
    code: Any = None


class _Error(msgspec.Struct):
    error: _Code


def starts(reply: Reply) -> bool:
    """Whether it is the refusal of a server of ours that will take requests when its model is loaded and compiled."""
    if reply.status != HTTPStatus.SERVICE_UNAVAILABLE:
        return False
    with contextlib.suppress(msgspec.DecodeError):
        return bool(msgspec.json.decode(reply.body, type=_Error).error.code == "starting")
    return False


class _Start(msgspec.Struct):
    stage: str
    done: float
    total: float


class _Load(msgspec.Struct):
    start: _Start | None = None


_COUNTED = {
    "compile": "compiling {}",
    "run": "running steps once more, {}",
    "wait": "{} engines are ready",
}


def progress_of(target: Target) -> str:
    """How far the start of a server of ours is, by its /load."""
    with contextlib.suppress(msgspec.DecodeError):
        found = msgspec.json.decode(ask_once(target, "GET", "/load", limit_s=LOOK_UP_S).body, type=_Load).start
        if found is not None and found.total:
            if found.stage == "load":
                return f"loading {found.done / 1e9:.2f} of {found.total / 1e9:.2f} GB"
            count = f"{found.done:.0f} of {found.total:.0f}"
            return _COUNTED.get(found.stage, "{}").format(count)
    return "which still starts"


def _look_up_once(target: Target, path: str, say: Say) -> Reply:

    async def answered() -> Reply:
        asking = asyncio.ensure_future(ask(target, "GET", path, limit_s=LOOK_UP_S))
        if not (await asyncio.wait([asking], timeout=SOON_S))[0]:
            say(f"waiting up to {LOOK_UP_S:g} s for {target.base}, which does not answer")
        return await asking

    reply = asyncio.run(answered())
    if reply.error.startswith(NO_CONNECTION):
        raise unreached(target, reply.error)
    if reply.error.startswith(NO_ANSWER):
        fact = f"the server at {target.base} has not answered GET {path} in {LOOK_UP_S:g} s"
        raise EngineError(f"{fact}; try again, or restart it if it is hung or stopped (`jaxinfer ps` shows yours)")
    return reply


def ask_once(target: Target, method: str, path: str, body: bytes = b"", limit_s: float = TIMEOUT_S) -> Reply:
    """The same as `ask`, where no event loop runs."""
    return asyncio.run(ask(target, method, path, body, limit_s))


async def ask(target: Target, method: str, path: str, body: bytes = b"", limit_s: float = TIMEOUT_S) -> Reply:
    """One request on a connection of its own. limit_s: for all of it."""
    connection = None
    try:
        async with asyncio.timeout(limit_s):
            connection = await target.connect()
            return await connection.ask(target.request(method, path, body))
    except TimeoutError as error:  # before OSError, of which it is one: the system's own has a number
        if connection is None:
            return Reply(error=f"{NO_CONNECTION}: {error if error.errno else f'none was made in {limit_s:g} s'}")
        return Reply(error=f"{NO_ANSWER} in {limit_s:g} s")
    except OSError as error:
        return Reply(error=f"{NO_CONNECTION}: {error}")
    finally:
        if connection is not None:
            connection.close()


def drive(parts: Sequence[Share], on_done: Callable[[int], None] | None = None) -> ClientResults:
    """Run one client process for each share, all from the same moment on. Raises EngineError when one breaks.

    on_done: told how many requests have ended, a few times a second, from other threads.
    """
    num_done = [0] * len(parts)

    def results_of(index: int) -> ClientResults:
        while (line := _line(clients[index])).strip().isdigit():
            num_done[index] = int(line)
            if on_done is not None:
                on_done(sum(num_done))
        return msgspec.json.decode(line, type=ClientResults)

    with contextlib.ExitStack() as stack:
        readers = stack.enter_context(ThreadPoolExecutor(len(parts)))  # ends after the clients that it reads
        clients = [stack.enter_context(program("client")) for _ in parts]
        for client, part in zip(clients, parts, strict=True):
            _write(client, msgspec.json.encode(part) + b"\n")
        for client in clients:
            _line(client)  # ready
        start_s = time.monotonic() + START_IN_S
        for client in clients:
            _write(client, b"%r\n" % start_s)
        found = list(readers.map(results_of, range(len(parts))))
    outcomes = [outcome for results in found for outcome in results.outcomes]
    return ClientResults(outcomes, found[0].interruption)


def client_rate(load: Load, processes: int) -> float:
    """Tokens per second that the same clients read when the server costs nothing: as many mock servers as clients.

    0 if none of them was answered.
    """
    with contextlib.ExitStack() as stack:
        parts = []
        for part in shares(load, processes):
            server = stack.enter_context(program("mock_server"))
            url = f"http://127.0.0.1:{int(_line(server))}"
            calm = msgspec.structs.replace(load, url=url, rate=0.0, input_tokens=8, shared_tokens=0)
            at_once = min(part.at_once, MOST_OF_MOCKS) if load.rate else part.at_once  # a rate keeps nobody waiting
            parts.append(msgspec.structs.replace(part, load=calm, at_once=at_once, interrupts=False))
        good = [outcome for outcome in drive(parts).outcomes if not outcome.error]
        return output_rate(good) if good else 0.0


@contextlib.contextmanager
def program(name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program of this room with pipes to it; killed at the end if it still runs."""
    with children.start_with_pipes(f"jaxinfer.bench.{name}") as process:
        try:
            yield process
        finally:
            process.kill()


def _write(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.flush()


def _line(process: subprocess.Popen[bytes]) -> bytes:
    """The next line that a program writes. Raises EngineError when it has ended instead."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise EngineError("a process of the benchmark must answer, one ended instead; its last lines on stderr say why")
    return line


# What the outcomes say


RATES = (
    "load: at once:in:out:requests",
    "seconds",
    "output tok/s",
    "requests/s",
    "goodput requests/s",
    "longest gap ms",
    "errors",
    "of another length",
    "cached_tokens of a prompt",
)

type Rows = tuple[tuple[str, ...], list[tuple[Value, ...]]]


def _rates(name: str, load: Load, good: Sequence[Outcome], asked: int, goals: Goals) -> Rows:
    seconds = duration_s(good)
    met = sum(goals.are_met(outcome) for outcome in good)
    short = sum(one.tokens != load.output_tokens for one in good)
    longest = max(gaps(good), default=0.0)
    row: tuple[Value, ...] = (name, seconds, output_rate(good), len(good) / seconds, met / seconds, longest * 1e3)
    return RATES, [(*row, asked - len(good), short, mean_cached(good))]


def _times(good: Sequence[Outcome]) -> Table:
    kinds = {
        "first token": first_tokens(good),
        "token gap": gaps(good),
        "time per token": paces(good),
        "whole request": wholes(good),
    }
    columns = ("ms", "mean", *(f"p{percent}" for percent in PERCENTS), "most")  # in ms, every one
    rows: list[tuple[Value, ...]] = []
    for kind, values in kinds.items():
        ms = [value * 1e3 for value in values]
        if ms:
            rows.append((kind, sum(ms) / len(ms), *(percentile(ms, percent) for percent in PERCENTS), max(ms)))
    return Table("times", columns, rows)


def _interruption(name: str, one: Outcome, good: Sequence[Outcome]) -> Table:
    columns = ("while running", "prompt tokens", "its first token ms", "longest gap of the others ms")
    first = ttft_s(one) * 1e3 if one.times_s else None
    return Table("interruption", columns, [(name, one.prompt_tokens, first, longest_gap_s(one, good) * 1e3)])


def _client(load: Load, processes: int, rate: float, name: str) -> Table:
    mock = client_rate(load, processes)
    columns = ("load", "from the server tok/s", "from mock servers tok/s", "times")
    return Table("client check", columns, [(name, rate, mock, mock / rate)])
