"""What each API's form makes of the same pieces: whole and streamed they say the same."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.protocol.anthropic_message import Message
from jaxinfer.protocol.forms import Choice, Form, Metrics, Usage
from jaxinfer.protocol.response_object import ResponseForm
from jaxinfer.protocol.responses import DONE, AnswerEnvelope


@dataclasses.dataclass
class Ended:
    """A request's progress at its end."""

    usage: Usage
    metrics: Metrics = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Piece:
    text: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: None = None
    reasoning: str = ""
    calls: Any = None


def objects(frames: bytes) -> list[dict[str, Any]]:
    """The events' objects; a frame is one event, whatever takes its text for lines."""
    found = []
    for frame in frames.removesuffix(DONE).decode().split("\n\n")[:-1]:
        *event, data = frame.splitlines()
        found.append(json.loads(data.removeprefix("data: ")))
        assert event in ([], [f"event: {found[-1].get('type')}"])
    return found


def chat_text(found: dict[str, Any]) -> str:
    return str(found["choices"][0]["message"]["content"])


def response_text(found: dict[str, Any]) -> str:
    return str(found["output"][0]["content"][0]["text"])


def message_text(found: dict[str, Any]) -> str:
    return str(found["content"][0]["text"])


def chat_delta(event: dict[str, Any]) -> str:
    return str(event["choices"][0]["delta"]["content"])


def response_delta(event: dict[str, Any]) -> str:
    return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""


def message_delta(event: dict[str, Any]) -> str:
    return str(event["delta"]["text"]) if event["type"] == "content_block_delta" else ""


FORMS = [
    (AnswerEnvelope("chat", "chatcmpl-1", 5, "m", "fp"), chat_text, chat_delta),
    (ResponseForm("resp_1", 5, "m", {"metadata": {}}, lambda response, text: None), response_text, response_delta),
    (Message("msg_1", "m", "1", 9), message_text, message_delta),
]


@pytest.mark.parametrize(("form", "text_of", "delta_of"), FORMS, ids=["chat", "response", "message"])
@given(
    texts=st.lists(st.text(), min_size=1, max_size=6),
    reason=st.sampled_from(["stop", "length", "abort"]),
    stop=st.none() | st.integers() | st.text(),
)
def test_a_stream_s_pieces_join_to_the_whole_answer(form: Form, text_of, delta_of, texts, reason, stop):
    progress = Ended(Usage(7, 3, len(texts)))
    whole = json.loads(form.body([Choice(0, "".join(texts), reason, stop)], progress))
    events = form.events(progress)
    pieces = [Piece(text) for text in texts[:-1]] + [Piece(texts[-1], reason, stop)]
    frames = b"".join(events.piece(0, piece) for piece in pieces) + events.end()
    found = objects(frames)
    assert "".join(map(delta_of, found)) == text_of(whole) == "".join(texts)
    if isinstance(form, ResponseForm):
        ended = {"completed_at"}
        assert {k: v for k, v in found[-1]["response"].items() if k not in ended} == {
            k: v for k, v in whole.items() if k not in ended
        }
    if isinstance(form, Message):
        named = ("stop_reason", "stop_sequence")
        assert [found[-2]["delta"][name] for name in named] == [whole[name] for name in named]
        assert found[-2]["usage"] == whole["usage"]
