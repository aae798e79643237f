"""Encodes texts in processes that can be killed: for tokenizers with rules that may take long (see linear.py).

`python -m jaxinfer.text.encoder FD` reads the tokenizer once and then forks: a worker for each text that is encoded at
a time, which shares the vocabulary's memory. A worker that uses up a text's processor time is ended by the system's
timer, and the next text gets a new one. All end when the socket to the server closes. Imports no jax.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from array import array
from collections.abc import Callable, Sequence

import msgspec

from jaxinfer import children
from jaxinfer.errors import EngineError, InvalidRequest

START_S = 60.0  # Python's start and a large vocabulary, on a busy machine
TEXT_S, CHAR_S = 0.5, 8e-6  # of processor time; published tokenizers take 0.5 to 3 us a character
_SECRET_BYTES = 64


class Task(msgspec.Struct):
    """A text to encode, as Tokenizer.encode takes it. limit_s: of processor time."""

    text: str
    add_special_tokens: bool
    plain: bool
    limit_s: float


class Encoded(msgspec.Struct):
    """ids: of 4 bytes each.    error, param: why there are none."""

    ids: bytes = b""
    error: str = ""
    param: str | None = None


class EncoderProcess:
    """The process and its idle workers. Any thread may encode, many at a time do.

    Invariant: a worker that is idle has no text; one that did not answer is dead.
    """

    def __init__(self, tokenizer_json: bytes, secret: str, rules: Sequence[str]) -> None:
        """secret: what names of control tokens begin with in plain text.    rules: that may take long."""
        self._file, self._secret, self._rules = tokenizer_json, secret, rules
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._idle: list[socket.socket] = []  # a thread takes one from the list while it encodes

    def start(self) -> None:
        """Begin what the first text would wait for. Raises OSError."""
        with self._starting:
            if self._process is not None and self._process.poll() is None:
                return
            process, end = children.start("jaxinfer.text.encoder", variables={"TOKENIZERS_PARALLELISM": "false"})
            self._process, self._end = process, end
            weakref.finalize(self, _close, process, end, self._idle)
            with tempfile.TemporaryFile() as file:
                file.write(self._file)
                file.flush()
                socket.send_fds(end, [self._secret.encode().ljust(_SECRET_BYTES)], [file.fileno()])

    def encode(self, text: str, *, add_special_tokens: bool, plain: bool) -> list[int]:
        """Token ids. Raises InvalidRequest, and EngineError when no process can start."""
        task = Task(text, add_special_tokens, plain, TEXT_S + CHAR_S * len(text))
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = self._worker()
        try:
            children.send(worker, msgspec.msgpack.encode(task))
            encoded = msgspec.msgpack.decode(children.receive(worker), type=Encoded)
        except OSError:
            worker.close()
            raise self._too_long() from None
        self._idle.append(worker)
        if encoded.error:
            raise InvalidRequest(encoded.error, param=encoded.param)
        ids = array("I")
        ids.frombytes(encoded.ids)
        return ids.tolist()

    def _worker(self) -> socket.socket:
        """The socket of a new one, which has said that it is there."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self.start()
                socket.send_fds(self._end, [b"+"], [theirs.fileno()])
            ours.settimeout(START_S)
            children.receive(ours)
            ours.settimeout(None)
        except OSError as error:
            ours.close()
            raise EngineError(f"the process that encodes texts must start, it did not: {error}") from error
        return ours

    def _too_long(self) -> InvalidRequest:
        return InvalidRequest(
            f"a text must take the model's tokenizer at most {TEXT_S:g} s and {CHAR_S * 1e6:g} us a character, and "
            f"this one takes longer, as a text may with its {', '.join(self._rules[:3])}. Shorten what repeats in it, "
            "such as a run of spaces, digits or one letter, or serve the model with another --tokenizer.",
            param="prompt",
        )


def _close(process: "subprocess.Popen[bytes]", end: socket.socket, idle: list[socket.socket]) -> None:
    """End a process and its workers."""
    for each in [end, *idle]:
        each.close()
    process.kill()  # it may still be reading a large vocabulary
    process.wait()


def _main() -> None:
    from jaxinfer.text.tokenizer import Tokenizer

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's to handle, which then closes the socket
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = socket.socket(fileno=int(sys.argv[1]))
    secret, [descriptor], _, _ = socket.recv_fds(end, _SECRET_BYTES, 1)
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        tokenizer = Tokenizer(file.read(), secret=secret.decode().rstrip())
    tokenizer.encode("a", plain=True)  # makes what is made on first use, for all workers
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while descriptors := socket.recv_fds(end, 1, 1)[1]:
        if os.fork() == 0:
            try:
                end.close()
                _work(tokenizer.encode, socket.socket(fileno=descriptors[0]))
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(descriptors[0])


def _work(encode: Callable[..., list[int]], end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        children.send(end, b"")
        while True:
            task = msgspec.msgpack.decode(children.receive(end), type=Task)
            signal.setitimer(signal.ITIMER_PROF, task.limit_s)  # SIGPROF ends the process
            try:
                ids = encode(task.text, add_special_tokens=task.add_special_tokens, plain=task.plain)
                encoded = Encoded(array("I", ids).tobytes())
            except InvalidRequest as refusal:
                encoded = Encoded(error=str(refusal), param=refusal.param)
            signal.setitimer(signal.ITIMER_PROF, 0)
            children.send(end, msgspec.msgpack.encode(encoded))


if __name__ == "__main__":
    _main()
