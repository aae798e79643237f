"""The exception tree. Each message says what must hold, what was given, and what to do; or what
happened, then what to do.

JaxInferError
  ConfigError        an unknown or impossible setting                       exit code 2
    PortInUse        another program listens there
  CheckpointError    a model that cannot be found, read or understood      exit code 3
    HubUnreachable     a hub id that is not in the cache, and no hub
  DeviceError        a device that is missing, unusable or too small       exit code 4
  EngineError        the engine failed and cannot go on                    exit code 5
    DeviceLost       nothing in this process can use the device again
  BatchError         a batch file that cannot be read, written or resumed   exit code 6
  OutputError        standard output is closed or full                     exit code 8
    OutputClosed       nobody reads it any more                            exit code 141
  ApiError           a request refused: the client's fault, or our load
    InvalidRequest   400, also a ValueError for Python callers             exit code 2
      TooLong        a prompt, or prompt and answer, beyond the context
    Unauthorized     401
    Forbidden        403
    NotFound         404
    Conflict         409
    Overloaded       429, with retry_after_s
    Unavailable      503, with retry_after_s
"""

import os
from collections.abc import Mapping


def file_fault(act: str, path: object, error: OSError | UnicodeError) -> str:
    """What happened to a file, as an error says it. act: what could not be done, as in "read"."""
    if isinstance(error, FileNotFoundError):
        if act == "read":
            return f"file not found: {path}"
        folder = os.path.dirname(str(path)) or "."
        exists = os.path.isdir(folder)  # as /proc, where nobody can make one
        return f"cannot {act} {path}: its folder takes no new files" if exists else f"folder not found: {folder}"
    if isinstance(error, UnicodeError):
        return f"cannot {act} {path}: it is no UTF-8 text"
    return f"cannot {act} {path}: {error.strerror}"


class JaxInferError(Exception):
    """The root of every error that jaxinfer raises on purpose.

    is_quoted: its words are another program's.
    """

    exit_code = 1
    is_quoted = False


class ConfigError(JaxInferError, ValueError):
    """A setting that is unknown, out of range, or at odds with another."""

    exit_code = 2
    sources: Mapping[str, str] | None = None  # of all settings, as Resolved has them, where they are known


class PortInUse(ConfigError):
    """Another program listens on the port."""

    def __init__(self, port: int, owner: str = "", cure: str = "stop what uses it") -> None:
        """owner: who it is, where that is known."""
        super().__init__(f"port {port} is in use{f' ({owner})' if owner else ''}; {cure}, or pass another --port")
        self.port = port


class CheckpointError(JaxInferError):
    """A model folder or hub id that cannot be found, read or understood."""

    exit_code = 3


class HubUnreachable(CheckpointError):
    """A hub id that is not in the cache, while the hub cannot be asked."""


class DeviceError(JaxInferError):
    """A device that is missing, unusable, or too small for what was asked."""

    exit_code = 4


class EngineError(JaxInferError):
    """The engine failed and cannot go on."""

    exit_code = 5


class DeviceLost(EngineError):
    """The device's context is poisoned: this process cannot use it again, a new one can go on."""


class BatchError(JaxInferError):
    """A batch file that cannot be read or written, or a job on it that must not begin or go on."""

    exit_code = 6


class OutputError(JaxInferError):
    """Standard output that is closed, full, or cannot be written for another reason."""

    exit_code = 8


class OutputClosed(OutputError):
    """Standard output is a pipe whose reader has ended, as `head` does; no error is printed."""

    exit_code = 141  # as shells report a program that SIGPIPE ended


class ApiError(JaxInferError):
    """A request refused before or while it ran; carries what OpenAI's error object needs."""

    status = 500
    type = "internal_error"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s


class InvalidRequest(ApiError, ValueError):
    """The request itself is at fault; sending it again unchanged cannot help."""

    exit_code = 2
    status = 400
    type = "invalid_request_error"


class TooLong(InvalidRequest):
    """A prompt that does not fit into the context, or leaves too little of it for the answer.

    prompt_tokens: of the prompt.    most_tokens: of prompt and answer.    is_least: it has so many or more; what can
    never fit is not tokenized.
    """

    def __init__(
        self, message: str, *, param: str, prompt_tokens: int, most_tokens: int, is_least: bool = False
    ) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")
        self.prompt_tokens = prompt_tokens
        self.most_tokens = most_tokens
        self.is_least = is_least


class Unauthorized(ApiError):
    """The request brings no API key that this server knows."""

    status = 401
    type = "authentication_error"


class Forbidden(ApiError):
    """The server does not answer to this host name, or to this site's pages."""

    status = 403
    type = "permission_error"


class NotFound(ApiError):
    """The model or route asked for does not exist here."""

    status = 404
    type = "not_found_error"


class Conflict(ApiError):
    """Something that is under way, or already there, stands against it."""

    status = 409
    type = "conflict_error"


class Overloaded(ApiError):
    """The queue is full; the same request may be accepted after `retry_after_s`."""

    status = 429
    type = "rate_limit_error"


class Unavailable(ApiError):
    """The server is starting, draining or failed."""

    status = 503
    type = "service_unavailable_error"
