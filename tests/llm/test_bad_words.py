"""Words that an answer may not hold: spelt as the answer would hold them, whatever the tokenizer makes of a prompt."""

from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers

from jaxinfer.llm.prepare import _spellings
from jaxinfer.llm.text_side import TextSide
from jaxinfer.text.chat_template import ChatTemplate
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.spelt import KINDS, TEXTS


def text_side(tokenizer: Tokenizer) -> TextSide:
    return TextSide(tokenizer, ChatTemplate({}), Path())


@pytest.mark.parametrize("kind", KINDS)
def test_a_forbidden_word_is_spelt_in_its_own_bytes(kind: str) -> None:
    side = text_side(KINDS[kind]())
    table = side.tokenizer.piece_table(skip_special_tokens=False)
    for word in TEXTS.values():
        found = {b"".join(table[i] for i in ids) for ids in _spellings([word], side.tokenizer.vocab_size, side.spell)}
        assert found == {word.encode(), b" " + word.lstrip().encode()}


def test_a_word_that_no_token_spells_forbids_nothing() -> None:
    model = models.BPE({"a": 0, "b": 1, "[UNK]": 2}, [], unk_token="[UNK]")
    backend = tokenizers.Tokenizer(model)
    backend.decoder = decoders.Fuse()
    side = text_side(Tokenizer(backend.to_str().encode()))
    assert (side.spell("ab"), side.spell("ac")) == ([0, 1], [])


def test_a_tokenizer_that_does_not_work_token_by_token_spells_as_it_encodes() -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    backend.normalizer, backend.decoder = normalizers.Lowercase(), decoders.WordPiece(cleanup=True)
    tokenizer = Tokenizer(backend.to_str().encode())
    assert tokenizer.pieces is None
    assert text_side(tokenizer).spell("AB") == [1, 2]
