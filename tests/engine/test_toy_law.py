"""The law of test_engine_law over a real DeviceRunner, for a family of every kind of layer (tests/support/toy.py), in
float32 on the CPU: nothing that is found, freed, moved, lost or computed beside it changes a token of an answer.
"""

import dataclasses
import functools
import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np
import pytest

from jaxinfer.cache.manager import CacheManager, SequenceCache
from jaxinfer.cache.spec import layout_of
from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.config import ExtendBucket, Limits
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.sequence import Add, Call, Request
from jaxinfer.errors import ConfigError
from jaxinfer.runtime.plan import Pending, Plan
from jaxinfer.runtime.runner import DeviceRunner
from jaxinfer.testing.faults import Faults, FaultStruck, FaultyRunner, JaxRuntimeError
from tests.engine.client import Answer, Client
from tests.engine.device import make_limits
from tests.engine.grammars import HashGrammars
from tests.engine.numbers import BAD, CURSED
from tests.engine.test_engine_law import Workload
from tests.support.engines import from_cache
from tests.support.toy import RAW, TOY, config_from_hf, parameters

pytestmark = pytest.mark.usefixtures("forward_always")
MODEL, TILE = config_from_hf(RAW), 4
LAYOUT = layout_of(MODEL.caches("float32"), page_size=4)
LIMITS = make_limits(
    max_model_len=72,
    max_num_seqs=6,
    max_num_batched_tokens=24,
    num_pages=401,
    num_host_pages=400,
    decode_buckets=(6,),
    extend_buckets=(ExtendBucket(24, 6, 6),),
    page_tables=len(LAYOUT.windows),
)


def new_runner() -> DeviceRunner:
    """Random weights. After one token nothing is finite, as of the fakes; it and the cursed one are seldom drawn."""
    params = dummy_params(parameters(MODEL), "float32", 0, device := jax.devices("cpu")[0])
    unembed = 4 * params.unembed.at[np.array([BAD, CURSED])].set(0)
    params = params.replace(embed=params.embed.at[BAD].set(np.nan), unembed=unembed)
    return DeviceRunner(MODEL, TOY, params, LIMITS, device)


@functools.cache
def runners() -> tuple[DeviceRunner, DeviceRunner]:
    """One for workloads, one for requests that run alone. What is compiled is compiled once."""
    served, alone = (from_cache(new_runner()) for _ in range(2))
    alone._executables = served._executables
    return served, alone


class WatchedRunner:
    """on_run: sees each plan.    bug: what the runner raised, which the engine must not take for a failed step."""

    def __init__(self, inner: DeviceRunner, on_run: Callable[[Plan], None]) -> None:
        self.bug: BaseException | None = None
        self._inner, self._on_run = inner, on_run

    def run(self, plan: Plan) -> Pending:
        try:
            self._on_run(plan)
            return self._inner.run(plan)
        except BaseException as bug:
            self.bug = bug
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class WatchedDevice(FaultyRunner):
    @property
    def bug(self) -> BaseException | None:
        return self.inner.bug


class ToyClient(Client):
    def _new_device(self) -> WatchedDevice:
        runners()[0].reset()
        return WatchedDevice(WatchedRunner(runners()[0], self._see_plan), self.faults)

    def alone(self, answer: Answer) -> tuple[list[int], str]:
        found = run_alone(answer.request, answer.index)
        return found.tokens, found.reason or ""

    def check_values(self, answer: Answer) -> None:
        found, count = run_alone(answer.request, answer.index), len(answer.tokens)
        if answer.request.logprobs is not None:
            np.testing.assert_allclose(answer.logprobs[:count], found.logprobs[:count], atol=1e-3)
        if answer.prompt_logprobs is not None:
            np.testing.assert_allclose(answer.prompt_logprobs, found.prompt_logprobs, atol=1e-3)
        assert answer.embedding is None or answer.reason == "stop"
        if answer.embedding is not None:
            mine, own = (np.frombuffer(one, np.float32) for one in (answer.embedding, found.embedding))
            np.testing.assert_allclose(mine, own, atol=1e-4)


@functools.lru_cache(4096)
def run_alone(request: Request, index: int) -> Answer:
    """A choice that nothing runs beside, computed anew; its siblings count as ended."""
    runner = runners()[1]
    runner.reset()
    limits = dataclasses.replace(LIMITS, enable_prefix_caching=False, run_ahead=0)
    grammars = HashGrammars()
    engine = Engine(runner, limits, grammars, CacheManager(limits, LAYOUT, tile=TILE))
    alone = dataclasses.replace(request, text_lag=False, session=False)
    engine.inbox.put(Add(alone, tuple(() if i == index else None for i in range(request.n))))
    answer = Answer(request, index)
    while engine.has_work or engine.awaits_grammar:
        grammars.release()
        for output in engine.step():
            answer.take(output)
    return answer


class ToyWorkload(Workload):
    """Prefixes are exported and imported too, whenever it is."""

    def __init__(self, seed: int, **fixed: Any) -> None:
        self.exchanges = random.Random(seed)
        self.exported: list[Future[bytes]] = []
        self.imported: list[Future[int]] = []
        super().__init__(seed, enable_prefix_caching=True, **fixed)

    def _keep_or_forget(self) -> None:
        super()._keep_or_forget()
        rng, engine, answers = self.exchanges, self.client.engine, list(self.client.answers.values())
        if answers:
            answer = rng.choice(answers)
            tokens = [*answer.request.prompt, *answer.tokens]
            self.exported.append(Future())
            call = functools.partial(engine.export_prefix, tokens, answer.request.salt)
            engine.inbox.put(Call(call, self.exported[-1]))
        if datas := [future.result() for future in self.exported if future.done() and not future.exception()]:
            self.imported.append(Future())
            engine.inbox.put(Call(functools.partial(engine.import_prefix, rng.choice(datas)), self.imported[-1]))

    def num_imported(self) -> int:
        """Whatever failed was refused, or the device failed."""
        for future in (*self.exported, *self.imported):
            error = future.exception() if future.done() else None
            if not isinstance(error, ConfigError | FaultStruck | JaxRuntimeError | None):
                raise error
        return sum(future.done() and future.exception() is None for future in self.imported)

    def _client(self, limits: Limits, faults: Faults) -> Client:
        """The switches of a seed, in the sizes that are compiled."""
        rng = random.Random(self.rng.random())
        changes = dict(
            num_pages=18 * len(LAYOUT.windows) + rng.choice((1, 9, 40, 360)),
            num_host_pages=rng.choice((0, 20, 400)),
            max_num_seqs=rng.choice((1, 3, 6, 6)),
            enable_prefix_caching=rng.random() < 0.9,
            enable_chunked_prefill=True,
            scheduling=limits.scheduling,
            max_session_pages=limits.max_session_pages,
            run_ahead=limits.run_ahead,
        )
        return ToyClient(dataclasses.replace(LIMITS, **changes), faults, LAYOUT, TILE)

    def check_published(self) -> None:
        """By the answers alone."""


@pytest.mark.parametrize(("seed", "run_ahead"), [(0, 1), (3, 0)])
def test_a_family_of_every_kind_of_layer_answers_as_if_each_request_ran_alone(seed, run_ahead):
    workload = ToyWorkload(seed, run_ahead=run_ahead)
    workload.run(100)
    assert workload.num_added - workload.num_refused > 10 and workload.num_imported() > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 106))
def test_many_more_workloads_of_it_keep_the_law(seed):
    workload = ToyWorkload(seed, run_ahead=seed % 2)
    workload.run(400)
    workload.num_imported()


class FreesAPageTooEarly(CacheManager):
    def _first(self, window: int | None, upto: int) -> int:
        return super()._first(window, upto) + (upto >= (window or 999))


class TakesASnapshotATokenLate(CacheManager):
    def unsaved(self, sequence: SequenceCache, start: int, end: int, num_known: int) -> list[tuple[int, int]]:
        found = super().unsaved(sequence, start, end, num_known)
        return [(min(position + (num_known > start), end), snapshot) for position, snapshot in found]


@pytest.mark.parametrize("manager", [FreesAPageTooEarly, TakesASnapshotATokenLate])
def test_the_law_catches_a_mutation(manager, monkeypatch):
    """The counterexample is printed."""
    monkeypatch.setattr(ToyClient, "manager", manager)
    with pytest.raises(AssertionError) as found:
        for seed in range(10):
            ToyWorkload(seed).run(100)
    print(found.value)
