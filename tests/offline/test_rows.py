"""Rows as they are read: both forms, and the ways in which one can be wrong, which is its own fault alone."""

import json

import pytest

from jaxinfer.errors import InvalidRequest
from jaxinfer.offline.cells import from_text, whole
from jaxinfer.offline.rows import Raw, form_of, read_row
from jaxinfer.protocol.body import MAX_VALUES

GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi", "seed": 3}}
CHAT = {"custom_id": 7, "messages": [{"role": "user", "content": "hi"}], "top_k": 4}


def read(columns: object, **defaults: object):
    return read_row(Raw(5, json.dumps(columns).encode(), 0), defaults)


def test_openai_s_form_is_a_request_with_its_route():
    row = read(GOOD)
    assert (row.number, row.custom_id, row.kind, row.body, row.fault) == (5, "a", "completion", GOOD["body"], None)
    assert read(GOOD | {"url": "/v1/chat/completions"}).kind == "chat"
    assert read(GOOD | {"label": 1}).unknown == ("label",)


def test_the_plain_form_is_a_body_with_an_id():
    row = read(CHAT)
    assert (row.custom_id, row.kind) == ("7", "chat")
    assert row.body == {name: value for name, value in CHAT.items() if name != "custom_id"}
    assert read({"prompt": [1, 2]}).custom_id is None


def test_more_token_ids_than_a_row_may_hold_are_a_prompt_that_is_too_long():
    raw = Raw(5, b'{"prompt": [' + b"7," * MAX_VALUES + b"7]}", 0)
    for most, code in ((512, "context_length_exceeded"), (2 * MAX_VALUES, "invalid_json")):
        assert read_row(raw, {}, max_model_len=most).fault.code == code


def test_defaults_are_for_what_a_row_does_not_name():
    assert read(GOOD, seed=9, max_tokens=2).body == {"prompt": "hi", "seed": 3, "max_tokens": 2}
    assert read(CHAT, max_tokens=2).body["max_tokens"] == 2
    assert read(CHAT | {"max_tokens": None}, max_tokens=2).body["max_tokens"] == 2, "a gap in a table names nothing"
    assert read(GOOD | {"body": {"prompt": "hi", "seed": None}}, seed=9).body["seed"] == 9


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"custom_id": None}, "custom_id"),
        ({"custom_id": 1}, "custom_id"),
        ({"method": "GET"}, "method"),
        ({"url": "/v1/messages"}, "url"),
        ({"url": ["/v1/completions"]}, "url"),
        ({"body": None}, "body"),
        ({"body": "hi"}, "body"),
    ],
)
def test_a_fault_names_its_field_and_keeps_the_id(change, param):
    row = read(GOOD | change)
    assert isinstance(row.fault, InvalidRequest) and row.fault.param == param
    assert row.custom_id == (None if "custom_id" in change else "a")


@pytest.mark.parametrize("columns", [{}, {"text": "hi"}, {"prompt": "a", "messages": []}, {"prompt": None}])
def test_a_plain_row_has_one_prompt_or_one_conversation(columns):
    assert read(columns).fault.param == "prompt"


@pytest.mark.parametrize("line", [b"", b"{", b"[1]", b'{"a": 1, "a": 2}', b'{"prompt": NaN}', b'{"prompt": "\xff"}'])
def test_what_is_no_object_is_a_row_with_a_fault(line):
    raw = Raw(1, line, 0)
    assert read_row(raw, {}).fault.code == "invalid_json"
    assert form_of(raw) is None


def test_an_id_that_no_answer_could_carry_is_a_fault():
    for columns in ({"prompt": "hi", "custom_id": "\ud800"}, GOOD | {"custom_id": "\ud800", "body": 1}):
        row = read_row(Raw(1, columns, 0), {})
        assert row.fault is not None and row.custom_id is None
    assert read({"prompt": "hi", "custom_id": True}).fault.param == "custom_id"


def test_the_form_is_told_by_its_columns():
    assert form_of(Raw(1, json.dumps(GOOD).encode(), 0)) == "openai"
    assert form_of(Raw(1, json.dumps(CHAT).encode(), 0)) == "plain"


def test_cells_are_text_where_text_is_meant_and_json_elsewhere():
    assert [from_text("prompt", "12"), from_text("custom_id", "12"), from_text("stop", "12")] == ["12"] * 3
    assert from_text("stop", '["a", "b"]') == ["a", "b"]
    assert from_text("max_tokens", "16.0") == 16 and isinstance(from_text("max_tokens", "16.0"), int)
    assert from_text("temperature", "0.5") == 0.5
    assert from_text("ignore_eos", "true") is True
    assert from_text("max_tokens", "many") == "many"
    assert whole([{"a": 2.0, "b": None, "c": [1.5]}]) == [{"a": 2, "c": [1.5]}]
