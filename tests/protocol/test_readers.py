"""Whatever JSON comes, a reader returns a request or raises InvalidRequest: a client's body is never a 500."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.anthropic import CountTokensWire, MessagesWire, read_count_tokens, read_message_request
from jaxinfer.protocol.body import parse_body
from jaxinfer.protocol.chat import CHAT_REFUSED, ChatWire, read_chat
from jaxinfer.protocol.completions import COMPLETION_REFUSED, CompletionWire, read_completion
from jaxinfer.protocol.fields import SAMPLING_FIELDS, Ignored, warning_text
from jaxinfer.protocol.open_responses import ResponseWire, read_response_request
from jaxinfer.protocol.tokenize import DetokenizeWire, TokenizeWire, read_detokenize, read_tokenize
from jaxinfer.protocol.validate import validate_sampling

VOCAB = 97
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, 2, -1, 96, 97, 2**31, 2**63, 2**64, 10**30]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["user", "assistant", "text", "image_url", "none", "\x00"]),
)
KEYS = st.sampled_from(
    ["role", "content", "type", "text", "name", "tool_calls", "include_usage", "enable_thinking", "x"]
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": st.text() | VALUES}),
    min_size=1,
    max_size=3,
)
PROMPTS = st.text() | st.lists(st.integers(-1, VOCAB)) | st.lists(st.text()) | VALUES
PART_KEYS = st.sampled_from(
    [
        "type",
        "role",
        "content",
        "text",
        "id",
        "name",
        "input",
        "tool_use_id",
        "is_error",
        "call_id",
        "arguments",
        "output",
    ]
)
PART_TYPES = ["text", "input_text", "thinking", "tool_use", "tool_result", "function_call", "function_call_output"]
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(PART_TYPES)}, optional={"role": st.just("user")}
) | st.dictionaries(PART_KEYS, VALUES | st.sampled_from(PART_TYPES), max_size=5)
ITEMS = st.lists(
    PARTS
    | st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.lists(PARTS, max_size=3)}),
    min_size=1,
    max_size=3,
)
TOOLS = st.lists(
    st.dictionaries(
        st.sampled_from(["type", "name", "function", "parameters", "input_schema", "description", "strict"]),
        VALUES | st.sampled_from(["function", "custom", "f"]) | st.just({"type": "object"}) | st.just({"name": "f"}),
        max_size=6,
    ),
    max_size=2,
)
KNOWN = {"messages": MESSAGES | ITEMS | VALUES, "prompt": PROMPTS, "tokens": PROMPTS, "input": ITEMS | VALUES}
KNOWN |= {"tools": TOOLS | VALUES, "max_tokens": st.just(5) | VALUES}
KNOWN["tool_choice"] = VALUES | st.dictionaries(
    st.sampled_from(["type", "name"]), st.sampled_from(["function", "auto", "any", "tool", "none", "f"]), max_size=2
)


def names(*wires: type) -> list[str]:
    own = {name for wire in wires for name in wire.__struct_fields__}
    return sorted(
        (own | SAMPLING_FIELDS | CHAT_REFUSED.keys() | COMPLETION_REFUSED.keys() | {*Ignored.__struct_fields__, "x"})
        - KNOWN.keys()
    )


EVERY_NAME = names(ChatWire, CompletionWire, TokenizeWire, DetokenizeWire, ResponseWire, MessagesWire, CountTokensWire)
BODIES = st.builds(
    lambda known, rest: {**rest, **known},
    st.fixed_dictionaries({}, optional=KNOWN),
    st.dictionaries(st.sampled_from(EVERY_NAME), VALUES, max_size=4),
)
READERS = {
    "chat": read_chat,
    "completion": lambda body: read_completion(body, vocab_size=VOCAB),
    "response": lambda body: read_response_request(body, lambda _: [], lambda _: None).chat,
    "message": read_message_request,
    "count": read_count_tokens,
    "tokenize": read_tokenize,
    "detokenize": lambda body: read_detokenize(body, vocab_size=VOCAB),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
@settings(max_examples=150)
@given(body=BODIES)
def test_a_reader_returns_or_refuses_whatever_the_fields_hold(reader, body):
    try:
        request = reader(body)
        if reader in [READERS[name] for name in ("chat", "completion", "response", "message")]:
            validate_sampling(request.sampling, vocab_size=VOCAB)
    except InvalidRequest as error:
        assert error.param
        assert len(str(error)) < 400
        assert str(error).isprintable()


@settings(max_examples=300)
@given(raw=st.binary(max_size=60) | st.text(alphabet='{}[]":,\\ud80019eNaInf-.tr', max_size=60).map(str.encode))
def test_bytes_are_an_object_or_refused(raw):
    try:
        body = parse_body(raw)
    except InvalidRequest as error:
        assert error.code == "invalid_json"
    else:
        assert body == json.loads(raw)


@settings(max_examples=100)
@given(body=st.dictionaries(st.text(max_size=5), VALUES, max_size=3))
def test_an_object_comes_back_as_it_was_sent(body):
    assert parse_body(json.dumps(body).encode()) == body


@settings(max_examples=100)
@given(unknown=st.lists(st.text(), max_size=40))
def test_a_warning_is_one_short_line_of_printable_ascii(unknown):
    text = warning_text(tuple(unknown))
    assert text.isascii() and text.isprintable()
    assert len(text) < 800


def test_every_sampling_field_is_read_by_chat_but_logprobs_which_is_a_boolean_there():
    assert SAMPLING_FIELDS & set(ChatWire.__struct_fields__) == {"logprobs"}
    assert not SAMPLING_FIELDS & CHAT_REFUSED.keys()
    assert SAMPLING_FIELDS & COMPLETION_REFUSED.keys() == {
        "thinking_token_budget"
    }  # a prompt's text is not taken apart
