"""`jaxinfer serve`: what a person is told, and what the server is given."""

import asyncio
import dataclasses
import json
import os
import shlex
import sys

import pytest

from jaxinfer.cli.serve import closing, curl, tracer_for, transport_for, url, with_owner
from jaxinfer.config import EngineConfig
from jaxinfer.errors import PortInUse
from jaxinfer.llm.dry_run import NOTE
from jaxinfer.llm.events import ignore
from jaxinfer.llm.process import EngineProcess
from jaxinfer.llm.thread import EngineThread
from jaxinfer.server import serve as server
from jaxinfer.server import tracing
from jaxinfer.server.presence import Presence
from tests.server.fakes import INFO


@pytest.fixture
def served(monkeypatch):
    """run_server without a port: it starts the model and returns."""
    calls: list[tuple[str, int, float]] = []

    def run_server(app, host, port, drain_timeout_s, start, on_bound, until_failed, tls):
        on_bound(host, port or 4321)
        asyncio.run(start())
        calls.append((host, port, drain_timeout_s))
        return 0

    monkeypatch.setattr(server, "run_server", run_server)
    return calls


def test_by_default_the_demo_is_served_on_this_machine_alone(cli, model, served):
    outcome = cli("serve")
    assert outcome.code == 0
    assert served == [("127.0.0.1", 8000, 30.0)]
    assert model.configs[0].model == "demo"
    lines = outcome.err.splitlines()
    assert lines[0].endswith(": demo, the bundled demo model, no useful assistant (no MODEL was named)")
    assert lines[-2] == "stop it  Ctrl-C, or `jaxinfer stop 8000`"
    assert lines[-3] == "serving  tiny, org/tiny-1B at http://127.0.0.1:8000/v1, a chat page at http://127.0.0.1:8000"
    assert lines[-1].startswith("try it   curl -N http://127.0.0.1:8000/v1/chat/completions ")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_serve_is_as_quiet_as_other_verbs_and_takes_their_v(cli, model, served, log_format):
    quiet = cli("serve", "demo", "-q", "--log-format", log_format)
    assert (quiet.code, quiet.out + quiet.err, len(served)) == (0, "", 1)
    said = cli("serve", "demo", "--log-format", log_format)
    for flag in ("-v", "--verbose"):
        assert cli("serve", "demo", flag, "--log-format", log_format).err.count("\n") == said.err.count("\n")


def test_host_port_and_patience_come_from_flags_or_variables(cli, model, served, monkeypatch):
    cli("serve", "--host", "localhost", "--port", "0", "--drain-timeout-s", "1.5")
    monkeypatch.setenv("JAXINFER_HOST", "::1")
    monkeypatch.setenv("JAXINFER_PORT", "9000")
    monkeypatch.setenv("JAXINFER_MAX_NUM_SEQS", "5")
    cli("serve")
    assert served == [("localhost", 0, 1.5), ("::1", 9000, 30.0)]
    assert model.configs[1].max_num_seqs == 5


def test_a_cluster_s_own_variable_is_not_taken_for_a_port(cli, model, served, monkeypatch):
    monkeypatch.setenv("JAXINFER_PORT", "tcp://10.0.0.1:80")
    cli("serve")
    assert served[0][1] == 8000


def test_a_port_that_is_none_is_blamed_on_who_gave_it(cli, model, served, monkeypatch):
    monkeypatch.setenv("JAXINFER_PORT", "abc")
    assert "error: JAXINFER_PORT must be an integer in 0 .. 65535, got 'abc'" in cli("serve").err
    assert "error: --port must be an integer" in cli("serve", "--port", "x").err


def test_the_defaults_the_note_and_the_open_door_are_named():
    info = dataclasses.replace(INFO, note="random weights")
    lines = closing(info, "http://127.0.0.1:8000", "0.0.0.0")
    assert lines[0].startswith("defaults temperature 1, top_p 1")
    assert "note     random weights" in lines
    assert any(line.startswith("warning  0.0.0.0 can be reached from other machines") for line in lines)
    assert not any(line.startswith("warning") for line in closing(info, "http://[::1]:8000", "::1"))


def test_random_weights_are_named_from_the_first_line_on(cli, model, served):
    assert (
        cli("serve", "tiny", "--load-format", "dummy")
        .err.splitlines()[0]
        .endswith(": tiny, with random weights: its answers mean nothing")
    )


def test_the_curl_line_can_be_pasted():
    command = shlex.split(curl(dataclasses.replace(INFO, served_names=("it's",)), "http://localhost:8000"))
    assert command[:3] == ["curl", "-N", "http://localhost:8000/v1/chat/completions"]
    assert json.loads(command[-1])["model"] == "it's"


def test_a_model_without_a_template_gets_a_completion_to_paste():
    command = shlex.split(curl(dataclasses.replace(INFO, has_chat_template=False), "http://localhost:8000"))
    assert command[2].endswith("/v1/completions")
    assert json.loads(command[-1])["prompt"]


@pytest.mark.parametrize(
    ("host", "shown"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("gpu-box", "gpu-box")],
)
def test_the_address_is_one_that_can_be_typed(host, shown):
    assert url(host, 80) == f"http://{shown}:80"


@pytest.mark.parametrize(("dry_run", "in_process"), [(False, False), (False, True), (True, False), (True, True)])
def test_where_the_engine_runs_and_whether_it_is_real_are_two_choices(dry_run, in_process):
    config, where = EngineConfig(), {"dry_run": dry_run, "dry_run_step_ms": None, "in_process": in_process}
    with transport_for(config, where) as new_transport:
        made = new_transport(config, ignore)
        assert isinstance(made, EngineThread if in_process else EngineProcess)
        if dry_run:
            handshake = made.start(print, print)
            assert handshake.info.note == NOTE
        made.close()


def test_a_dry_run_says_so_from_its_first_lines_on_and_an_engine_in_the_server_too(cli, model, served):
    lines = cli("serve", "--dry-run", "--in-process").err.splitlines()
    assert lines[1] == "dry run  no model is loaded and no device used: the answers are made up"
    assert lines[2].startswith("warning  the engine runs in the server's process")
    assert not any("dry run" in line or "warning" in line for line in cli("serve").err.splitlines())


def test_replicas_are_named_and_are_processes_of_their_own(cli, model, served):
    assert any(
        line.startswith("replicas 2 engines") for line in cli("serve", "--data-parallel-size", "2").err.splitlines()
    )
    assert not any("replicas" in line for line in cli("serve").err.splitlines())
    outcome = cli("serve", "--data-parallel-size", "2", "--in-process")
    assert outcome.code == 2
    assert outcome.last_line == (
        "error: --data-parallel-size must be 1 with --in-process, got 2: replicas are processes of their own; drop one "
        "of the two"
    )


@pytest.mark.parametrize(("cpus", "asked", "fact"), [(1, 3, "2 on this machine of 1 CPU"), (16, 10**6, "16 on this")])
def test_replicas_are_no_more_than_processors(cli, model, served, monkeypatch, cpus, asked, fact):
    """A million of them were all started, and took the machine with them."""
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    outcome = cli("serve", "--data-parallel-size", str(asked))
    assert (outcome.code, served) == (2, [])
    assert outcome.last_line.startswith(f"error: --data-parallel-size must be at most {fact}")
    assert outcome.last_line.endswith(f"got {asked}: each replica is a process that needs one; lower it")


def test_the_time_of_a_step_belongs_to_a_dry_run(cli, model, served):
    outcome = cli("serve", "--dry-run-step-ms", "2")
    assert (outcome.code, outcome.last_line.startswith("error: --dry-run-step-ms needs --dry-run")) == (2, True)


def test_the_ways_to_compare_with_can_be_asked_for(cli, model, served):
    cli("serve", "--scheduling", "static", "--kv-layout", "contiguous", "--no-enable-prefix-caching")
    config = model.configs[0]
    assert (config.scheduling, config.kv_layout, config.enable_prefix_caching) == ("static", "contiguous", False)


def test_traces_go_to_a_collector_only_if_one_is_named_and_can_be_spoken_to(cli, model, served, monkeypatch):
    for given, fault in (
        ("collector:4317", "must be an http or https URL"),
        ("http://", "must be an http or https URL"),
    ):
        outcome = cli("serve", "--otlp-traces-endpoint", given)
        assert (outcome.code, fault in outcome.last_line) == (2, True)
    outcome = cli("serve", "--otlp-traces-endpoint", "http://user:secret@collector:4318")
    assert outcome.code == 0
    assert "traces   to collector" in outcome.err.splitlines() and "secret" not in outcome.err
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "jaxinfer.server.tracing")
    outcome = cli("serve", "--otlp-traces-endpoint", "http://collector:4318")
    assert (outcome.code, "pip install 'jaxinfer[otel]'" in outcome.last_line) == (2, True)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://collector/own/path", "https://collector/own/path"),
    ],
)
def test_a_collector_without_a_path_gets_the_standard_one(monkeypatch, given, used):
    asked = []
    monkeypatch.setattr(tracing, "exporting", asked.append)
    tracer_for(given)
    assert asked == [used]


def test_a_port_in_use_names_the_server_that_has_it(monkeypatch):
    here = Presence(17216, "http://127.0.0.1:8000", "tiny", 1.0, "ready")
    monkeypatch.setattr("jaxinfer.cli.serve.presences", lambda: [here])
    owner = (
        "port 8000 is in use (jaxinfer with tiny, pid 17216); stop it (`jaxinfer stop 8000`), or pass another --port"
    )
    assert str(with_owner(PortInUse(8000))) == owner
    assert str(with_owner(PortInUse(8001))) == "port 8001 is in use; stop what uses it, or pass another --port"
