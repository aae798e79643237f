"""The law of test_engine_law for a model whose layers remember in several ways: tables that keep everything, tables of
a window, and a recurrent state with snapshots. Nothing of it changes a token, whatever is found, freed or lost.
"""

import dataclasses
import random
from collections.abc import Callable

import msgspec
import pytest

from jaxinfer.cache.manager import CacheManager
from jaxinfer.config import Limits
from jaxinfer.runtime.plan import StateMoves
from jaxinfer.testing.faults import Faults
from tests.engine.client import Client
from tests.engine.device import WEIGHTS
from tests.engine.hybrid import HybridRunner, make_layout
from tests.engine.numbers import MASK
from tests.engine.test_engine_law import Workload

pytestmark = pytest.mark.usefixtures("forward_always")


class HybridWorkload(Workload):
    """A seed's engine of such a model; of some seeds the layers are of two kinds, or nothing is cached."""

    def __init__(self, seed: int, **fixed) -> None:
        super().__init__(seed, enable_prefix_caching=True, **fixed)

    def _client(self, limits: Limits, faults: Faults) -> Client:
        rng = random.Random(self.rng.random())
        snapshots = rng.choice((0, 2, 8, 50, 50))
        layout = make_layout(limits.page_size, rng.choice((1, 3, 9, 20)), snapshots, num_full=rng.choice((1, 3)))
        tables = len(layout.windows)
        limits = dataclasses.replace(
            limits,
            page_tables=tables,
            num_pages=(limits.num_pages - 1) * tables + 1,
            enable_prefix_caching=rng.random() < 0.9,
        )
        return Client(limits, faults, layout, tile=rng.choice((1, 4, 8)))

    def check_published(self) -> None:
        """Each findable snapshot is the state behind its tokens, too."""
        super().check_published()
        snapshots, runner = self.client.engine.scheduler.cache.snapshots, self.client.runner
        assert isinstance(runner, HybridRunner)
        for row in range(1, snapshots.num_total + 1):
            if (key := snapshots.key_of(row)) is not None:
                values = self._values(key)
                state = sum(value * int(WEIGHTS[position]) for position, value in enumerate(values)) & MASK
                assert runner.snapshots[row] == state, f"snapshot {row} is the state of other tokens"


@pytest.mark.parametrize(("seed", "run_ahead"), [(0, 1), (1, 1), (2, 1), (3, 0)])
def test_layers_of_several_kinds_keep_the_invariants_and_answer_as_if_each_request_ran_alone(seed, run_ahead):
    workload = HybridWorkload(seed, run_ahead=run_ahead)
    workload.run(300)
    assert workload.num_added - workload.num_refused > 20


def free_a_page_too_early(patch: Callable) -> None:
    first = CacheManager._first
    patch(CacheManager, "_first", lambda self, window, upto: first(self, window, upto) + (upto >= (window or 999)))


def take_a_snapshot_a_token_late(patch: Callable) -> None:
    """The state that is stored has seen a token more than its key says."""
    store = HybridRunner._advance

    def store_late(self, row):
        moves, end = row.state or StateMoves(), row.start + row.count
        late = [(min(position + 1, end), snapshot) for position, snapshot in moves.saves] if row.tokens else moves.saves
        return store(self, msgspec.structs.replace(row, state=msgspec.structs.replace(moves, saves=late)))

    patch(HybridRunner, "_advance", store_late)


@pytest.mark.parametrize("mutation", [free_a_page_too_early, take_a_snapshot_a_token_late])
def test_the_law_catches_a_mutation(mutation, monkeypatch):
    mutation(monkeypatch.setattr)
    with pytest.raises(AssertionError):
        for seed in range(10):
            HybridWorkload(seed).run(300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2020))
def test_many_more_hybrid_workloads_keep_the_invariants(seed):
    HybridWorkload(seed, run_ahead=seed % 2).run(600)
