"""benchmarks/sampling_variants.py: each variant is a request that is taken, with the demo's vocabulary too."""

from pathlib import Path

import pytest

from benchmarks.sampling_variants import MIN_TOKENS, MIXED, NAMES, VARIANTS, fields_of
from jaxinfer.protocol.completions import read_completion
from jaxinfer.protocol.validate import validate_sampling
from jaxinfer.text.tokenizer import Tokenizer

DEMO = Path(__file__).parents[2] / "jaxinfer" / "demo" / "checkpoint"


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
def test_every_variant_is_a_request_that_the_demo_takes(name, fields):
    request = read_completion({"prompt": [1], "max_tokens": MIN_TOKENS} | fields, vocab_size=1536)
    validate_sampling(request.sampling, vocab_size=1536)
    assert request.unknown == ()


def test_variants_have_names_of_their_own_and_mixed_is_all_of_them():
    assert len(set(NAMES)) == len(NAMES) == len(VARIANTS) + 1
    assert fields_of(MIXED) == tuple(fields_of(name)[0] for name, _ in VARIANTS)


def test_the_bad_word_is_three_tokens():
    tokenizer = Tokenizer.from_folder(DEMO)
    (word,) = fields_of("bad-words-3-tokens")[0]["bad_words"]
    assert len(tokenizer.encode(word)) == 3
