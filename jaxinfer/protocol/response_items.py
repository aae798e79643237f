"""The input of /v1/responses: items of several types, put together into chat's messages."""

from typing import Any

from jaxinfer.protocol.messages import MAX_CALLS, MAX_MESSAGES, Dialect, read_content, read_message, unknown_in
from jaxinfer.protocol.validate import Verbatim, invalid, show, unsupported

Messages = list[dict[str, Any]]
DIALECT = Dialect(
    "input",
    text_parts=("input_text", "output_text"),
    ignored=frozenset({"type", "id", "status", "phase"}),
    result_cure="send a function_call_output",
    block_cure="calls are items function_call, results function_call_output",
)
_CALL_FIELDS = frozenset({"type", "id", "status", "call_id", "name", "arguments"})
_RESULT_FIELDS = frozenset({"type", "id", "status", "call_id", "output"})


def read_input(raw: Any, before: Messages) -> tuple[Messages, tuple[str, ...]]:
    """The messages, and the names of fields that nobody reads; a text is the user's. before: the conversation that they
    go on with. Raises InvalidRequest.
    """
    if isinstance(raw, str):
        return [{"role": "user", "content": raw}], ()
    if not isinstance(raw, list):
        raise invalid("input", "a text or a list of items", raw)
    if not 1 <= len(raw) <= MAX_MESSAGES:
        raise invalid("input", f"a list of 1 to {MAX_MESSAGES} items", Verbatim(str(len(raw))))
    reader = _Reader({call["id"] for message in before for call in message.get("tool_calls", ())})
    for position, item in enumerate(raw):
        reader.add(item, f"input[{position}]")
    if not reader.messages:
        raise invalid("input", "a list with more than thoughts", Verbatim("items of type reasoning alone"))
    if len(before) + len(reader.messages) > MAX_MESSAGES:
        law = f"a list of at most {MAX_MESSAGES} messages, with those that it goes on from"
        raise invalid("input", law, Verbatim(str(len(before) + len(reader.messages))))
    return reader.messages, tuple(reader.unknown)


class _Reader:
    """Invariant: `_answer` is the last message while that is the assistant's, so that calls, and text behind them, may
    join it. call_ids: of the calls so far, one of which a result must name.
    """

    def __init__(self, call_ids: set[str]) -> None:
        self._call_ids = call_ids
        self.messages: Messages = []
        self.unknown: list[str] = []
        self._thoughts = ""  # of the assistant's message that comes next
        self._answer: dict[str, Any] | None = None

    def add(self, item: Any, path: str) -> None:
        """The next item, put into the messages."""
        match item.get("type") if isinstance(item, dict) else None:
            case "reasoning":
                self._thoughts += _thoughts(item, path)
            case "function_call":
                self._add_call(item, path)
            case "function_call_output":
                self._add_result(item, path)
            case None | "message":
                self._add_message(item, path)
            case kind:
                cure = "send messages, function_call, function_call_output and reasoning"
                raise unsupported(f"{path} of type {show(kind)}", cure=cure, param=f"{path}.type")

    def _add_message(self, item: Any, path: str) -> None:
        message = read_message(item, path, DIALECT)
        self.unknown += unknown_in(item, path, DIALECT)
        is_answer = message["role"] == "assistant"
        if is_answer and self._thoughts:
            message = {"reasoning_content": self._thoughts} | message
        if is_answer and self._answer and "tool_calls" in self._answer and message.keys() == {"role", "content"}:
            self._answer["content"] += message["content"]  # a stream has text behind a call in an item of its own
        else:
            self._put(message, is_answer=is_answer)

    def _add_call(self, item: dict[str, Any], path: str) -> None:
        for name in ("call_id", "name", "arguments"):
            if not isinstance(item.get(name), str) or (name != "arguments" and not item[name]):
                raise invalid(f"{path}.{name}", "a string", item.get(name))
        self.unknown += [f"{path}.{name}" for name in item if name not in _CALL_FIELDS]
        thoughts, self._thoughts = self._thoughts, ""
        if self._answer is None:
            self._put({"role": "assistant", "content": ""}, is_answer=True)
        assert self._answer is not None
        if thoughts:
            self._answer["reasoning_content"] = self._answer.get("reasoning_content", "") + thoughts
        calls = self._answer.setdefault("tool_calls", [])
        if len(calls) == MAX_CALLS:
            raise invalid(path, f"one of at most {MAX_CALLS} calls in a row", Verbatim("one more"))
        function = {"name": item["name"], "arguments": item["arguments"]}
        calls.append({"id": item["call_id"], "type": "function", "function": function})
        self._call_ids.add(item["call_id"])

    def _add_result(self, item: dict[str, Any], path: str) -> None:
        call_id = item.get("call_id")
        if not isinstance(call_id, str):
            raise invalid(f"{path}.call_id", "the id of the call that it answers", call_id)
        self.unknown += [f"{path}.{name}" for name in item if name not in _RESULT_FIELDS]
        output = read_content(item.get("output"), f"{path}.output", DIALECT)
        if call_id not in self._call_ids:
            law, cure = (
                "that of a function_call before it",
                "send that too, or previous_response_id",
            )
            raise invalid(f"{path}.call_id", law, call_id, cure=cure)
        self._put({"role": "tool", "tool_call_id": call_id, "content": output}, is_answer=False)

    def _put(self, message: dict[str, Any], *, is_answer: bool) -> None:
        self.messages.append(message)
        self._thoughts = ""
        self._answer = message if is_answer else None


def _thoughts(item: dict[str, Any], path: str) -> str:
    """Of an answer of ours that a client sends back; other servers' may be encrypted, or told as a summary alone."""
    parts = item.get("content")
    if parts is None:
        return ""
    texts = (
        [part.get("text") if isinstance(part, dict) else None for part in parts] if isinstance(parts, list) else [None]
    )
    if not all(isinstance(text, str) for text in texts):
        raise invalid(f"{path}.content", 'a list of {"type": "reasoning_text", "text": "..."}', parts)
    return "".join(map(str, texts))
