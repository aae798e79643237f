"""Servers as programs: any that answers is ready, and one that ends instead is an error with its last line."""

import os
import socket
import sys

import pytest

from jaxinfer.bench.program import started
from jaxinfer.errors import EngineError

MODELS_ALONE = """
import http.server
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", {port}), Answer).serve_forever()
"""


def test_a_server_without_health_is_ready_when_it_names_its_models(tmp_path):
    with started([sys.executable, "-c", MODELS_ALONE], os.environ, tmp_path / "log") as program:
        port = program.target.base.rpartition(":")[2]
        assert 0 < program.ready_s < 60
        socket.create_connection(("127.0.0.1", int(port))).close()
        assert "GET /v1/models" in (tmp_path / "log").read_text()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)))


def test_a_server_that_ends_is_an_error_with_its_last_line(tmp_path):
    command = ["sh", "-c", "echo first; echo no memory {port}; exit 1"]
    with (
        pytest.raises(EngineError, match=r"must become ready, its last line was: no memory \d+$"),
        started(command, os.environ, tmp_path / "log"),
    ):
        raise AssertionError("it is never ready")


def test_a_program_that_is_not_there_is_an_error_of_the_same_kind(tmp_path):
    fact = "must become ready, nosuchprogram could not be started: No such file or directory"
    with pytest.raises(EngineError, match=fact), started(["nosuchprogram"], os.environ, tmp_path / "log"):
        raise AssertionError("it never runs")
