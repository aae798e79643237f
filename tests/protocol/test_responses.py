"""Bodies and frames parse back to what went in; the golden traces are in tests/server/test_stream.py."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.errors import InvalidRequest, Overloaded
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.forms import Choice, Usage
from jaxinfer.protocol.responses import DONE, PING, AnswerEnvelope, error_body, error_frame
from jaxinfer.text.tools.reader import CallDelta
from tests.protocol.test_forms import Ended

CHAT = AnswerEnvelope("chat", "chatcmpl-1", 5, 'a "name"', "fp")
COMPLETION = AnswerEnvelope("completion", "cmpl-1", 5, "m", "fp")


def data(frame: bytes):
    """A frame's JSON; a frame is one line and an empty one."""
    assert frame.startswith(b"data: ") and frame.endswith(b"\n\n") and frame.count(b"\n") == 2
    assert len(frame.decode().splitlines()) == 2
    return json.loads(frame.removeprefix(b"data: "))


@given(text=st.text(), index=st.integers(0, 10**6), reason=st.none() | st.text() | st.integers())
def test_a_frame_carries_any_text_on_one_line(text, index, reason):
    chat = data(CHAT.frames().text(index, text, "stop", reason))["choices"][0]
    assert chat == {
        "index": index,
        "delta": {"content": text},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": reason,
    }
    completion = data(COMPLETION.frames().text(index, text))["choices"][0]
    assert completion == {"index": index, "text": text, "logprobs": None, "finish_reason": None}


def test_all_frames_of_an_answer_share_their_head():
    frames = CHAT.frames()
    usage = Usage(prompt_tokens=3, cached_tokens=2, completion_tokens=4)
    all_frames = [
        frames.role(1),
        frames.text(1, "x"),
        frames.text(1, "", "length", None, usage),
        frames.last(usage, None),
    ]
    for frame in map(data, all_frames):
        assert {key: frame[key] for key in ("id", "object", "created", "model", "system_fingerprint")} == {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 5,
            "model": 'a "name"',
            "system_fingerprint": "fp",
        }
    assert data(all_frames[2])["usage"] == data(all_frames[3])["usage"] == usage.as_dict()
    assert usage.as_dict()["total_tokens"] == 7


def test_a_chats_text_and_calls_are_streamed_as_they_were_said_however_much_comes_at_once():
    piece = Delta(0, "I look.", [1], calls=[CallDelta(0, "a", "f", "{}", is_whole=True, at=7)], finish_reason=None)
    piece.extend(Delta(0, "Or so.", [2], calls=[CallDelta(1, "b", "g", '{"x":1}', is_whole=True, at=3)]))
    frames = CHAT.events(Ended(Usage(1, 0, 2))).piece(0, piece).split(b"\n\n")[1:-1]  # but for the role's
    said = []
    for frame in frames:
        delta = data(frame + b"\n\n")["choices"][0]["delta"]
        function = delta["tool_calls"][0]["function"] if "tool_calls" in delta else {}
        said.append(delta.get("content") or function.get("name") or function["arguments"])
    assert said == ["I look.", "f", "{}", "Or ", "g", '{"x":1}', "so."]


def test_the_whole_body_has_the_choices_in_order():
    choices = [Choice(0, "a", "stop", None), Choice(1, "b", "length", 7)]
    body = json.loads(COMPLETION.body(choices, Ended(Usage(1, 0, 2))))
    assert body["object"] == "text_completion"
    assert [(choice["text"], choice["stop_reason"]) for choice in body["choices"]] == [("a", None), ("b", 7)]


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (InvalidRequest("no", param="n", code="invalid_value"), ("invalid_request_error", "n", "invalid_value")),
        (Overloaded("full"), ("rate_limit_error", None, None)),
    ],
)
def test_an_error_is_openais_object(error, fields):
    kind, param, code = fields
    expected = {"error": {"message": str(error), "type": kind, "param": param, "code": code}}
    assert json.loads(error_body(error)) == expected
    assert data(error_frame(error)) == expected


def test_the_end_and_the_comment_are_frames_of_their_own():
    assert (DONE, PING) == (b"data: [DONE]\n\n", b": ping\n\n")
