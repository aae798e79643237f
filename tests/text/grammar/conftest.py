"""What the tests of grammars share."""

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.support.schemas.corpus import accepted, corpus

QWENS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="session")
def json_tokenizer():
    """A tokenizer learnt from JSON, split as Qwen's is: signs join with what is beside them in many ways."""
    found = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(QWENS), behavior="isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    found.decoder = decoders.ByteLevel()
    texts = [text for case in corpus() if not case.refused for text in accepted(case)]
    texts += ['{"_id":"x","$ref":1,"@type":"_a"}'] * 9
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=1200, initial_alphabet=alphabet, show_progress=False)
    )
    found.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
    return found
