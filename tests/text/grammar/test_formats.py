"""Formats: what a schema's format takes is of it, by the calendar of Python and the lengths of the RFCs."""

import datetime
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.text.grammar.compiler import new_matcher
from jaxinfer.text.grammar.source import Constraint
from jaxinfer.text.grammar.trial import try_one
from tests.support.grammars import takes

DAYS = st.builds(
    "{:04}-{:02}-{:02}".format,
    st.sampled_from([1900, 2000, 2023, 2024, 2100, 2400]) | st.integers(1, 9999),
    st.sampled_from([2, 2, 2, 4, 12]),
    st.integers(26, 31),
)
TIMES = st.builds("{:02}:{:02}:{:02}{}{}".format, *(st.integers(22, 24), st.integers(57, 60), st.integers(57, 61)),
                  st.sampled_from(["", ".5"]), st.sampled_from(["Z", "+01:00"]))  # fmt: skip


@pytest.fixture(scope="module")
def matchers(vocabulary):
    """With a pattern of the schema's own, and without."""
    found = {}
    for name in ("date", "time", "date-time", "hostname"):
        for own in ({}, {"pattern": "[0-9a-z]"}, {"pattern": "[0-9a-z]", "allOf": [{"minLength": 1}]}):
            asked = Constraint("json_schema", json.dumps({"type": "string", "format": name} | own), True)
            tried = try_one(vocabulary, asked, {})
            assert tried.error == ""
            found.setdefault(name, []).append(new_matcher(vocabulary, tried.text))
    return found


def is_taken(matchers, tokenizer, name, text):
    (answer,) = {takes(matcher, tokenizer, json.dumps(text)) for matcher in matchers[name]}
    return answer


def is_read(kind, text):
    try:
        kind.fromisoformat(text)
    except ValueError:
        return False
    return True


@settings(max_examples=150)
@given(DAYS, TIMES)
def test_a_date_and_a_time_are_taken_if_a_calendar_and_a_clock_have_them(matchers, tokenizer, day, time):
    is_day, is_time = is_read(datetime.date, day), is_read(datetime.time, time) and not time.startswith("24")
    assert is_taken(matchers, tokenizer, "date", day) == is_day
    assert is_taken(matchers, tokenizer, "time", time) == is_time
    assert is_taken(matchers, tokenizer, "date-time", f"{day}T{time}") == (is_day and is_time)


def test_a_hostname_is_no_longer_than_names_may_be(matchers, tokenizer):
    for length in (1, 252, 253, 254, 300):
        name = ("a" * 62 + ".") * 5
        assert is_taken(matchers, tokenizer, "hostname", f"{name[: length - 1]}b") == (length <= 253)


def test_a_value_that_is_listed_stays(vocabulary, tokenizer):
    schema = {"type": "string", "format": "time", "enum": ["23:59:60Z"]}
    tried = try_one(vocabulary, Constraint("json_schema", json.dumps(schema), True), {})
    assert takes(new_matcher(vocabulary, tried.text), tokenizer, '"23:59:60Z"')
