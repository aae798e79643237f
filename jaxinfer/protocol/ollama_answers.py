"""Ollama's answers: a JSON object, or objects a line each; durations are in nanoseconds, and measured."""

import dataclasses
import datetime
from typing import Any

import msgspec

from jaxinfer.errors import ApiError
from jaxinfer.protocol.forms import Choice, Piece, Progress
from jaxinfer.protocol.logprobs import TokenLogprob, chat_entries
from jaxinfer.protocol.responses import encode_json
from jaxinfer.text.tools.reader import CallDelta, WholeCalls

NDJSON = b"application/x-ndjson"
_NS_PER_MS = 1_000_000
_DURATIONS = {
    "total_duration": "total_time_ms",
    "prompt_eval_duration": "prefill_time_ms",
    "eval_duration": "generation_time_ms",
}
_REASONS = {"tool_calls": "stop"}  # of the others the words are the same


@dataclasses.dataclass(frozen=True, slots=True)
class OllamaAnswer:
    """What all lines of one answer share. model: as the client wrote it.    is_chat: /api/chat's, else generate's."""

    id: str
    model: str
    is_chat: bool

    def body(self, choices: list[Choice], progress: Progress) -> bytes:
        """The whole answer, not streamed."""
        (choice,) = choices
        said = self.said(choice.text, choice.reasoning, choice.calls)
        return encode_json(
            self.line(said, done=True) | _logprobs(choice.logprobs) | ended(choice.finish_reason, progress)
        )

    def events(self, progress: Progress) -> "Lines":
        """The answer, streamed."""
        return Lines(self, progress)

    def loaded(self, *, unloads: bool) -> bytes:
        """The answer to a request without a prompt, which asks for the model to be loaded: it is. One that asks for
        the model to be unloaded has Ollama's answer, and a warning that keep_alive is ignored."""
        reason = "unload" if unloads else "load"
        return encode_json(self.line(self.said("", "", []), done=True) | {"done_reason": reason})

    def line(self, said: dict[str, Any], *, done: bool) -> dict[str, Any]:
        """One object of the answer."""
        return {"model": self.model, "created_at": now()} | said | {"done": done}

    def said(self, text: str, thoughts: str, calls: list[CallDelta]) -> dict[str, Any]:
        """A piece of the answer, under the names of the route."""
        beside: dict[str, Any] = {"thinking": thoughts} if thoughts else {}
        if calls:
            beside["tool_calls"] = [_call(call) for call in calls]
        if self.is_chat:
            return {"message": {"role": "assistant", "content": text} | beside}
        return {"response": text} | beside


class Lines:
    """The lines of one streamed answer. A call is in one line, once it is whole."""

    content_type = NDJSON
    ping = b" "  # white space before the next line's object: an empty line is no JSON, and some clients read it as such

    def __init__(self, answer: OllamaAnswer, progress: Progress) -> None:
        self._answer = answer
        self._progress = progress
        self._calls = WholeCalls()
        self._num_sent = 0
        self._reason = ""

    def piece(self, index: int, piece: Piece) -> bytes:
        text = self._calls.add(piece.calls, piece.text) if piece.calls else piece.text
        calls = self._calls.calls[self._num_sent :]
        self._num_sent += len(calls)
        self._reason = piece.finish_reason or self._reason
        if not (text or piece.reasoning or calls or piece.logprobs):
            return b""
        line = self._answer.line(self._answer.said(text, piece.reasoning, calls), done=False)
        return _line(line | _logprobs(piece.logprobs))

    def end(self) -> bytes:
        last = self._answer.line(self._answer.said("", "", []), done=True)
        return _line(last | ended(self._reason, self._progress))

    def failed(self, error: ApiError) -> bytes:
        return ollama_error_body(error) + b"\n"


def ended(finish_reason: str, progress: Progress) -> dict[str, Any]:
    """How an answer ended, and what it took. A duration that was not measured is left out."""
    usage, metrics = progress.usage, progress.metrics
    found = {name: metrics.get(ours) for name, ours in _DURATIONS.items()}
    durations = {name: round(ms * _NS_PER_MS) for name, ms in found.items() if ms is not None}
    return {
        "done_reason": _REASONS.get(finish_reason, finish_reason),
        "load_duration": 0,  # the model was loaded when the server started
        "prompt_eval_count": usage.prompt_tokens,
        "eval_count": usage.completion_tokens,
    } | durations


def embeddings_body(model: str, vectors: list[bytes], num_tokens: int, total_s: float) -> bytes:
    """The answer of /api/embed. vectors: JSON lists."""
    return encode_json(
        {
            "model": model,
            "embeddings": [msgspec.Raw(vector) for vector in vectors],
            "total_duration": round(total_s * 1e9),
            "load_duration": 0,
            "prompt_eval_count": num_tokens,
        }
    )


def ollama_error_body(error: ApiError) -> bytes:
    """Ollama's error object: a text."""
    return encode_json({"error": str(error)})


def now() -> str:
    return rfc3339(datetime.datetime.now(datetime.UTC))


def rfc3339(moment: datetime.datetime) -> str:
    """A moment in UTC, as JSON has it."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _logprobs(entries: list[TokenLogprob] | None) -> dict[str, Any]:
    """The field, where it was asked for: an entry for each token, as in chat."""
    return {} if entries is None else {"logprobs": chat_entries(entries)}


def _call(call: CallDelta) -> dict[str, Any]:
    function = {"name": call.name, "arguments": msgspec.Raw(call.arguments.encode() or b"{}")}
    return {"id": call.id, "function": function}


def _line(value: dict[str, Any]) -> bytes:
    return encode_json(value) + b"\n"
