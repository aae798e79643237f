"""run_server in a process of its own: the port is there at once, SIGTERM drains, a second one does not wait."""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from jaxinfer.errors import ConfigError
from jaxinfer.server.serve import bind
from tests.server.http import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    SCORE,
    USER,
    error_of,
    events,
    raw_request,
    read_until,
    wait_until,
)
from tests.server.serve_fake import NUM_TOKENS
from tests.support.attempts import Stopwatch

ROOT = Path(__file__).resolve().parents[2]
BODY = json.dumps({"messages": USER, "max_tokens": 1}).encode()
HALF = len(BODY) // 2
DONE = b"data: [DONE]\n\n\r\n0\r\n\r\n"


class Program:
    """serve_fake.py, running."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.port = int(process.stdout.readline())

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(f"http://127.0.0.1:{self.port}{path}")

    def post_chat(self) -> httpx2.Response:
        return httpx2.post(f"http://127.0.0.1:{self.port}{CHAT}", json={"messages": USER})

    def is_ready(self) -> bool:
        return self.get("/ready").status_code == 200

    def end(self, timeout_s: float = 5.0) -> tuple[int, str]:
        """The exit code and what was printed since the port."""
        output, errors = self.process.communicate(timeout=timeout_s)
        assert "Traceback" not in errors, errors
        return self.process.returncode, output


@contextlib.contextmanager
def program(drain_timeout_s: float = 10.0, start: str = "ready") -> Iterator[Program]:
    command = [sys.executable, "-m", "tests.server.serve_fake", str(drain_timeout_s), start]
    environment = {**os.environ, "PYTHONPATH": "."}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Program(process)
        finally:
            process.kill()


def test_the_port_answers_503_while_the_model_loads():
    with program(start="gated") as server:
        response = server.post_chat()
        assert response.status_code == 503
        assert server.get("/ready").status_code == 503
        assert error_of(response)["code"] == "starting"
        assert int(response.headers["retry-after"]) >= 1
        assert server.process.stdin is not None
        server.process.stdin.write("go\n")
        server.process.stdin.flush()
        wait_until(server.is_ready)
        assert server.post_chat().status_code == 200


def preparing(seconds: float) -> dict[str, dict[str, object]]:
    """Requests whose texts take so long to encode, by route."""
    text = str(seconds)
    chat: dict[str, object] = {"messages": [{"role": "user", "content": text}]}
    return {
        CHAT: chat | {"max_tokens": 1},
        COMPLETIONS: {"prompt": text, "max_tokens": 1, "stream": True},
        RESPONSES: {"input": text, "max_output_tokens": 1},
        f"{RESPONSES}/input_tokens": {"input": text},
        MESSAGES: chat | {"max_tokens": 1},
        f"{MESSAGES}/count_tokens": chat,
        EMBEDDINGS: {"input": text},
        SCORE: {"text_1": text, "text_2": "b"},
        "/api/chat": chat | {"stream": False},
        "/tokenize": {"prompt": text},
        "/apply-template": chat,
    }


@contextlib.contextmanager
def taking(server: Program, seconds: float) -> Iterator[list[socket.socket]]:
    """The clients of all these requests, which the server has taken; the last has sent a half of its body."""
    wait_until(server.is_ready)
    with contextlib.ExitStack() as stack:
        taken = [
            stack.enter_context(raw_request(server.port, path, {"model": "tiny", **body}))
            for path, body in preparing(seconds).items()
        ]
        length = str(len(BODY))
        taken.append(stack.enter_context(raw_request(server.port, CHAT, BODY[:HALF], content_length=length)))
        assert server.is_ready() and server.is_ready(), "all that came before is taken"
        yield taken


def assert_told_that_it_stops(taken: list[socket.socket]) -> None:
    """Each in its API's own form."""
    for path, connection in zip([*preparing(0), CHAT], taken, strict=True):
        answer = read_until(connection, b"")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ") and b"retry-after: " in head and b"x-request-id: " in head, answer
        error = json.loads(body)["error"]
        message = error if path.startswith("/api/") else error["message"]
        assert message == "the server stops before it could answer this request; send it to another"


def test_sigterm_lets_what_was_taken_finish_however_far_it_is_and_refuses_new_ones():
    with program() as server, taking(server, 2.0) as taken:
        with raw_request(server.port, CHAT, {"messages": USER, "stream": True, "max_tokens": 10}) as connection:
            begun = connection.recv(4096)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not server.is_ready(), timeout_s=2)
            assert server.get("/health").status_code == 200
            rest = read_until(connection, DONE)
        time.sleep(0.5)  # five of uvicorn's looks at whether it shall end
        refused = server.post_chat()
        assert refused.status_code == 503
        assert error_of(refused)["code"] == "draining"
        assert "retry-after" in refused.headers
        taken[-1].sendall(BODY[HALF:])
        answers = [read_until(each, b"") for each in taken]
        assert (begun + rest).count(b'"content":"x"') == 10
        assert server.end() == (0, "exit 0\n")
    assert [answer.partition(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 200 OK"] * len(answers), answers


def test_sigterm_without_work_ends_at_once():
    with program() as server:
        wait_until(server.is_ready)
        watch = Stopwatch()
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == (0, "exit 0\n")
        assert watch.seconds() < 2


def test_what_still_runs_after_the_drains_time_is_aborted_and_told_so():
    with program(drain_timeout_s=0.7) as server, taking(server, 60.0) as taken:
        with raw_request(server.port, CHAT, {"messages": USER, "stream": True, "seed": 1}) as connection:
            begun = connection.recv(4096)
            server.process.send_signal(signal.SIGTERM)
            told = begun + read_until(connection, DONE)
            assert_told_that_it_stops(taken)
            wait_until(lambda: server.process.poll() is not None, timeout_s=10)
        assert server.end()[0] == 0
        assert told.count(b'"finish_reason":"abort"') == 1


def test_a_second_sigterm_does_not_wait():
    with program(drain_timeout_s=60) as server, taking(server, 60.0) as taken:
        with raw_request(server.port, CHAT, {"messages": USER, "stream": True, "seed": 1}) as connection:
            connection.recv(4096)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not server.is_ready())
            watch = Stopwatch()
            server.process.send_signal(signal.SIGTERM)
            ended = read_until(connection, DONE)
            assert_told_that_it_stops(taken)
            assert server.end() == (1, "exit 1\n")
            assert watch.seconds() < 2
        assert ended.count(b'"code":"draining"') == 1 and b'"finish_reason":"' not in ended


def test_sigterm_while_the_model_loads_ends_at_once():
    with program(start="slow") as server:
        assert server.post_chat().status_code == 503
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == (0, "exit 0\n")


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_error():
    with program(start="broken") as server:
        assert server.end() == (3, "config.json: no such model\nexit 3\n")


def test_what_is_no_http_gets_an_error_object_too():
    with program() as server, socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(b"hello there\r\n\r\n")
        answer = read_until(connection, b"}}")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"invalid_http"' in answer


def test_a_port_in_use_is_a_config_error():
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is in use; stop what uses it, or pass another --port"):
            bind("127.0.0.1", port)


def test_a_host_that_is_not_ours_is_a_config_error():
    for host in ("no-such-host.invalid", "192.0.2.1"):  # an address for documentation, RFC 5737
        with pytest.raises(ConfigError, match=f"address of this machine, got '{host}': .*; pass --host 127.0.0.1"):
            bind(host, 0)


def test_a_port_that_this_user_may_not_open_is_a_config_error(monkeypatch):
    def refuse(self, address):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(ConfigError, match="port must be one that this user may open.* got 80: .*; pass another --port"):
        bind("127.0.0.1", 80)


def test_events_reads_what_the_live_server_streams():
    with program() as server:
        wait_until(server.is_ready)
        body = {"messages": USER, "stream": True}
        text = httpx2.post(f"http://127.0.0.1:{server.port}{CHAT}", json=body).text
    assert len(events(text)) == NUM_TOKENS + 2
