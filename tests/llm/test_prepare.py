"""What the engine could not hold is refused in the API's own words before it gets there."""

import dataclasses

import pytest

from jaxinfer.errors import TooLong
from jaxinfer.llm.prepare import prepare, prepare_embedding
from jaxinfer.protocol.sampling import SamplingParams
from tests.server.fakes import INFO
from tests.support.engines import SMALL

UNCHUNKED = dataclasses.replace(SMALL, enable_chunked_prefill=False)
FEW_PAGES = dataclasses.replace(SMALL, num_pages=4)


@pytest.mark.parametrize(
    ("limits", "num_tokens", "most"),
    [(UNCHUNKED, 65, 64), (FEW_PAGES, 49, 48)],
    ids=["prompts in whole", "few pages"],
)
def test_a_prompt_that_the_engine_cannot_hold_is_too_long(limits, num_tokens, most):
    asked = dict(request_id="1", info=INFO, limits=limits)
    one = SamplingParams(max_tokens=1)

    def embed(count: int) -> object:
        return prepare_embedding([1] * count, "last", **asked)

    def generate(count: int) -> object:
        return prepare([1] * count, one, random_seed=0, spell=lambda text: [], **asked)

    for ask, field in ((generate, "prompt"), (embed, "input")):
        ask(most)
        with pytest.raises(TooLong) as refusal:
            ask(num_tokens)
        assert (refusal.value.param, refusal.value.prompt_tokens, refusal.value.most_tokens) == (
            field,
            num_tokens,
            most,
        )
