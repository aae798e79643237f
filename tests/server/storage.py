"""A server with files and batches over a scripted engine, and how a client asks it."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from jaxinfer.offline.files import KeptLimits
from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, live, wait_until

FILES, BATCHES = "/v1/files", "/v1/batches"
ENDED = ("completed", "failed", "expired", "cancelled")


class Client(httpx2.Client):
    """httpx, and what is said to these routes."""

    def upload(self, content: bytes, purpose: str = "batch", **fields: str) -> httpx2.Response:
        return self.post(FILES, files={"file": ("rows.jsonl", content)}, data={"purpose": purpose, **fields})

    def begin(self, rows: list[Any] | bytes, endpoint: str = CHAT, **fields: Any) -> str:
        """A batch of these rows; its id."""
        content = rows if isinstance(rows, bytes) else jsonl(rows)
        body = {"input_file_id": self.upload(content).json()["id"], "endpoint": endpoint, "completion_window": "24h"}
        response = self.post(BATCHES, json=body | fields)
        assert response.status_code == 200, response.text
        return str(response.json()["id"])

    def batch(self, batch_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"{BATCHES}/{batch_id}").json()
        return found

    def ended(self, batch_id: str, timeout_s: float = 20) -> dict[str, Any]:
        wait_until(lambda: self.batch(batch_id)["status"] in ENDED, timeout_s=timeout_s)
        return self.batch(batch_id)

    def rows(self, file_id: str | None) -> list[dict[str, Any]]:
        """Of a file that a batch made, if it made one."""
        if file_id is None:
            return []
        return [json.loads(line) for line in self.get(f"{FILES}/{file_id}/content").text.splitlines()]


def jsonl(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def chat_rows(count: int, first: int = 0, **fields: Any) -> list[dict[str, Any]]:
    return [
        {
            "custom_id": f"row {i}",
            "method": "POST",
            "url": CHAT,
            "body": {"messages": [{"role": "user", "content": f"question {i}"}], **fields},
        }
        for i in range(first, first + count)
    ]


@contextlib.contextmanager
def serving(
    llm: FakeLLM,
    folder: Path,
    *,
    keys: tuple[ApiKey, ...] = (),
    kept: KeptLimits | None = None,
    window_s: float | None = None,
) -> Iterator[str]:
    """The address of a server that keeps its files there and carries out batches; the folder is free again after it."""
    app = create_app(llm, ServerSettings(api_keys=keys, files_folder=folder, kept=kept or KeptLimits()))
    storage, tasks = app.state.storage, []
    if window_s is not None:
        storage.batches._window_s = window_s

    async def begin() -> None:
        tasks.append(asyncio.create_task(storage.batches.run()))

    async def close() -> None:
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        with live(app, begin, close) as port:
            yield f"http://127.0.0.1:{port}"
    finally:
        storage.close()
