"""A hub on localhost: enough of Hugging Face's HTTP for huggingface_hub to list and download repositories."""

import dataclasses
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import constants


@dataclasses.dataclass
class FakeHub:
    """folders: repository id to its files. Changed by tests while it runs.

    gated: ids whose files are refused.    claimed_sizes: file name to the size that listings and HEAD state.
    status: answered to everything when set.    requests: "METHOD path" of each, in order.
    """

    url: str = ""
    folders: dict[str, Path] = dataclasses.field(default_factory=dict)
    gated: set[str] = dataclasses.field(default_factory=set)
    claimed_sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    status: int | None = None
    requests: list[str] = dataclasses.field(default_factory=list)

    @property
    def downloads(self) -> list[str]:
        """The files whose bytes were asked for."""
        return [line.rsplit("/", 1)[1] for line in self.requests if line.startswith("GET") and "/resolve/" in line]


def commit_of(repo_id: str) -> str:
    """The one commit of a repository, which its branch "main" names too."""
    return hashlib.sha1(repo_id.encode()).hexdigest()


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """A hub that answers until the block ends."""
    hub = FakeHub()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _answer(hub, self)

        def do_HEAD(self) -> None:
            _answer(hub, self)

        def log_message(self, *args: object) -> None:
            """Tests print nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def take_for_the_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Let huggingface_hub ask this hub, without a token, and keep its files there."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)


def _answer(hub: FakeHub, request: http.server.BaseHTTPRequestHandler) -> None:
    path = request.path.partition("?")[0]
    hub.requests.append(f"{request.command} {path}")
    repo_id = "/".join(path.removeprefix("/api/models").strip("/").split("/")[:2])
    folder = hub.folders.get(repo_id)
    if hub.status is not None:
        _send(request, hub.status, b"{}")
    elif folder is None:
        _send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
    elif "/revision/" in path and path.rsplit("/", 1)[1] not in ("main", commit_of(repo_id)):
        _send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
    elif path.startswith("/api/models") and "/tree/" in path:
        _send(request, 200, json.dumps(_tree(hub, folder)).encode())
    elif path.startswith("/api/models"):
        _send(request, 200, json.dumps(_info(hub, repo_id, folder)).encode())
    elif repo_id in hub.gated:
        _send(request, 403, b"{}", {"X-Error-Code": "GatedRepo"})
    else:
        file = folder / path.rsplit("/", 1)[1]
        content = file.read_bytes()
        headers = {"ETag": _etag(content), "X-Repo-Commit": commit_of(repo_id)}
        headers |= {"Content-Length": str(_size(hub, file))} if request.command == "HEAD" else {}
        _send(request, 200, content, headers)


def _info(hub: FakeHub, repo_id: str, folder: Path) -> dict[str, object]:
    siblings = [{"rfilename": path.name, "size": _size(hub, path)} for path in sorted(folder.iterdir())]
    return {"id": repo_id, "modelId": repo_id, "sha": commit_of(repo_id), "private": False, "siblings": siblings}


def _tree(hub: FakeHub, folder: Path) -> list[dict[str, object]]:
    return [
        {"type": "file", "path": path.name, "size": _size(hub, path), "oid": _etag(path.read_bytes()).strip('"')}
        for path in sorted(folder.iterdir())
    ]


def _size(hub: FakeHub, path: Path) -> int:
    return hub.claimed_sizes.get(path.name, path.stat().st_size)


def _etag(content: bytes) -> str:
    return f'"{hashlib.sha1(content).hexdigest()}"'


def _send(
    request: http.server.BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    request.send_response(status)
    for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)
