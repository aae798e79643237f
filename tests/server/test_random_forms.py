"""Random schemas over HTTP, streamed, beside a stream without a form: each answer that stops is of its schema, each
that is cut off begins one, and the stream beside says what it says alone, without a long silence (A37).
"""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.server.app import create_app
from jaxinfer.text.grammar.compiler import new_matcher, new_vocabulary
from jaxinfer.text.grammar.source import Constraint, source_of
from jaxinfer.text.tokenizer import Tokenizer
from tests.server.http import live
from tests.server.streams import Answer, ask_all
from tests.support import grammars
from tests.support.checkpoints import write_checkpoint
from tests.support.engines import small_config

BESIDE = {"prompt": [5, 6, 7], "max_tokens": 240, "seed": 3, "temperature": 1}
MAX_SILENCE_S = 2.0  # far above any step, below any wait for a grammar that holds up the engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("forms") / "tiny")


@pytest.fixture(scope="module")
def port(folder, executables) -> Iterator[int]:
    llm = AsyncLLM(small_config(folder, executables))
    with live(create_app(llm), llm.start, llm.close) as port:
        yield port


def begins_one(vocabulary: Any, schema: dict[str, Any], text: str) -> bool:
    """Whether a text is the beginning of one of the schema; of a character that was cut off nothing is known."""
    matcher = new_matcher(vocabulary, source_of(Constraint("json_schema", json.dumps(schema)), {}))
    ids = vocabulary.tokenize_bytes(text.rstrip("\ufffd").encode())
    return bool(matcher.try_consume_tokens(ids) == len(ids))


def check(answer: Answer, vocabulary: Any, schema: dict[str, Any], judge: grammars.Judge) -> int:
    """Returns how many of its choices stopped."""
    assert sorted(answer.reasons) == sorted(answer.texts) == [0, 1, 2, 3] and not answer.error
    for index, text in answer.texts.items():
        if answer.reasons[index] == "stop":
            assert judge(text), (schema, text)
        else:
            assert answer.reasons[index] == "length" and begins_one(vocabulary, schema, text), (schema, text)
        assert "!!!!" not in text
    return list(answer.reasons.values()).count("stop")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_random_schemas_are_kept_to_and_a_stream_beside_goes_on(port, folder, count):
    """A37"""
    draw = random.Random(count)
    vocabulary = new_vocabulary(Tokenizer.from_folder(folder), 384, [322])
    made = [grammars.root_schema(draw) for _ in range(count)]
    form = {"n": 4, "temperature": 1, "max_tokens": 40, "ignore_eos": False}
    bodies = [
        form | {"prompt": [i % 300, 9], "seed": i, "structured_outputs": {"json": schema}, **closing}
        for i, (schema, _) in enumerate(made)
        for closing in ({}, {"close_within_max_tokens": True})
    ]
    (alone,) = ask_all(port, [BESIDE])
    stopped = closed = 0
    for start in range(0, len(bodies), 12):
        beside, *answers = ask_all(port, [BESIDE, *bodies[start : start + 12]])
        assert beside.said == alone.said
        assert beside.longest_gap_s < MAX_SILENCE_S
        for i, answer in enumerate(answers, start):
            num_stopped = check(answer, vocabulary, *made[i // 2])
            stopped, closed = stopped + (num_stopped if i % 2 == 0 else 0), closed + (num_stopped if i % 2 else 0)
    few = 4 if count == 12 else 0  # choices, of one schema that no so short answer fits
    assert 0 < stopped <= closed and closed >= 0.95 * 4 * count - few, (stopped, closed)
