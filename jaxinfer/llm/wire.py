"""The messages between a server and its engine process: msgpack frames on a socket pair, each behind its length.

One union per direction, exactly one field set. Only types of ours are decoded, so that a frame can do nothing but fill
them.
"""

import contextlib
import socket
import struct
import threading
from array import array
from collections import deque

import msgspec

from jaxinfer import errors
from jaxinfer.config import EngineConfig
from jaxinfer.engine.sequence import Abort, Acknowledge, Add, Forget, Keep, Message, Output, StopStringFound
from jaxinfer.errors import EngineError, JaxInferError
from jaxinfer.llm.events import Event
from jaxinfer.llm.transport import Handshake
from jaxinfer.llm.types import Stats

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 16  # a whole message of most: head and frame by one call of the system


class Start(msgspec.Struct):
    """The settings, whether the handshake waits until all is compiled, and which of several replicas it is."""

    config: EngineConfig
    whole: bool
    replica: int = 0


class Profile(msgspec.Struct):
    """Begin a trace into `folder`, or end the one under way."""

    folder: str | None


class Profiled(msgspec.Struct):
    """The answer to a Profile. error: "" when it was done."""

    error: str = ""


class ToEngine(msgspec.Struct, omit_defaults=True):
    """`start` comes first and once. `profile` is answered by `profiled`, before the next is sent."""

    start: Start | None = None
    add: Add | None = None
    abort: Abort | None = None
    acknowledge: Acknowledge | None = None
    end: StopStringFound | None = None
    keep: Keep | None = None
    forget: Forget | None = None
    profile: Profile | None = None

    @classmethod
    def of(cls, message: Message) -> "ToEngine":
        match message:
            case Add():
                return cls(add=message)
            case Abort():
                return cls(abort=message)
            case Acknowledge():
                return cls(acknowledge=message)
            case StopStringFound():
                return cls(end=message)
            case Keep():
                return cls(keep=message)
            case Forget():
                return cls(forget=message)
        raise ValueError(f"{type(message).__name__} cannot leave its process; only the others can")

    @property
    def message(self) -> Message:
        message = self.add or self.abort or self.acknowledge or self.end or self.keep or self.forget
        if message is None:
            raise ValueError("an engine is started once, and then given messages")
        return message


class Failure(msgspec.Struct):
    """An exception of errors.py by name; anything else has become an EngineError."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        if isinstance(error, JaxInferError) and getattr(errors, type(error).__name__, None) is type(error):
            return cls(type(error).__name__, str(error))
        return cls("EngineError", f"{type(error).__name__}: {error}")

    @property
    def error(self) -> JaxInferError:
        kind: type[JaxInferError] = getattr(errors, self.kind)
        return kind(self.message)


class FromEngine(msgspec.Struct, omit_defaults=True):
    """Events, then handshake or failure; then `outputs` once a step, the rest now and then, failure last."""

    event: Event | None = None
    handshake: Handshake | None = None
    outputs: list[Output] | None = None
    stats: Stats | None = None
    profiled: Profiled | None = None
    failure: Failure | None = None


class Channel[Sent: msgspec.Struct, Received: msgspec.Struct]:
    """One end of the socket pair. Any thread may send, or at an end that must never wait, post; one thread receives.

    Invariant: a thread sends what could not be posted at once, if and only if there is some; else no thread does.
    """

    def __init__(self, end: socket.socket, received: type[Received]) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._unsent: deque[bytes] = deque()
        self._received = bytearray()  # received and not taken yet
        self._encoder = msgspec.msgpack.Encoder(enc_hook=array.tobytes)
        self._decoder = msgspec.msgpack.Decoder(received, dec_hook=_ids)

    def send(self, message: Sent) -> bool:
        """Wait until the other end has room for it. False when that is gone."""
        with self._sending:
            assert not self._unsent, "an end sends or posts, not both"
            try:
                self._socket.sendall(self._frame(message))
            except OSError:
                return False
        return True

    def post(self, message: Sent) -> bool:
        """The same without waiting: what the other end, wedged perhaps, has no room for is kept here until it has.

        That takes as much memory as is posted meanwhile: of a server, up to 5 bytes for each token of the prompts that
        come, also of those whose clients leave again.
        """
        with self._sending:
            frame, num_sent = self._frame(message), 0
            if not self._unsent:
                try:
                    num_sent = self._socket.send(frame, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    num_sent = 0
                except OSError:
                    return False
            if num_sent < len(frame):
                self._unsent.append(frame[num_sent:])
                if len(self._unsent) == 1:
                    threading.Thread(target=self._send_unsent, name="jaxinfer-unsent", daemon=True).start()
        return True

    def _send_unsent(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # when the other end is gone, all that is left goes nowhere
                self._socket.sendall(self._unsent[0])
            with self._sending:
                self._unsent.popleft()
                if not self._unsent:
                    return

    def _frame(self, message: Sent) -> bytes:
        frame = self._encoder.encode(message)
        return _LENGTH.pack(len(frame)) + frame

    def receive(self) -> Received | None:
        """The next message; None when the other end is gone. Raises EngineError when it is none of ours."""
        head = self._take(_LENGTH.size)
        frame = self._take(_LENGTH.unpack(head)[0]) if head else None
        try:
            return self._decoder.decode(frame) if frame else None
        except msgspec.MsgspecError as error:
            raise EngineError(f"both processes must speak alike, a message cannot be read: {error}") from error

    def _take(self, size: int) -> bytes | None:
        """Exactly `size` bytes; None when they will never all come."""
        while len(self._received) < size:
            try:
                part = self._socket.recv(_READ_BYTES)
            except OSError:  # closed on our side meanwhile
                return None
            if not part:
                return None
            self._received += part
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def close(self) -> None:
        """Wake the receiver, here and there, and let go of the socket."""
        with contextlib.suppress(OSError):  # the other end may have been faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _ids(kind: type, content: bytes) -> "array[int]":
    """A prompt, the one thing whose type msgspec does not know: as numbers of msgpack its ids would take 23 ns each."""
    return array("I", content)
