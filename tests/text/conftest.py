"""A tiny model's tokenizer, and what llguidance makes of it."""

import pytest

from jaxinfer.text.grammar.compiler import new_vocabulary
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("grammars") / "tiny")


@pytest.fixture(scope="module")
def vocabulary(folder):
    return new_vocabulary(Tokenizer.from_folder(folder), 352, [322])


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.from_folder(folder)
