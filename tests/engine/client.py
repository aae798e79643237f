"""Client: drives an Engine over a FakeRunner as the rooms above do, and holds every answer against the oracle."""

import dataclasses

from jaxinfer.config import Limits
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.sequence import MAX_TEXT_LAG, Abort, Acknowledge, Add, End, Output, Request
from jaxinfer.runtime.plan import Plan
from tests.engine.device import FakeRunner, alone


@dataclasses.dataclass
class Answer:
    """One choice as the client sees it. text_stop: the token at which its text state would find a stop string."""

    request: Request
    index: int
    text_stop: int | None = None
    tokens: list[int] = dataclasses.field(default_factory=list)
    acknowledged: int = 0
    reason: str | None = None
    cached_tokens: int = 0


class Client:
    """Requests in, answers out; every invariant checked after every step."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.runner = FakeRunner(limits, self._see_plan)
        self.engine = Engine(self.runner, limits)
        self.answers: dict[tuple[str, int], Answer] = {}
        self.plans: list[Plan] = []

    def add(self, request: Request, text_stop: int | None = None) -> None:
        for index in range(request.n):
            self.answers[request.id, index] = Answer(request, index, text_stop)
        self.engine.inbox.put(Add(request))

    def abort(self, request_id: str) -> None:
        self.engine.inbox.put(Abort(request_id))

    def step(self) -> list[Output]:
        outputs = self.engine.step()
        self.engine.check()
        for output in outputs:
            self._read(output)
        return outputs

    def read_text(self, answer: Answer, num_tokens: int) -> None:
        """Let an answer's text state see `num_tokens` tokens in all."""
        seen = answer.tokens[:num_tokens]
        key = (answer.request.id, answer.index)
        if answer.text_stop in seen and answer.reason is None:
            del answer.tokens[seen.index(answer.text_stop) + 1 :]
            answer.reason = "text"
            self.engine.inbox.put(End(*key))
        answer.acknowledged = len(seen)
        self.engine.inbox.put(Acknowledge(*key, len(seen)))

    def finish(self, max_steps: int = 10_000) -> None:
        """Step until every answer has ended, text states reading at once."""
        for _ in range(max_steps):
            for answer in self.answers.values():
                if answer.request.text_lag and answer.reason is None and len(answer.tokens) > answer.acknowledged:
                    self.read_text(answer, len(answer.tokens))
            if not self.engine.has_work:
                break
            self.step()
        assert all(answer.reason for answer in self.answers.values()), "a request was lost"
        stats = self.engine.stats()
        assert stats.pages_free + stats.pages_cached == stats.pages_total, "a page was not given back"
        self.check_answers()

    def check_answers(self) -> None:
        for answer in self.answers.values():
            if answer.reason:
                self.check_answer(answer)

    def check_answer(self, answer: Answer) -> None:
        """An ended answer's tokens are those of the request running alone."""
        expected, reason = alone(answer.request, answer.index, self.limits)
        if answer.reason == "text":
            expected, reason = expected[: expected.index(answer.text_stop) + 1], "text"
        if answer.reason == "abort" or (answer.reason == "error" and answer.request.n > 1):
            assert answer.tokens == expected[: len(answer.tokens)]
        else:
            assert (answer.tokens, answer.reason) == (expected, reason)

    def tokens(self) -> dict[tuple[str, int], list[int]]:
        return {key: answer.tokens for key, answer in self.answers.items()}

    def _read(self, output: Output) -> None:
        answer = self.answers[output.request_id, output.index]
        if answer.reason == "text":
            return  # beyond the deciding token
        assert answer.reason is None, "an answer went on after its end"
        answer.tokens += output.token_ids
        answer.reason = output.finish_reason
        answer.cached_tokens = output.cached_tokens
        if answer.request.text_lag:
            assert len(answer.tokens) - answer.acknowledged <= MAX_TEXT_LAG, "too far ahead of the text state"

    def _see_plan(self, plan: Plan) -> None:
        self.plans.append(plan)
        tables = {s.slot: s for s in self.engine.scheduler.running}
        written: set[int] = set()
        for row in plan.rows:
            page_ids = tables[row.slot].page_ids
            size = self.limits.page_size
            pages = set(page_ids[row.start // size : -(-(row.start + row.count) // size)])
            assert not pages & written, "two rows of a step write to one page"
            assert not any(self.engine.scheduler.pool.key_of(page) for page in pages), "a step writes to a shared page"
            written |= pages
