"""`jaxinfer serve --files-dir`: killed again and again, each row is answered once; and other requests go first."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from subprocess import Popen

import pytest

from jaxinfer.cli.options import OTHER_ENV
from jaxinfer.cli.storage import OPTIONS
from jaxinfer.offline.files import KeptLimits
from jaxinfer.server import serve as server
from jaxinfer.server.settings import ServerSettings
from tests.server.http import CHAT, USER, wait_until
from tests.server.storage import BATCHES, Client, chat_rows
from tests.support.processes import SERVE, serving

NUM_ROWS, NUM_KILLS = 240, 4
DRY = ("--dry-run", "--port", "0", "--max-num-seqs", "4")


@contextlib.contextmanager
def started(folder: Path, *flags: str) -> Iterator[tuple[Client, "Popen[bytes]"]]:
    log = folder.with_suffix(".log")
    with serving(log, *SERVE, *DRY, "--files-dir", folder, *flags) as (process, port):
        with Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client, process
        assert "Traceback" not in log.read_text()


def test_what_is_kept_where_and_how_much_comes_from_flags_and_variables(cli, model, monkeypatch, tmp_path):
    served: list[ServerSettings] = []

    def run_server(app, *_: object) -> int:
        served.append(app.state.settings)
        return 0

    monkeypatch.setattr(server, "run_server", run_server)
    monkeypatch.setenv("JAXINFER_MAX_FILE_BYTES", "3M")
    flags = ("--max-files-per-key", "4", "--max-files-bytes-per-key", "1G", "--max-batches-per-key", "5")
    more = ("--max-batch-rows", "6", "--max-file-age-s", "7")
    for _ in range(2):  # the folder is free again
        assert cli("serve", "--files-dir", str(tmp_path / "new" / "folder"), *flags, *more).code == 0
    assert served[0].files_folder == tmp_path / "new" / "folder"
    assert served[0].files_folder.stat().st_mode & 0o777 == 0o700
    assert served[0].kept == KeptLimits(
        max_file_bytes=3 * 2**20, max_files=4, max_bytes=2**30, max_batches=5, max_rows=6, max_age_s=7.0
    )
    alone = cli("serve", *flags)
    assert (alone.code, "need --files-dir" in alone.last_line) == (2, True)
    (tmp_path / "file").write_text("")
    wrong = cli("serve", "--files-dir", str(tmp_path / "file"))
    assert (wrong.code, "; name another folder for --files-dir" in wrong.last_line) == (2, True)


def test_every_option_has_a_variable_and_each_limit_is_in_the_table():
    assert {option.envvar for option in OPTIONS} <= OTHER_ENV
    table = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
    assert [option.opts[-1] for option in OPTIONS[1:] if f"`{option.opts[-1]}`" not in table] == []


@pytest.mark.slow
def test_killed_again_and_again_each_row_is_answered_once_and_as_in_one_piece(tmp_path):
    rows, batch_id, done = chat_rows(NUM_ROWS, max_tokens=8, temperature=1.0, seed=7), "", 0
    rows[5]["body"]["temperature"] = 9

    def num_answered(client: Client) -> int:
        return int(client.batch(batch_id)["request_counts"]["completed"])

    for kill in itertools.count():
        with started(tmp_path / "state", "--dry-run-step-ms", "10") as (client, process):
            batch_id = batch_id or client.begin(rows)
            if kill == NUM_KILLS:
                batch = client.ended(batch_id, timeout_s=60)
                answers = client.rows(batch["output_file_id"]) + client.rows(batch["error_file_id"])
                break
            wait_until(partial(lambda client, before: num_answered(client) > before + 10, client, done), 30)
            done = num_answered(client)
            assert client.batch(batch_id)["status"] == "in_progress"
            process.kill()
    assert batch["request_counts"] == {"total": NUM_ROWS, "completed": NUM_ROWS - 1, "failed": 1}
    assert Counter(row["custom_id"] for row in answers) == Counter(row["custom_id"] for row in rows)
    with started(tmp_path / "whole") as (client, _):
        whole = client.rows(client.ended(client.begin(rows), timeout_s=60)["output_file_id"])

    def texts(found: list[dict]) -> dict[str, str]:
        bodies = {row["custom_id"]: row["response"]["body"] for row in found if row["error"] is None}
        return {name: body["choices"][0]["message"]["content"] for name, body in bodies.items()}

    assert texts(answers) == texts(whole)


@pytest.mark.slow
def test_a_request_does_not_wait_for_rows_that_hold_every_slot(tmp_path):
    """Not one of the rows has ended when it is answered, though they came first and are all running."""
    with started(tmp_path / "state", "--dry-run-step-ms", "20") as (client, process):
        batch_id = client.begin(chat_rows(8, max_tokens=400, ignore_eos=True))
        wait_until(lambda: 'state="running"} 4.0' in client.get("/metrics").text, 20)
        answer = client.post(CHAT, json={"messages": USER, "max_tokens": 5}).json()
        assert answer["usage"]["completion_tokens"] == 5
        assert client.batch(batch_id)["request_counts"] == {"total": 8, "completed": 0, "failed": 0}
        assert 'preemptions_total{model_name="demo"} 1.0' in client.get("/metrics").text
        client.post(f"{BATCHES}/{batch_id}/cancel")
        assert client.ended(batch_id)["status"] == "cancelled"
        wait_until(lambda: client.get("/load").json()["pages_owned"] == 0, 10)
        process.terminate()
        assert process.wait(20) == 0
