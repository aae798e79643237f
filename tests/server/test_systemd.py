"""sd_notify over a socket of ours: a path and an abstract name, nothing without a socket, a warning for a lost one."""

import socket

import pytest

from jaxinfer.server.systemd import notify


@pytest.fixture(params=["path", "abstract"])
def told(request, tmp_path, monkeypatch):
    """The socket that systemd listens on."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@jaxinfer-test-{tmp_path.name}-{id(request)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        channel.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield channel


def test_systemd_is_told_over_its_socket(told):
    notify("READY=1")
    notify("STOPPING=1")
    assert [told.recv(100), told.recv(100)] == [b"READY=1", b"STOPPING=1"]


def test_nothing_is_said_where_systemd_did_not_start_us(monkeypatch, caplog):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    assert caplog.records == []


def test_a_socket_that_is_gone_is_a_warning_and_no_end(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify("READY=1")
    assert "systemd was not told READY=1" in caplog.text
