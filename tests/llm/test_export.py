"""LLM.export_prefix and import_prefix: a cached prefix goes from one LLM to another as bytes."""

import pytest

from jaxinfer.errors import ConfigError, InvalidRequest
from jaxinfer.llm.llm import LLM
from jaxinfer.protocol.sampling import SamplingParams
from tests.support.engines import build

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = [9, 8, 7] * 20


def test_where_no_page_may_be_on_the_host_nothing_is_exported_and_the_setting_is_named(engine):
    llm = LLM.over(*engine)
    for call in (lambda: llm.export_prefix(PROMPT), lambda: llm.import_prefix(b"")):
        with pytest.raises(ConfigError, match="set kv_offloading_bytes"):
            call()
    with pytest.raises(InvalidRequest, match="token ids from 0"):
        llm.export_prefix([-1])


@pytest.mark.slow
def test_another_llm_finds_it_also_while_answers_are_read(folder, executables):
    first, second = (LLM.over(*build(folder, executables, num_host_pages=20)) for _ in range(2))
    (answer,) = first.generate([PROMPT], GREEDY)
    streams = [llm.stream([i, *PROMPT], GREEDY) for i, llm in enumerate((first, second))]
    begun = [next(stream) for stream in streams]
    assert second.import_prefix(bytearray(first.export_prefix(PROMPT))) == 48
    (again,) = second.generate([PROMPT], GREEDY)
    assert again.outputs[0].token_ids == answer.outputs[0].token_ids
    assert again.metrics.cached_tokens == 48
    assert all(delta.token_ids for delta in begun) and all(list(stream) for stream in streams)
    assert second.stats().compiles_after_ready == 0
