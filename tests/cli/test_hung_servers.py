"""Servers that take a connection and then hang: told soon, ended soon, by every verb that asks one."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from jaxinfer.bench import serve

LIMIT_S = 0.15
ANSWERS = {"/v1/models": {"data": [{"id": "tiny"}]}, "/openapi.json": {"paths": {"/v1/chat/completions": {}}}}
VERBS = {
    "connect": ("--url", "URL"),
    "run hi": ("--url", "URL"),
    "chat": ("--url", "URL"),
    "bench serve": ("--url", "URL"),
    "bench serve --model tiny --vocab-size 9": ("--url", "URL"),
    "bench compare": ("--a", "URL", "--b", "URL"),
}


def response(path: str) -> bytes:
    body = json.dumps(ANSWERS.get(path, {})).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@contextlib.contextmanager
def hung_at(path: str, num_bytes: int = 0) -> Iterator[str]:
    """A server that answers what it is asked, but of `path` no more than the first bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        open_ones: list[socket.socket] = []

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    open_ones.append(connection)
                    asked = connection.recv(65536).split(b" ")[1].decode()
                    connection.sendall(response(asked)[: num_bytes if asked == path else None])

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in open_ones:
                connection.close()


@pytest.fixture(autouse=True)
def hurried(monkeypatch, model) -> None:
    monkeypatch.setattr(serve, "LOOK_UP_S", LIMIT_S)
    monkeypatch.setattr(serve, "SOON_S", LIMIT_S / 3)


@pytest.mark.parametrize("verb", VERBS)
def test_a_server_that_never_answers_is_told_soon_and_ends_the_verb(cli, model, verb):
    with hung_at("/v1/models") as url:
        began_s = time.monotonic()
        outcome = cli(*verb.split(), *(url if word == "URL" else word for word in VERBS[verb]))
    assert time.monotonic() - began_s < 5
    assert (outcome.code, outcome.out, model.made) == (5, "", [])
    said = f"error: the server at {url} has not answered GET /v1/models in {LIMIT_S:g} s; try again, or "
    assert outcome.last_line.startswith(said)
    waits = f"waiting up to {LIMIT_S:g} s for {url}, which does not answer\n", f"requests to {url}\n"
    assert any(wait in outcome.err for wait in waits)


@pytest.mark.parametrize("path", ANSWERS)
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_an_answer_that_stops_anywhere_is_a_server_that_hangs(cli, path, share):
    with hung_at(path, int(len(response(path)) * share)) as url:
        outcome = cli("connect", "--url", url)
    assert (outcome.code, outcome.out) == (5, "")
    assert f"has not answered GET {path} in {LIMIT_S:g} s" in outcome.last_line


def test_the_time_that_an_answer_takes_to_begin_is_told(cli, monkeypatch):
    monkeypatch.setattr("jaxinfer.cli.checklist.SILENCE_S", 0.0)
    monkeypatch.setattr("jaxinfer.cli.talker.TIMEOUT_S", 0.7)
    with hung_at("/v1/chat/completions") as url:
        outcome = cli("run", "hi", "--url", url)
    assert f"wait     the answer of {url}  (" in outcome.err
    assert outcome.last_line.startswith(f"error: the answer of {url} broke off: timed out")
    assert outcome.code == 5
