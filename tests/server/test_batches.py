"""/v1/batches: each row answered once, after all other requests, whatever ends the server; bounded; a tenant's own."""

import asyncio
import errno
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.errors import BatchError, ConfigError, EngineError
from jaxinfer.llm.types import Delta
from jaxinfer.offline import batch_record, job
from jaxinfer.offline.batches import LOWEST, MAX_RUNNING_BATCHES, Batches
from jaxinfer.offline.files import KeptLimits
from jaxinfer.offline.journal import Journal
from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.fakes import FakeLLM, hello
from tests.server.http import CHAT, COMPLETIONS, EMBEDDINGS, ask, ask_app, error_of, wait_until
from tests.server.storage import BATCHES, FILES, Client, chat_rows, jsonl, serving

ALICE, BOB = ApiKey("alice", "sk-alice-0123"), ApiKey("bob", "sk-bob-012345")


def client_of(base: str, key: ApiKey | None = None) -> Client:
    return Client(base_url=base, headers={"authorization": f"Bearer {key.secret}"} if key else {})


class Gate:
    """A script that lets so many answers through; the others wait."""

    def __init__(self, count: int) -> None:
        self.left = itertools.count(count, -1)

    def __call__(self, prompt_ids: list[int], params: Any) -> list[Any]:
        return list(hello(prompt_ids, params)) if next(self.left) > 0 else [asyncio.Event()]


def test_a_batch_is_answered_row_by_row_into_an_output_and_an_error_file(tmp_path):
    rows = chat_rows(30)
    rows[7]["body"]["temperature"] = 9
    rows[8]["body"]["priority"] = -5
    llm = FakeLLM()
    with serving(llm, tmp_path) as base, client_of(base) as client:
        batch = client.ended(client.begin(rows, metadata={"a": "b"}))
        found, failed = client.rows(batch["output_file_id"]), client.rows(batch["error_file_id"])
        listed = {file["id"]: file for file in client.get(FILES, params={"purpose": "batch_output"}).json()["data"]}
        head = client.get(f"{FILES}/{batch['output_file_id']}/content").headers
    assert batch["status"] == "completed" and batch["metadata"] == {"a": "b"} and batch["errors"] is None
    assert batch["request_counts"] == {"total": 30, "completed": 28, "failed": 2}
    moments = [batch[f"{name}_at"] for name in ("created", "in_progress", "finalizing", "completed")]
    assert moments == sorted(moments)
    assert {row["custom_id"] for row in found} == {f"row {i}" for i in range(30) if i not in (7, 8)}
    assert len(found) == 28
    for row in found:
        assert row["response"]["status_code"] == 200 and row["error"] is None
        assert row["response"]["body"]["choices"][0]["message"]["content"] == "Hello"
    assert {row["custom_id"]: row["response"]["body"]["error"]["param"] for row in failed} == {
        "row 7": "temperature",
        "row 8": "priority",
    }
    assert listed.keys() == {batch["output_file_id"], batch["error_file_id"]}
    assert head["content-type"] == "application/octet-stream" and "attachment" in head["content-disposition"]
    assert {call.priority for call in llm.calls} == {LOWEST}
    assert not list((tmp_path / "batches").glob("*.partial"))


@pytest.mark.parametrize(
    ("url", "body", "kind"),
    [
        (COMPLETIONS, {"prompt": ["one", "two"], "n": 2}, "text_completion"),
        (EMBEDDINGS, {"input": ["one", "two", "three"]}, "list"),
    ],
)
def test_the_other_endpoints_are_answered_as_their_routes_answer(tmp_path, url, body, kind):
    with serving(FakeLLM(), tmp_path) as base, client_of(base) as client:
        rows = [{"custom_id": str(i), "method": "POST", "url": url, "body": body} for i in range(3)]
        batch = client.ended(client.begin(rows, url))
        answered = client.rows(batch["output_file_id"])
        served = client.post(url, json=body).json()
    assert (len(answered), batch["error_file_id"]) == (3, None)
    for row in answered:
        found = row["response"]["body"]
        assert found["object"] == kind
        assert {**found, "id": 0, "created": 0} == {**served, "id": 0, "created": 0}


@pytest.mark.parametrize(
    ("lines", "code", "param", "line"),
    [
        (b"", "empty_file", None, None),
        (b"\n \n", "empty_file", None, None),
        (jsonl(chat_rows(2)) + b"{no json\n", "invalid_json", None, 3),
        (jsonl(chat_rows(1) * 2), "duplicate_custom_id", "custom_id", 2),
        (jsonl([chat_rows(1)[0] | {"url": COMPLETIONS}]), "invalid_value", "url", 1),
        (jsonl([chat_rows(1)[0] | {"method": "GET"}]), "invalid_value", "method", 1),
        (jsonl([{"prompt": "a plain row"}]), "missing_required_parameter", "custom_id", 1),
        (jsonl(chat_rows(6)), "too_many_rows", None, None),
    ],
)
def test_an_input_that_cannot_be_a_batch_fails_it_and_says_which_line(tmp_path, lines, code, param, line):
    llm = FakeLLM()
    with serving(llm, tmp_path, kept=KeptLimits(max_rows=5)) as base, client_of(base) as client:
        batch = client.ended(client.begin(lines))
    assert batch["status"] == "failed" and batch["failed_at"]
    assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)
    (fault,) = batch["errors"]["data"]
    assert (fault["code"], fault["param"], fault["line"]) == (code, param, line) and fault["message"]
    assert llm.calls == []


def test_a_cancelled_batch_keeps_what_was_answered_and_nothing_of_it_runs(tmp_path):
    llm = FakeLLM(Gate(3))
    with serving(llm, tmp_path) as base, client_of(base) as client:
        batch_id = client.begin(chat_rows(20))
        wait_until(lambda: client.batch(batch_id)["request_counts"]["completed"] == 3)
        assert error_of(client.delete(f"{FILES}/{client.batch(batch_id)['input_file_id']}"))["code"] == "file_in_use"
        assert client.post(f"{BATCHES}/{batch_id}/cancel").json()["status"] in ("cancelling", "cancelled")
        batch = client.ended(batch_id)
        assert batch["status"] == "cancelled" and len(client.rows(batch["output_file_id"])) == 3
        assert client.delete(f"{FILES}/{batch['input_file_id']}").json()["deleted"] is True
        again = client.post(f"{BATCHES}/{batch_id}/cancel")
    assert again.status_code == 400 and "cancelled" in error_of(again)["message"]
    assert llm.running == set()


def test_a_cancel_that_could_not_be_written_takes_effect_when_it_is_asked_for_again(tmp_path, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with serving(FakeLLM(Gate(3)), tmp_path) as base, client_of(base) as client:
        batch_id = client.begin(chat_rows(20))
        wait_until(lambda: client.batch(batch_id)["request_counts"]["completed"] == 3)
        with monkeypatch.context() as patched:
            patched.setattr(batch_record, "save", full)
            assert client.post(f"{BATCHES}/{batch_id}/cancel").status_code >= 500
        assert client.post(f"{BATCHES}/{batch_id}/cancel").json()["status"] in ("cancelling", "cancelled")
        assert client.ended(batch_id)["status"] == "cancelled"


def test_rows_that_had_no_turn_in_time_fail_as_expired(tmp_path):
    """However many have had one on a busy machine, three at most."""
    with serving(FakeLLM(Gate(3)), tmp_path, window_s=2) as base, client_of(base) as client:
        batch = client.ended(client.begin(chat_rows(20)))
        late, answered = client.rows(batch["error_file_id"]), client.rows(batch["output_file_id"])
    assert batch["status"] == "expired" and len(answered) <= 3
    assert batch["request_counts"] == {"total": 20, "completed": len(answered), "failed": len(late)}
    assert {row["custom_id"] for row in answered + late} == {f"row {i}" for i in range(20)} and len(late) >= 17
    assert {(row["response"], row["error"]["code"]) for row in late} == {(None, "batch_expired")}


def test_a_batch_that_was_answered_in_time_is_completed_however_late_its_server_starts_again(tmp_path, monkeypatch):
    async def killed(self, batch, outcome):
        raise EngineError("killed before it wrote down that all is answered")

    with serving(FakeLLM(), tmp_path) as base, client_of(base) as client, monkeypatch.context() as patched:
        patched.setattr(Batches, "_decide", killed)
        batch_id = client.begin(chat_rows(4))
        wait_until(lambda: client.batch(batch_id)["request_counts"]["completed"] == 4)
    path = tmp_path / "batches" / f"{batch_id}.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"expires_at": 1}))
    monkeypatch.setattr(job, "_BREATH", 2)  # rows passed over before the time that is left is looked at
    with serving(FakeLLM(), tmp_path) as base, client_of(base) as client:
        batch = client.ended(batch_id)
    assert batch["status"] == "completed" and batch["request_counts"] == {"total": 4, "completed": 4, "failed": 0}


def test_a_server_that_starts_again_answers_only_what_is_left(tmp_path):
    first, second = FakeLLM(Gate(5)), FakeLLM()
    with serving(first, tmp_path) as base, client_of(base) as client:
        batch_id = client.begin(chat_rows(20))
        wait_until(lambda: client.batch(batch_id)["request_counts"]["completed"] == 5)
    with serving(second, tmp_path) as base, client_of(base) as client:
        batch = client.ended(batch_id)
        found = Counter(row["custom_id"] for row in client.rows(batch["output_file_id"]))
    assert batch["status"] == "completed"
    assert found == Counter(f"row {i}" for i in range(20))
    assert len(second.calls) == 15
    assert not list((tmp_path / "batches").glob("*.partial"))


def test_each_batch_draws_its_own_answers_and_goes_on_with_them_after_a_restart(tmp_path):
    first, second, other = FakeLLM(Gate(2)), FakeLLM(), FakeLLM()
    with serving(first, tmp_path) as base, client_of(base) as client:
        batch_id = client.begin(chat_rows(6))
        wait_until(lambda: client.batch(batch_id)["request_counts"]["completed"] == 2 and len(first.calls) == 6)
    with serving(second, tmp_path) as base, client_of(base) as client:
        client.ended(batch_id)
    with serving(other, tmp_path) as base, client_of(base) as client:
        client.ended(client.begin(chat_rows(6)))
    begun, resumed, others = ({call.prompt: call.random_seed for call in llm.calls} for llm in (first, second, other))
    assert len(resumed) == 4 and resumed.items() <= begun.items()
    assert others.keys() == begun.keys() and len({*begun.values(), *others.values()}) == 12


def test_another_model_does_not_go_on_with_a_batch(tmp_path):
    with serving(FakeLLM(Gate(2)), tmp_path) as base, client_of(base) as client:
        batch_id = client.begin(chat_rows(9))
        wait_until(lambda: client.batch(batch_id)["request_counts"]["completed"] == 2)
    with serving(FakeLLM(fingerprint="another"), tmp_path) as base, client_of(base) as client:
        batch = client.ended(batch_id)
        assert len(client.rows(batch["output_file_id"])) == 2
    assert batch["status"] == "failed" and "the model's config" in batch["errors"]["data"][0]["message"]


def test_what_a_restart_finds_too_little_room_for_is_kept_and_goes_no_further(tmp_path):
    with serving(FakeLLM(Gate(5)), tmp_path) as base, client_of(base) as client:
        batch_id = client.begin(chat_rows(9))
        wait_until(lambda: client.batch(batch_id)["request_counts"]["completed"] == 5)
    with serving(FakeLLM(), tmp_path, kept=KeptLimits(max_bytes=100)) as base, client_of(base) as client:
        batch = client.ended(batch_id)
        assert batch["status"] == "failed" and batch["errors"]["data"][0]["code"] == "storage_full"
        assert len(client.rows(batch["output_file_id"])) == 5


def test_a_batch_whose_input_is_gone_fails_without_a_path_in_its_error(tmp_path):
    with serving(FakeLLM(Gate(2)), tmp_path) as base, client_of(base) as client:
        batch_id = client.begin(chat_rows(9))
        wait_until(lambda: client.batch(batch_id)["request_counts"]["completed"] == 2)
        file_id = client.batch(batch_id)["input_file_id"]
    (tmp_path / "files" / f"{file_id}.data").unlink()
    with serving(FakeLLM(), tmp_path) as base, client_of(base) as client:
        batch = client.ended(batch_id)
        (fault,) = batch["errors"]["data"]
        assert fault["code"] == "input_unreadable" and str(tmp_path) not in fault["message"]
        assert len(client.rows(batch["output_file_id"])) == 2


def test_a_full_disk_stops_a_batch_until_the_server_starts_again(tmp_path, monkeypatch):
    def full(self, record):
        raise BatchError("answers must be written, there is no room")

    with monkeypatch.context() as patched, serving(FakeLLM(), tmp_path) as base, client_of(base) as client:
        patched.setattr(Journal, "put", full)
        batch_id = client.begin(chat_rows(3))
        wait_until(lambda: 'batches{state="waiting"} 1.0' in client.get("/metrics").text)
        assert client.batch(batch_id)["status"] == "in_progress"
    with serving(FakeLLM(), tmp_path) as base, client_of(base) as client:
        assert client.ended(batch_id)["request_counts"]["completed"] == 3


ECHO = {"prompt": "ab", "echo": True, "max_tokens": 0}


@pytest.mark.parametrize("kind", ["chats", "echoes"])
def test_a_draining_server_leaves_its_batches_to_the_next(tmp_path, kind):
    def aborted(*_: Any) -> list[Any]:
        llm.status = "draining"
        return [Delta(0, "Hel", [1]), Delta(0, "", [], "abort")]

    llm, rows, url = FakeLLM(aborted), chat_rows(4), CHAT
    if kind == "echoes":
        rows, url = [row | {"url": COMPLETIONS, "body": ECHO} for row in rows], COMPLETIONS
    with serving(llm, tmp_path) as base, client_of(base) as client:
        batch_id = client.begin(rows, url)
        wait_until(lambda: bool(llm.calls))
        assert client.batch(batch_id)["status"] == "in_progress"
    with serving(FakeLLM(), tmp_path) as base, client_of(base) as client:
        batch = client.ended(batch_id)
        assert batch["request_counts"] == {"total": 4, "completed": 4, "failed": 0}
        found = client.rows(batch["output_file_id"])
    choices = [row["response"]["body"]["choices"][0] for row in found]
    said = {choice["text"] if kind == "echoes" else choice["message"]["content"] for choice in choices}
    assert said == {"ab" if kind == "echoes" else "Hello"}


def test_tenants_see_nothing_of_each_other_s_and_prompts_keep_their_tenant_s_salt(tmp_path):
    llm = FakeLLM()
    with (
        serving(llm, tmp_path, keys=(ALICE, BOB)) as base,
        client_of(base, ALICE) as alice,
        client_of(base, BOB) as bob,
        client_of(base) as nobody,
    ):
        batch = alice.ended(alice.begin(chat_rows(2)))
        alice.post(CHAT, json=chat_rows(1)[0]["body"])
        bob.post(CHAT, json=chat_rows(1)[0]["body"])
        file_id, batch_id = batch["output_file_id"], batch["id"]
        for method, path in (
            ("GET", f"{FILES}/{file_id}"),
            ("GET", f"{FILES}/{file_id}/content"),
            ("DELETE", f"{FILES}/{file_id}"),
            ("GET", f"{BATCHES}/{batch_id}"),
            ("POST", f"{BATCHES}/{batch_id}/cancel"),
        ):
            assert bob.request(method, path).status_code == 404
            assert nobody.request(method, path).status_code == 401
        body = {"input_file_id": batch["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
        assert error_of(bob.post(BATCHES, json=body))["param"] == "input_file_id"
        assert bob.get(FILES).json()["data"] == bob.get(BATCHES).json()["data"] == []
        assert len(alice.get(FILES).json()["data"]) == 2
    of_batch, of_alice, of_bob = {call.salt for call in llm.calls[:2]}, llm.calls[2].salt, llm.calls[3].salt
    assert of_batch == {of_alice} and of_alice != of_bob and of_alice


@pytest.mark.parametrize("is_named", [True, False])
def test_what_is_kept_belongs_to_a_key_or_its_name_over_restarts_not_to_its_place(tmp_path, is_named):
    before = ApiKey("alice" if is_named else "key 1", ALICE.secret, is_named)
    with serving(FakeLLM(), tmp_path, keys=(before,)) as base, client_of(base, before) as client:
        client.upload(b"{}")
    stranger = ApiKey("bob" if is_named else "key 1", BOB.secret, is_named)
    same = ApiKey("alice" if is_named else "key 2", "sk-alice-9876" if is_named else ALICE.secret, is_named)
    with serving(FakeLLM(), tmp_path, keys=(stranger, same)) as base:
        found = []
        for key in (stranger, same):
            with client_of(base, key) as client:
                found.append(len(client.get(FILES).json()["data"]))
    assert found == [0, 1]
    assert ALICE.secret.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_tenant_with_many_batches_does_not_hold_up_another(tmp_path):
    llm = FakeLLM(Gate(0))
    with (
        serving(llm, tmp_path, keys=(ALICE, BOB)) as base,
        client_of(base, ALICE) as alice,
        client_of(base, BOB) as bob,
    ):
        going = [alice.begin(chat_rows(1, number)) for number in range(MAX_RUNNING_BATCHES)]
        wait_until(lambda: len(llm.calls) == MAX_RUNNING_BATCHES)
        theirs, own = alice.begin(chat_rows(1, 8)), bob.begin(chat_rows(1, 9))
        alice.post(f"{BATCHES}/{going[0]}/cancel")
        wait_until(lambda: bob.batch(own)["status"] == "in_progress")
        assert alice.batch(theirs)["status"] == "validating"


def test_batches_and_their_answers_are_bounded(tmp_path):
    kept = KeptLimits(max_batches=2, max_bytes=20_000)
    with serving(FakeLLM(), tmp_path, kept=kept) as base, client_of(base) as client:
        batch = client.ended(client.begin(chat_rows(60)))
        assert batch["status"] == "failed" and batch["errors"]["data"][0]["code"] == "storage_full"
        assert len(client.rows(batch["output_file_id"])) == batch["request_counts"]["completed"] > 3
        used = sum(file["bytes"] for file in client.get(FILES).json()["data"])
        assert 15_000 < used <= 20_000
        client.delete(f"{FILES}/{batch['output_file_id']}")
        client.ended(client.begin(chat_rows(1)))
        file_id = client.get(FILES, params={"purpose": "batch"}).json()["data"][0]["id"]
        body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        assert error_of(client.post(BATCHES, json=body))["code"] == "too_many_batches"


def test_a_batch_that_cannot_begin_is_refused_by_name(tmp_path):
    with serving(FakeLLM(), tmp_path) as base, client_of(base) as client:
        file_id = client.upload(b"{}").json()["id"]
        made = client.ended(client.begin(chat_rows(1)))["output_file_id"]
        good = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        for change, status, param in (
            ({"input_file_id": None}, 400, "input_file_id"),
            ({"input_file_id": "file-nobody"}, 404, "input_file_id"),
            ({"input_file_id": made}, 400, "input_file_id"),
            ({"endpoint": "/v1/messages"}, 400, "endpoint"),
            ({"completion_window": "7d"}, 400, "completion_window"),
            ({"metadata": {"a": 1}}, 400, "metadata[...]"),
            ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}, 400, "output_expires_after"),
        ):
            response = client.post(BATCHES, json=good | change)
            assert (response.status_code, error_of(response)["param"]) == (status, param), change


def test_lists_come_part_by_part_the_newest_first(tmp_path):
    with serving(FakeLLM(), tmp_path) as base, client_of(base) as client:
        ids = [client.begin(chat_rows(1)) for _ in range(3)]
        first = client.get(BATCHES, params={"limit": 2}).json()
        rest = client.get(BATCHES, params={"limit": 2, "after": first["last_id"]}).json()
        assert [batch["id"] for batch in first["data"] + rest["data"]] == ids[::-1]
        assert (first["has_more"], rest["has_more"]) == (True, False)
        for bad in ({"limit": "0"}, {"limit": "many"}, {"after": "batch_nobody"}):
            assert error_of(client.get(BATCHES, params=bad))["param"] == next(iter(bad))


def test_without_a_folder_the_routes_name_the_flag():
    for method, path in (("GET", FILES), ("POST", FILES), ("POST", BATCHES), ("GET", f"{FILES}/x/content")):
        response = ask(FakeLLM(), method, path)
        assert response.status_code == 404 and error_of(response)["code"] == "files_disabled"
        assert "--files-dir" in error_of(response)["message"]


def test_two_servers_do_not_share_a_folder(tmp_path):
    with serving(FakeLLM(), tmp_path), pytest.raises(ConfigError, match="--files-dir must be one server's own"):
        create_app(FakeLLM(), ServerSettings(files_folder=tmp_path))


def test_a_server_with_a_folder_documents_its_routes(tmp_path):
    app = create_app(FakeLLM(), ServerSettings(files_folder=tmp_path))
    try:
        document = ask_app(app, "GET", "/openapi.json").json()
        page = ask_app(app, "GET", "/docs").text
        metrics = ask_app(app, "GET", "/metrics").text
    finally:
        app.state.storage.close()
    assert {path for path in document["paths"] if path.startswith((FILES, BATCHES))} == {
        route.path for route in app.routes if route.path.startswith((FILES, BATCHES))
    }
    assert "-F purpose=batch -F file=@rows.jsonl" in page
    assert 'jaxinfer:batches{state="running"} 0.0' in metrics


def test_a_journal_torn_in_the_middle_of_a_line_loses_that_line_alone(tmp_path: Path):
    """As kill -9 may leave it; tests/cli kills a whole server."""
    with serving(FakeLLM(Gate(4)), tmp_path) as base, client_of(base) as client:
        batch_id = client.begin(chat_rows(6))
        wait_until(lambda: client.batch(batch_id)["request_counts"]["completed"] == 4)
    journal = tmp_path / "batches" / f"{batch_id}.partial"
    journal.write_bytes(journal.read_bytes()[:-9])
    second = FakeLLM()
    with serving(second, tmp_path) as base, client_of(base) as client:
        batch = client.ended(batch_id)
        ids = [row["custom_id"] for row in client.rows(batch["output_file_id"])]
    assert sorted(ids) == [f"row {i}" for i in range(6)] and len(second.calls) == 3
    assert json.loads((tmp_path / "batches" / f"{batch_id}.json").read_bytes())["status"] == "completed"
