"""The server's end of the engine process, where the other end misbehaves."""

import socket
import struct
import subprocess

from jaxinfer.config import EngineConfig
from jaxinfer.engine.sequence import Output
from jaxinfer.llm.events import ignore
from jaxinfer.llm.process import EngineProcess
from jaxinfer.llm.wire import Channel, FromEngine


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
