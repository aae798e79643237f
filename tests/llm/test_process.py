"""The server's end of the engine process, where the other end misbehaves."""

import socket
import struct
import subprocess
import sys
import threading

import pytest

from jaxinfer import children
from jaxinfer.config import EngineConfig
from jaxinfer.engine.sequence import Keep, Output
from jaxinfer.errors import ConfigError, DeviceLost
from jaxinfer.llm import process as process_module
from jaxinfer.llm.dry_run import MODULE, NOTE
from jaxinfer.llm.events import ignore
from jaxinfer.llm.process import EngineProcess, starting
from jaxinfer.llm.wire import Channel, Failure, FromEngine, ToEngine


def test_a_message_that_cannot_be_read_counts_as_the_engine_s_end():
    ours, theirs = socket.socketpair()
    process = EngineProcess(EngineConfig(), ignore)
    process._channel, process._child = Channel(ours, FromEngine), subprocess.Popen(["true"])
    failures: list[BaseException] = []

    def never(outputs: list[Output]) -> None:
        raise AssertionError("nothing can be read")

    with theirs:
        theirs.sendall(struct.pack("<I", 3) + b"\xff\xff\xff")
        process._receive(never, failures.append)
        assert theirs.recv(1) == b""  # the child would see this and end
    assert [type(failure).__name__ for failure in failures] == ["EngineError"]
    assert "cannot be read" in str(failures[0])


def test_an_engine_that_has_failed_is_given_a_moment_to_end_and_no_more(monkeypatch):
    monkeypatch.setattr(process_module, "CLOSE_S", 0.1)
    ours, theirs = socket.socketpair()
    process = EngineProcess(EngineConfig(), ignore)
    process._channel = Channel(ours, FromEngine)
    # as one that waits for its compiling threads, or for a device that is lost
    process._child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    failures: list[BaseException] = []
    with theirs:
        Channel(theirs, FromEngine).send(FromEngine(failure=Failure.of(DeviceLost("the device is gone"))))
        thread = threading.Thread(target=process._receive, args=(lambda outputs: None, failures.append))
        thread.start()
        thread.join(5)
        told_in_time = list(failures)
    process._child.kill()
    thread.join()
    assert [str(failure) for failure in told_in_time] == ["the device is gone"]


def test_whoever_posts_to_a_wedged_engine_does_not_wait_for_it():
    ours, theirs = socket.socketpair()
    process = EngineProcess(EngineConfig(), ignore)
    process._channel = Channel(ours, FromEngine)
    posted = [Keep(str(number), "", tuple(range(128)) * 400) for number in range(80)]  # 4 MB

    def post() -> None:
        for message in posted:
            process.post(message)

    thread = threading.Thread(target=post, daemon=True)  # as the event loop
    thread.start()
    thread.join(5)
    assert not thread.is_alive()
    with theirs:
        engine: Channel[FromEngine, ToEngine] = Channel(theirs, ToEngine)
        assert [engine.receive().message for _ in posted] == posted, "as soon as it goes on"
    process._channel.close()


def test_an_engine_that_starts_early_is_the_first_one_s_and_no_other_s():
    config = EngineConfig(model="demo")
    with starting(config, (MODULE, "0")) as new_transport:
        first, second = new_transport(config, ignore), new_transport(config, ignore)
        early = first.pid
        handshake = first.start(print, print)
        second.start(print, print)
    assert (first.pid, handshake.info.note) == (early, NOTE)
    assert second.pid != early
    for process in (first, second):
        process.close()


def test_an_engine_that_started_early_and_is_not_wanted_ends(monkeypatch):
    spawned = []
    start = children.start
    monkeypatch.setattr(children, "start", lambda *given: spawned.append(start(*given)) or spawned[-1])
    with pytest.raises(ConfigError), starting(EngineConfig(model="demo"), (MODULE, "0")):
        raise ConfigError("the port is taken")
    assert [process.poll() is None for process, _ in spawned] == [False]
