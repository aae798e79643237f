"""The options that say who may ask: what they make of a server, and the whole program behind a certificate and keys."""

import contextlib
import json
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from jaxinfer.cli.options import OTHER_ENV
from jaxinfer.cli.protection import OPTIONS
from jaxinfer.cli.serve import OPTIONS as SERVE_OPTIONS
from jaxinfer.cli.serve import closing, curl
from jaxinfer.server import serve as server
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tls import Tls
from tests.server.fakes import INFO
from tests.server.http import COMPLETIONS, error_of
from tests.support.processes import SERVE, serving

ROOT = Path(__file__).parents[2]
PEM = ROOT / "tests" / "server" / "localhost.pem"
KEY, OTHER = "sk-first-0123456789", "sk-other-0123456789"


@pytest.fixture
def served(monkeypatch) -> list[tuple[ServerSettings, Tls | None]]:
    """run_server without a port: what it was asked to serve."""
    calls = []

    def run_server(app, host, port, drain_timeout_s, start, on_bound, until_failed, tls):
        calls.append((app.state.settings, tls))
        return 0

    monkeypatch.setattr(server, "run_server", run_server)
    monkeypatch.delenv("JAXINFER_API_KEY", raising=False)
    return calls


def test_by_default_nobody_is_asked_and_only_this_machine_s_names_are_answered_to(cli, model, served):
    assert cli("serve").code == 0
    assert served == [(ServerSettings(allowed_hosts=("localhost", "127.0.0.1", "[::1]")), None)]


def test_keys_come_from_flags_the_variable_and_a_file(cli, model, served, monkeypatch, tmp_path):
    file = tmp_path / "keys"
    file.write_text("# tenants\nsk-of-file-alone\n\nalice sk-of-alice-old\nalice sk-of-alice-new\n")
    monkeypatch.setenv("JAXINFER_API_KEY", "sk-of-env-1 sk-of-env-2")
    outcome = cli("serve", "--api-key", "sk-of-flag-1", "--api-key", "sk-of-flag-2", "--api-key-file", str(file))
    assert outcome.code == 0
    keys = [(key.tenant, key.secret) for key in served[0][0].api_keys]
    assert keys == [
        ("key 1", "sk-of-flag-1"),
        ("key 2", "sk-of-flag-2"),
        ("key 3", "sk-of-env-1"),
        ("key 4", "sk-of-env-2"),
        ("line 2", "sk-of-file-alone"),
        ("alice", "sk-of-alice-old"),
        ("alice", "sk-of-alice-new"),
    ]
    assert served[0][0].allowed_hosts == (), "a key keeps strangers out under any name"
    assert "keys     7, of 6 tenants" in outcome.err.splitlines()
    assert "sk-of" not in outcome.err


def test_white_space_around_a_key_is_no_part_of_it(cli, model, served, monkeypatch, tmp_path):
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbf  sk-of-file-alone\t\r\n\talice \t sk-of-alice-old \r\n \r\n")
    monkeypatch.setenv("JAXINFER_API_KEY", "\tsk-of-env-1 \n sk-of-env-2\r\n")
    outcome = cli("serve", "--api-key", " sk-of-flag-1\t", "--api-key", "sk-of-flag-2\r\n", "--api-key-file", str(file))
    assert outcome.code == 0
    assert [key.secret for key in served[0][0].api_keys] == [
        *("sk-of-flag-1", "sk-of-flag-2", "sk-of-env-1", "sk-of-env-2", "sk-of-file-alone", "sk-of-alice-old")
    ]


@pytest.mark.parametrize(
    ("arguments", "variable", "message"),
    [
        ((), "", "an API key must be 8 to 512 visible ASCII characters, key 1 has 0 characters"),
        (("--api-key", "short"), None, "key 1 has 5 characters"),
        (("--api-key", "schlüssel-lang"), None, "key 1 has 14 characters, others among them"),
        (("--api-key", KEY, "--api-key", KEY), None, "each API key must be given once"),
        (("--api-key", KEY, "--api-key", f" {KEY} "), None, "each API key must be given once"),
        (("--api-key", "sk of three words"), None, "key 1 has 17 characters, others among them"),
        (("--api-key", " \t "), None, "key 1 has 0 characters"),
        (("--api-key", KEY), KEY, "each API key must be given once"),
        (("--api-key-file", "/nowhere"), None, "file not found: /nowhere (--api-key-file)"),
        (("--api-key-file", "FILE"), None, "--api-key-file must hold a key"),
        (("--api-key-file", "WIDE"), None, "line 1: must be KEY or TENANT KEY, got 3 words"),
        (("--allowed-hosts", "http://x"), None, "--allowed-hosts must be names without port"),
        (("--allowed-origins", "app.example"), None, "--allowed-origins must be *, or scheme://host"),
        (("--max-requests-per-key", "0"), None, "--max-requests-per-key"),
        (("--max-sessions-per-key", "0"), None, "--max-sessions-per-key"),
        (("--max-session-idle-s", "0"), None, "--max-session-idle-s"),
        (("--max-body-bytes", "0"), None, "--max-body-bytes must be a number of bytes"),
        (("--max-body-bytes", "129M"), None, "--max-body-bytes must be at most 128M"),
        (("--max-body-bytes", "1.5"), None, "--max-body-bytes must be a number of bytes"),
        (("--ssl-keyfile", "x"), None, "--ssl-keyfile needs --ssl-certfile"),
        (("--ssl-certfile", "/nowhere"), None, "file not found: /nowhere (--ssl-certfile, --ssl-keyfile)"),
        (("--ssl-certfile", "FILE"), None, "--ssl-certfile and --ssl-keyfile must be a certificate chain"),
    ],
)
def test_what_would_not_protect_is_refused_before_anything_starts(
    cli, model, served, monkeypatch, tmp_path, arguments, variable, message
):
    (tmp_path / "FILE").write_text("# nothing\n")
    (tmp_path / "WIDE").write_text("a b c\n")
    if variable is not None:
        monkeypatch.setenv("JAXINFER_API_KEY", variable)
    outcome = cli("serve", *(str(tmp_path / word) if word in ("FILE", "WIDE") else word for word in arguments))
    assert outcome.code == 2
    assert message in outcome.last_line
    assert KEY not in outcome.err and "schlüssel" not in outcome.err
    assert not served and not model.made


def test_traces_may_be_asked_for_where_a_folder_for_them_is_named(cli, model, served, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli("serve", "--profile-dir", "traces/mine").code == 0
    folder = tmp_path / "traces" / "mine"
    assert served[0][0].profile_folder == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    outcome = cli("serve", "--profile-dir", "file/mine")
    assert (
        outcome.code,
        "cannot make file/mine: Not a directory; name another folder for --profile-dir" in outcome.last_line,
    ) == (2, True)


def test_hosts_origins_and_bounds_come_from_flags_or_variables(cli, model, served, monkeypatch):
    cli("serve", "--allowed-hosts", "A.example,b.example", "--allowed-hosts", "[::1]", "--allowed-origins", "*")
    monkeypatch.setenv("JAXINFER_ALLOWED_HOSTS", "*")
    monkeypatch.setenv("JAXINFER_ALLOWED_ORIGINS", "https://a.example,http://b.example:3000")
    monkeypatch.setenv("JAXINFER_MAX_REQUESTS_PER_KEY", "4")
    monkeypatch.setenv("JAXINFER_MAX_SESSION_IDLE_S", "0.5")
    monkeypatch.setenv("JAXINFER_STRICT", "1")
    monkeypatch.setenv("JAXINFER_MAX_STORED_RESPONSES", "0")
    monkeypatch.setenv("JAXINFER_MAX_STORED_AGE_S", "2.5")
    bounds = ("--max-requests-per-minute-per-key", "60", "--max-body-bytes", "2M", "--max-sessions-per-key", "7")
    cli("serve", *bounds, "--max-stored-bytes", "3M", "--ssl-certfile", str(PEM))
    assert served[0][0] == ServerSettings(allowed_hosts=("a.example", "b.example", "[::1]"), allowed_origins=("*",))
    assert served[1] == (
        ServerSettings(
            allowed_origins=("https://a.example", "http://b.example:3000"),
            max_requests_per_key=4,
            max_requests_per_minute_per_key=60,
            max_body_bytes=2 * 2**20,
            max_sessions_per_key=7,
            max_session_idle_s=0.5,
            max_stored_responses=0,
            max_stored_bytes=3 * 2**20,
            max_stored_age_s=2.5,
            strict=True,
        ),
        Tls(str(PEM)),
    )


def test_bound_to_the_world_any_name_is_answered_to(cli, model, served):
    cli("serve", "--host", "0.0.0.0")
    assert served[0][0].allowed_hosts == ()


def test_a_server_with_keys_is_no_open_door_and_its_line_to_paste_sends_one():
    lines = closing(INFO, "https://127.0.0.1:8000", "0.0.0.0", has_keys=True)
    assert not any(line.startswith("warning") for line in lines)
    assert "-H 'Authorization: Bearer KEY'" in curl(INFO, "https://x", has_keys=True)


def test_every_variable_of_the_verb_is_taken_for_one():
    assert {option.envvar for option in SERVE_OPTIONS if option.envvar} <= OTHER_ENV


def test_every_limit_with_a_flag_is_in_the_table():
    table = (ROOT / "docs" / "limits.md").read_text()
    assert [option.opts[-1] for option in OPTIONS if f"`{option.opts[-1]}" not in table] == []


@contextlib.contextmanager
def program(log: Path, *arguments: str) -> Iterator[str]:
    """`jaxinfer serve --dry-run`, ready; yields its address."""
    with serving(log, *SERVE, "--dry-run", "--port", "0", *arguments, JAXINFER_API_KEY=OTHER) as (process, _):
        yield re.search(r"serving +\S+ at (https?://\S+)/v1", log.read_text())[1]
        process.terminate()
        assert process.wait(20) == 0


def test_behind_a_certificate_tenants_share_no_cached_prompt(tmp_path):
    """A32, by the whole program: the same prompt is found again under the same key and under no other."""
    keys = tmp_path / "keys"
    keys.write_text(f"first {KEY}\nfirst {KEY}-new\n")
    prompt = {"prompt": [7 + i % 50 for i in range(200)], "max_tokens": 2}
    with program(tmp_path / "log", "--api-key-file", str(keys), "--ssl-certfile", str(PEM)) as base:
        assert base.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=str(PEM))
        with httpx2.Client(base_url=base, verify=trust) as client:
            assert client.get("/health").status_code == 200
            refused = client.post(COMPLETIONS, json=prompt)
            assert (refused.status_code, error_of(refused)["code"]) == (401, "invalid_api_key")
            cached = []
            for key in (KEY, OTHER, KEY, f"{KEY}-new", OTHER):
                answer = client.post(COMPLETIONS, json=prompt, headers={"authorization": f"Bearer {key}"}).json()
                cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, 192, 192, 192]
    log = (tmp_path / "log").read_text()
    assert KEY not in log and OTHER not in log and "Traceback" not in log


def test_the_log_can_be_json_from_the_first_line_to_the_last(tmp_path):
    with program(tmp_path / "log", "--log-format", "json", "--log-requests") as base:
        answer = httpx2.get(f"{base}/v1/models", headers={"authorization": f"Bearer {OTHER}", "x-request-id": "abc"})
        assert answer.status_code == 200
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {"level": "info", "logger": "jaxinfer.start"}.items() <= lines[0].items()
    (asked,) = [line for line in lines if line.get("request_id") == "abc"]
    assert (asked["path"], asked["status"], asked["tenant"]) == ("/v1/models", 200, "key 1")
    assert not any(OTHER in json.dumps(line) for line in lines)
