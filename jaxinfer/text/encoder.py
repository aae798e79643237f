"""Encodes texts in processes that can be killed: for tokenizers with rules that may take long (see linear.py).

`python -m jaxinfer.text.encoder FD` reads the tokenizer once and then forks: a worker for each text that is encoded at
a time, which shares the vocabulary's memory. A worker that uses up a text's processor time is ended by the system's
timer, and the next text gets a new one; for a worker that something else has ended, the text gets another. All are
a session of their own and end when the socket to the server closes. Imports no jax.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from array import array
from collections.abc import Callable, Sequence

import msgspec

from jaxinfer import children
from jaxinfer.errors import EngineError, InvalidRequest

START_S = 60.0  # Python's start and a large vocabulary, on a busy machine
TEXT_S, CHAR_S = 0.5, 8e-6  # of processor time; published tokenizers take 0.5 to 3 us a character
ATTEMPTS = 3  # at a text whose workers are ended from outside, as by the kernel when memory is short
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

    Invariant: a worker that is idle has no text; one that did not answer is dead; once closed, nothing starts.
    """

    def __init__(self, tokenizer_json: bytes, secret: str, rules: Sequence[str]) -> None:
        """secret: what names of control tokens begin with in plain text.    rules: that may take long."""
        self._file, self._secret, self._rules = tokenizer_json, secret, rules
        self._lock = threading.Lock()  # of all below
        self._is_closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._idle: list[socket.socket] = []  # a thread takes one from the list while it encodes
        self._kill: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Begin what the first text would wait for. Raises OSError, and EngineError when this is closed."""
        with self._lock:
            self._start()

    def _start(self) -> None:
        if self._is_closed:
            raise EngineError("a model must be open to encode a text, this one has been closed; load it again")
        if self._process is not None and self._process.poll() is None:
            return
        self._kill()  # closes what is left of one that has died
        variables = {"TOKENIZERS_PARALLELISM": "false"}
        process, end = children.start("jaxinfer.text.encoder", variables=variables, new_session=True)
        self._process, self._end = process, end
        self._kill = weakref.finalize(self, _kill, process, end, self._idle)
        with tempfile.TemporaryFile() as file:
            file.write(self._file)
            file.flush()
            socket.send_fds(end, [self._secret.encode().ljust(_SECRET_BYTES)], [file.fileno()])

    def close(self) -> None:
        """End the process and its workers, whatever they do: texts under way, and later ones, get an EngineError."""
        with self._lock:
            self._is_closed = True
            self._kill()

    def encode(self, text: str, *, add_special_tokens: bool, plain: bool) -> list[int]:
        """Token ids. Raises InvalidRequest, and EngineError when no process can start or its workers are ended."""
        encoded = self._encoded(Task(text, add_special_tokens, plain, TEXT_S + CHAR_S * len(text)))
        if encoded.error:
            raise InvalidRequest(encoded.error, param=encoded.param)
        ids = array("I")
        ids.frombytes(encoded.ids)
        return ids.tolist()

    def _encoded(self, task: Task) -> Encoded:
        message = msgspec.msgpack.encode(task)
        for attempt in range(ATTEMPTS):
            worker = (self._take() if attempt == 0 else None) or self._worker()
            begun_s = time.monotonic()
            try:
                children.send(worker, message)
                encoded = msgspec.msgpack.decode(children.receive(worker), type=Encoded)
            except OSError:
                worker.close()
                # a worker has one thread: it has used at most as much of a processor as time has passed
                if time.monotonic() - begun_s >= task.limit_s:
                    raise self._too_long() from None
            else:
                self._put_back(worker)
                return encoded
        fact = f"{ATTEMPTS} in a row were ended from outside, perhaps for want of memory"
        raise EngineError(f"a worker that encodes a text must live until it has; {fact}. Send the request again")

    def _take(self) -> socket.socket | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _put_back(self, worker: socket.socket) -> None:
        with self._lock:
            if self._is_closed:
                worker.close()
            else:
                self._idle.append(worker)

    def _worker(self) -> socket.socket:
        """The socket of a new one, which has said that it is there."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                self._start()
                socket.send_fds(self._end, [b"+"], [theirs.fileno()])
            ours.settimeout(START_S)
            children.receive(ours)
            ours.settimeout(None)
        except OSError as error:
            ours.close()
            raise EngineError(f"the process that encodes texts must start, it did not: {error}") from error
        except EngineError:
            ours.close()
            raise
        return ours

    def _too_long(self) -> InvalidRequest:
        return InvalidRequest(
            f"a text must take the model's tokenizer at most {TEXT_S:g} s and {CHAR_S * 1e6:g} us a character, and "
            f"this one takes longer, as a text may with its {', '.join(self._rules[:3])}. Shorten what repeats in it, "
            "such as a run of spaces, digits or one letter, or serve the model with another --tokenizer.",
            param="prompt",
        )


def _kill(process: "subprocess.Popen[bytes]", end: socket.socket, idle: list[socket.socket]) -> None:
    """End a process and its workers, also those that have a text."""
    end.close()
    while idle:
        idle.pop().close()
    if process.returncode is None:  # else its number may be another's by now
        with contextlib.suppress(ProcessLookupError):  # a program that ignores SIGCHLD keeps no dead children
            os.killpg(process.pid, signal.SIGKILL)
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
    os.killpg(0, signal.SIGKILL)  # of the session that it leads: a worker may have a text that nobody waits for


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
