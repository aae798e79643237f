"""A body whose names are many: what is wrong with it is found in a time that grows with its size, and no faster."""

import time

import pytest

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.body import parse_body

NAMES = b", ".join(b'"%d": 1' % number for number in range(60_000))


@pytest.mark.parametrize("raw", [b'{%b, "59999": 1}', b'{"a": {%b, "59999": 1}}'], ids=["of the body", "inside"])
def test_of_many_names_the_one_given_twice_is_found_at_once(raw):
    """One look through all of them for each took a minute, in which the server parsed no other large body."""
    begun_s = time.process_time()
    with pytest.raises(InvalidRequest, match="must name each field once, got '59999' twice"):
        parse_body(raw % NAMES)
    assert time.process_time() - begun_s < 2


def test_it_is_the_first_of_those_given_twice():
    with pytest.raises(InvalidRequest, match="got 'b' twice") as refusal:
        parse_body(b'{"a": 1, "b": 1, "c": 1, "c": 2, "b": 2}')
    assert refusal.value.param == "b"
