"""Parts of a message's content, those of every API in each: texts, thoughts, and documents that are texts."""

import dataclasses
import json
import re
from typing import Any

from jaxinfer.protocol.validate import invalid, show, unsupported

TEXT_FIELDS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
THOUGHT_KINDS = frozenset({"thinking", "reasoning", "reasoning_text", "summary_text"})
# What another server has encrypted, or where its models changed: there is nothing to read in them.
BLANK_KINDS = frozenset({"redacted_thinking", "fallback"})
CALL_KINDS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})  # those of results end in _RESULT
_RESULT = "tool_result"
_CALL_OR_RESULT = re.compile(  # of any API
    r"function|program|mcp_approval_(?:request|response)|(?:.*_)?(?:tool_use|tool_result|call|output)", re.DOTALL
)
_THOUGHT_FIELDS = ("thinking", "reasoning", "text", "content", "summary")


@dataclasses.dataclass(frozen=True, slots=True)
class PartRules:
    """example: the type of a text, for messages.    call_cure: what to do instead of calls among the parts.
    thinks: thoughts may be among them.
    """

    example: str
    call_cure: str
    thinks: bool = False


@dataclasses.dataclass(slots=True)
class Content:
    """What a message says, part by part. thoughts: an assistant's alone."""

    texts: list[str] = dataclasses.field(default_factory=list)
    thoughts: list[str] = dataclasses.field(default_factory=list)

    @property
    def text(self) -> str:
        """vLLM's way for templates that take a string: a line to each part."""
        return "\n".join(self.texts)

    def add(self, part: Any, path: str, rules: PartRules) -> None:
        """What one part says, behind the others. Raises InvalidRequest."""
        kind = kind_of(part)
        if kind in BLANK_KINDS or (kind == "compaction" and part.get("content") is None):  # null: it came to nothing
            return
        if kind == "thinking" and rules.thinks and part.get(kind) is None:
            raise invalid(f"{path}.thinking", "a string", None)
        if kind in THOUGHT_KINDS and rules.thinks:
            self.thoughts.append(read_thoughts(part, path))
        elif (text := _text_of(part, kind, path)) is not None:
            self.texts.append(text)
        elif kind is None or kind in TEXT_FIELDS:
            raise invalid(path, f'a text part, {{"type": "{rules.example}", "text": "..."}}', part)
        else:
            cure = rules.call_cure if kind in CALL_KINDS or kind.endswith(_RESULT) else "this server reads text only"
            cure = "thoughts are the assistant's" if kind in THOUGHT_KINDS else cure
            raise unsupported(f"{path} of type {shown(kind)}", cure=cure, param=path)


def read_parts(content: Any, path: str, rules: PartRules) -> Content:
    """A string, or a list of parts. Raises InvalidRequest."""
    if isinstance(content, str):
        return Content([content])
    if not isinstance(content, list):
        raise invalid(path, "a string or a list of text parts", content)
    read = Content()
    for position, part in enumerate(content):
        read.add(part, f"{path}[{position}]", rules)
    return read


def kind_of(part: Any) -> str | None:
    """The type of a part or an item, if it names one."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else None


def is_call_or_result(kind: str) -> bool:
    """Whether that is an item's type in one of the APIs."""
    return _CALL_OR_RESULT.fullmatch(kind) is not None


def shown(kind: str) -> str:
    """A type as it was sent, for an error message."""
    return ascii(kind)[1:-1][:40]


def read_thoughts(part: dict[str, Any], path: str) -> str:
    """Of a part or an item: a text, or a list of such; "" where there are none to read."""
    for name in _THOUGHT_FIELDS:
        if (given := part.get(name)) in (None, []):
            continue
        texts = given if isinstance(given, list) else [{"text": given}]
        found = [each.get("text") if isinstance(each, dict) else None for each in texts]
        if not all(isinstance(text, str) for text in found):
            raise invalid(f"{path}.{name}", 'a string or a list of {"text": "..."}', given)
        return "".join(map(str, found))
    return ""


def _text_of(part: Any, kind: str | None, path: str) -> str | None:
    """None for what is no text, or none of ours."""
    match kind:
        case None:
            return None
        case "search_result":
            return _headed(part, ("title", "source"), part.get("content"), f"{path}.content")
        case "document":
            return _document(part, path)
        case "tool_reference" if isinstance(part.get("tool_name"), str):
            return str(part["tool_name"])
        case "compaction" if isinstance(part.get("content"), str):
            return str(part["content"])
    text = part.get(TEXT_FIELDS[kind]) if kind in TEXT_FIELDS else None
    return text if isinstance(text, str) else None


def _document(part: dict[str, Any], path: str) -> str:
    """One that is a text, or made of texts; others are files."""
    source = part.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if not isinstance(source, dict) or kind not in ("text", "content"):
        what = f"{path} of type document with a source of type {show(kind)}"
        raise unsupported(what, cure="send its text", param=f"{path}.source")
    name = "data" if kind == "text" else "content"
    return _headed(part, ("title", "context"), source.get(name), f"{path}.source.{name}")


def _headed(part: dict[str, Any], names: tuple[str, ...], content: Any, path: str) -> str:
    """A text below what it is called."""
    heads = [part[name] for name in names if isinstance(part.get(name), str) and part[name]]
    return "\n".join([*heads, *read_parts(content, path, PartRules("text", "send its text")).texts])


def as_text(value: Any) -> str:
    """What is JSON and no text, for a model to read."""
    return json.dumps(value, ensure_ascii=False)
