"""Recovery, non-finite rows, resumption and the switches over a real DeviceRunner, in float32 on the CPU."""

import dataclasses

import pytest

from jaxinfer.config import Limits
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.sequence import Add, Output, Request
from jaxinfer.errors import DeviceLost
from jaxinfer.runtime.plan import Controls
from jaxinfer.runtime.runner import DeviceRunner
from jaxinfer.testing.faults import Fault, Faults, FaultyRunner
from tests.support.checkpoints import write_checkpoint
from tests.support.engines import build


@pytest.fixture(scope="module")
def runner(tmp_path_factory, executables) -> DeviceRunner:
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")
    _, core = build(folder, executables, enable_prefix_caching=False)
    return core.runner


def requests() -> list[Request]:
    controls = {
        2: Controls(frequency_penalty=1.0, repetition_penalty=1.2, bad_words=((5, 6), (7, 8))),
        3: Controls(presence_penalty=0.5, logit_bias=((3, 2.0),), min_tokens=4),
        4: Controls(allowed_token_ids=tuple(range(50, 200)), bad_words=((60,),)),
    }
    return [
        Request(
            str(i),
            tuple(range(1 + i, 12 + 4 * i)),
            12,
            temperature=float(i % 2),
            seed=i,
            n=1 + (i == 3),
            controls=controls.get(i),
            logprobs=2 if i in (1, 2) else None,
            prompt_logprobs=1 if i in (1, 5) else None,
        )
        for i in range(6)
    ]


class Served:
    """Requests served by an engine over a real device: the tokens and codes of each choice."""

    def __init__(self, runner: DeviceRunner, *faults: Fault, **changes: object) -> None:
        runner.reset()  # another engine had it before
        limits: Limits = dataclasses.replace(runner.limits, **changes)
        self.engine = Engine(FaultyRunner(runner, Faults(*faults)), limits)
        self.tokens: dict[tuple[str, int], list[int]] = {(r.id, i): [] for r in requests() for i in range(r.n)}
        self.codes: dict[tuple[str, int], str | None] = {}

    def serve(self, outputs: dict[str, tuple[tuple[int, ...], ...]] | None = None) -> "Served":
        for request in requests():
            self.engine.inbox.put(Add(request, (outputs or {}).get(request.id, ())))
        while self.engine.has_work:
            self._read(self.engine.step())
            self.engine.check()
        return self

    def _read(self, outputs: list[Output]) -> None:
        for output in outputs:
            self.tokens[output.request_id, output.index] += output.token_ids
            if output.finish_reason:
                self.codes[output.request_id, output.index] = output.code


@pytest.fixture(scope="module")
def expected(runner) -> dict[tuple[str, int], list[int]]:
    tokens = Served(runner).serve().tokens
    assert all(tokens.values()) and len(set(map(tuple, tokens.values()))) == 7
    return tokens


@pytest.mark.parametrize("run_ahead", [0, 1])
@pytest.mark.parametrize("kind", ["run", "exhausted", "wait"])
def test_a_step_that_fails_once_costs_no_answer(runner, expected, kind, run_ahead):
    served = Served(runner, Fault(kind, step=6), run_ahead=run_ahead, enable_prefix_caching=True).serve()
    assert served.tokens == expected
    assert served.engine.stats().recoveries == 1


def test_a_request_that_always_fails_is_isolated(runner, expected):
    culprit = requests()[5].prompt[-1]
    assert not any(culprit in tokens for tokens in expected.values()), "nobody else ever uploads it"
    served = Served(runner, Fault("wait", times=None, token=culprit), enable_prefix_caching=True).serve()
    assert {key for key, code in served.codes.items() if code} == {("5", 0)}
    assert all(served.tokens[key] == expected[key] for key in expected if key[0] != "5")


def test_a_row_that_is_not_finite_ends_its_request_alone(runner, expected):
    served = Served(runner, Fault("nan", step=8, row=1), enable_prefix_caching=True).serve()
    ended = {key for key, code in served.codes.items() if code == "non_finite"}
    assert len({request_id for request_id, _ in ended}) == 1
    assert all(served.tokens[key] == expected[key] for key in expected if key not in ended)


def test_a_lost_device_is_told_apart_and_what_it_left_is_resumed(runner, expected):
    first = Served(runner, Fault("poison", step=9))
    with pytest.raises(DeviceLost):
        first.serve()
    had = {r.id: tuple(tuple(first.tokens[r.id, i]) for i in range(r.n)) for r in requests()}
    assert sum(map(len, first.tokens.values())) > 10 and not first.codes
    second = Served(runner).serve(had)
    assert {key: first.tokens[key] + second.tokens[key] for key in expected} == expected


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_a_preempted_sequence_goes_on_with_the_counts_it_had(runner, expected, run_ahead):
    served = Served(runner, num_pages=9, run_ahead=run_ahead).serve()
    assert served.engine.stats().preemptions > 0
    assert served.tokens == expected


@pytest.mark.parametrize(
    "changes",
    [{"scheduling": "static"}, {"kv_layout": "contiguous"}, {"scheduling": "static", "kv_layout": "contiguous"}],
    ids=["static", "contiguous", "both"],
)
def test_the_switches_change_no_token(runner, expected, changes):
    assert Served(runner, **changes).serve().tokens == expected
