"""Scheduler: the one place where policy lives. `plan` chooses a step's rows, `commit` reads what the step drew.

There is no prefill phase and no decode phase: each step brings the positions `dispatched` of a sequence closer to its
tokens; one pending token *is* decode. The last token of a decoding sequence may still be in flight: it lives on the
device, under the sequence's slot.

Invariants (engine.invariants, after every step in tests): a sequence is held, waiting or running, never two of them; a
running one owns a slot and room in the cache for `dispatched` positions (contiguous: for max_model_len; one whose
grammar has just begun late: a page more at most), the others own nothing; a step holds at most `max_num_batched_tokens`
tokens; the most senior running sequence always gets its row, and every decoding one its token in one of any two
consecutive steps (with chunked prefill in each), but that `bulk` ones pause while prompts fill steps; published pages
are full and committed.

Why a slot can be released at commit while a later step that names it is in flight: the device runs steps in the order
given, and the next owner's first step rewrites all that belongs to the slot. Pages wait (cache.manager).
"""

import dataclasses
import time
from bisect import bisect_left, insort
from operator import attrgetter

import numpy as np

from jaxinfer.cache.manager import CacheManager, Prefix
from jaxinfer.config import Limits
from jaxinfer.engine.budget import Budget, kept_tokens, prompts_fill
from jaxinfer.engine.failures import NOT_FINITE, STEP_FAILED
from jaxinfer.engine.fast_forward import append_forced
from jaxinfer.engine.full import HostLogprobs, dress_row, note_token, read_pooled, read_scores
from jaxinfer.engine.isolation import Isolation
from jaxinfer.engine.pace import Pace
from jaxinfer.engine.sequence import Output, Request, Sequence, State, sequences_of
from jaxinfer.engine.stats import Counters
from jaxinfer.engine.structured import Grammar
from jaxinfer.engine.validate import validate_limits, validate_outputs, validate_request
from jaxinfer.errors import InvalidRequest
from jaxinfer.runtime.plan import Plan, Row, StateMoves, StepResult

_rank = attrgetter("rank")


@dataclasses.dataclass(slots=True)
class Step:
    """A plan and, row by row, whose rows they are. num_prompt_rows: those that are no decode rows."""

    plan: Plan
    sequences: list[Sequence]
    num_prompt_rows: int = 0


class Scheduler:
    """Sequences by rank (priority, then arrival), their slots and their room in the cache. Used by one thread.

    in_flight counts the steps planned and not yet committed. Preemption happens only when there is none, since the
    tokens in flight must be known before a sequence can be computed again.
    """

    def __init__(self, limits: Limits, cache: CacheManager | None = None) -> None:
        """cache: of the model; None: one table that keeps everything."""
        validate_limits(limits)
        self.limits = limits
        self.cache = cache or CacheManager(limits)
        self.counters = Counters()
        self.in_flight = 0
        self.waiting: list[Sequence] = []  # by rank
        self.running: list[Sequence] = []  # by rank
        self.live: dict[str, dict[int, Sequence]] = {}  # unfinished sequences by request and index
        self.free_slots = list(range(limits.max_num_seqs, 0, -1))
        self.isolation = Isolation()
        self.pace = Pace(limits)
        self._arrivals = 0
        self._batch: set[Sequence] = set()  # of static scheduling: who may start until all of it has ended
        self._prompt_turn = False  # the next step leaves decode rows out: a whole prompt waits for the budget

    # ---- requests come and go ----

    def add(self, request: Request, outputs: tuple[tuple[int, ...] | None, ...] = ()) -> None:
        """Queue a request, or what is left of one (see Add). Raises InvalidRequest when it can never be computed."""
        validate_request(request, self.limits)
        validate_outputs(request, outputs, self.limits)
        if request.id in self.live:
            raise InvalidRequest(f"request ids must be unique among unfinished requests, {request.id!r} is in use")
        self._arrivals += 1
        first, *rest = sequences_of(request, outputs, self._arrivals, self.limits)
        self.live[request.id] = {sequence.index: sequence for sequence in (first, *rest)}
        insort(self.waiting, first, key=_rank)
        for sequence in rest:
            sequence.state = State.HELD
        first.held = rest
        if not self.limits.enable_prefix_caching and not first.num_to_score:
            self._admit_siblings(first)

    def end(self, request_id: str, index: int) -> None:
        """End one choice whose text is complete; ignored when it has ended already."""
        if (sequence := self.live.get(request_id, {}).get(index)) is not None:
            self._end(sequence, "stop")

    def acknowledge(self, request_id: str, index: int, num_tokens: int) -> None:
        """The text state of a choice has seen its first `num_tokens` output tokens."""
        if (sequence := self.live.get(request_id, {}).get(index)) is not None:
            sequence.acknowledged = max(sequence.acknowledged, num_tokens)

    def begin_grammar(self, request_id: str, grammar: Grammar) -> None:
        """A request's grammar is compiled: its choices may start, each with a copy of its own."""
        for sequence in self.live.get(request_id, {}).values():
            sequence.begin_grammar(grammar.copy(), self.limits.vocab_size)

    @property
    def num_unfinished(self) -> int:
        """Sequences that have not ended."""
        return sum(map(len, self.live.values()))

    # ---- plan ----

    def plan(self) -> Step | None:
        """Choose the next step. None: there is nothing to do before the step in flight is committed, or at all."""
        step, num_slots = None, 0 if self.isolation.active else len(self.free_slots)
        if self._prompt_turn or prompts_fill(self.limits, self.running, self.waiting, num_slots):
            self._prompt_turn = False
            step = self._plan(with_decode_rows=False)
        step = step or self._plan(with_decode_rows=True)
        if step is not None:
            self.in_flight += 1
            self.counters.steps += 1
            num_tokens, num_rows = step.plan.num_tokens, len(step.sequences)
            self.counters.computed_tokens += num_tokens
            self.counters.work.add_step(num_rows - step.num_prompt_rows, step.num_prompt_rows, num_tokens)
        return step

    def _plan(self, *, with_decode_rows: bool) -> Step | None:
        while self._must_yield():
            if self.in_flight:
                return None  # for that every token must be known
            self._preempt(self.running[-1])
        ready = self._ready(with_decode_rows)
        num_decoding = sum([s.decoding for s in ready])
        left = self.pace.for_prompts(ready, self.waiting[: len(self.free_slots)], num_decoding)
        budget = Budget(left, kept_tokens(self, ready, num_decoding, left))
        if self.in_flight and self._must_preempt(ready, budget):
            return None
        step = Step(Plan([]), [])
        add_row, add_sequence = step.plan.rows.append, step.sequences.append
        preemptions = self.counters.preemptions
        for sequence in ready:  # most senior first, so the newest pay when pages run out
            start = sequence.dispatched
            if sequence.decoding and sequence.is_plain and start < sequence.cache.covered:  # as _add_row: most rows
                sequence.dispatched = start + 1
                add_row(Row(sequence.slot, start, 1, sampler=sequence.sampler, masked=sequence.structured is not None))
                add_sequence(sequence)
                continue
            if sequence.state is not State.RUNNING:
                break  # preempted by one before it, as are all after it
            count = 1
            if not sequence.decoding:
                count = budget.chunk(len(sequence.known) - start, sequence)
                budget.take(count, sequence)
            if count and self._make_room(sequence, count):
                self._add_row(step, sequence, count)
        if preemptions == self.counters.preemptions:
            self._admit(step, budget, with_decode_rows)
        return step if step.sequences else None

    def _ready(self, with_decode_rows: bool) -> list[Sequence]:
        """The running sequences that have something to compute; a length end is known before it is committed."""
        if not with_decode_rows:
            return [s for s in self.running if not s.decoding]
        return [
            s
            for s in self.running
            if not s.decoding or (s.dispatched + 1 < s.max_length and not (s.may_wait and s.must_wait))
        ]

    def _must_preempt(self, ready: list[Sequence], budget: Budget) -> bool:
        """Whether there are too few pages for every ready sequence to get its row."""
        cache, available, wanted = self.cache, self.cache.pool.num_available, 0
        if cache.most_missing(len(ready), budget.left) <= available:
            return False
        budget = Budget(budget.left, budget.short)
        for sequence in ready:
            count = 1
            if not sequence.decoding:
                count = budget.chunk(len(sequence.known) - sequence.dispatched, sequence)
                budget.take(count, sequence)
            wanted += cache.missing(sequence.cache, sequence.dispatched + count)
        return wanted > available

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Grow a sequence's cache by `count` positions, preempting the newest until it fits or is itself the newest."""
        end = sequence.dispatched + count
        while end > sequence.cache.covered and not self.cache.grow(sequence.cache, end):
            newest = self.running[-1]
            self._preempt(newest)
            if newest is sequence:
                return False
        return True

    def _must_yield(self) -> bool:
        """Whether the last `bulk` sequence is to be preempted: the most urgent that could start is of a higher priority
        and finds no slot, or no pages for its first chunk. Nobody else yields: a priority is whatever its client says,
        and streams do not stand still for that.
        """
        running, cache = self.running, self.cache
        if not running or not running[-1].request.bulk:
            return False
        if self.limits.scheduling == "static" or self.isolation.active:
            return False
        first = next((sequence for sequence in self.waiting if not sequence.may_not_start), None)
        if first is None or running[-1].rank[0] <= first.rank[0]:
            return False
        prefix = self.prefix(first)
        end = min(len(first.tokens), prefix.length + self.limits.max_num_batched_tokens)  # never too few
        missing = cache.price(prefix, end) + cache.watermark - cache.pool.num_available
        yielding = (s.cache for s in running if s.request.bulk and s.rank[0] > first.rank[0])
        return missing <= sum(len(s.page_ids()) for s in yielding) if missing > 0 else not self.free_slots

    def _preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's pages and slot, for the good of a more senior one."""
        self.cache.publish(sequence.cache, sequence.dispatched)
        self._withdraw(sequence)
        self.cache.hold(sequence.cache)
        sequence.preemptions += 1
        self.counters.preemptions += 1

    def _withdraw(self, sequence: Sequence) -> None:
        """Put a running sequence back to waiting. Its tokens are kept; what the cache has lost is computed again."""
        assert not self.in_flight, "a sequence was withdrawn while its tokens were in flight"
        self._leave(sequence)
        self.cache.release(sequence.cache)
        sequence.state = State.WAITING
        insort(self.waiting, sequence, key=_rank)

    def _admit(self, step: Step, budget: Budget, with_decode_rows: bool) -> None:
        """Start waiting sequences in order of rank while slots, tokens and pages last. None overtakes another, except
        that a preempted one whose text is behind steps aside, and for short prompts who finds no tokens but theirs."""
        chosen = self._chosen()
        i = num_kept_slots = 0
        while budget.left and len(self.free_slots) > num_kept_slots and i < len(self.waiting):
            sequence = self.waiting[i]
            if sequence.may_not_start or (chosen is not None and sequence not in chosen):
                i += 1
                continue
            if budget.is_kept_from(sequence):
                i += 1
                num_kept_slots = 1
                continue
            count = self._start(sequence, budget, with_decode_rows)
            if not count:
                return
            del self.waiting[i]
            self._add_row(step, sequence, count)
            budget.take(count, sequence)

    def _chosen(self) -> set[Sequence] | None:
        """The only ones who may start now; None is everyone."""
        if self.isolation.active and (trial := self.isolation.trial()):
            return set(trial)
        if self.limits.scheduling == "continuous":
            return None
        if not self.running:
            self._batch = {s for senior in self.waiting[: self.limits.max_num_seqs] for s in (senior, *senior.held)}
        return self._batch

    def _start(self, sequence: Sequence, budget: Budget, with_decode_rows: bool) -> int:
        """Give a waiting sequence a slot, its cached pages and pages for its first chunk. Returns the chunk's size, 0
        when it must wait."""
        limits, prefix = self.limits, self.prefix(sequence)
        start = prefix.length
        pending = len(sequence.tokens) - start
        count = budget.chunk(pending, sequence)
        if not count or (count < pending and sequence in budget.short):
            return 0  # it was to be short, but cached pages of its own went to others in this step
        if count < pending <= limits.max_num_batched_tokens and not limits.enable_chunked_prefill:
            self._prompt_turn = with_decode_rows  # it goes whole or not at all
            return 0
        if not self.cache.start(sequence.cache, prefix, start + count, self.cache.watermark if self.running else 0):
            return 0
        sequence.slot = self.free_slots.pop()
        sequence.state, sequence.dispatched = State.RUNNING, start
        sequence.pooled = None
        insort(self.running, sequence, key=_rank)
        if sequence.cached_tokens < 0:
            self._count_prompt(sequence, start, prefix.num_offloaded * self.cache.page_size)
        return count

    def prefix(self, sequence: Sequence) -> Prefix:
        """What is cached of a waiting sequence's beginning."""
        usable = self.limits.enable_prefix_caching and not sequence.needs_all_rows
        return self.cache.find(sequence.cache) if usable else Prefix()

    def _count_prompt(self, sequence: Sequence, num_cached: int, num_on_host: int) -> None:
        """A sequence was admitted for the first time; siblings count as computed once, with the first."""
        sequence.admitted_s = time.monotonic()
        sequence.cached_tokens = min(num_cached, sequence.num_prompt)  # of a resumed one, output may be cached too
        if sequence.index == 0:
            self.counters.prompt_tokens += sequence.num_prompt
            self.counters.cached_tokens += sequence.cached_tokens
            self.counters.host_cached_tokens += min(num_on_host, sequence.cached_tokens)

    def _add_row(self, step: Step, sequence: Sequence, count: int) -> None:
        """Append a running sequence's row of `count` tokens and move its `dispatched`."""
        start, cached = sequence.dispatched, sequence.cache
        end = sequence.dispatched = start + count
        row = Row(sequence.slot, start, count)
        row.sampling = None if cached.num_sent else sequence.sampling
        row.new_pages = self.cache.unsent(cached)
        if self.cache.has_state:
            row.state = StateMoves(cached.load, self.cache.unsaved(cached, start, end, len(sequence.known)))
            cached.load = None
        if not sequence.decoding:
            step.num_prompt_rows += 1
            known = sequence.known
            row.tokens = known[start:end]
            row.sample = sequence.decoding = end == len(known) and not sequence.is_pooled
        row.sampler = sequence.sampler
        if not sequence.is_plain or sequence.structured is not None or row.sampling is not None:
            dress_row(row, sequence)
        step.plan.rows.append(row)
        step.sequences.append(sequence)

    # ---- commit ----

    def commit(self, step: Step, result: StepResult) -> list[Output]:
        """Append what the oldest step in flight drew, publish the pages it filled, end what has ended."""
        outputs: list[Output] = []
        size, num_sampled, ended = self.cache.page_size, 0, State.ENDED
        tokens: list[int] = result.tokens.tolist()
        finite: list[bool] = result.finite.tolist()
        logprobs = None if result.logprobs is None else HostLogprobs(result.logprobs)
        rows = zip(range(len(tokens)), step.sequences, step.plan.rows, tokens, finite, strict=True)
        for i, sequence, row, token, good in rows:
            if not good:
                outputs += self._spoil(sequence)
                continue
            if sequence.state is ended:
                continue  # it ended while this step was in flight
            if sequence.num_stale:
                sequence.num_stale -= 1
                continue
            end = row.start + row.count
            is_prompt = row.tokens is not None
            if is_prompt or not end % size:
                self.cache.publish(sequence.cache, end)
                self.cache.trim(sequence.cache, end)
            if is_prompt:
                if end >= sequence.num_prompt:
                    self._admit_siblings(sequence)
                if row.targets:
                    read_scores(sequence, row, result.targets[i])
                if row.num_pooled:
                    outputs += self._take_pooled(sequence, row, result.pooled[i])
            if row.sample:
                if sequence.may_wait:
                    token = sequence.take_token(token)
                else:
                    sequence.append(token)
                output = Output(sequence.request.id, sequence.index, [token], None, None, sequence.cached_tokens)
                if not sequence.is_plain:
                    note_token(output, sequence, logprobs, i)
                if is_prompt:  # no other draws a first token, or the first since a preemption
                    output.times = sequence.new_times()
                outputs.append(output)
                num_sampled += 1
                if sequence.forced:
                    num_forced = append_forced(sequence, output)
                    num_sampled += num_forced
                    self.counters.masked_tokens += num_forced
                    self.counters.forwarded_tokens += num_forced
                if sequence.may_wait:
                    num_sampled += sequence.close_thoughts(output, token)
                if (last := sequence.tokens[-1]) in sequence.end_ids or len(sequence.tokens) == sequence.max_length:
                    self.cache.publish(sequence.cache, end)
                    self._finish(sequence, output, last)
                elif token in sequence.opens:  # a grammar's end may be spelt as its beginning
                    sequence.begin_late(self.limits.vocab_size)
        self.counters.generated_tokens += num_sampled
        self.in_flight -= 1
        self.cache.step_committed()
        if self.isolation.active:
            self._withdraw_cleared(step)
        return outputs

    def _finish(self, sequence: Sequence, output: Output, token: int) -> None:
        """End a sequence by its last token, for "stop" rather than "length" when both hold."""
        stopped = token in sequence.end_ids
        output.finish_reason = "stop" if stopped else "length"
        output.stop_reason = token if token in sequence.request.stop_token_ids else None
        self._end(sequence, output.finish_reason)

    def _take_pooled(self, sequence: Sequence, row: Row, found: np.ndarray) -> list[Output]:
        """End a sequence by what its last row pooled."""
        output = read_pooled(sequence, row, found)
        if output is None:
            return []
        self.counters.embeddings += 1
        self._end(sequence, "stop")
        return [output]

    # ---- failed steps ----

    def recover(self, failed: list[Step]) -> list[Output]:
        """The device has lost its state: forget its pages and every step in flight, compute the running sequences anew
        from their committed tokens. failed: the steps whose rows are suspects."""
        suspects = {s: s.dispatched for step in failed for s in step.sequences if s.state is State.RUNNING}
        self.in_flight = 0
        for sequence in self.running[::-1]:
            self._withdraw(sequence)
        self.cache.reset([sequence.cache for sequence in self.waiting])
        culprit = self.isolation.blame(suspects)
        return [] if culprit is None else self.end_request(culprit, "error", STEP_FAILED, "step_failed")

    def _withdraw_cleared(self, step: Step) -> None:
        """Make room for the other suspects: who has come as far as before waits until the isolation is over."""
        rows = zip(step.sequences, step.plan.rows, strict=True)
        for sequence in self.isolation.clear({sequence: row.start + row.count for sequence, row in rows}):
            if sequence.state is State.RUNNING:
                self._withdraw(sequence)

    # ---- ends ----

    def _spoil(self, sequence: Sequence) -> list[Output]:
        """A row of a sequence was not finite: its request fails alone, what it wrote is zeroed before reuse."""
        self.counters.nonfinite_rows += not sequence.cache.nonfinite
        sequence.cache.nonfinite = True
        if sequence.state is State.ENDED:
            return []
        return self.end_request(sequence.request.id, "error", NOT_FINITE, "non_finite")

    def end_request(
        self, request_id: str, reason: str, error: str | None = None, code: str | None = None
    ) -> list[Output]:
        """End every unfinished choice of a request, wherever it stands; unknown ids are ignored."""
        outputs = []
        for sequence in list(self.live.get(request_id, {}).values()):
            sequence.held = []
            self._end(sequence, reason)
            cached = max(sequence.cached_tokens, 0)
            outputs.append(Output(request_id, sequence.index, [], reason, None, cached, error, code))
        return outputs

    def _end(self, sequence: Sequence, reason: str) -> None:
        """Take a sequence out, wherever it stands. Its pages stay its own until its last row in flight is read."""
        in_flight = 0
        if sequence.state is State.RUNNING:
            all_read = sequence.decoding and sequence.dispatched + 1 == len(sequence.tokens)
            all_read |= sequence.is_pooled and reason == "stop"
            in_flight = 0 if all_read else self.in_flight
            self._leave(sequence)
        elif sequence.state is State.WAITING:
            del self.waiting[bisect_left(self.waiting, sequence.rank, key=_rank)]
        self.cache.release(sequence.cache, in_flight)
        sequence.state = State.ENDED
        self._admit_siblings(sequence)
        del self.live[sequence.request.id][sequence.index]
        if not self.live[sequence.request.id]:
            del self.live[sequence.request.id]
        self.counters.finished[reason] += 1

    def _leave(self, sequence: Sequence) -> None:
        """Give up a running sequence's place and slot."""
        del self.running[bisect_left(self.running, sequence.rank, key=_rank)]
        self.free_slots.append(sequence.slot)
        sequence.slot = sequence.dispatched = 0
        sequence.decoding, sequence.forced, sequence.num_stale = False, [], 0

    def _admit_siblings(self, first: Sequence) -> None:
        """The first choice's prompt pages are published (or will never be): queue the other choices."""
        for sequence in first.held:
            sequence.state = State.WAITING
            self.cache.hold(sequence.cache)
            insort(self.waiting, sequence, key=_rank)
        first.held = []
