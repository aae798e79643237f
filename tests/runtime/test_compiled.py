"""Every executable updates the state in place: each state buffer aliased, none copied, by the compiled text itself."""

import dataclasses
import functools
import re
from collections.abc import Collection

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.models.registry import dense
from jaxinfer.runtime import step
from jaxinfer.runtime.buckets import Decode, decode_sizes
from jaxinfer.runtime.programs import Helper, Key, Program
from jaxinfer.runtime.runner import DeviceRunner
from jaxinfer.runtime.state import DeviceState
from tests.support.hopper import all_mosaic, gpu
from tests.support.tiny_runner import (
    HELPERS,
    LIMITS,
    MOSAIC_LIMITS,
    MOSAIC_TINY,
    TINY,
    make_mosaic_runner,
    make_runner,
)

HLO_TYPES = {"float32": "f32", "bfloat16": "bf16", "int32": "s32", "uint32": "u32", "uint16": "u16"}
# What makes a new array of its result's shape; updates in place are dynamic-update-slice, scatter, or fusions of them.
COPIES = "copy|copy-start|transpose"
MAKERS = f"{COPIES}|convert|broadcast|select|concatenate|pad"
# the largest step computes with arrays of the shapes of the logits and of the hidden states that it leaves
_HIDDEN = f"[{LIMITS.extend_buckets[-1].tokens},{TINY.hidden_size}]"
COMPUTED = (f"f32[{LIMITS.max_num_seqs},{LIMITS.vocab_size}]", f"f32{_HIDDEN}", f"bf16{_HIDDEN}")
VOCAB = 151_936  # whose logits are more than what cuBLAS works in


def hlo_shape(leaf: jax.ShapeDtypeStruct) -> str:
    return f"{HLO_TYPES[leaf.dtype.name]}[{','.join(map(str, leaf.shape))}]"


def donated_leaves(program: Program) -> dict[int, jax.ShapeDtypeStruct]:
    """The state buffers a program is given, by the number of the compiled program's parameter."""
    leaves, number = {}, 0
    for index, argument in enumerate(program.arguments):
        for leaf in jax.tree.leaves(argument):
            if index in program.donated:
                leaves[number] = leaf
            number += 1
    return leaves


def faults_of(
    compiled: jax.stages.Compiled, state: dict[int, jax.ShapeDtypeStruct], computed: Collection[str] = COMPUTED
) -> list[str]:
    """What a compiled program does to its state other than updating it in place.

    computed: shapes that a step may make anew, though not copy.
    """
    text, analysis = compiled.as_text(), compiled.memory_analysis()
    aliased = {int(number) for number in re.findall(r"\{[\d,]*\}: \((\d+), \{\}", text.splitlines()[0])}
    faults = [f"state buffer {number} is not aliased" for number in sorted(state.keys() - aliased)]
    for shape in {hlo_shape(leaf) for leaf in state.values()}:
        maker = re.compile(rf"= \(?{re.escape(shape)}\S* ({COPIES if shape in computed else MAKERS})\(")
        faults += [line.strip()[:160] for line in text.splitlines() if maker.search(line)]
    pool = sum(leaf.dtype.itemsize * leaf.size for leaf in state.values())
    if analysis.alias_size_in_bytes < pool:
        faults.append(f"{analysis.alias_size_in_bytes} bytes aliased of {pool}")
    return faults


def copied_beside(compiled: jax.stages.Compiled) -> list[str]:
    """What goes to the host or comes from there by a copy of its own, which no CUDA graph holds."""
    steps = compiled.as_text().split("ENTRY")[-1].splitlines()
    return [line.strip()[:160] for line in steps if re.search(r" copy-start\(|S\(5\)\S* copy\(", line)]


def check_all(runner: DeviceRunner, computed: Collection[str] = COMPUTED) -> None:
    faults = {
        program.name: found
        for key, program in runner._programs.items()
        if (found := faults_of(runner._executables[key], donated_leaves(program), computed))
    }
    assert not faults
    decode = decode_sizes(runner.limits.decode_buckets, runner.limits.decode_contexts)
    assert {*decode, *runner.limits.extend_buckets, *HELPERS} <= runner._programs.keys()


@pytest.fixture(scope="module")
def bfloat16_runner() -> DeviceRunner:
    limits = dataclasses.replace(LIMITS, decode_contexts=(64,))
    return make_runner(dataclasses.replace(TINY, dtype="bfloat16"), limits)


def test_float32_programs_update_every_state_buffer_in_place(warm_runner: DeviceRunner) -> None:
    check_all(warm_runner)


@pytest.mark.slow
def test_programs_without_a_loop_update_every_state_buffer_in_place(by_context: DeviceRunner) -> None:
    check_all(by_context)


@pytest.mark.parametrize(
    "key",
    [Decode(1), Decode(10), Decode(10, 64), LIMITS.extend_buckets[-1], Helper.ZERO_PAGES, Helper.LOAD_PAGES],
    ids=str,
)
def test_bfloat16_programs_update_every_state_buffer_in_place(bfloat16_runner: DeviceRunner, key: Key) -> None:
    program = bfloat16_runner._programs[key]
    assert not faults_of(program.compile(program.lower()), donated_leaves(program))


@pytest.mark.gpu
@pytest.mark.parametrize("contexts", [None, (), (64,)], ids=["mosaic", "xla", "xla-by-context"])
def test_programs_for_a_gpu_update_every_state_buffer_in_place(contexts: tuple[int, ...] | None) -> None:
    """contexts: for which XLA's decode attention comes without a loop; None: every op is Mosaic's."""
    if contexts is None:
        runner = make_mosaic_runner()
    else:
        limits = dataclasses.replace(MOSAIC_LIMITS, decode_contexts=contexts)
        runner = make_runner(MOSAIC_TINY, limits, device=gpu())
    runner.warm_up(lambda *progress: None)
    small = {hlo_shape(leaf) for leaf in jax.tree.leaves((runner._state, runner._controls)) if leaf.ndim < 5}
    check_all(runner, small)  # of such shapes a step also computes: XLA joins them with others in its fusions
    beside = {key for key in runner._programs if copied_beside(runner._executables[key])}
    assert beside <= {Helper.POOL}  # behind which nothing waits
    runner.close()


@pytest.mark.gpu
def test_logits_are_written_where_they_are_kept() -> None:
    """Also of fewer rows than are kept: they are made nowhere else."""
    kept, rows = jax.ShapeDtypeStruct((256, VOCAB), jnp.float32), 128
    model = step.Model(MOSAIC_TINY, dense, all_mosaic(MOSAIC_TINY, LIMITS.page_size, gpu()))
    config = dataclasses.replace(MOSAIC_TINY, vocab_size=VOCAB)
    params = jax.eval_shape(lambda: dummy_params(dense.parameters(config), config.dtype, 0, gpu()))
    hidden = jax.ShapeDtypeStruct((rows, config.hidden_size), jnp.bfloat16)
    head = jax.jit(functools.partial(step._head, model), donate_argnums=1)
    lowered = head.lower(params, kept, hidden, jax.ShapeDtypeStruct((), jnp.int32))
    compiled = lowered.compile(compiler_options={"xla_gpu_enable_triton_gemm": False})
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * rows * VOCAB


@pytest.mark.parametrize("key", [Decode(4), pytest.param(Decode(4, 64), marks=pytest.mark.slow)], ids=str)
def test_temporaries_do_not_grow_with_the_pool(key: Decode) -> None:
    def temporaries(num_pages: int) -> int:
        runner = make_runner(limits=dataclasses.replace(LIMITS, num_pages=num_pages, decode_contexts=(64,)))
        program = runner._programs[key]
        return program.compile(program.lower()).memory_analysis().temp_size_in_bytes

    assert temporaries(120) == temporaries(1200)


@pytest.mark.parametrize("spoil", ["read_after_write", "no_donation"])
def test_a_step_that_copies_its_state_is_caught(warm_runner: DeviceRunner, spoil: str) -> None:
    program = warm_runner._programs[Decode(4)]

    def total(state: DeviceState) -> jax.Array:
        return state.store.pages[0].sum(axis=1)

    def spoilt(
        params: step.Params, state: DeviceState, upload: jax.Array
    ) -> tuple[DeviceState, jax.Array, jax.Array | None]:
        after, output = program.function(params, state, upload)
        # the old keys are needed after the new ones are written: XLA must keep both
        return after, output, total(state) + total(after) if spoil == "read_after_write" else None

    donated = () if spoil == "no_donation" else program.donated
    compiled = jax.jit(spoilt, donate_argnums=donated).lower(*program.arguments).compile()
    assert faults_of(compiled, donated_leaves(program))


def test_every_program_takes_one_small_array_of_int32_from_the_host(warm_runner: DeviceRunner) -> None:
    for program in warm_runner._programs.values():
        upload = program.arguments[-1]
        assert upload.dtype == jnp.int32
        assert upload.size < 2000
