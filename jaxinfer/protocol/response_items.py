"""The input of /v1/responses: items of several types, put together into chat's messages."""

from collections.abc import Callable
from typing import Any

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.messages import MAX_MESSAGES, Dialect, called, read_content, read_message, unknown_in
from jaxinfer.protocol.parts import read_thoughts
from jaxinfer.protocol.response_calls import CALL_FIELDS, CALLS, OWN_RESULTS, RESULT_FIELDS, RESULTS, Item, result_id
from jaxinfer.protocol.validate import Verbatim, invalid, show, unsupported

Messages = list[dict[str, Any]]
_REFERENCE = "item_reference"
BLANK = frozenset({"ghost_snapshot"})  # what agents note for themselves: Codex's commit of a folder
LOST = frozenset({"compaction", "compaction_summary", "context_compaction"})  # which only who wrote it can read
DIALECT = Dialect(
    "input",
    text_parts=("input_text", "output_text"),
    ignored=frozenset({"type", "id", "status", "phase"}),
    result_cure="send a function_call_output",
    block_cure="calls are items function_call, results function_call_output",
)


def read_input(
    raw: Any, before: Messages, item_of: Callable[[str], Item | None], is_before: Callable[[str], bool]
) -> tuple[Messages, tuple[str, ...]]:
    """The messages, and the names of fields that nobody reads; a text is the user's. before: the conversation that they
    go on with.    item_of: an item of an earlier response, by its id.    is_before: whether the item of that id is of
    that conversation, so that a reference to it brings nothing more. Raises InvalidRequest.
    """
    if isinstance(raw, str):
        return [{"role": "user", "content": raw}], ()
    if not isinstance(raw, list):
        raise invalid("input", "a text or a list of items", raw)
    if not 1 <= len(raw) <= MAX_MESSAGES:
        raise invalid("input", f"a list of 1 to {MAX_MESSAGES} items", Verbatim(str(len(raw))))
    reader, places = _Reader(before), dict[str, str]()
    for position, item in enumerate(raw):
        path = f"input[{position}]"
        is_reference = _kind_of(item) == _REFERENCE
        read = _referenced(item, path, places, item_of) if is_reference else item
        if not (is_reference and is_before(item["id"])):
            reader.add(read, path)
    reader.end()
    if len(before) + len(reader.messages) > MAX_MESSAGES:
        law = f"a list of at most {MAX_MESSAGES} messages, with those that it goes on from"
        raise invalid("input", law, Verbatim(str(len(before) + len(reader.messages))))
    return reader.messages, tuple(reader.unknown)


class _Reader:
    """Invariant: `_answer` is the last message while that is the assistant's, so that calls, and text and thoughts
    behind them, may join it.
    """

    def __init__(self, before: Messages) -> None:
        self.messages: Messages = []
        self.unknown: list[str] = []
        self._open: dict[str, dict[str, Any]] = {}  # calls that have no result yet, by id
        for message in before:
            self._follow(message)
        self._thoughts = ""  # of the assistant's message that comes next
        self._answer: dict[str, Any] | None = None

    def add(self, item: Any, path: str) -> None:
        """The next item, put into the messages."""
        match _kind_of(item):
            case "reasoning":
                self._thoughts += read_thoughts(item, path)
            case str(kind) if kind in CALLS:
                self._add_call(item, path)
            case str(kind) if kind in RESULTS:
                self._add_result(item, path)
            case None | "message":
                self._add_message(item, path)
            case str(kind) if kind in BLANK:
                pass
            case kind:
                cure = "send messages, reasoning, calls and what they brought"
                if isinstance(kind, str) and kind in LOST:
                    cure = "send the messages that it stands for, or a summary of them as a message"
                raise unsupported(f"{path} of type {show(kind)}", cure=cure, param=f"{path}.type")

    def end(self) -> None:
        """Thoughts before which or behind which the assistant says nothing are a message of their own."""
        if not self._thoughts:
            return
        if self._answer is None:
            self._put({"role": "assistant", "content": ""}, is_answer=True)
        self._join_thoughts()

    def _join_thoughts(self) -> dict[str, Any]:
        """To the last message, the assistant's, which it returns."""
        assert self._answer is not None
        thoughts, self._thoughts = self._thoughts, ""
        if thoughts:
            self._answer["reasoning_content"] = self._answer.get("reasoning_content", "") + thoughts
        return self._answer

    def _add_message(self, item: Any, path: str) -> None:
        message = read_message(item, path, DIALECT)
        self.unknown += unknown_in(item, path, DIALECT)
        is_answer = message["role"] == "assistant"
        if is_answer and self._thoughts:
            message, self._thoughts = {"reasoning_content": self._thoughts} | message, ""
        if is_answer and self._answer and "tool_calls" in self._answer and message.keys() == {"role", "content"}:
            self._answer["content"] += message["content"]  # a stream has text behind a call in an item of its own
        else:
            self._put(message, is_answer=is_answer)

    def _add_call(self, item: dict[str, Any], path: str) -> None:
        """A call, and what it brought where a server carried it out, which has both in one item."""
        call_id, name, arguments = CALLS[item["type"]](item, path)
        self.unknown += [f"{path}.{name}" for name in item if name not in CALL_FIELDS]
        if self._answer is None:
            self._put({"role": "assistant", "content": ""}, is_answer=True)
        call = called(call_id, name, arguments)
        self._join_thoughts().setdefault("tool_calls", []).append(call)
        self._open[call_id] = call
        if item["type"] in OWN_RESULTS:
            self._put(_result(call_id, OWN_RESULTS[item["type"]](item, path)), is_answer=False)

    def _add_result(self, item: dict[str, Any], path: str) -> None:
        call_id = result_id(item, path, self._open.values())
        self.unknown += [f"{path}.{name}" for name in item if name not in RESULT_FIELDS]
        output = RESULTS[item["type"]](item, path)
        if not isinstance(output, str):
            output = read_content(output, f"{path}.output", DIALECT)
        self._put(_result(call_id, output), is_answer=False)

    def _follow(self, message: dict[str, Any]) -> None:
        self._open |= {call["id"]: call for call in message.get("tool_calls", ())}
        self._open.pop(message.get("tool_call_id", ""), None)

    def _put(self, message: dict[str, Any], *, is_answer: bool) -> None:
        if not is_answer:
            self.end()
        self.messages.append(message)
        self._follow(message)
        self._answer = message if is_answer else None


def _kind_of(item: Any) -> Any:
    """An item's type. OpenAI's types leave it out of messages, and of references, which have an id and no role."""
    if not isinstance(item, dict):
        return None
    is_reference = item.get("type") is None and isinstance(item.get("id"), str) and "role" not in item
    return _REFERENCE if is_reference else item.get("type")


def _referenced(item: Item, path: str, places: dict[str, str], item_of: Callable[[str], Item | None]) -> Item:
    """The item that a reference names. places: the references before, by what they name; each names another, so that
    a short request is not a long conversation.
    """
    item_id = item.get("id")
    if not isinstance(item_id, str):
        raise invalid(f"{path}.id", f"the id of the item that this {_REFERENCE} stands for", item_id)
    if item_id in places:
        law = f"another item's than that of {places[item_id]}"
        raise invalid(f"{path}.id", f"in an {_REFERENCE} {law}", item_id, cure="name each item once")
    places[item_id] = path
    found = item_of(item_id)
    if found is None:
        message = (
            f"{path} of type {_REFERENCE} must name an item of a stored response of yours that is still held, "
            f"got {show(item_id)}; send the item itself"
        )
        raise InvalidRequest(message, param=f"{path}.id", code="item_not_found")
    return found


def _result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}
