"""The switches for comparison: static scheduling and contiguous pages, by the same code."""

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.engine.scheduler import Scheduler
from jaxinfer.engine.sequence import Request
from jaxinfer.errors import ConfigError
from tests.engine.client import Client
from tests.engine.device import make_limits
from tests.engine.test_engine import EXPECTED, answers, tokens

CONTIGUOUS = {"kv_layout": "contiguous", "enable_prefix_caching": False}


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"scheduling": "static"}, id="static"),
        pytest.param({"scheduling": "static", "num_pages": 40}, id="static, preempted"),
        pytest.param({"scheduling": "static", "max_num_batched_tokens": 9}, id="static, in small chunks"),
        pytest.param(CONTIGUOUS, id="contiguous"),
        pytest.param(CONTIGUOUS | {"num_pages": 33}, id="contiguous, one at a time"),
        pytest.param(CONTIGUOUS | {"scheduling": "static", "num_pages": 140}, id="static and contiguous"),
    ],
)
def test_the_tokens_are_those_of_continuous_batching_over_pages(changes, run_ahead):
    assert answers(run_ahead=run_ahead, **changes) == EXPECTED


def test_static_scheduling_starts_nobody_while_someone_runs():
    client = Client(make_limits(scheduling="static", max_num_seqs=4, max_num_batched_tokens=16))
    for i in range(10):
        client.add(Request(str(i), tokens(9, i), 5 + 3 * i))
    started: list[list[str]] = []
    while client.engine.has_work:
        idle = not client.engine.scheduler.running
        before = {s.request.id for s in client.engine.scheduler.running}
        client.step()
        new = sorted({s.request.id for s in client.engine.scheduler.running} - before)
        if idle and new:
            started.append(new)
        elif new:
            started[-1] += new  # of the same batch, when the budget has room for its prompt
    assert started == [["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8", "9"]]
    client.finish()


def test_static_scheduling_takes_more_steps_than_continuous():
    def steps(scheduling: str) -> int:
        client = Client(make_limits(scheduling=scheduling, max_num_seqs=4))
        for i in range(16):
            client.add(Request(str(i), tokens(6, i), 40 if i % 4 == 0 else 4))
        client.finish()
        return client.engine.stats().steps

    assert steps("static") > 1.5 * steps("continuous")


def test_a_contiguous_sequence_owns_max_model_len_from_its_first_step_on():
    client = Client(make_limits(num_pages=33 + 32 + 20, **CONTIGUOUS))
    for i in range(4):
        client.add(Request(str(i), tokens(6, i), 40))
    client.step()
    client.step()
    tables = [s.cache.page_ids() for s in client.engine.scheduler.running]
    assert tables == [list(range(1, 33)), list(range(33, 65))], "the last 20 pages are too few for a third"
    client.finish()
    assert client.engine.stats().preemptions == 0
    sent = [row.new_pages for plan in client.plans for row in plan.rows if row.new_pages]
    assert [len(pages) for pages in sent] == [32] * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_layout": "contiguous"}, "enable_prefix_caching must be false with kv_layout contiguous"),
        (CONTIGUOUS | {"num_pages": 32}, "num_pages must be above 32 with kv_layout contiguous"),
    ],
)
def test_limits_that_contiguous_pages_cannot_have_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        Scheduler(make_limits(**changes))


def test_the_combination_is_refused_before_anything_is_loaded():
    with pytest.raises(ConfigError, match="set enable_prefix_caching to false, or set kv_layout to paged"):
        EngineConfig(kv_layout="contiguous")
    assert EngineConfig(kv_layout="contiguous", enable_prefix_caching=False).scheduling == "continuous"
