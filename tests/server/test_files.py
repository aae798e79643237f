"""/v1/files: what comes in is on disk as it came, in pieces on its way; all of it bounded."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from jaxinfer.offline.files import FileStore, KeptLimits
from jaxinfer.server.multipart import MAX_FORM_FIELD_BYTES, MAX_FORM_FIELDS, read_form
from tests.server.fakes import FakeLLM
from tests.server.http import error_of
from tests.server.storage import FILES, Client, serving
from tests.support.full_disk import full_disk

BOUNDARY = "multipart/form-data; boundary=xx"


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    named = f'; filename="{filename}"' if filename else ""
    return f'--xx\r\ncontent-disposition: form-data; name="{name}"{named}\r\n\r\n'.encode() + content + b"\r\n"


GOOD = part("purpose", b"batch") + part("file", b"{}", "a.jsonl") + b"--xx--\r\n"


@pytest.fixture
def client(request: pytest.FixtureRequest, tmp_path: Path):
    kept = getattr(request, "param", KeptLimits())
    with serving(FakeLLM(), tmp_path, kept=kept) as base, Client(base_url=base) as client:
        yield client


def test_a_file_comes_back_as_it_was_until_it_is_deleted(client):
    content = bytes(range(256)) * 9000 + b"\r\n--no boundary"
    sent = client.upload(content).json()
    assert (sent["object"], sent["bytes"], sent["purpose"]) == ("file", len(content), "batch")
    assert (sent["filename"], sent["status"]) == ("rows.jsonl", "processed")
    assert sent["expires_at"] - sent["created_at"] == KeptLimits().max_age_s
    assert client.get(f"{FILES}/{sent['id']}").json() == sent
    assert client.get(f"{FILES}/{sent['id']}/content").content == content
    assert client.get(FILES).json()["data"] == [sent]
    assert client.delete(f"{FILES}/{sent['id']}").json() == {"id": sent["id"], "object": "file", "deleted": True}
    for path in (f"{FILES}/{sent['id']}", f"{FILES}/{sent['id']}/content"):
        assert error_of(client.get(path))["code"] == "file_not_found"


def test_files_last_over_restarts_and_what_was_cut_off_is_gone(tmp_path):
    with serving(FakeLLM(), tmp_path) as base, Client(base_url=base) as client:
        sent = client.upload(b"kept").json()
    (tmp_path / "files" / "file-cut.data").write_bytes(b"half")
    (tmp_path / "files" / "file-cut.json.new").write_bytes(b"{")
    with serving(FakeLLM(), tmp_path) as base, Client(base_url=base) as client:
        assert client.get(FILES).json()["data"] == [sent]
    assert {path.stem for path in (tmp_path / "files").iterdir()} == {sent["id"]}


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"{}", "application/json", 415, "unsupported_media_type"),
        (b"{}", "multipart/form-data", 415, "unsupported_media_type"),
        (GOOD[:-10], BOUNDARY, 400, "invalid_multipart"),
        (b"no form", BOUNDARY, 400, "invalid_multipart"),
        (part("purpose", b"batch") + b"--xx--\r\n", BOUNDARY, 400, "missing_required_parameter"),
        (part("file", b"{}", "a") + b"--xx--\r\n", BOUNDARY, 400, "missing_required_parameter"),
        (part("purpose", b"assistants") + GOOD[len(part("purpose", b"batch")) :], BOUNDARY, 400, "invalid_value"),
        (part("purpose", b"batch") + GOOD, BOUNDARY, 400, "invalid_multipart"),
        (part("file", b"{}", "b") + GOOD, BOUNDARY, 400, "invalid_multipart"),
        (part("a", b"x" * (MAX_FORM_FIELD_BYTES + 1)) + GOOD, BOUNDARY, 400, "invalid_multipart"),
        (b"".join(part(f"f{i}", b"") for i in range(MAX_FORM_FIELDS)) + GOOD, BOUNDARY, 400, "invalid_multipart"),
        (part("a", b"\xff") + GOOD, BOUNDARY, 400, "invalid_multipart"),
        (part("file", b"{}", "x" * 300) + b"--xx--\r\n", BOUNDARY, 400, "invalid_value"),
        (part("expires_after[seconds]", b"9999") + GOOD, BOUNDARY, 400, "invalid_value"),
        (b"--xx\r\nx: y\r\n\r\n\r\n--xx--\r\n", BOUNDARY, 400, "invalid_multipart"),
        (b"--xx\r\n" + b"x" * 70_000, BOUNDARY, 400, "invalid_multipart"),
    ],
)
def test_a_form_at_fault_is_refused_and_leaves_nothing(client, tmp_path, content, kind, status, code):
    response = client.post(FILES, content=content, headers={"content-type": kind})
    assert (response.status_code, error_of(response)["code"]) == (status, code)
    assert list((tmp_path / "files").iterdir()) == []
    assert client.upload(b"{}").status_code == 200


def test_a_name_with_folders_loses_them(client):
    names = ["../../etc/passwd", "C:\\x\\rows.jsonl", "f/"]
    bodies = [part("purpose", b"batch") + part("file", b"1", name.replace("\\", "\\\\")) for name in names]
    headers = {"content-type": BOUNDARY}
    found = [client.post(FILES, content=body + b"--xx--\r\n", headers=headers).json() for body in bodies]
    assert [file["filename"] for file in found] == ["passwd", "rows.jsonl", "f"]


@pytest.mark.parametrize("client", [KeptLimits(max_file_bytes=1000, max_files=3, max_bytes=2500)], indirect=True)
def test_files_are_bounded_one_by_one_in_number_and_together(client, tmp_path):
    assert client.delete(f"{FILES}/{client.upload(b'').json()['id']}").status_code == 200
    for content in (b"x" * 1001, b"x" * 5_000_000):
        response = client.upload(content)
        assert (response.status_code, error_of(response)["code"]) == (413, "body_too_large")
    form = part("purpose", b"batch") + part("file", b"x" * 1001, "a") + b"--xx--\r\n"
    chunked = client.post(FILES, content=iter([form]), headers={"content-type": BOUNDARY})
    assert chunked.status_code == 413
    ids = [client.upload(b"x" * 1000).json()["id"] for _ in range(2)]
    assert error_of(client.upload(b"x" * 501))["code"] == "storage_full"
    assert client.upload(b"x" * 500).status_code == 200
    assert error_of(client.upload(b""))["code"] == "too_many_files"
    client.delete(f"{FILES}/{ids[0]}")
    assert client.upload(b"x" * 1000).status_code == 200
    assert len(list((tmp_path / "files").iterdir())) == 2 * 3


def test_what_the_disk_does_not_take_is_not_kept_and_not_counted(tmp_path):
    store = FileStore(tmp_path / "files", KeptLimits())
    with full_disk(2**14), pytest.raises(OSError, match="too large"), store.uploading("somebody") as upload:
        for _ in range(9):
            upload.take(3000)
            upload.write(b"x" * 3000)
    assert store.counts() == (0, 0)
    assert list((tmp_path / "files").iterdir()) == []


@pytest.mark.parametrize("client", [KeptLimits(max_age_s=1)], indirect=True)
def test_files_go_when_they_are_too_old(client, tmp_path):
    client.upload(b"{}")
    time.sleep(1.1)
    assert client.get(FILES).json()["data"] == []
    assert list((tmp_path / "files").iterdir()) == []


def test_a_client_may_let_a_file_expire_sooner(client):
    fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    sent = client.upload(b"{}", **fields).json()
    assert sent["expires_at"] - sent["created_at"] == 3600


def test_of_an_upload_no_more_than_a_piece_is_held_at_a_time():
    class Target:
        largest = total = 0

        def take(self, num_bytes: int) -> None:
            self.total += num_bytes

        def write(self, data: bytes) -> None:
            self.largest = max(self.largest, len(data))

    chunks = [part("file", b"", "a")[:-2], *[b"x" * 65536] * 512, b"\r\n--xx--\r\n"]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", BOUNDARY.encode())]}
    target = Target()
    form = asyncio.run(read_form(Request(scope, receive), target))
    assert (form.filename, target.total) == ("a", 512 * 65536)
    assert target.largest <= 2**20 + 2 * 65536


def test_a_client_that_leaves_in_the_middle_leaves_nothing(client, tmp_path):
    async def half() -> AsyncIterator[bytes]:
        yield part("purpose", b"batch") + part("file", b"x" * 3_000_000, "a")
        raise ConnectionError

    async def leave() -> None:
        import httpx2

        async with httpx2.AsyncClient(base_url=client.base_url) as other:
            await other.post(FILES, content=half(), headers={"content-type": BOUNDARY})

    with pytest.raises(ConnectionError):
        asyncio.run(leave())
    deadline = time.monotonic() + 10
    while list((tmp_path / "files").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list((tmp_path / "files").iterdir()) == []
    assert json.loads(client.get(FILES).text)["data"] == []
