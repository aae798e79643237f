"""Steps that are lowered in other processes are the ones that would be lowered here."""

import collections
import dataclasses
import functools
import logging
import multiprocessing
import os
import pickle
import re
from collections.abc import Callable, Iterator

import jax
import pytest

from jaxinfer.errors import EngineError
from jaxinfer.models.published import Fp8, Published
from jaxinfer.models.registry import dense
from jaxinfer.runtime import lowering, programs, step, warmup
from jaxinfer.runtime.backends import Backend, Backends, Launches
from jaxinfer.runtime.buckets import Decode
from jaxinfer.runtime.lowering import Facts, Lowerer, Lowerers
from jaxinfer.runtime.programs import Helper
from jaxinfer.runtime.runner import DeviceRunner
from jaxinfer_kernels.sm90 import H200
from tests.support.tiny_runner import FEW, LIMITS, SMALL, TINY, generate, make_runner

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def facts_of(runner: DeviceRunner) -> Facts:
    return Facts.of(runner._model, runner.limits, runner._params, runner._device)


@pytest.fixture(scope="module")
def tiny() -> DeviceRunner:
    return make_runner()


@pytest.fixture
def lowerer(tiny: DeviceRunner) -> Iterator[Lowerer]:
    made = Lowerer(facts_of(tiny))
    yield made
    made.close()


def operations(compiled: jax.stages.Compiled) -> collections.Counter[str]:
    """What XLA made of a program: each operation with its shapes, and how often it is there."""
    return collections.Counter(re.findall(r"= (\S+ [\w-]+)\(", compiled.as_text() or ""))


@pytest.mark.slow
def test_steps_lowered_elsewhere_are_compiled_to_the_same(tiny: DeviceRunner, lowerer: Lowerer) -> None:
    for key in (Decode(4), SMALL):
        program = tiny._programs[key]
        here, there = (program.compile(lowered) for lowered in (program.lower(), lowerer.lower(program)))
        assert operations(here) == operations(there)
        one, other = here.memory_analysis(), there.memory_analysis()
        assert one.alias_size_in_bytes == other.alias_size_in_bytes, "both update the state in place"
        assert one.temp_size_in_bytes == other.temp_size_in_bytes


@pytest.mark.parametrize("published", [None, Published(((("Linear",), Fp8("block")),))], ids=["bfloat16", "fp8"])
def test_a_chain_lowered_elsewhere_has_the_same_kernels(published: Published | None) -> None:
    """Said by the digest of its text, which holds them all. Outside of it no weight is widened."""
    mosaic = Backend.MOSAIC
    wide = dataclasses.replace(TINY, hidden_size=512, intermediate_size=1024, head_dim=64, dtype="bfloat16")
    model = dataclasses.replace(wide, published=published)
    backends = Backends(mosaic, mosaic, mosaic, mosaic, launches=Launches.SEQUENCE, gpu=H200)
    limits = dataclasses.replace(LIMITS, page_size=64, num_pages=20, max_model_len=256)
    sent = pickle.dumps(Facts(model, limits, backends, "bfloat16", "cuda", {}))
    program = lowering.listed(pickle.loads(sent))["decode 4"]
    assert program.is_chained
    function = functools.partial(step.decode, step.Model(model, dense, backends), None)
    here = jax.jit(function).trace(*program.arguments).lower(lowering_platforms=("cuda",)).as_text()
    there = lowering.exported(program, "cuda").mlir_module()
    digests = [re.findall(r'digest = "(\w+)"', text) for text in (here, there)]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 1
    assert not re.search("stablehlo.convert .*f8E4M3FN", here)


@pytest.mark.slow
def test_a_start_with_processes_gives_the_same_tokens_and_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[programs.Key, Lowerer]] = []
    lower = Lowerer.lower

    def noted(self: Lowerer, program: programs.Program) -> jax.stages.Lowered:
        seen.append((program.key, self))
        return lower(self, program)

    monkeypatch.setattr(Lowerer, "lower", noted)
    monkeypatch.setattr("jaxinfer.runtime.runner.num_lowerers", lambda device: 2)
    started, plain = make_runner(limits=FEW), make_runner(limits=FEW)
    started.warm_up(lambda *progress: None)
    assert {key for key, _ in seen} == {Decode(1), SMALL}, "what serves first is lowered here, and what is no step"
    assert generate(started, PROMPT, 4) == generate(plain, PROMPT, 4)
    assert started.compiles_after_ready == 0
    assert all(one._process is not None and one._process.poll() is not None for _, one in seen)


def built(facts: Facts, runner: DeviceRunner, program: programs.Program) -> list[programs.Key]:
    """What is built, in order, of a start in which a process lowers one step."""
    waves = [[runner._programs[Helper.SET_PAGES]], [program]]
    return [one.program.key for one in warmup.build_all(waves, runner._device, None, "", Lowerers(1, facts))]


def unknown_model(facts: Facts) -> Facts:
    return dataclasses.replace(facts, config=dataclasses.replace(facts.config, architecture="Registered"))


def other_arrays(facts: Facts) -> Facts:
    return dataclasses.replace(facts, limits=dataclasses.replace(facts.limits, num_pages=99))


def other_steps(facts: Facts) -> Facts:
    return dataclasses.replace(facts, limits=dataclasses.replace(facts.limits, decode_buckets=(10,)))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [unknown_model, other_arrays, other_steps], ids=lambda fault: fault.__name__)
def test_what_a_process_cannot_lower_is_lowered_here_and_said(
    fault: Callable[[Facts], Facts], tiny: DeviceRunner, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert built(fault(facts_of(tiny)), tiny, tiny._programs[Decode(1)]) == [Helper.SET_PAGES, Decode(1)]
    (said,) = [record.getMessage() for record in caplog.records if "lowered here" in record.getMessage()]
    assert said.startswith("a process must lower decode 1")


@pytest.mark.parametrize("fault", ["dies", "hangs"])
def test_a_process_that_gives_no_answer_is_an_error_for_the_step_it_had(
    fault: str, tiny: DeviceRunner, lowerer: Lowerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for that alone: the next one starts another."""
    lowerer._start()
    if fault == "dies":
        lowerer.close()
    monkeypatch.setattr(lowering, "_PATIENCE_S", 0.01)
    with pytest.raises(EngineError, match="a process must lower decode 4, it did not: "):
        lowerer.lower(tiny._programs[Decode(4)])
    monkeypatch.undo()
    assert "stablehlo" in lowerer.lower(tiny._programs[Decode(4)]).as_text()


def test_a_fault_of_the_step_itself_ends_the_start(tiny: DeviceRunner) -> None:
    faulty = dataclasses.replace(tiny._programs[Decode(1)], function=lambda *arguments: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        built(unknown_model(facts_of(tiny)), tiny, faulty)


def test_an_interrupt_of_the_terminal_is_not_the_processes(lowerer: Lowerer) -> None:
    lowerer._start()
    assert lowerer._process is not None
    assert os.getsid(lowerer._process.pid) != os.getsid(0)


def test_a_process_whose_answer_nobody_takes_ends_without_a_word(
    tiny: DeviceRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = multiprocessing.Pipe()
    ours.send(facts_of(tiny))
    ours.send_bytes(b"decode 1")
    monkeypatch.setattr(lowering, "Connection", lambda fd: theirs)
    monkeypatch.setattr(lowering, "exported", lambda program, platform: ours.close())
    lowering.main(0)


def test_only_a_gpu_s_steps_are_lowered_elsewhere() -> None:
    assert warmup.num_lowerers(jax.devices("cpu")[0]) == 0


def test_a_process_has_the_settings_of_the_one_that_asks(tiny: DeviceRunner) -> None:
    facts = facts_of(tiny)
    assert facts.settings["jax_default_matmul_precision"] == jax.config.jax_default_matmul_precision
    assert not {"jax_platforms", "jax_cuda_visible_devices"} & set(facts.settings)
    before = jax.config.jax_numpy_rank_promotion
    try:
        lowering.listed(dataclasses.replace(facts, settings={"jax_numpy_rank_promotion": "warn"}))
        assert jax.config.jax_numpy_rank_promotion == "warn"
    finally:
        jax.config.update("jax_numpy_rank_promotion", before)
