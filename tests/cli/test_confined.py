"""What the whole program does not do, whatever it is asked for: open a file, a connection or a second port (A18, A19,
A21).

Python tells an audit hook of each; the engine is in the same process, so that the hook sees it all.
"""

import ast
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

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
        told.write(f"{{event}} {{args[:2]!r}}\\n")
sys.addaudithook(hook)
from jaxinfer.cli import main
main()
"""


@dataclasses.dataclass(frozen=True)
class Program:
    """`jaxinfer serve --dry-run` under the hook. told: what the hook was told of.    files: its folder of files."""

    pid: int
    port: int
    client: httpx2.Client
    told: Path
    files: Path

    def opened_after(self, before: int) -> list[str]:
        """The lines told since then that are of nothing in its folder of files."""
        with self.told.open() as told:
            told.seek(before)
            return [line for line in told if not all(self._is_own(part) for part in _paths(line))]

    def _is_own(self, path: str) -> bool:
        return os.path.normpath(path) == path and Path(path).is_relative_to(self.files)


def _paths(line: str) -> list[str]:
    """What an event is about; an event that is of no file is about itself. Descriptors are told of as they open."""
    event, _, args = line.partition(" ")
    if not event.startswith(("open", "os.")):
        return [event]
    values = ast.literal_eval(args)
    return [str(value) for value in values[: 2 if event == "os.rename" else 1] if not isinstance(value, int)]


@pytest.fixture(scope="module", params=["without files", "with files"])
def program(request, tmp_path_factory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("confined")
    log, told, files = folder / "log", folder / "told", folder / "files"
    kept = ["--files-dir", files] if request.param == "with files" else []
    command = "-c", AUDITED, told, "serve", "demo", "--dry-run", "--in-process", "--port", "0", *kept
    with serving(log, *command) as (process, port), httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
        yield Program(process.pid, port, client, told, files)


NAMES = ("../../../etc/passwd", "/etc/passwd", "tiny\0.txt", "t/" * 2048, "file:///etc/passwd", "http://127.0.0.1:9/x")
# what a chat and a completion answer to a name in each field: fields that nobody reads are ignored
FIELDS = {
    "model": (404, 404),
    "session_id": (400, 400),
    "lora_path": (400, 400),
    "request_id": (400, 400),
    "chat_template": (400, 200),
    "tokenizer": (200, 200),
    "prompt_embeds": (400, 400),
    "user": (200, 200),
}
ROWS = b'{"custom_id":"x","method":"POST","url":"/v1/completions","body":{"prompt":"a","max_tokens":1}}\n'


def hostile() -> Iterator[tuple[str, str, dict[str, object], int]]:
    """(method, path, body, status) of requests that name files and addresses."""
    for name in NAMES:
        for field, (of_chat, of_completion) in FIELDS.items():
            yield "POST", CHAT, {"messages": USER, "max_tokens": 1, field: name}, of_chat
            yield "POST", COMPLETIONS, {"prompt": "x", "max_tokens": 1, field: name}, of_completion
        part = {"type": "image_url", "image_url": {"url": name}}
        yield "POST", CHAT, {"messages": [{"role": "user", "content": [part]}]}, 400
        yield "POST", "/tokenize", {"prompt": "x", "model": name}, 404
        yield "POST", "/abort_request", {"request_id": name}, 200
        fits = len(name) < 500
        said = {"messages": [{"role": "user", "content": f"![x]({name})"}], "max_tokens": 1}
        yield "POST", CHAT, said, 200 if fits else 400
        yield "POST", COMPLETIONS, {"prompt": name, "max_tokens": 1}, 200 if fits else 400
    for path in ("/v1/models/../../etc/passwd", "/v1/models/%2e%2e%2fx", "/%2e%2e/%2e%2e/etc/passwd", "/metrics/../x"):
        yield "GET", path, {}, 404


def test_whatever_a_request_names_nothing_is_opened_or_started(program):
    """A21; and A18 for the whole program."""
    with ends_at_rest(Place(str(program.client.base_url), program.pid)):
        ask_all_that_is_hostile(program)


def ask_all_that_is_hostile(program: Program) -> None:
    for path, body in ((CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": "x"}), ("/tokenize", {"prompt": "x"})):
        assert program.client.post(path, json=body).status_code == 200
    assert "open" in program.told.read_text(), "the hook is told of something"
    before = program.told.stat().st_size
    for method, path, body, status in hostile():
        answer = program.client.request(method, path, json=body)
        assert answer.status_code == status, (path, body, answer.text)
    with program.told.open() as told:
        told.seek(before)
        assert told.read() == ""


def test_names_of_files_and_batches_are_no_paths(program):
    """A21: what is uploaded is called whatever its client likes, and lies in the folder under a name of ours alone."""
    if not program.files.exists():
        assert program.client.get("/v1/files").status_code == 404
        return
    outside = program.files.parent / "outside.data"
    outside.write_bytes(ROWS)
    (program.files.parent / "outside.json").write_text("{}")
    client, before = program.client, program.told.stat().st_size
    for name in (*NAMES, "../../outside", str(outside), "..%2f..%2foutside", ".", "..", "a\\..\\b", "x\r\ny: z"):
        sent = client.post("/v1/files", files={"file": (name, ROWS)}, data={"purpose": "batch"})
        assert sent.status_code in (200, 400), sent.text
        quoted = quote(name, safe="").replace(".", "%2e")
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
            assert client.request(method, f"/v1/files/{quoted}{path}").status_code == 404, name
        assert client.get(f"/v1/batches/{quoted}").status_code == 404
        assert client.post(f"/v1/batches/{quoted}/cancel").status_code == 404
        assert client.get("/v1/files", params={"after": name}).status_code == 400
        batch = {"input_file_id": name, "endpoint": "/v1/completions", "completion_window": "24h"}
        assert client.post("/v1/batches", json=batch).status_code in (400, 404)
        batch |= {"endpoint": name, "input_file_id": "x"}
        assert client.post("/v1/batches", json=batch).status_code in (400, 404)
    assert program.told.stat().st_size > before and program.opened_after(before) == []
    assert outside.read_bytes() == ROWS and len(client.get("/v1/files").json()["data"]) > 5


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
        asking = pool.submit(lambda: [client.request(method, path, json=body) for method, path, body, _ in again])
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
