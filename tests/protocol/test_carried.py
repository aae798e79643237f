"""What another API's client is told of its request is in that API's words."""

import pytest

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol import anthropic, ollama, open_responses
from jaxinfer.protocol.carried import speaking_of

NAMES = [
    (names, name)
    for names in (anthropic.NAMES, ollama.NAMES, open_responses.NAMES)
    for name in (*names, "response_format.other", "max_tokens_", "other")
]


@pytest.mark.parametrize(("names", "name"), NAMES)
@pytest.mark.parametrize("behind", ["", ".x", "[0]", "[0].x"])
def test_param_is_the_longest_of_our_names_in_the_api_s_words(names, name, behind):
    with pytest.raises(InvalidRequest) as refusal, speaking_of(names):
        raise InvalidRequest("no", param=name + behind)
    first = name.partition(".")[0]
    expected = names.get(name) or names.get(first, first) + name.removeprefix(first)
    assert refusal.value.param == expected + behind


def test_a_refusal_of_no_field_stays_one():
    with pytest.raises(InvalidRequest) as refusal, speaking_of(ollama.NAMES):
        raise InvalidRequest("no")
    assert refusal.value.param is None
