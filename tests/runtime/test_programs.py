"""Programs: what a runner runs, what they are compiled with, and what tells executables apart."""

import ctypes
import dataclasses
import functools
from pathlib import Path

import jax
import pytest

from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.config import ExtendBucket, Limits
from jaxinfer.models.registry import dense
from jaxinfer.runtime import programs
from jaxinfer.runtime import step as step_functions
from jaxinfer.runtime.backends import XLA_ONLY, Backend, Backends, Launches
from jaxinfer.runtime.buckets import Decode
from jaxinfer.runtime.plan import Plan, Row
from jaxinfer.runtime.runner import DeviceRunner
from jaxinfer_kernels.launch import ffi, sequence
from jaxinfer_kernels.sm90 import H200
from tests.support.tiny_runner import FEW, LARGE, LIMITS, TINY, make_runner


def test_what_comes_from_the_cache_has_the_kernels_of_its_chains_compiled_beside_it(monkeypatch) -> None:
    """In the thread that loads it; left to the first run, they would be compiled one after the other."""
    prepared: list[str] = []
    monkeypatch.setattr(ffi, "prepare", prepared.append)
    handler = jax.ffi.pycapsule(ctypes.cast(ffi._handler, ctypes.c_void_p).value)
    jax.ffi.register_ffi_target(sequence.TARGET, {"execute": handler}, platform="cpu", api_version=1)
    plain = make_runner()._programs[programs.Helper.SET_PAGES]
    text = sequence.LaunchSequence((b"+/" * 99,), ()).encode()
    call = jax.ffi.ffi_call(sequence.TARGET, plain.result, input_output_aliases={0: 0})
    launching = dataclasses.replace(
        plain, function=lambda table, _: call(table, digest="one", chain=text) + 1, is_chained=True
    )
    (device,) = plain.result.sharding.device_set
    for program, expected in ((plain, []), (launching, [text])):
        payload = program.serialize(program.compile(program.lower()))
        assert prepared == []
        program.deserialize(payload, device)
        assert prepared == expected


def test_programs_of_arrays_that_are_not_there_yet_are_those_of_a_runner() -> None:
    runner, device = make_runner(limits=FEW), jax.devices("cpu")[0]
    common = programs.fingerprint(runner._model, device)
    listed = programs.without_arrays(runner._model, FEW, TINY.dtype, jax.sharding.SingleDeviceSharding(device))
    assert [one.digest(common) for one in listed] == [one.digest(common) for one in runner._programs.values()]


def test_an_option_that_xla_no_longer_knows_is_done_without_and_said(caplog: pytest.LogCaptureFixture) -> None:
    program = make_runner()._programs[programs.Helper.SET_PAGES]
    unknown = dataclasses.replace(program, options=(("xla_cpu_option_of_another_age", "true"),))
    assert unknown.compile(unknown.lower()).memory_analysis() is not None
    assert "compiled without" in caplog.text


class Unembed:
    def __call__(self, *arguments: object) -> jax.Array:
        return dense.unembed(*arguments)


def makes_its_result(program: programs.Program) -> bool:
    """Whether the function makes what the program says, which nobody looks at but to load an executable."""
    said = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), program.result)
    return jax.eval_shape(program.function, *program.arguments) == said


def test_programs_say_what_their_functions_make() -> None:
    made = make_runner()._programs.values()
    assert [program.name for program in made if not makes_its_result(program)] == []


def test_quantized_weights_have_programs_of_their_own() -> None:
    device, where = jax.devices("cpu")[0], jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    digests = []
    for quantization in (None, "int8", "int4"):
        config = dataclasses.replace(TINY, intermediate_size=64, quantization=quantization)
        params = dummy_params(dense.specs(config), TINY.dtype, 0, device)
        runner = DeviceRunner(config, dense, params, LIMITS, device)
        common = programs.fingerprint(runner._model, device)
        listed = programs.without_arrays(runner._model, LIMITS, TINY.dtype, where)
        found = [one.digest(common) for one in listed]
        assert found == [one.digest(common) for one in runner._programs.values()]
        assert runner.facts().backends["weights"] == quantization or TINY.dtype
        digests += found
    assert len(set(digests)) == len(digests) == 3 * len(found)


def test_listing_the_programs_traces_no_step() -> None:
    family = dataclasses.replace(dense, forward=lambda *arguments: pytest.fail("a step was traced"))
    device = jax.devices("cpu")[0]
    params = dummy_params(dense.parameters(TINY), TINY.dtype, 0, device)
    assert DeviceRunner(TINY, family, params, LIMITS, device)._programs


def test_products_are_left_to_cublas_where_it_is_no_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one row, cuBLAS would have the head's weights converted; what else there is, it does as well or better."""
    monkeypatch.setattr(programs, "_options", lambda state, cublas=False: (("cublas", cublas),))
    limits = dataclasses.replace(LIMITS, decode_buckets=(1, 8), extend_buckets=(ExtendBucket(64, 1, 1), LARGE))
    device = jax.devices("cpu")[0]
    params = dummy_params(dense.parameters(TINY), TINY.dtype, 0, device)

    def left(backends: Backends) -> set[programs.Key]:
        made = DeviceRunner(TINY, dense, params, limits, device, backends)._programs
        return {key for key, program in made.items() if dict(program.options)["cublas"]}

    assert left(Backends(decode_linear=Backend.MOSAIC, gpu=H200)) == {Decode(8), LARGE}
    assert left(XLA_ONLY) == {LARGE}


def chained_runner(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> DeviceRunner:
    """Of programs that no GPU is there for."""
    monkeypatch.setattr(ffi, "register", lambda: None)
    device, mosaic = jax.devices("cpu")[0], Backend.MOSAIC
    params = dummy_params(dense.parameters(TINY), TINY.dtype, 0, device)
    chained = Backends(mosaic, mosaic, mosaic, mosaic, launches=Launches.SEQUENCE, gpu=H200)
    return DeviceRunner(TINY, dense, params, limits, device, chained)


def test_chains_are_compiled_after_all_that_xla_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those that serve: XLA and Mosaic keep each other from compiling."""
    limits = dataclasses.replace(LIMITS, decode_buckets=(1, 10), extend_buckets=(ExtendBucket(64, 3, 3), LARGE))
    listed = list(chained_runner(limits, monkeypatch)._programs.values())
    serving, by_xla, chains = programs.waves(listed, limits)
    assert [*serving, *by_xla, *chains] == listed
    assert all(programs.is_serving(program.key, limits) for program in serving)
    assert {program.key for program in serving if program.is_chained} == {Decode(10), LARGE}
    assert not any(program.is_chained for program in by_xla)
    assert {program.key for program in chains} == {Decode(1), ExtendBucket(64, 3, 3)}


@pytest.mark.parametrize(
    ("start", "count", "tokens"), [(0, 40, 64), (60_000, 2, 64), (60_000, 1, 64), (60_000, 40, 512)]
)
def test_a_chunk_far_back_takes_no_step_in_which_each_token_reads_for_itself(
    start: int, count: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {size: ExtendBucket(size, 10, 10) for size in (64, 512)}
    runner = chained_runner(dataclasses.replace(LIMITS, extend_buckets=tuple(sizes.values())), monkeypatch)
    taken: list[programs.Key] = []
    monkeypatch.setattr(runner, "_dispatch", lambda key, upload: taken.append(key))
    runner._extend(Plan([Row(1, start, count, [1] * count), Row(2, 60_000, 1)]), masked=False)
    assert taken == [sizes[tokens]]


class TestDigest:
    def digest(self, model: object = TINY, **limits: object) -> str:
        device = jax.devices("cpu")[0]
        runner = make_runner(model, dataclasses.replace(LIMITS, **limits))
        return runner._programs[Decode(4)].digest(programs.fingerprint(runner._model, device))

    def test_the_same_model_and_limits_share_their_executables(self) -> None:
        assert self.digest() == self.digest()

    @pytest.mark.parametrize(
        "changes",
        [{"num_pages": 121}, {"max_model_len": 400}, {"max_num_seqs": 11}, {"page_size": 8}],
        ids=str,
    )
    def test_other_shapes_do_not(self, changes: dict[str, int]) -> None:
        assert self.digest(**changes) != self.digest()

    @pytest.mark.parametrize("changes", [{"norm_eps": 1e-5}, {"dtype": "bfloat16"}], ids=str)
    def test_other_constants_of_the_model_do_not(self, changes: dict[str, object]) -> None:
        assert self.digest(dataclasses.replace(TINY, **changes)) != self.digest()

    def test_other_backends_do_not(self) -> None:
        device = jax.devices("cpu")[0]
        models = [
            step_functions.Model(TINY, dense, b)
            for b in (XLA_ONLY, Backends(decode_attention=Backend.MOSAIC, gpu=H200))
        ]
        assert len({programs.fingerprint(model, device) for model in models}) == 2

    @pytest.mark.parametrize("key", [programs.Tops(10), programs.Helper.SCORE], ids=str)
    def test_another_number_of_logprobs_does_not(self, key: programs.Key) -> None:
        made = [make_runner(limits=dataclasses.replace(LIMITS, max_logprobs=k))._programs[key] for k in (5, 6)]
        assert len({program.digest("") for program in made}) == 2
        for program in made:
            assert makes_its_result(program)

    def test_other_code_does_not(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        before = self.digest()
        plug_in = tmp_path / "family.py"
        plug_in.write_text("def forward(): pass\n")
        real = programs.inspect.getfile

        def changed(item: object) -> str:
            return str(plug_in) if item is dense.forward else real(item)

        monkeypatch.setattr(programs.inspect, "getfile", changed)
        assert self.digest() != before

    def test_a_family_may_be_made_of_partials_and_callable_objects(self) -> None:
        family = dataclasses.replace(dense, forward=functools.partial(dense.forward), unembed=Unembed())
        model = step_functions.Model(TINY, family)
        assert programs.fingerprint(model, jax.devices("cpu")[0])

    def test_other_flags_do_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = self.digest()
        monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
        assert self.digest() != before
