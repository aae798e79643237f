"""`jaxinfer stop`: one server, told by its model, address or port."""

import re
from pathlib import Path

import pytest

from jaxinfer.cli.rm import refuse_in_use
from jaxinfer.cli.servers import FoundServer
from jaxinfer.cli.stop import chosen, means
from jaxinfer.errors import ConfigError
from jaxinfer.server.presence import Presence
from tests.cli.test_ps import ready, server
from tests.server.http import wait_until

HERE = Presence(1, "http://127.0.0.1:8000", "alias", 1.0, "ready", source="org/tiny")


@pytest.mark.parametrize(
    "target", ["alias", "org/tiny", "8000", ":8000", "127.0.0.1:8000", "localhost:8000", "http://127.0.0.1:8000/v1/"]
)
def test_a_server_is_named_by_its_model_address_or_port(target):
    assert means(target, HERE)


@pytest.mark.parametrize("target", ["800", "tiny", "http://127.0.0.1:8001", "https://127.0.0.1:8000", "1"])
def test_what_names_another_server_is_not_stopped(target):
    assert not means(target, HERE)


def test_none_or_several_that_match_are_named(monkeypatch):
    running = [HERE, Presence(2, "http://127.0.0.1:8001", "alias", 1.0, "ready")]
    servers = [FoundServer(Path(f"{found.pid}.sock"), found) for found in running]
    monkeypatch.setattr("jaxinfer.cli.servers.found_servers", lambda: iter(servers))
    with pytest.raises(ConfigError, match="no server of yours is 'other', running: alias at http://127.0.0.1:8000, "):
        chosen("other")
    with pytest.raises(ConfigError, match="stop needs one server, 2 match"):
        chosen(None)
    assert chosen("8001") == running[1]


@pytest.mark.parametrize("target", [None, "8558"])
def test_a_server_that_does_not_answer_is_named_with_its_pid_and_cure(monkeypatch, target):
    monkeypatch.setattr("jaxinfer.cli.servers.found_servers", lambda: iter([FoundServer(Path("/x/77.sock"), None)]))
    said = "running: none; the server with pid 77 has not answered in 2 s; `kill -9 77` if it is hung or stopped"
    with pytest.raises(ConfigError, match=said):
        chosen(target)
    with pytest.raises(ConfigError, match="no server has foo/bar: the server with pid 77 has not answered"):
        refuse_in_use("foo/bar")


@pytest.mark.slow
def test_stop_drains_waits_and_says_which(cli, monkeypatch, short_tmp):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_tmp))
    with server("--served-model-name", "one") as (first, url), server("--served-model-name", "two") as (second, other):
        wait_until(lambda: ready(url) and ready(other), timeout_s=30)
        outcome = cli("stop", "one")
        assert (outcome.code, outcome.out) == (0, f"stopped one at {url} (pid {first.pid})\n")
        assert (first.wait(0.1), second.poll()) == (0, None)
        assert re.search(rf"two +{second.pid} ", cli("ps").out)
        assert cli("stop", other.rpartition(":")[2]).code == 0
    assert cli("stop").last_line == "error: no server of yours runs here; there is nothing to stop"


@pytest.mark.parametrize(
    ("flag", "said"),
    [("--all", "one server is stopped at a time"), ("-a", "one server is stopped at a time")]
    + [(flag, "running answers are finished first") for flag in ("--timeout", "-t", "--force", "-f")],
)
def test_a_flag_of_other_stops_is_answered_as_one_of_stop(cli, flag, said):
    for given in ([flag], [flag, "5"]):
        outcome = cli("stop", *given)
        assert (outcome.code, outcome.last_line.startswith(f"error: {flag}: {said}")) == (2, True), outcome.last_line
