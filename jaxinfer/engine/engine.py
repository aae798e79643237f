"""Engine: the loop. Drain the inbox, plan a step, dispatch it, commit the step before it.

One thread owns an Engine and calls `step`, `wait`, `check`; any thread may put messages into `inbox` and read `stats`.
With run_ahead 1 a step is dispatched before the one before it is read, so that the host works while the device does;
with run_ahead 0 every step is read before the next is planned. The tokens are the same.
"""

import dataclasses
import queue
import time
from collections import deque

from jaxinfer.config import Limits
from jaxinfer.engine.scheduler import Scheduler, Step
from jaxinfer.engine.sequence import Abort, Acknowledge, Add, Call, End, Message, Output
from jaxinfer.errors import InvalidRequest
from jaxinfer.runtime.plan import Pending, Runner


@dataclasses.dataclass(frozen=True, slots=True)
class EngineStats:
    """A look at the engine. running, waiting: sequences; waiting includes those held for a sibling's prompt.

    pages_*: of the pool; free + cached + owned = total. The token counts, preemptions, steps and finished (by reason)
    count from the start. computed_tokens: positions dispatched, recomputed and surplus ones included.
    """

    running: int
    waiting: int
    pages_free: int
    pages_cached: int
    pages_owned: int
    pages_total: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    computed_tokens: int
    preemptions: int
    finished: dict[str, int]
    steps: int
    last_step_age_s: float


class Engine:
    """A scheduler, a runner and the steps in flight between them."""

    def __init__(self, runner: Runner, limits: Limits) -> None:
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.limits = limits
        self.scheduler = Scheduler(limits)
        self._runner = runner
        self._in_flight: deque[tuple[Step, Pending]] = deque()
        self._news: list[Output] = []  # outputs of messages, for the next step to return
        self._stalled = False  # nothing can be computed until a message comes
        self._last_step = time.monotonic()

    def step(self) -> list[Output]:
        """Bring the work one step further. Returns what was committed, which may be nothing."""
        self._drain_inbox()
        step = self.scheduler.plan()
        if step is not None:
            self._in_flight.append((step, self._runner.run(step.plan)))
        self._stalled = not self._in_flight
        if self._in_flight and (step is None or len(self._in_flight) > self.limits.run_ahead):
            self._commit()
        self._last_step = time.monotonic()
        news, self._news = self._news, []
        return news

    def wait(self, timeout_s: float) -> None:
        """Sleep until a message comes, at most `timeout_s`: for the owner's loop while `has_work` is False."""
        try:
            message = self.inbox.get(timeout=timeout_s)
        except queue.Empty:
            return
        self._handle(message)

    @property
    def has_work(self) -> bool:
        """Whether a step would do something. False also while all that is left waits for its text state."""
        if self._news or self._in_flight or not self.inbox.empty():
            return True
        return not self._stalled and self.scheduler.num_unfinished > 0

    def stats(self) -> EngineStats:
        """Counters and gauges; safe from any thread, and then not all from the same instant."""
        scheduler, pool = self.scheduler, self.scheduler.pool
        counters = dataclasses.asdict(scheduler.counters)
        running = len(scheduler.running)
        free, cached = pool.num_free, pool.num_cached
        return EngineStats(
            running=running,
            waiting=scheduler.num_unfinished - running,
            pages_free=free,
            pages_cached=cached,
            pages_owned=pool.num_total - free - cached,
            pages_total=pool.num_total,
            last_step_age_s=time.monotonic() - self._last_step,
            **counters,
        )

    def check(self) -> None:
        """Recompute every invariant of scheduler and pages; AssertionError names the one that does not hold."""
        assert self.scheduler.in_flight == len(self._in_flight), "a step in flight was lost"
        self.scheduler.check()

    def _commit(self) -> None:
        """Read the oldest step in flight."""
        step, pending = self._in_flight.popleft()
        self._news += self.scheduler.commit(step, pending.wait())
        if self.scheduler.pages_to_zero:
            self._runner.zero_pages(self.scheduler.pages_to_zero)
            self.scheduler.pages_to_zero = []

    def _drain_inbox(self) -> None:
        while not self.inbox.empty():
            self._handle(self.inbox.get())

    def _handle(self, message: Message) -> None:
        self._stalled = False
        match message:
            case Add(request):
                try:
                    self.scheduler.add(request)
                except InvalidRequest as refusal:
                    error = str(refusal)
                    self._news += [
                        Output(request.id, index, [], "error", error=error) for index in range(max(request.n, 1))
                    ]
            case Abort(request_id):
                self._news += self.scheduler.abort(request_id)
            case Acknowledge(request_id, index, num_tokens):
                self.scheduler.acknowledge(request_id, index, num_tokens)
            case End(request_id, index):
                self.scheduler.end(request_id, index)
            case Call():
                _answer(message)


def _answer(call: Call) -> None:
    if not call.future.set_running_or_notify_cancel():
        return
    try:
        call.future.set_result(call.function())
    except Exception as error:  # the caller's, who gets it through the future; the engine goes on
        call.future.set_exception(error)
