"""Whoever leaves a turn of a session, at whatever byte of it, leaves the session in one of two states, byte for byte:
that before the turn, or that after all of it. Over the engine process of a dry run.
"""

import dataclasses
import random
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import MODULE
from jaxinfer.llm.process import EngineProcess
from jaxinfer.server.app import create_app
from jaxinfer.server.sessions import Session
from tests.server.http import CHAT, live, raw_request, wait_until

FIRST = [{"role": "user", "content": "one"}]
SECOND = {"messages": [{"role": "user", "content": "two"}], "session_append": True, "seed": 2, "max_tokens": 40}
THIRD = {"messages": [{"role": "user", "content": "three"}], "session_append": True, "seed": 3, "max_tokens": 8}
LONG = {"ignore_eos": True, "temperature": 1}
ENDED = b'"finish_reason":"length"'


class Noting(AsyncLLM):
    """Notes what the engine was last told to keep of each session."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, new_transport=partial(EngineProcess, child=(MODULE, "0.001")))
        self.kept: dict[str, tuple[str, tuple[int, ...]]] = {}

    def keep(self, session: str, salt: str, tokens: Sequence[int]) -> None:
        self.kept[session] = salt, tuple(tokens)
        super().keep(session, salt, tokens)


@dataclasses.dataclass(frozen=True)
class State:
    """All that a server holds of a session. history: its conversation, as bytes.    kept: the tokens of its pages."""

    turns: int
    tokens: int
    history: bytes | None
    kept: tuple[int, ...]
    pages: int


class Server:
    """The server as a client sees it, and what it holds."""

    def __init__(self, app: Starlette, llm: Noting, port: int, client: httpx2.Client) -> None:
        self.app, self.llm, self.port, self.client = app, llm, port, client

    def session(self, name: str) -> Session:
        (own,) = self.app.state.sessions._by_tenant.values()
        found: Session = own[name]
        return found

    def state(self, name: str) -> State:
        """Once no turn is under way and the engine has done what it was told."""
        session = self.session(name)
        wait_until(lambda: session.turn is None)
        salt, tokens = self.llm.kept[session.key]
        assert salt.endswith(f"/{name}")
        num_pages = (len(tokens) - 1) // 16  # the last token was drawn and never computed
        wait_until(lambda: self._pages(name) == num_pages)
        return State(session.turns, session.tokens, session.history, tokens, num_pages)

    def _pages(self, name: str) -> int:
        found = self.client.get(f"/v1/sessions/{name}").json()
        return int(found["pages"] + found["host_pages"])

    def ask(self, name: str, **body: Any) -> tuple[str, int]:
        """The answer's text, and how many tokens of its prompt were there; no other session's are."""
        response = self.client.post(CHAT, json=self.body(name, **body))
        assert response.status_code == 200, response.text
        details = response.json()["usage"]["prompt_tokens_details"]
        return response.json()["choices"][0]["message"]["content"], details["cached_tokens"]

    def body(self, name: str, **body: Any) -> dict[str, Any]:
        return LONG | body | {"session_id": name, "cache_salt": name}

    def begin(self, name: str) -> None:
        self.ask(name, messages=FIRST, seed=1, max_tokens=40)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    config = EngineConfig(
        model="demo", max_model_len=512, max_num_seqs=4, max_num_batched_tokens=64, num_pages=400, page_size=16
    )
    llm = Noting(config)
    app = create_app(llm)
    with (
        live(app, llm.start, llm.close) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield Server(app, llm, port, client)


@dataclasses.dataclass(frozen=True)
class Allowed:
    """A state in which a left session may be. after, cached: what is answered to what comes next, and how many tokens
    of its prompt were there.
    """

    state: State
    after: str
    cached: int


@pytest.fixture(scope="module")
def allowed(server: Server) -> tuple[Allowed, Allowed]:
    """Before the turn, and after it; neither is reached by leaving."""
    server.begin("before")
    server.begin("after")
    server.ask("after", **SECOND)
    before, after = server.state("before"), server.state("after")
    assert (before.turns, after.turns) == (1, 2) and before.pages < after.pages
    assert before.history and after.history and after.history.startswith(before.history[:-1])
    answers = [server.ask(name, **THIRD) for name in ("before", "after")]
    assert answers[0][0] != answers[1][0] and 0 < answers[0][1] < answers[1][1]
    return Allowed(before, *answers[0]), Allowed(after, *answers[1])


def leave_stream(server: Server, name: str, num_bytes: int) -> bytes:
    """Read so many bytes of a streamed turn and close the connection."""
    received = b""
    with raw_request(server.port, CHAT, server.body(name, **SECOND, stream=True), connection="close") as connection:
        while len(received) < num_bytes and (chunk := connection.recv(num_bytes - len(received))):
            received += chunk
    return received


def leave_whole(server: Server, name: str, after_s: float) -> None:
    """Close the connection of a turn that is not streamed, so long after it has begun."""
    session = server.session(name)
    with raw_request(server.port, CHAT, server.body(name, **SECOND)):
        wait_until(lambda: session.turn is not None or session.turns == 2)
        time.sleep(after_s)


def check(server: Server, name: str, allowed: tuple[Allowed, Allowed]) -> int:
    """Which of the two it is: the state, and what the next turn finds."""
    found = server.state(name)
    assert found in [each.state for each in allowed]
    expected = allowed[0] if found == allowed[0].state else allowed[1]
    text, cached = server.ask(name, **THIRD)
    assert text == expected.after and cached >= expected.cached  # what a left turn has computed may be there still
    assert server.client.delete(f"/v1/sessions/{name}").status_code == 200
    return found.turns


SEEDS = [pytest.param(0, 14), pytest.param(1, 150, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("seed", "num_points"), SEEDS)
def test_a_stream_left_at_any_byte_is_a_turn_recorded_whole_or_never_there(server, allowed, seed, num_points):
    rng = random.Random(seed)
    server.begin(f"all-{seed}")
    size = len(leave_stream(server, f"all-{seed}", 2**20))
    assert check(server, f"all-{seed}", allowed) == 2
    seen = []
    # Near the end is where recording and leaving meet; where that is differs, since a frame may hold several tokens.
    near = [rng.randint(1, size) if i % 2 else size - rng.randint(0, 900) for i in range(num_points - 2)]
    points = [1, 2**20, *near]
    for number, num_bytes in enumerate(points):
        name = f"stream-{seed}-{number}"
        server.begin(name)
        received = leave_stream(server, name, num_bytes)
        turns = check(server, name, allowed)
        assert turns == 2 or ENDED not in received, "it was recorded before the client was told"
        seen.append(turns)
    assert set(seen) == {1, 2}


@pytest.mark.parametrize(("seed", "num_points"), SEEDS)
def test_so_is_an_answer_that_is_not_streamed_left_at_any_moment(server, allowed, seed, num_points):
    rng = random.Random(seed)
    began_s = time.monotonic()
    server.begin(f"timed-{seed}")
    took_s = time.monotonic() - began_s
    moments = [0.0, 3 * took_s, *(rng.uniform(0, 1.5 * took_s) for _ in range(num_points - 2))]
    seen = []
    for number, after_s in enumerate(moments):
        name = f"whole-{seed}-{number}"
        server.begin(name)
        leave_whole(server, name, after_s)
        seen.append(check(server, name, allowed))
    assert set(seen) == {1, 2}
