"""What a session keeps for its next turn: random conversations with edits, regenerations and aborts, in the midst of
requests that want every page, against each request running alone and against the tokens that had to be computed.
"""

import random

import pytest

from jaxinfer.engine.sequence import Forget, Keep, Request
from tests.engine.client import Client
from tests.engine.device import CURSED, make_limits

LONGEST = 100  # tokens of a conversation
SIZE = 4
PER_SESSION = LONGEST // SIZE + 4  # pages; the answer's too


class Conversation:
    """One session's turns. recorded: what its last turn left behind.    finds_all: and the next one must find."""

    def __init__(self, rng: random.Random, name: str, client: Client, finds_all: bool) -> None:
        self.rng, self.name, self.client, self.finds_all = rng, name, client, finds_all
        self.recorded: list[int] = []
        self.num_turns = 0
        self.num_aborted = 0
        self.num_found = 0
        self.request: Request | None = None

    def next_prompt(self) -> list[int]:
        """The conversation goes on, is answered again, is edited somewhere, or begins anew where it is too long."""
        rng, base = self.rng, self.recorded
        kind = rng.random()
        if kind < 0.2 and self.request is not None:
            return list(self.request.prompt)
        if kind < 0.4:
            base = base[: rng.randint(0, len(base))]
        new = [rng.randrange(CURSED) for _ in range(rng.randint(1, 12))]
        return (base if len(base) < LONGEST - 30 else []) + new

    def step(self) -> None:
        """Begin a turn, abort it now and then, or record the one that has ended."""
        if self.request is None or self.answer.reason is not None:
            self._record()
            if self.rng.random() < 0.05:
                self.client.engine.inbox.put(Forget(self.name))
                self.recorded = []
            self.num_turns += 1
            self.request = Request(
                f"{self.name} {self.num_turns}",
                tuple(self.next_prompt()),
                self.rng.randint(1, 15),
                temperature=self.rng.choice((0.0, 1.0)),
                seed=self.num_turns,
            )
            self.client.add(self.request)
        elif self.rng.random() < 0.01:
            self.client.abort(self.request.id)

    @property
    def answer(self):
        assert self.request is not None
        return self.client.answers[self.request.id, 0]

    def _record(self) -> None:
        if self.request is None:
            return
        answer, prompt = self.answer, list(self.request.prompt)
        if answer.tokens:
            self._check(answer.cached_tokens, prompt)
        if answer.reason not in ("stop", "length"):
            self.num_aborted += 1
            return
        self.recorded = prompt + answer.tokens
        self.client.engine.inbox.put(Keep(self.name, "", tuple(self.recorded)))

    def _check(self, cached: int, prompt: list[int]) -> None:
        """Only what is new was computed, and at most a page."""
        pairs = zip(prompt, self.recorded, strict=False)
        common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(prompt), len(self.recorded)))
        assert not self.finds_all or len(prompt) - cached <= len(prompt) - common + SIZE
        self.num_found += cached


def crowd(
    seed: int, num_pages: int, num_sessions: int = 4, num_steps: int = 800, finds_all: bool = True
) -> tuple[Client, list[Conversation]]:
    """Sessions among three sequences at a time that share nothing with anybody."""
    rng = random.Random(seed)
    client = Client(make_limits(num_pages=num_pages, max_session_pages=10**6, max_num_seqs=num_sessions + 3))
    sessions = [Conversation(rng, name, client, finds_all) for name in "abcdefgh"[:num_sessions]]
    noise = 0
    for _ in range(num_steps):
        for session in sessions:
            if rng.random() < 0.5:
                session.step()
        if sum(a.reason is None for key, a in client.answers.items() if key[0][0] == "-") < 3:
            noise += 1
            prompt = tuple(rng.randrange(CURSED) for _ in range(20))
            client.add(Request(f"-{noise}", prompt, 12, priority=1))
        client.step()
    client.finish()
    return client, sessions


@pytest.mark.parametrize("seed", range(4))
def test_each_turn_computes_what_is_new_and_at_most_a_page_whatever_others_want(seed):
    # a turn under way may own as many pages as its session keeps, and a stranger 8
    client, sessions = crowd(seed, num_pages=1 + 4 * 2 * PER_SESSION + 3 * 8 + 4)
    assert client.engine.stats().preemptions == 0
    assert all(session.num_turns > 20 for session in sessions)
    assert sum(session.num_aborted for session in sessions) > 3
    assert sum(session.num_found for session in sessions) > 2000


def test_where_pages_are_short_sessions_are_computed_again_and_nobody_waits_for_them():
    client, sessions = crowd(9, num_pages=1 + 8 * PER_SESSION // 4, num_sessions=8, num_steps=500, finds_all=False)
    assert client.engine.stats().preemptions > 0
    assert all(session.num_turns > 5 for session in sessions)
    for session in sessions:
        client.engine.inbox.put(Forget(session.name))
    client.step()
    assert client.engine.stats().pages_kept == 0
