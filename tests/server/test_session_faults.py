"""Sessions whose clients leave, whose engine dies, whose pages are wanted by others: over the engine process of a dry
run, with real scheduler, pages and wire, every answer against the same request without a session or a cache (A49).
"""

import os
import random
import re
import signal
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.server.app import create_app
from tests.server.dry import dry_llm
from tests.server.http import CHAT, COMPLETIONS, USER, live, wait_until
from tests.server.streams import ask_all, ask_alone

SESSIONS = "/v1/sessions"
LONG = {"ignore_eos": True, "temperature": 1}


class Server:
    """The server as a client sees it, and its counters."""

    def __init__(self, llm: AsyncLLM, port: int, client: httpx2.Client) -> None:
        self.llm, self.port, self.client = llm, port, client
        self._num_replays = 0

    def ask(self, path: str, **body: Any) -> tuple[str, int]:
        """The answer's text, and how many tokens of its prompt were there."""
        response = self.client.post(path, json=LONG | body)
        assert response.status_code == 200, response.text
        choice, usage = response.json()["choices"][0], response.json()["usage"]
        text: str = choice["message"]["content"] if "message" in choice else choice["text"]
        return text, usage["prompt_tokens_details"]["cached_tokens"]

    def replay(self, path: str, **body: Any) -> str:
        """The same without a session or a cache."""
        self._num_replays += 1
        text, cached = self.ask(path, **body, cache_salt=f"replay {self._num_replays}")
        assert cached == 0
        return text

    def session(self, name: str) -> dict[str, Any]:
        """As the server shows it; empty when it is not there."""
        found = self.client.get(f"{SESSIONS}/{name}")
        return found.json() if found.status_code == 200 else {}

    def leave(self, num_lines: int, **body: Any) -> None:
        """Begin a streamed chat, read so many lines of it and close the connection."""
        with self.client.stream("POST", CHAT, json=LONG | {"stream": True} | body) as stream:
            lines = stream.iter_lines()  # held: one that nobody holds closes the stream
            for _ in range(num_lines):
                next(lines, None)
        wait_until(lambda: self.session(body["session_id"]).get("status", "idle") == "idle")


@pytest.fixture(scope="module")
def llm() -> AsyncLLM:
    return dry_llm(0.001, max_model_len=512, max_num_seqs=4, max_num_batched_tokens=64, num_pages=65, page_size=16)


@pytest.fixture(scope="module")
def port(llm: AsyncLLM) -> Iterator[int]:
    with live(create_app(llm), llm.start, llm.close) as port:
        yield port


@pytest.fixture
def server(llm: AsyncLLM, port: int) -> Iterator[Server]:
    """Its sessions are deleted in the end, and then nobody has a page."""
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield Server(llm, port, client)
        for session in client.get(SESSIONS).json()["data"]:
            assert client.delete(f"{SESSIONS}/{session['id']}").status_code == 200
    wait_until(lambda: (llm.stats().running, llm.stats().pages_owned, llm.stats().pages_kept) == (0, 0, 0))
    wait_until(lambda: llm.stats().host_pages_by == {})
    stats = llm.stats()
    assert stats.pages_free + stats.pages_cached == stats.pages_total


def kill(server: Server) -> None:
    os.kill(server.llm.replicas.transports[0].pid, signal.SIGKILL)


@pytest.mark.parametrize("seed", range(2))
def test_at_random_each_turn_is_as_without_a_session_and_recorded_whole_or_not_at_all(server, seed):
    """One person goes on, edits, asks again, leaves, deletes, and loses the engine."""
    rng, name = random.Random(seed), f"random-{seed}"
    messages: list[dict[str, str]] = []
    turns = 0
    for number in range(30):
        kind = rng.choice(("leave", "leave", "edit", "again", "delete", *("go on",) * 4)) if messages else "go on"
        if number in (10, 20):
            kill(server)
        if kind == "delete":
            assert server.client.delete(f"{SESSIONS}/{name}").status_code == (200 if turns else 404)
            turns = 0
        if kind == "edit" or len(messages) > 10:
            del messages[rng.randrange(len(messages)) // 2 * 2 :]
        if kind == "again" and messages:
            messages.pop()
        else:
            messages.append({"role": "user", "content": f"number {number}"})
        asked = {"messages": list(messages), "seed": number, "max_tokens": 8}
        if kind == "leave":
            server.leave(rng.randint(1, 14), **asked, session_id=name)
            now = server.session(name).get("turns", 0)
            assert now - turns in (0, 1)
            turns = now
        expected = server.replay(CHAT, **asked)
        assert server.ask(CHAT, **asked, session_id=name)[0] == expected
        turns += 1
        assert server.session(name)["turns"] == turns
        messages.append({"role": "assistant", "content": expected})


def test_who_leaves_midway_leaves_the_session_as_it_was(server):
    server.ask(CHAT, messages=USER, max_tokens=20, session_id="left")
    before = server.session("left")
    for num_lines in (1, 5):
        server.leave(num_lines, messages=[*USER, *USER], max_tokens=400, session_id="left")
        after = server.session("left")
        assert [after[key] for key in ("turns", "tokens")] == [before[key] for key in ("turns", "tokens")]
    server.leave(1, messages=USER, max_tokens=400, session_id="new")
    assert server.session("new") == {}


def test_a_turn_in_which_the_engine_died_is_recorded_with_its_pages(server):
    asked = {"prompt": [3 + i % 90 for i in range(100)], "seed": 6, "max_tokens": 60, **LONG}
    (alone,) = ask_alone(server.port, [asked | {"cache_salt": "alone"}])
    server.ask(COMPLETIONS, **asked | {"max_tokens": 1}, session_id="goes-on")
    frames = 0

    def kill_at_the_tenth_frame() -> None:
        nonlocal frames
        frames += 1
        if frames == 10:
            kill(server)

    (answer,) = ask_all(server.port, [asked | {"session_id": "goes-on"}], kill_at_the_tenth_frame)
    assert answer.said == alone.said
    wait_until(lambda: server.session("goes-on")["pages"] == 9, timeout_s=10)
    found = server.session("goes-on")
    assert (found["turns"], found["tokens"], found["status"]) == (2, 160, "idle")
    assert server.ask(COMPLETIONS, **asked, session_id="goes-on") == (answer.texts[0], 96)


def test_running_sequences_take_the_pages_of_sessions_and_no_answer_changes(server):
    """Six conversations of 19 pages, four of them at a time, where there are 64."""
    bodies = [{"prompt": [i + 1, 7], "seed": i, "max_tokens": 300, **LONG} for i in range(6)]
    alone = ask_alone(server.port, bodies)
    before = server.llm.stats().preemptions
    turns = [body | {"session_id": f"crowd-{i}"} for i, body in enumerate(bodies)]
    for _ in range(2):
        assert [answer.said for answer in ask_all(server.port, turns)] == [answer.said for answer in alone]
    assert server.llm.stats().preemptions > before
    wait_until(lambda: server.llm.stats().running == 0)
    assert 0 < server.llm.stats().pages_kept <= 32


def test_conversations_that_take_turns_find_in_host_memory_what_the_pool_had_no_room_for(server):
    """Six of 18 pages, where there are 64."""
    first = [[i + 1, *((7 * i + 3 * j) % 90 for j in range(279))] for i in range(6)]
    for i, prompt in enumerate(first):
        assert server.ask(COMPLETIONS, prompt=prompt, max_tokens=8, session_id=f"taking-turns-{i}")[1] == 0
    wait_until(lambda: server.session("taking-turns-0")["host_pages"] == 17)
    wait_until(lambda: server.llm.stats().running == 0)
    before, was = server.llm.stats().pages_loaded, server.llm.stats()
    for i, prompt in enumerate(first):
        asked = {"prompt": [*prompt, 7, 8, 9], "max_tokens": 8, "seed": 5}
        text, cached = server.ask(COMPLETIONS, **asked, session_id=f"taking-turns-{i}")
        assert cached == 272
        assert text == server.replay(COMPLETIONS, **asked)
    wait_until(lambda: server.llm.stats().pages_loaded >= before + 18)
    now = server.llm.stats()
    assert now.host_cached_tokens >= was.host_cached_tokens + 18 * 16, "pages of 16 tokens"
    assert now.cached_tokens - now.host_cached_tokens >= was.cached_tokens - was.host_cached_tokens
    page = server.client.get("/metrics").text
    assert re.search(r'vllm:prompt_tokens_cached_by_source_total\{.*source="host"\} [1-9]', page)
    assert server.session("taking-turns-5")["host_pages"] == 0
    assert server.client.delete(f"{SESSIONS}/taking-turns-0").json()["deleted"]
    assert server.ask(COMPLETIONS, prompt=first[0], max_tokens=1)[1] == 0


def test_a_deleted_session_s_pages_are_blank_at_once_and_found_by_nobody(server):
    asked = {"prompt": [8 + i % 70 for i in range(97)], "max_tokens": 1}
    for name in ("goes", "stays"):
        assert server.ask(COMPLETIONS, **asked, session_id=name, cache_salt=name)[1] == 0
    wait_until(lambda: server.session("goes")["pages"] == server.session("stays")["pages"] == 6)
    before = server.llm.stats()
    assert server.client.delete(f"{SESSIONS}/goes").json()["deleted"]
    wait_until(lambda: server.llm.stats().pages_free == before.pages_free + 6)
    assert server.llm.stats().pages_kept == before.pages_kept - 6 == 6
    assert [server.ask(COMPLETIONS, **asked, cache_salt=name)[1] for name in ("goes", "stays")] == [0, 96]
