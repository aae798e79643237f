"""Engine: the loop. Drain the inbox, plan a step, dispatch it, commit the step before it.

One thread owns an Engine and calls `step`, `wait`, `check`; any thread may put messages into `inbox` and read `stats`.
With run_ahead 1 a step is dispatched before the one before it is read, so that the host works while the device does;
with run_ahead 0 every step is read before the next is planned. The tokens are the same.

A step that fails costs no answer: the device's state is built anew, and the running sequences are computed again from
their committed tokens, in halves, until the request at fault, if it is one, has failed alone (engine.isolation).
"""

import dataclasses
import functools
import logging
import queue
import time
from collections import deque
from collections.abc import Buffer, Callable, Sequence
from concurrent.futures import Future
from typing import cast

from jaxinfer.cache.export import read_export, write_export
from jaxinfer.cache.manager import CacheManager
from jaxinfer.cache.offload import OffloadedPage
from jaxinfer.cache.spec import CacheLayout
from jaxinfer.config import Limits
from jaxinfer.engine.failures import is_sticky
from jaxinfer.engine.fast_forward import look_ahead
from jaxinfer.engine.interrupts import interrupts_held
from jaxinfer.engine.invariants import check_scheduler
from jaxinfer.engine.scheduler import Scheduler, Step
from jaxinfer.engine.sequence import (
    Abort,
    Acknowledge,
    Add,
    Call,
    Compiled,
    Forget,
    Keep,
    Message,
    Output,
    Request,
    StopStringFound,
)
from jaxinfer.engine.stats import EngineStats
from jaxinfer.engine.structured import NoGrammar, masks_of
from jaxinfer.errors import ConfigError, DeviceLost, EngineError, InvalidRequest
from jaxinfer.runtime.plan import Exports, Pending, Plan, Row, Runner, Sampling
from jaxinfer.text.grammar.compiler import Grammar, Grammars
from jaxinfer.text.grammar.reasons import STRAYED

log = logging.getLogger(__name__)

MAX_FAILED_IN_A_ROW = 5
FAILING_FROM = 2  # failed steps in a row: one alone costs nothing but its time, and is computed again at once
PROBE_AFTER_S = 1.0  # without work, before an engine whose last steps have failed tries one of nobody's
# One token of nobody's, on a state that is empty: its slot and page have no owner, and whoever gets them rewrites them.
PROBE = Plan([Row(1, 0, 1, tokens=[0], new_pages=[(0, 1)], sampling=Sampling())])


class _StepFailed(Exception):
    """Its cause came out of the runner. steps: those in which the request at fault must be, if one is at fault."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.steps = steps


class Engine:
    """A scheduler, a runner and the steps in flight between them."""

    def __init__(
        self, runner: Runner, limits: Limits, grammars: Grammars | None = None, cache: CacheManager | None = None
    ) -> None:
        """grammars: what compiles them; without, a request that needs one is refused.    cache: None keeps every token
        of all layers in one table."""
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.limits = limits
        self.scheduler = Scheduler(limits, cache)
        self.grammars = grammars
        self._runner = runner
        self._num_compiling = 0
        self._in_flight: deque[tuple[Step, Pending]] = deque()
        self._news: list[Output] = []  # outputs of messages, for the next step to return
        self._stalled = False  # nothing can be computed until a message comes
        self._last_step = time.monotonic()
        self._mark = self._busy_from = 0.0  # see _spent; when the device had been read last, or was idle no longer
        self._num_failed_in_a_row = 0
        self._probe_at = 0.0  # by time.monotonic(), where steps have failed
        self.on_step: Callable[[Step], None] | None = None  # told of each step that the device has been given

    def step(self) -> list[Output]:
        """Bring the work one step further. Returns what was committed, which may be nothing.

        Raises:
          DeviceLost: nothing in this process can use the device again; a new engine elsewhere can resume (see Add).
          EngineError: the device carries out no step at all.
        After these two the host's side is whole: requests can be aborted, or resumed elsewhere. A Ctrl-C is heard when
        the step is, and what it committed comes with the next. Any other exception is a bug of ours.
        """
        with interrupts_held():
            self._mark = time.perf_counter()
            while not self.inbox.empty():
                self._handle(self.inbox.get())
            try:
                self._advance()
                self._try_again()
            except _StepFailed as failure:
                self._recover(failure)
            self._spent("commit")
            self._last_step = time.monotonic()
        news, self._news = self._news, []
        return news

    def wait(self, timeout_s: float) -> None:
        """Sleep until a message comes, at most `timeout_s`: for the owner's loop while `has_work` is False."""
        try:
            message = self.inbox.get(timeout=timeout_s)
        except queue.Empty:
            return
        with interrupts_held():
            self._handle(message)

    @property
    def has_work(self) -> bool:
        """Whether a step would do something. False also while all that is left waits for its text state."""
        if self._news or self._in_flight or not self.inbox.empty():
            return True
        return not self._stalled and self.scheduler.num_unfinished > 0

    @property
    def is_failing(self) -> bool:
        """Whether the last steps have all failed: it then wants `step` to be called once a second without work too."""
        return self._num_failed_in_a_row >= FAILING_FROM

    @property
    def awaits_grammar(self) -> bool:
        """Whether a message will come from a thread that compiles: `wait` for it when there is no work."""
        return self._num_compiling > 0

    def stats(self) -> EngineStats:
        """Counters and gauges; safe from any thread, and then not all from the same instant."""
        scheduler, pool = self.scheduler, self.scheduler.cache.pool
        counters = scheduler.counters.copy()
        running = len(scheduler.running)
        free, cached = pool.num_free, pool.num_cached
        return EngineStats(
            running=running,
            waiting=scheduler.num_unfinished - running,
            held=sum(len(sequence.held) for sequence in scheduler.waiting.copy() + scheduler.running.copy()),
            awaiting_grammar=self._num_compiling,
            pages_free=free,
            pages_cached=cached,
            pages_owned=pool.num_total - free - cached,
            pages_total=pool.num_total,
            pages_kept=pool.num_pinned,
            pages_kept_by=pool.num_pinned_by,
            host_pages=len(pool.offload),
            host_pages_by=pool.offload.num_by,
            is_failing=self.is_failing,
            last_step_age_s=time.monotonic() - self._last_step,
            **{field.name: getattr(counters, field.name) for field in dataclasses.fields(counters)},
        )

    def export_prefix(self, tokens: Sequence[int], salt: str = "") -> bytes:
        """The longest prefix of these tokens that is cached, for another engine of the same model (cache.export).

        For a Call: between two steps. Raises ConfigError where none is cached, or none can be exported.
        """
        exports, layout, cache = *self._exports(), self.scheduler.cache
        prefix = cache.cached_prefix(salt, tokens)
        if not prefix.length:
            raise ConfigError(
                f"a prefix must be cached to be exported, of these {len(tokens)} tokens no whole page of "
                f"{layout.page_size} is; generate with them first"
            )
        flying = [step for step, _ in self._in_flight]
        saved = dict(zip(prefix.pages, self._on_device(flying, self._runner.save_pages, prefix.pages), strict=True))
        units = [unit for table in prefix.units for unit in table if unit]
        contents = [unit.data if isinstance(unit, OffloadedPage) else saved[unit] for unit in units]
        if prefix.snapshot:
            contents.append(self._on_device(flying, exports.save_snapshot, prefix.snapshot))
        parts = [self._on_device(flying, exports.to_bytes, content) for content in contents]
        known, firsts = tokens[: prefix.length], cache.firsts_at(prefix.length)
        return write_export(exports.model, layout, salt, known, firsts, parts)

    def import_prefix(self, data: Buffer) -> int:
        """Cache what another engine exported: its pages on the host, and its snapshot. Returns how many tokens.

        For a Call: between two steps. Raises ConfigError for what is damaged or another model's, and for no room.
        """
        exports, layout, cache = *self._exports(), self.scheduler.cache
        found = read_export(data, exports.model, layout, cache.firsts_at)
        contents = [[functools.partial(exports.page, page) for page in table] for table in found.pages]
        num_tokens, snapshot = cache.take_in(found.keys, contents)
        if snapshot:
            flying = [step for step, _ in self._in_flight]
            self._on_device(flying, exports.load_snapshot, snapshot, found.snapshot)
        return num_tokens

    def _exports(self) -> tuple[Exports, CacheLayout]:
        exports, layout = self._runner.exports, self.scheduler.cache.layout
        if exports is None or layout is None:
            raise ConfigError(
                "a prefix is exported and imported by way of host memory, there is none for pages; set "
                "kv_offloading_bytes, leave prefix caching on, and run a model"
            )
        return exports, layout

    def check(self) -> None:
        """Recompute every invariant of scheduler and pages; AssertionError names the one that does not hold."""
        assert self.scheduler.in_flight == len(self._in_flight), "a step in flight was lost"
        host = self.scheduler.cache.pool.offload
        assert not (host.saves or host.loads), "a page's content was not moved before its place was reused"
        check_scheduler(self.scheduler)

    def _advance(self) -> None:
        """Dispatch the next step and read the oldest one that is due."""
        step = self.scheduler.plan()
        self._spent("plan")
        self._move_pages()
        if step is not None:
            flying = [earlier for earlier, _ in self._in_flight]
            self._busy_from = self._busy_from if flying else self._mark
            self._in_flight.append((step, self._on_device([*flying, step], self._runner.run, step.plan)))
            self._spent("dispatch")
            if self.on_step is not None:
                self.on_step(step)
            if step.plan.is_masked:
                self._draw(step)
        self._stalled = not self._in_flight
        ahead = 0 if self.scheduler.isolation.active else self.limits.run_ahead
        if self._in_flight and (step is None or len(self._in_flight) > ahead):
            self._commit()

    def _move_pages(self) -> None:
        """Save what the plan just made lets go, then load what it found on the host: before the step that reuses it."""
        host, counters = self.scheduler.cache.pool.offload, self.scheduler.counters
        flying = [step for step, _ in self._in_flight]
        if host.saves:
            contents = self._on_device(flying, self._runner.save_pages, list(host.saves.values()))
            for page, content in zip(host.saves, contents, strict=True):
                page.data = content
            counters.pages_saved += len(host.saves)
            host.saves.clear()
        if host.loads:
            contents = [page.data for page in host.loads]
            self._on_device(flying, self._runner.load_pages, list(host.loads.values()), contents)
            counters.pages_loaded += len(host.loads)
            host.loads.clear()

    def _draw(self, step: Step) -> None:
        """Let the step just dispatched draw: while it computes, the tokens before it tell what its rows may draw."""
        while len(self._in_flight) > 1:
            self._commit()
        assert self.grammars is not None, "a row is masked by a grammar"
        masks, failed = masks_of(step, self.grammars, self._runner.mask_table, self.scheduler.counters)
        for sequence, reason in failed:
            code = "engine_error" if reason.endswith(STRAYED) else "no_token_left"
            self._news += self.scheduler.end_request(sequence.request.id, "error", reason, code)
        self._on_device([step], self._in_flight[-1][1].draw, masks)
        if self.limits.enable_fast_forward:
            look_ahead(step, masks.rows, self._runner.mask_table.only_one)
        self._spent("masks")

    def _commit(self) -> None:
        """Read the oldest step in flight."""
        step, pending = self._in_flight[0]
        result = self._on_device([step], pending.wait)
        self._in_flight.popleft()
        self._spent("wait")
        busy_s, self._busy_from = self._mark - self._busy_from, self._mark
        self.scheduler.counters.work.busy_s += busy_s
        if step.num_prompt_rows:
            self.scheduler.pace.add(step.plan.num_tokens, len(step.plan.rows), busy_s)
        self._news += self.scheduler.commit(step, result)
        self._num_failed_in_a_row = 0
        if (cache := self.scheduler.cache).pages_to_zero:
            flying = [later for later, _ in self._in_flight]
            self._on_device(flying, self._runner.zero_pages, cache.pages_to_zero)
            cache.pages_to_zero = []

    def _spent(self, phase: str) -> None:
        """What passed since the last call was for this phase."""
        now = time.perf_counter()
        self.scheduler.counters.work.phase_s[phase] += now - self._mark
        self._mark = now

    def _on_device[T](self, steps: list[Step], call: Callable[..., T], *args: object) -> T:
        """What the runner raises is a failed step; all other exceptions are bugs of the host, which nobody may hide."""
        try:
            return call(*args)
        except BaseException as error:  # what a signal's handler raises too: the device's state may be lost to it
            raise _StepFailed(steps) from error

    def _recover(self, failure: _StepFailed) -> None:
        """Go on after a failed step, unless the device is lost or carries out nothing."""
        cause, counters = failure.__cause__, self.scheduler.counters
        assert cause is not None
        self._in_flight.clear()
        self._stalled = False
        if not isinstance(cause, Exception):
            self._news += self.scheduler.recover([])  # nobody is to blame
            self._reset()
            raise cause from None
        counters.failed_steps += 1
        self._num_failed_in_a_row += 1
        self._probe_at = time.monotonic() + PROBE_AFTER_S
        self._news += self.scheduler.recover(failure.steps)
        log.warning("step %d failed (%d in a row)", counters.steps, self._num_failed_in_a_row, exc_info=cause)
        if is_sticky(cause):
            raise _end(cause) from cause
        self._reset()
        if self._num_failed_in_a_row >= MAX_FAILED_IN_A_ROW:
            self._probe()

    def _reset(self) -> None:
        """Build the device's state anew; what it held has been forgotten."""
        try:
            self._runner.reset()
        except Exception as error:
            raise _end(error) from error
        self.scheduler.counters.recoveries += 1

    def _try_again(self) -> None:
        """Find out whether steps succeed again while nobody asks for any: the state is empty since the last failed."""
        has_work = self.scheduler.num_unfinished or self._in_flight
        if self.is_failing and not has_work and time.monotonic() >= self._probe_at:
            pending = self._on_device([], self._runner.run, PROBE)
            self._on_device([], pending.wait)
            self._num_failed_in_a_row = 0

    def _probe(self) -> None:
        """Tell a device that carries out nothing, which ends the engine, from requests that it cannot carry out."""
        try:
            self._runner.run(PROBE).wait()
        except Exception as error:
            raise _end(error) from error
        self._num_failed_in_a_row = 0

    def _compile(self, request: Request) -> None:
        """Have a request's grammar compiled, by threads that will say so in the inbox."""
        if request.structure is None:
            return
        if self.grammars is None:
            why = "grammars need an engine with a tokenizer"
            self._news += self.scheduler.end_request(request.id, "error", why, "no_grammars")
            return
        self._num_compiling += 1
        future = self.grammars.compile(request.structure.text, closes=request.structure.closes)
        future.add_done_callback(lambda done: self.inbox.put(Compiled(request.id, done)))

    def _begin_grammar(self, request_id: str, grammar: "Future[Grammar]") -> None:
        self._num_compiling -= 1
        try:
            self.scheduler.begin_grammar(request_id, grammar.result())
            return
        except InvalidRequest as refusal:
            message = str(refusal)
        except Exception:  # a fault of the library costs the one request that met it
            log.exception("the grammar of %s could not be compiled", request_id)
            message = "the grammar must be one that can be compiled; why it is not stands in the server's log"
        choices = self.scheduler.live.get(request_id, {}).values()
        if any(s.request.structure is not None and s.request.structure.may_be_left for s in choices):
            # the answer goes on without
            self.scheduler.begin_grammar(request_id, cast(Grammar, NoGrammar(message)))
        else:
            self._news += self.scheduler.end_request(request_id, "error", message, "invalid_grammar")

    def _handle(self, message: Message) -> None:
        self._stalled = False
        match message:
            case Add(request, outputs):
                try:
                    self.scheduler.add(request, outputs)
                except InvalidRequest as refusal:
                    self._news += _refuse(message, refusal)
                else:
                    self._compile(request)
            case Compiled(request_id, grammar):
                self._begin_grammar(request_id, grammar)
            case Abort(request_id):
                self._news += self.scheduler.end_request(request_id, "abort")
            case Acknowledge(seen):
                for choice in seen:
                    self.scheduler.acknowledge(*choice)
            case StopStringFound(request_id, index):
                self.scheduler.end(request_id, index)
            case Keep(session, salt, tokens):
                self.scheduler.cache.keep(session, salt, tokens)
            case Forget(session):
                self.scheduler.cache.forget(session)
            case Call():
                self._answer(message)

    def _answer(self, call: Call) -> None:
        if not call.future.set_running_or_notify_cancel():
            return
        try:
            call.future.set_result(call.function())
        except _StepFailed as failure:  # what the call asked of the device
            call.future.set_exception(failure.__cause__)
            self._recover(failure)
        except Exception as error:  # the caller's, who gets it through the future; the engine goes on
            call.future.set_exception(error)


def _end(cause: Exception) -> EngineError:
    """The error that ends the engine after `cause`."""
    said = f"{type(cause).__name__}: {cause}"
    if is_sticky(cause):
        return DeviceLost(f"the device must be usable, this process has lost it ({said}); start a new process")
    return EngineError(
        f"the device must carry out steps, it failed {MAX_FAILED_IN_A_ROW} in a row or could not be given a new state, "
        f"the last time with {said}; restart the server, and look above in its log for the first failure"
    )


def _refuse(add: Add, refusal: InvalidRequest) -> list[Output]:
    ended = {index for index, output in enumerate(add.outputs) if output is None}
    choices = [index for index in range(max(add.request.n, 1)) if index not in ended]
    return [Output(add.request.id, i, [], "error", error=str(refusal), code=refusal.code) for i in choices]
