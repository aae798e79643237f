"""What the whole program does not do, whatever it is asked for: open a file, a connection or a second port (A18, A19,
A21).

Python tells an audit hook of each; the engine is in the same process, so that the hook sees it all.
"""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.server.http import CHAT, COMPLETIONS, USER
from tests.server.rest import Place, ends_at_rest
from tests.support.processes import SERVE, children_of, environment, family, listening, serving, sockets

WATCHED = r"open$|os\.(listdir|scandir|exec|posix_spawn|system|remove|rename|mkdir)|socket\.|subprocess\.|ctypes\."
AUDITED = f"""
import re, sys
told = open(sys.argv.pop(1), "a", buffering=1)
def hook(event, args):
    if re.match({WATCHED!r}, event) and event not in ("socket.__new__", "socket.bind"):
        told.write(f"{{event}} {{args[:2]!r:.300}}\\n")
sys.addaudithook(hook)
from jaxinfer.cli import main
main()
"""


@dataclasses.dataclass(frozen=True)
class Program:
    """`jaxinfer serve --dry-run` under the hook. told: what the hook was told of."""

    pid: int
    port: int
    client: httpx2.Client
    told: Path


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("confined")
    log, told = folder / "log", folder / "told"
    command = "-c", AUDITED, told, "serve", "demo", "--dry-run", "--in-process", "--port", "0"
    with serving(log, *command) as (process, port), httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
        yield Program(process.pid, port, client, told)


NAMES = ("../../../etc/passwd", "/etc/passwd", "tiny\0.txt", "t/" * 2048, "file:///etc/passwd", "http://127.0.0.1:9/x")
FIELDS = ("model", "session_id", "lora_path", "request_id", "chat_template", "tokenizer", "prompt_embeds", "user")


def hostile() -> Iterator[tuple[str, str, dict[str, object]]]:
    """(method, path, body) of requests that name files and addresses."""
    for name in NAMES:
        for path, base in ((CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": name})):
            yield from (("POST", path, base | {"max_tokens": 1, field: name}) for field in FIELDS)
        part = {"type": "image_url", "image_url": {"url": name}}
        yield "POST", CHAT, {"messages": [{"role": "user", "content": [part]}]}
        yield "POST", CHAT, {"messages": [{"role": "user", "content": f"![x]({name})"}], "max_tokens": 1}
        yield "POST", "/tokenize", {"prompt": "x", "model": name}
        yield "POST", "/abort_request", {"request_id": name}
    for path in ("/v1/models/../../etc/passwd", "/v1/models/%2e%2e%2fx", "/%2e%2e/%2e%2e/etc/passwd", "/metrics/../x"):
        yield "GET", path, {}


def test_whatever_a_request_names_nothing_is_opened_or_started(program):
    """A21; and A18 for the whole program."""
    with ends_at_rest(Place(str(program.client.base_url), program.pid)):
        ask_all_that_is_hostile(program)


def ask_all_that_is_hostile(program: Program) -> None:
    for path, body in ((CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": "x"}), ("/tokenize", {"prompt": "x"})):
        assert program.client.post(path, json=body).status_code == 200
    assert "open" in program.told.read_text(), "the hook is told of something"
    before = program.told.stat().st_size
    answers = [program.client.request(method, path, json=body).status_code for method, path, body in hostile()]
    assert set(answers) == {200, 400, 404} and len(answers) > 100
    with program.told.open() as told:
        told.seek(before)
        assert told.read() == ""


def test_one_port_is_listened_on(program):
    """A19"""
    (address,) = listening(program.pid)
    assert address == f"tcp 0100007F:{program.port:04X}"
    assert not children_of(program.pid)


def test_its_processes_listen_at_one_port_and_connect_to_nobody_whatever_is_asked(tmp_path):
    """A19 from outside, for the program as it is: its own process, the engine's and that which tries grammars."""
    command = *SERVE, "demo", "--dry-run", "--port", "0"
    with (
        serving(tmp_path / "log", *command) as (process, port),
        httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client,
        ThreadPoolExecutor(1) as pool,
    ):
        form = {"prompt": "x", "max_tokens": 1, "structured_outputs": {"regex": "a+"}}
        assert client.post(COMPLETIONS, json=form).status_code == 200
        again = (one for _ in range(5) for one in hostile())  # long enough to be looked at often
        asking = pool.submit(lambda: [client.request(method, path, json=body) for method, path, body in again])
        seen = []
        while not asking.done():
            seen.append({found for pid in family(process.pid) for found in sockets(pid)})
        assert {answer.status_code for answer in asking.result()} == {200, 400, 404}
        assert len(family(process.pid)) == 3 and len(seen) > 10
        served = f"0100007F:{port:04X}"
        assert set.union(*seen) == {("tcp", served, True), ("tcp", served, False)}, (
            "its port, and clients who came to it"
        )
        assert ("tcp", served) not in [found[:2] for found in sockets(os.getpid())], "ours goes out from another"
        assert sockets(os.getpid())


def test_a_batch_row_that_names_addresses_is_refused_and_nobody_is_asked(tmp_path):
    """A18"""
    url = "http://127.0.0.1:9/x"
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "file", "file": {"file_url": url}},
        {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
    ]
    rows = [{"messages": [{"role": "user", "content": [part]}], "max_tokens": 1} for part in parts]
    rows += [{"messages": USER, "max_tokens": 1, "file_url": url}, {"prompt": f"![x]({url})", "max_tokens": 1}]
    told = tmp_path / "told"
    command = [sys.executable, "-c", AUDITED, told, "batch", "-i", "-", "-o", "-", "--dry-run"]
    given = "".join(json.dumps(row) + "\n" for row in rows).encode()
    done = subprocess.run(command, input=given, capture_output=True, env=environment(), timeout=120)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["status"] for answer in answers] == [400, 400, 400, 200, 200], done.stderr.decode()
    assert all("is not supported" in answer["error"] for answer in answers[:3]), answers[:3]
    asked = [line for line in told.read_text().splitlines() if line.startswith("socket.") and "127.0.0.1" in line]
    assert asked == [] and "open" in told.read_text()
