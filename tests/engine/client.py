"""Client: drives an Engine over a FakeRunner as the rooms above do, and holds every answer against the oracle."""

import dataclasses
from typing import Any

from jaxinfer.cache.manager import TILE, CacheManager
from jaxinfer.cache.spec import CacheLayout
from jaxinfer.config import Limits
from jaxinfer.engine.engine import PROBE, Engine
from jaxinfer.engine.sequence import MAX_TEXT_LAG, Abort, Acknowledge, Add, Output, Request, Sequence, StopStringFound
from jaxinfer.engine.stats import Counters
from jaxinfer.errors import EngineError
from jaxinfer.runtime.plan import Plan
from jaxinfer.testing.faults import Faults
from tests.engine.device import CURSED, Device, FakeRunner, alone, embedding, histories, logprob
from tests.engine.grammars import HashGrammars
from tests.engine.hybrid import HybridRunner


@dataclasses.dataclass
class Answer:
    """One choice as the client sees it. text_stop: the token at which its text state would find a stop string."""

    request: Request
    index: int
    text_stop: int | None = None
    tokens: list[int] = dataclasses.field(default_factory=list)
    acknowledged: int = 0
    reason: str | None = None
    code: str | None = None
    cached_tokens: int = 0
    logprobs: list[float] = dataclasses.field(default_factory=list)
    prompt_logprobs: list[float] | None = None
    embedding: bytes | None = None

    def take(self, output: Output) -> None:
        self.tokens += output.token_ids
        self.logprobs += [found.logprob for found in output.logprobs or ()]
        assert len(output.logprobs or ()) == len(output.token_ids) * (self.request.logprobs is not None)
        if output.prompt_logprobs is not None:
            assert self.prompt_logprobs is None, "the logprobs of a prompt came twice"
            self.prompt_logprobs = [found.logprob for found in output.prompt_logprobs]
        self.reason, self.code = output.finish_reason, output.code
        self.embedding = output.embedding
        self.cached_tokens = output.cached_tokens


class Client:
    """Requests in, answers out; every invariant checked after every step.

    An engine that dies is replaced by a new one that resumes; counters: of all of them, in order.
    num_overtaken: steps in which a prompt was computed before one that came earlier.
    """

    manager = CacheManager

    def __init__(
        self, limits: Limits, faults: Faults | None = None, layout: CacheLayout | None = None, tile: int = TILE
    ) -> None:
        self.limits = limits
        self.layout, self.tile = layout, tile
        self.faults = faults or Faults()
        self.answers: dict[tuple[str, int], Answer] = {}
        self.plans: list[Plan] = []
        self.counters: list[Counters] = []
        self.num_overtaken = 0
        self._aborted: set[str] = set()
        self._num_struck = 0
        self._struck_by_nan: set[str] = set()
        self._build()

    def _build(self, num_steps: int = 0) -> None:
        self.device = self._new_device()
        self.device.num_steps = num_steps
        self.grammars = HashGrammars()
        cache = self.manager(self.limits, self.layout, tile=self.tile)
        self.engine = Engine(self.device, self.limits, self.grammars, cache)
        self.counters.append(self.engine.scheduler.counters)

    def _new_device(self) -> Any:
        self.runner = FakeRunner(self.limits, self._see_plan)
        if self.layout is not None:
            self.runner = HybridRunner(self.limits, self.layout, self.tile, self._see_plan)
        return Device(self.runner, self.faults)

    def add(self, request: Request, text_stop: int | None = None) -> None:
        for index in range(request.n):
            self.answers[request.id, index] = Answer(request, index, text_stop)
        self.engine.inbox.put(Add(request))

    def abort(self, request_id: str) -> None:
        self._aborted.add(request_id)
        self.engine.inbox.put(Abort(request_id))

    def step(self) -> list[Output]:
        try:
            outputs = self.engine.step()
        except EngineError:
            self.engine.check()
            self.restart()
            return []
        finally:
            if self.device.bug is not None:
                raise self.device.bug
        self.engine.check()
        for output in outputs:
            self._read(output)
        return outputs

    def restart(self) -> None:
        """A new engine on a new device, and what was not finished resumed from the tokens that have arrived."""
        self._build(self.device.num_steps)
        for answer in self.answers.values():
            if answer.request.text_lag and answer.reason is None:
                self.read_text(answer, len(answer.tokens))
        requests = {answer.request.id: answer.request for answer in self.answers.values() if answer.reason is None}
        for request in requests.values():
            answers = [self.answers.get((request.id, index)) for index in range(request.n)]
            outputs = tuple(None if a is None or a.reason else tuple(a.tokens) for a in answers)
            if any(a is not None and a.prompt_logprobs is not None for a in answers):
                request = dataclasses.replace(request, prompt_logprobs=None)  # they have come
            self.engine.inbox.put(Add(request, outputs))
            if request.id in self._aborted:
                self.engine.inbox.put(Abort(request.id))

    def read_text(self, answer: Answer, num_tokens: int) -> None:
        """Let an answer's text state see `num_tokens` tokens in all."""
        seen = answer.tokens[:num_tokens]
        key = (answer.request.id, answer.index)
        if answer.text_stop in seen and answer.reason is None:
            del answer.tokens[seen.index(answer.text_stop) + 1 :]
            answer.reason = "text"
            self.engine.inbox.put(StopStringFound(*key))
        answer.acknowledged = len(seen)
        self.engine.inbox.put(Acknowledge([(*key, len(seen))]))

    def begin(self, requests: list[Request], num_steps: int) -> None:
        """Add them, have their grammars compiled once they wait for them, and take so many steps."""
        for request in requests:
            self.add(request)
        self.step()
        self.grammars.release()
        for _ in range(num_steps):
            self.step()

    def finish(self, max_steps: int = 10_000) -> None:
        """Step until every answer has ended, text states reading at once."""
        for _ in range(max_steps):
            for answer in self.answers.values():
                if answer.request.text_lag and answer.reason is None and len(answer.tokens) > answer.acknowledged:
                    self.read_text(answer, len(answer.tokens))
            if not self.engine.has_work:
                if not self.engine.awaits_grammar:
                    break
                self.grammars.release()
            self.step()
        assert all(answer.reason for answer in self.answers.values()), "a request was lost"
        self.engine.check()
        stats = self.engine.stats()
        assert stats.pages_free + stats.pages_cached == stats.pages_total, "a page was not given back"
        self.check_answers()

    def check_answers(self) -> None:
        for answer in self.answers.values():
            if answer.reason:
                self.check_answer(answer)

    def check_answer(self, answer: Answer) -> None:
        """An ended answer's tokens are those of the request running alone, unless a fault was meant for it."""
        expected, reason = self.alone(answer)
        if answer.reason == "text":
            expected, reason = expected[: expected.index(answer.text_stop) + 1], "text"
        excused = answer.reason == "abort" or (answer.reason == "error" and answer.request.n > 1)
        if answer.code == "step_failed":
            siblings = [self.answers[answer.request.id, index].tokens for index in range(answer.request.n)]
            excused = CURSED in answer.request.prompt or any(CURSED in tokens for tokens in siblings)
        elif answer.code == "non_finite" and answer.request.id in self._struck_by_nan:
            excused = True
        if excused:
            assert answer.tokens == expected[: len(answer.tokens)]
        else:
            assert (answer.tokens, answer.reason) == (expected, reason)
        self.check_values(answer)

    def alone(self, answer: Answer) -> tuple[list[int], str]:
        """The tokens and the finish reason of the answer's request running alone."""
        return alone(answer.request, answer.index, self.limits)

    def check_values(self, answer: Answer) -> None:
        """An answer's logprobs and embedding are those of its request running alone."""
        self._check_logprobs(answer)
        is_whole = answer.request.pooling is not None and answer.reason == "stop"
        assert answer.embedding == (embedding(answer.request) if is_whole else None)

    def _check_logprobs(self, answer: Answer) -> None:
        """One for each token, of the answer and, once, of the prompt; those of the model after what came before."""
        request, num_prompt = answer.request, len(answer.request.prompt)
        tokens = [*request.prompt, *answer.tokens]
        wanted = [logprob(h, t) for h, t in zip(histories(tokens)[:-1], tokens[1:], strict=True)]
        if request.logprobs is not None:
            assert answer.logprobs[: len(answer.tokens)] == wanted[num_prompt - 1 :]
        if answer.prompt_logprobs is not None:
            assert answer.prompt_logprobs == wanted[: num_prompt - 1]
        elif request.prompt_logprobs is not None and num_prompt > 1 and answer.tokens:
            assert answer.index > 0, "the logprobs of a prompt were lost"

    def tokens(self) -> dict[tuple[str, int], list[int]]:
        return {key: answer.tokens for key, answer in self.answers.items()}

    def _read(self, output: Output) -> None:
        answer = self.answers[output.request_id, output.index]
        if answer.reason == "text":
            return  # beyond the deciding token
        assert answer.reason is None, "an answer went on after its end"
        answer.take(output)
        if answer.request.text_lag:
            assert len(answer.tokens) - answer.acknowledged <= MAX_TEXT_LAG, "too far ahead of the text state"

    def _see_plan(self, plan: Plan) -> None:
        if plan is PROBE:
            return
        self.plans.append(plan)
        tables = {s.slot: s for s in self.engine.scheduler.running}
        # Who overtakes whom does not depend on what layers remember: it is held where there is one table. Elsewhere an
        # answer whose last token is computed again, for a late grammar, is still taken for a prompt (seed 2086).
        if self.layout is None:
            self._check_overtaking(plan, tables)
        written: set[int] = set()
        for fault in self.faults.struck[self._num_struck :]:
            if fault.kind == "nan":
                self._struck_by_nan.add(tables[plan.rows[fault.row].slot].request.id)
        self._num_struck = len(self.faults.struck)
        for row in plan.rows:
            size, pages = self.limits.page_size, set[int]()
            for page_ids in tables[row.slot].cache.tables:
                pages.update(page_ids[row.start // size : -(-(row.start + row.count) // size)])
            assert not pages & written, "two rows of a step write to one page"
            pool = self.engine.scheduler.cache.pool
            assert not any(pool.key_of(page) for page in pages), "a step writes to a shared page"
            written |= pages

    def _check_overtaking(self, plan: Plan, tables: dict[int, Sequence]) -> None:
        """Who is computed before an older prompt is computed whole, and with the decode rows in a quarter of a step."""
        scheduler = self.engine.scheduler
        if scheduler.isolation.active or self.limits.scheduling == "static":
            return  # there the order is another
        prompts = [(row, tables[row.slot]) for row in plan.rows if row.tokens is not None]
        # An answer goes on beside every prompt, also with a few tokens at once that were known beforehand, for which
        # its slot may be written anew.
        known = {s for row, s in prompts if row.start >= s.num_prompt and row.start + row.count > len(s.tokens)}
        starts = {s for row, s in prompts if row.start < s.num_prompt or row.sampling is not None}
        prompts = [(row, s) for row, s in prompts if s in starts - known]
        started = {sequence for row, sequence in prompts if row.sampling is not None}
        partial = [s for s in scheduler.running if not s.decoding and s.dispatched < len(s.known)]
        begun = [s.rank for s in partial]
        before = [s.rank for s in partial if s not in started]
        waiting = [s.rank for s in scheduler.waiting if not s.may_not_start]
        overtaking = [
            (row, s) for row, s in prompts if min(begun + waiting if s in started else before, default=s.rank) < s.rank
        ]
        if not overtaking:
            return
        self.num_overtaken += 1
        is_whole = [row.start + row.count == len(s.known) for row, s in overtaking]
        assert all(is_whole), "a prompt overtook another in part"
        taken = sum(row.count for row, _ in overtaking) + len(plan.rows) - len(prompts)
        assert taken <= self.limits.max_num_batched_tokens // 4, f"{taken} tokens of a step went to overtaking prompts"
