"""Replicas: the engines of one model behind one door. Each is started again when it ends.

A request goes to the replica that has computed the longest part of its prompt, unless that one has much more to do
than another.
"""

import dataclasses
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, islice

from jaxinfer.cache.prefix import chain, root_key
from jaxinfer.config import EngineConfig, Limits, flag_of
from jaxinfer.engine.sequence import Abort, Acknowledge, Add, Forget, Keep, Message, Output, StopStringFound
from jaxinfer.errors import ConfigError, EngineError, JaxInferError
from jaxinfer.llm.events import Event, OnEvent
from jaxinfer.llm.transport import Handshake, NewTransport, OnOutputs, Transport
from jaxinfer.llm.types import Stats

log = logging.getLogger(__name__)

MAX_FAILURES = 5  # of one engine in a row, without one token between them
PAUSE_S = 1.0  # before the next start, where the system refused a process or a socket
AHEAD_TOKENS = 8192  # that a replica may have to do beyond the least loaded one before known prompts go there too
MAX_PAGES = 256  # of a prompt, by which replicas that know it are found
MAX_ANSWER = 1024  # tokens that an answer is estimated at: its max_tokens may be the whole context
_ALIKE = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "page_size", "vocab_size")  # of all replicas

Resume = Callable[[list[str], list[str]], None]


@dataclasses.dataclass
class _Replica:
    """One of the engines. transport: of the engine that runs, or ran last.    newest: the same, or one that starts.

    past: the counters of its engines before this one.    failures: since it last put out a token.
    requests: what it was given and has not ended: the tokens that each is estimated at, and its choices.
    known: digests of the pages that it was given to compute, the latest last.
    """

    index: int
    transport: Transport
    newest: Transport
    ended: Transport | None = None  # the latest that has ended
    is_running: bool = False
    is_given_up: bool = False
    past: Stats = dataclasses.field(default_factory=Stats)
    failures: int = 0
    requests: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    load: int = 0  # tokens of all requests
    num_choices: int = 0  # of all requests
    busy_since_s: float = 0.0  # when it got a request and had none
    known: OrderedDict[bytes, None] = dataclasses.field(default_factory=OrderedDict)

    def stats(self) -> Stats:
        return self.transport.stats().after(self.past)

    def run_of(self, keys: Sequence[bytes]) -> int:
        """How many pages of a prompt it knows, from the first on."""
        return next((i for i, key in enumerate(keys) if key not in self.known), len(keys))

    def learn(self, keys: Sequence[bytes], most: int) -> None:
        for key in keys:
            self.known[key] = None
            self.known.move_to_end(key)
        while len(self.known) > most:
            self.known.popitem(last=False)

    def take(self, request_id: str, num_tokens: int, num_choices: int) -> None:
        if not self.requests:
            self.busy_since_s = time.monotonic()
        self.requests[request_id] = num_tokens, num_choices
        self.load += num_tokens
        self.num_choices += num_choices

    def drop(self, request_id: str) -> int:
        """Returns its choices."""
        num_tokens, num_choices = self.requests.pop(request_id)
        self.load -= num_tokens
        self.num_choices -= num_choices
        return num_choices


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaStats:
    """Of one replica now. load_tokens: what its requests are estimated at, prompts and answers."""

    index: int
    is_running: bool
    num_requests: int
    load_tokens: int
    stats: Stats


class Replicas:
    """Engines that are alike. What it is given may come from any thread.

    Invariant: a request that was added and has not `ended` is in one replica that runs, or among the unplaced ones, or
    was handed back to `resume`.
    """

    def __init__(self, config: EngineConfig, on_event: OnEvent, new_transport: NewTransport, count: int = 1) -> None:
        self._config = config
        self._on_event = on_event
        self._new_transport = new_transport
        self._count = count
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._replicas: list[_Replica] = []
        self._told: dict[str, dict[int, Event]] = {"serving": {}, "ready": {}}  # by replica
        self._homes: dict[str, _Replica] = {}  # of requests
        self._sessions: dict[str, _Replica] = {}
        self._lost: dict[str, int] = {}  # requests whose engine has ended, and their choices
        self._handed_back: dict[str, int] = {}  # the same of those that `resume` was given and nobody added since
        self._unplaced: dict[str, None] = {}  # those that came while no replica ran
        self._page_size = self._num_pages = self._num_slots = 1  # of each, once they have started
        self._on_outputs: OnOutputs
        self._resume: Resume
        self._on_failed: Callable[[BaseException], None]

    def start(self, on_outputs: OnOutputs, resume: Resume, on_failed: Callable[[BaseException], None]) -> Handshake:
        """Start all of them; blocks until each can carry any plan. All three are called from the replicas' threads.

        resume: given the requests whose engine has ended, and those that came while none ran, once there is an engine
        to go on with: both must be added again.    on_failed: the last of them has ended for good.
        Raises what a start raises, and ConfigError where the replicas are not alike.
        """
        self._on_outputs, self._resume, self._on_failed = on_outputs, resume, on_failed
        with self._lock:
            if self._closing.is_set():
                raise EngineError("the start was interrupted")
            for index in range(self._count):
                transport = self._new(index)
                self._replicas.append(_Replica(index, transport, transport))
        with ThreadPoolExecutor(self._count, thread_name_prefix="jaxinfer-start") as pool:
            starts = [pool.submit(self._start, replica, replica.transport) for replica in self._replicas]
            try:
                handshakes = [start.result() for start in starts]
                limits = _limits_of_all([handshake.limits for handshake in handshakes])
            except BaseException:
                self.close()  # which ends the other starts too
                raise
        self._page_size, self._num_pages, self._num_slots = limits.page_size, limits.num_pages, limits.max_num_seqs
        return dataclasses.replace(handshakes[0], limits=limits)

    def _new(self, index: int) -> Transport:
        return self._new_transport(self._config, partial(self._hear, index))

    def _start(self, replica: _Replica, transport: Transport, *, whole: bool = False) -> Handshake:
        """Raises what the transport's start raises."""
        on_failure = partial(self._engine_ended, replica, transport)
        handshake = transport.start(partial(self._put, replica), on_failure, whole=whole, replica=replica.index)
        with self._lock:
            if replica.newest is transport and replica.ended is not transport:
                if replica.transport is not transport:
                    replica.past, replica.transport = replica.stats(), transport
                    replica.past.restarts += 1
                replica.is_running = True
        return handshake

    def _hear(self, index: int, event: Event) -> None:
        """All replicas start alike, so the first one's progress is told; that they serve, once all have said so."""
        if event.kind in self._told:
            with self._lock:
                self._told[event.kind][index] = event
            self._tell(event.kind)
        elif index == 0:
            self._on_event(event)

    def _tell(self, kind: str) -> None:
        """That all replicas serve, or are ready, if they do; one that was given up is not waited for."""
        with self._lock:
            told = self._told[kind]
            usable = {replica.index for replica in self._replicas if not replica.is_given_up}
            event = next(reversed(told.values()), None) if usable <= told.keys() else None
            count = len(usable)
        if event is not None:
            self._on_event(event)
        elif kind == "ready" and 0 in told:  # whose progress has ended
            self._on_event(Event("wait", "engines are ready", len(told), count))

    def _put(self, replica: _Replica, outputs: list[Output]) -> None:
        if any(output.token_ids or output.embedding for output in outputs):  # ends are no sign that the device works
            replica.failures = 0
        self._on_outputs(outputs)

    def post(self, message: Message) -> None:
        """Hand a message to the engine that it concerns; dropped where that has ended: `resume` names its requests."""
        with self._lock:
            match message:
                case Add():
                    self._add(message)
                case Abort() | StopStringFound():
                    if (home := self._homes.get(message.request_id)) is not None:
                        home.transport.post(message)
                case Acknowledge():
                    self._acknowledge(message)
                case Keep():
                    self._keep(message)
                case Forget():
                    if (home := self._sessions.pop(message.session, None)) is not None:
                        home.transport.post(message)
                case _:
                    raise ValueError(f"{type(message).__name__} is not for an engine behind this door")

    def _add(self, add: Add) -> None:
        request = add.request
        self._handed_back.pop(request.id, None)
        if not (running := self._well()):
            if not self._unplaced:
                for replica in self._replicas:
                    replica.busy_since_s = time.monotonic()
            self._unplaced[request.id] = None
            return
        keys = self._keys(request.salt, request.prompt)
        home = _choice(running, keys, stays=request.session)
        answers = request.n * min(request.max_tokens, MAX_ANSWER)
        home.take(request.id, len(request.prompt) - home.run_of(keys) * self._page_size + answers, request.n)
        home.learn(keys, self._num_pages)
        self._homes[request.id] = home
        home.transport.post(add)

    def _acknowledge(self, acknowledge: Acknowledge) -> None:
        for replica in self._replicas:
            if seen := [one for one in acknowledge.seen if one[0] in replica.requests]:
                replica.transport.post(Acknowledge(seen))

    def _keep(self, keep: Keep) -> None:
        before, home = self._sessions.get(keep.session), None
        if keep.tokens and (running := self._well()):
            keys = self._keys(keep.salt, keep.tokens)
            home = _choice(running, keys, stays=True)
            home.learn(keys, self._num_pages)
            self._sessions[keep.session] = home
        if before is not None and before is not home:
            before.transport.post(Forget(keep.session) if home is not None else keep)
        if home is not None:
            home.transport.post(keep)

    def _running(self) -> list[_Replica]:
        return [replica for replica in self._replicas if replica.is_running]

    def _well(self) -> list[_Replica]:
        """Replicas that run; those whose steps fail only if there are no others: they end requests quickly, and would
        be the least loaded.
        """
        running = self._running()
        if len(running) == 1:
            return running
        return [replica for replica in running if not replica.transport.stats().is_failing] or running

    def _keys(self, salt: str, tokens: Sequence[int]) -> list[bytes]:
        """Digests of the first pages, by which replicas are told apart; none where there is but one."""
        if self._count == 1:
            return []
        return [key.digest for key in islice(chain(root_key(salt), tokens, self._page_size), MAX_PAGES)]

    def ended(self, request_id: str) -> None:
        """All of a request's choices have ended."""
        with self._lock:
            self._unplaced.pop(request_id, None)
            self._lost.pop(request_id, None)
            self._handed_back.pop(request_id, None)
            if (home := self._homes.pop(request_id, None)) is not None:
                home.drop(request_id)
        if self._lost:
            self._hand_back()

    def _engine_ended(self, replica: _Replica, transport: Transport, error: BaseException) -> None:
        """Called by the transport's thread: others go on with what the engine had, and it is started again."""
        with self._lock:
            if self._closing.is_set() or replica.newest is not transport or replica.ended is transport:
                return
            replica.ended, replica.is_running = transport, False
            for request_id in list(replica.requests):
                self._lost[request_id] = replica.drop(request_id)
                del self._homes[request_id]
            replica.known.clear()
            self._sessions = {name: home for name, home in self._sessions.items() if home is not replica}
        self._hand_back()
        if self._start_again(replica, error):
            self._hand_back()

    def _hand_back(self) -> None:
        """Give `resume` the requests that have no engine, if one runs.

        While another is being started again, a request without a free slot waits for that one, rather than in a queue.
        """
        with self._lock:
            if not (running := self._running()):
                return
            lost, unplaced = list(self._lost), list(self._unplaced)
            if len(running) < self.num_usable:
                free = sum(max(0, self._num_slots - replica.num_choices) for replica in running)
                lost = self._fitting(free - sum(self._handed_back.values()))
            for request_id in lost:
                self._handed_back[request_id] = self._lost.pop(request_id)
            self._unplaced = {}
        if lost or unplaced:
            self._resume(lost, unplaced)

    def _fitting(self, num_slots: int) -> list[str]:
        """The first of the lost requests, as far as so many slots hold their choices."""
        ends = accumulate(self._lost.values())
        return [request_id for request_id, end in zip(self._lost, ends, strict=True) if end <= num_slots]

    def _start_again(self, replica: _Replica, error: BaseException) -> bool:
        """Whether it runs again. Otherwise it is given up, or everything is being closed."""
        while not self._closing.is_set():
            replica.failures += 1
            if replica.failures == MAX_FAILURES or not replica.transport.restartable:
                self._give_up(replica, error)
                return False
            log.warning("%s; starting it again, attempt %d of %d", error, replica.failures, MAX_FAILURES - 1)
            has_cache = self._config.compile_cache_dir != ""  # without one, what is compiled first must do again
            try:
                transport = self._new(replica.index)
                with self._lock:
                    if self._closing.is_set():
                        return False
                    replica.newest = transport
                self._start(replica, transport, whole=has_cache)
            except JaxInferError as failure:
                error = failure
            except Exception as failure:  # the system has no process, socket or memory left for it
                error = failure
                time.sleep(PAUSE_S)
            else:
                return True
        return False

    def _give_up(self, replica: _Replica, error: BaseException) -> None:
        with self._lock:
            replica.is_given_up = True
            are_all = all(other.is_given_up for other in self._replicas)
        if are_all:
            self._on_failed(error)
            return
        log.error("replica %d has failed for good, the others go on without it: %s", replica.index, error)
        self._hand_back()
        for kind in self._told:
            if self._told[kind].pop(replica.index, None) is None:  # all others may have waited for it
                self._tell(kind)

    @property
    def num_usable(self) -> int:
        """How many run or will run again."""
        return sum(not replica.is_given_up for replica in self._replicas)

    @property
    def transports(self) -> list[Transport]:
        """The newest of each replica."""
        return [replica.newest for replica in self._replicas]

    def stats(self) -> Stats:
        """Of all together."""
        first, *others = [replica.stats() for replica in self._replicas]
        return first.with_others(others) if others else first

    def each(self) -> list[ReplicaStats]:
        return [
            ReplicaStats(one.index, one.is_running, len(one.requests), one.load, one.stats()) for one in self._replicas
        ]

    def profile(self, folder: str | None) -> None:
        """Begin a trace of each replica's device into `folder`; None ends it. Blocks. Raises EngineError."""
        failures = []
        for replica in self._replicas:
            if replica.is_given_up:
                continue
            try:
                replica.transport.profile(folder and (folder if self._count == 1 else f"{folder}/{replica.index}"))
            except EngineError as error:  # the others' traces are begun and ended all the same
                failures.append(error)
        if failures:
            raise failures[0]

    def stalled_s(self) -> float:
        """How long a replica has had work and not gone on with it; without work, how long one has been starting and
        not gone on.
        """
        with self._lock:
            busy = [r for r in self._replicas if r.requests] or [r for r in self._replicas if not r.is_running]
        now_s = time.monotonic()
        return max((now_s - max(r.busy_since_s, r.newest.heard_s()) for r in busy), default=0.0)

    def close(self) -> None:
        """End all of them, also one that is starting. Whoever calls this has aborted every request before."""
        with self._lock:
            self._closing.set()
        for replica in self._replicas:
            replica.newest.close()
        for replica in self._replicas:
            for before in (replica.ended, replica.transport):  # a start may be under way, in a thread of either
                if before is not None and before is not replica.newest:
                    before.close()


def _choice(running: Sequence[_Replica], keys: Sequence[bytes], *, stays: bool) -> _Replica:
    """Of the replicas the one that knows most of a prompt, unless it has much more to do than another.

    stays: whatever it has to do, as for a session, whose pages are kept there.
    """
    best = max(running, key=lambda replica: (replica.run_of(keys), -replica.load))
    least = min(running, key=lambda replica: replica.load)
    return best if stays or best.load <= max(2 * least.load, least.load + AHEAD_TOKENS) else least


def _limits_of_all(limits: Sequence[Limits]) -> Limits:
    """What holds for each of them. Raises ConfigError where a request would fare differently by its replica."""
    for name in _ALIKE:
        found = sorted({getattr(one, name) for one in limits})
        if len(found) > 1:
            law = f"all replicas must have the same {name}, they have {' and '.join(map(str, found))}"
            raise ConfigError(f"{law}; set it ({flag_of(name)}), or use devices that are alike")
    return min(limits, key=lambda one: one.num_pages)
