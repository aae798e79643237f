"""The clients of test_clients.py once more, against the bundled model, which computes its answers: the wire and texts
are those of the dry run there, the numbers are not.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from tests.clients.test_clients import (
    BATCH,
    BATCH_CASES,
    CASES,
    PYTHON,
    RESPONSE_CASES,
    Case,
    answering,
    message_truth,
    others,
    response_truth,
    seen_by,
    truth,
)
from tests.support.engines import DEMO

__all__ = ["message_truth", "others", "response_truth", "truth"]  # fixtures: what the wire says, here of this model


@pytest.fixture(scope="module")
def base(executables, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    llm = AsyncLLM(EngineConfig(**DEMO, compile_cache_dir=str(executables)))
    with answering(llm, tmp_path_factory.mktemp("files")) as url:
        yield url


def newest(cases: list[Case]) -> Any:
    """Each client once: the older versions of openai's cost another minute."""
    kept = [case for case in cases if case[0] not in ("openai-1", "openai-2")]
    return pytest.mark.parametrize(("client", "command", "own"), kept, ids=[client for client, _, _ in kept])


@pytest.mark.slow
@newest(CASES)
def test_a_client_sees_what_the_wire_says(base, truth, client, command, own):
    assert seen_by(client, command, base, truth["chat"][0][4:7]) == truth | own


@pytest.mark.slow
@newest(RESPONSE_CASES)
def test_a_client_of_responses_sees_what_chat_says(base, truth, response_truth, client, command, own):
    assert seen_by(client, command, base, truth["chat"][0][4:7]) == response_truth | own


@pytest.mark.slow
@newest(BATCH_CASES)
def test_a_client_of_batches_gets_what_chat_says(base, truth, client, command, own):
    assert seen_by(client, command, base, truth["chat"][0][4:7]) == BATCH | {"answer": ["good", *truth["chat"]]} | own


@pytest.mark.slow
def test_anthropic_s_client_sees_what_chat_says(base, truth, message_truth):
    seen = seen_by("anthropic", [*PYTHON, "ask_anthropic.py"], base, truth["chat"][0][4:7])
    assert seen == message_truth | {"version": "2"}
