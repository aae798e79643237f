"""The log: a line for each request if wanted, as JSON if wanted, and never what was asked or with which key."""

import json
import logging

from jaxinfer.server.logs import JsonLines
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.fakes import FakeLLM
from tests.server.http import COMPLETIONS, ask, post

KEY = "sk-0123456789"
LOGGED = ServerSettings(log_requests=True, api_keys=(ApiKey("alice", KEY),))


def lines(caplog) -> list[dict]:
    return [json.loads(JsonLines().format(record)) for record in caplog.records if record.name == "jaxinfer.server"]


def test_each_request_has_a_line_with_its_id_its_tenant_and_its_end(caplog):
    caplog.set_level(logging.INFO)
    named = {"authorization": f"Bearer {KEY}", "x_request_id": "abc"}
    for stream in (False, True):
        assert post(FakeLLM(), COMPLETIONS, {"prompt": "secret", "stream": stream}, LOGGED, **named).is_success
    assert post(FakeLLM(), f"{COMPLETIONS}?key=secret", {"prompt": "secret"}, LOGGED).status_code == 401
    first, second, third = lines(caplog)
    wanted = {"request_id": "abc", "tenant": "alice", "method": "POST", "path": COMPLETIONS, "status": 200}
    for line in (first, second):
        assert wanted.items() <= line.items()
        assert line["level"] == "info" and 0 <= line["seconds"] < 5
        assert line["message"].startswith(f"POST {COMPLETIONS} 200 in ")
    assert (third["status"], third["tenant"]) == (401, "")
    shown = json.dumps(lines(caplog))
    assert "secret" not in shown and KEY not in shown


def test_health_checks_that_went_well_and_servers_that_were_not_asked_log_nothing(caplog):
    caplog.set_level(logging.INFO)
    assert ask(FakeLLM(), "GET", "/health", LOGGED).status_code == 200
    assert post(FakeLLM(), COMPLETIONS, {"prompt": "x"}).status_code == 200
    assert lines(caplog) == []
    assert ask(FakeLLM(status="failed"), "GET", "/health", LOGGED).status_code == 503
    assert [line["status"] for line in lines(caplog)] == [503]


def test_a_line_is_one_line_whatever_the_path(caplog):
    caplog.set_level(logging.INFO)
    for path in ("/%0d%0aforged%1b[31m%00", "/%22%7d", "/" + "a" * 4000):
        ask(FakeLLM(), "GET", path, LOGGED)
    assert len(lines(caplog)) == 3
    for record in caplog.records:
        assert "\n" not in JsonLines().format(record) and "\x1b" not in record.getMessage()
    assert all(len(line["path"]) <= 200 for line in lines(caplog))


def test_a_failure_s_line_has_its_traceback_and_id(caplog):
    llm = FakeLLM(lambda ids, params: [RuntimeError("a bug")])
    assert post(llm, COMPLETIONS, {"prompt": "secret"}, x_request_id="abc").status_code == 500
    (line,) = lines(caplog)
    assert (line["level"], line["request_id"]) == ("error", "abc")
    assert "RuntimeError: a bug" in line["exception"]
    assert line["time"].endswith("Z")
