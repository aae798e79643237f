"""A chain is its function's kernels as one operation, each with the places of its arrays.

Read off the lowering for a GPU, which needs none. The law: whatever kernels there are, replaying the launches on the
places gives each kernel what it takes, and results are where XLA looks for them.
"""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer_kernels.attention import sm90_decode
from jaxinfer_kernels.launch import sequence
from jaxinfer_kernels.launch.sequence import (
    ALIGNMENT,
    BufferOffset,
    KernelLaunch,
    LaunchSequence,
    _Kernel,
    _Placed,
    _placed,
    _Values,
    launched,
)
from jaxinfer_kernels.linear import sm90_small

BF16, EPS = jnp.bfloat16, 1e-6
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, MLP, ROWS = 2, 256, 2, 1, 64, 256, 8
NAMES = ["linear_None", "decode_attention", "linear_residual", "linear_silu"]  # of kernels, as profilers show them
KERNELS = ["linear_None", "decode_attention", "linear_residual", "linear_silu", "linear_residual"]  # of a layer


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, BF16)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


WEIGHTS = {
    "norm": bf16(LAYERS, WIDTH),
    "qkv": (bf16((HEADS + 2 * KV_HEADS) * HEAD, WIDTH),) * LAYERS,
    "o": (bf16(WIDTH, HEADS * HEAD),) * LAYERS,
    "gate_up": (bf16(2 * MLP, WIDTH),) * LAYERS,
    "down": (bf16(WIDTH, MLP),) * LAYERS,
}
ANGLES = (jax.ShapeDtypeStruct((ROWS, HEAD // 2), jnp.float32),) * 2
PAGES = bf16(LAYERS, 6, KV_HEADS, 64, HEAD)
# x, weights, angles, k, v, and the rows: page table, slots, lengths
ARGUMENTS = (bf16(ROWS, WIDTH), WEIGHTS, ANGLES, PAGES, PAGES, (i32(9, 4), i32(3), i32(3)))
INDEX = jax.tree.unflatten(jax.tree.structure(ARGUMENTS), range(len(jax.tree.leaves(ARGUMENTS))))  # of each operand


def layers(x: jax.Array, w: Any, angles: Any, k: jax.Array, v: jax.Array, rows: Any) -> tuple[jax.Array, ...]:
    """A decode step's layers."""
    kv = [k, v]
    for i in range(LAYERS):
        layer = jnp.int32(i)
        qkv = sm90_small.norm_linear(x, w["norm"], w["qkv"][i], layer, eps=EPS)
        attended, *kv = sm90_decode.decode_attention_fused(qkv, angles, (*kv, layer), rows)
        x = sm90_small.linear_residual(attended.reshape(len(x), -1), w["o"][i], x)
        gated = sm90_small.norm_gate_up(x, w["norm"], w["gate_up"][i], layer, eps=EPS)
        x = sm90_small.linear_residual(gated, w["down"][i], x)
    return x, *kv


@dataclasses.dataclass(frozen=True)
class Call:
    """The chain of a lowered function, and what XLA is told of it."""

    lowered: Any  # kept: the rest points into it
    operation: Any

    @property
    def chain(self) -> LaunchSequence:
        return LaunchSequence.decode(self.operation.attributes["mhlo.backend_config"]["chain"].value.encode())

    @property
    def aliases(self) -> str:
        return str(self.operation.attributes["output_operand_aliases"])

    @property
    def constants(self) -> bytes:
        return np.array(self.operation.operands[-1].owner.attributes["value"]).tobytes()

    @property
    def shapes(self) -> list[list[int]]:
        """Of the operands."""
        return [list(one.type.shape) for one in self.operation.operands]


def call_of(function: Any, *arguments: Any, **settings: Any) -> Call:
    """Of jit(function), which has no other custom call."""
    lowered = jax.jit(function, **settings).trace(*arguments).lower(lowering_platforms=("cuda",))
    (main,) = lowered.compiler_ir("stablehlo").body.operations
    found = [op.operation for op in main.entry_block.operations if op.operation.name == "stablehlo.custom_call"]
    assert len(found) == 1
    return Call(lowered, found[0])


def launches_of(function: Any, *arguments: Any) -> list[int]:
    """How many kernels each sequence of jit(function) launches."""
    text = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    return [len(LaunchSequence.decode(one.encode()).launches) for one in re.findall(r'chain = "([^"]*)"', text)]


@pytest.fixture(scope="module")
def call() -> Call:
    return call_of(lambda *arguments: launched(layers, *arguments), *ARGUMENTS, donate_argnums=(3, 4))


def names_of(chain: LaunchSequence) -> list[str]:
    """Of its modules."""
    return [next(name for name in NAMES if name.encode() in module) for module in chain.modules]


def test_a_function_of_kernels_is_one_operation(call):
    text = call.lowered.as_text()
    assert text.count("@jaxinfer_chain") == 1
    assert "mosaic_gpu_v2" not in text
    assert len(call.shapes) == len(jax.tree.leaves(ARGUMENTS)) + 1  # and the constants


def test_layers_share_their_kernels(call):
    assert sorted(names_of(call.chain)) == sorted([*NAMES, "linear_residual"])  # o and down are of different depth
    assert len(set(call.chain.modules)) == len(call.chain.modules)


def test_kernels_are_launched_in_the_program_s_order(call):
    names = names_of(call.chain)
    assert [names[one.module] for one in call.chain.launches] == LAYERS * KERNELS
    first, second = call.chain.launches[: len(KERNELS)], call.chain.launches[len(KERNELS) :]
    assert [one.module for one in first] == [one.module for one in second]


def test_each_kernel_takes_what_the_one_before_it_made(call):
    x = BufferOffset(INDEX[0])
    for layer in range(LAYERS):
        qkv, attention, o, gate_up, down = call.chain.launches[layer * len(KERNELS) :][: len(KERNELS)]
        weights = {name: BufferOffset(INDEX[1][name][layer]) for name in ("qkv", "o", "gate_up", "down")}
        assert {x, weights["qkv"], BufferOffset(INDEX[1]["norm"])} < set(qkv.places[:-1])
        assert {qkv.places[-1], *map(BufferOffset, (*INDEX[2], *INDEX[5]))} < set(attention.places[:-3])
        assert o.places[:-1] == (attention.places[-3], weights["o"], x)
        assert {o.places[-1], weights["gate_up"]} < set(gate_up.places[:-1])
        assert down.places[:-1] == (gate_up.places[-1], weights["down"], o.places[-1])
        x = down.places[-1]
    assert x.buffer == len(call.shapes), "results follow the operands"


def test_arrays_outside_are_found_by_an_anchor(call):
    x, weights, angles, *rest = ARGUMENTS

    def program(x: jax.Array, angles: Any, k: jax.Array, v: jax.Array, rows: Any, anchor: jax.Array) -> Any:
        bound = sequence.Bound(weights, anchor)
        return launched(lambda found, x, *rest: layers(x, found, *rest), x, angles, k, v, rows, bound=bound)

    other = call_of(program, x, angles, *rest, bf16(4), donate_argnums=(2, 3))
    num_outside, num_given = len(jax.tree.leaves(weights)), len(other.shapes) - 1
    assert num_given == len(call.shapes) - num_outside
    assert other.chain.anchor == num_given - 1
    assert other.shapes[other.chain.anchor] == [4]

    def moved(place: BufferOffset) -> BufferOffset:
        """As it is where nothing is outside. Operands there: x, the weights, what else is given, constants."""
        buffer = place.buffer
        if buffer < 0:
            return BufferOffset(-buffer, place.offset)
        return BufferOffset(0 if buffer == 0 else buffer + num_outside - (buffer > other.chain.anchor), place.offset)

    launches = [tuple(map(moved, one.places)) for one in other.chain.launches]
    assert launches == [one.places for one in call.chain.launches]


def test_bound_arrays_are_for_kernels_alone():
    def program(anchor: jax.Array) -> jax.Array:
        return launched(lambda found: found + anchor, bound=sequence.Bound(bf16(4), anchor))

    with pytest.raises(ValueError, match=r"only kernels find bfloat16\[4\] by address, add needs it too"):
        jax.jit(program).lower(bf16(4))


def test_a_kernel_s_constants_lie_behind_each_other(call):
    """The layer's index, of every kernel that takes it."""
    buffer = len(call.shapes) - 1
    for i, launch in enumerate(call.chain.launches):
        indices = [place.offset for place in launch.places if place.buffer == buffer]
        assert len(indices) == (KERNELS[i % len(KERNELS)] != "linear_residual")
        for offset in indices:
            assert offset % ALIGNMENT == 0
            assert int.from_bytes(call.constants[offset:][:4], "little") == i // len(KERNELS)


def test_pages_are_updated_in_place(call):
    k, v = (BufferOffset(INDEX[i]) for i in (3, 4))
    for result, place in enumerate((k, v), 1):
        assert f"output_tuple_indices = [{result}], operand_index = {place.buffer}," in call.aliases
    assert call.aliases.count("operand_index") == 2
    for launch in call.chain.launches[1 :: len(KERNELS)]:
        assert launch.places[-2:] == (k, v)
        assert launch.places[:-2].count(k) == launch.places[:-2].count(v) == 1


def test_a_chain_has_its_function_s_results():
    def function(x: jax.Array, w: jax.Array) -> dict[str, jax.Array]:
        made = sm90_small.linear_residual(x, w, x)
        return {"made": made, "more": sm90_small.linear_residual(made, w, x).reshape(-1)}

    arguments = bf16(8, 128), bf16(128, 128)
    assert jax.eval_shape(lambda *given: launched(function, *given), *arguments) == jax.eval_shape(function, *arguments)


@pytest.mark.parametrize(
    "between",
    [
        lambda x: x + x,
        lambda x: x + 1,
        lambda x: jax.lax.optimization_barrier(x),
        lambda x: x[::-1],
        jax.jit(lambda x: x * x),
        jax.jit(lambda x: x + 1),
    ],
    ids=["sum", "scalar", "barrier", "reverse", "in a function", "in a function, a scalar"],
)
def test_an_operation_that_is_no_kernel_closes_a_sequence(between):
    """What comes before it and what comes after it are sequences of their own."""

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        for step in (lambda x: x, between, lambda x: x):
            x = sm90_small.linear_residual(step(x), w, x)
        return x

    assert launches_of(lambda *given: launched(function, *given), bf16(8, 128), bf16(128, 128)) == [1, 2]


def test_an_operation_that_needs_no_kernel_runs_before_them():
    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        made = sm90_small.linear_residual(x, w, x)
        return sm90_small.linear_residual(made, w * 2, x + 1)

    assert launches_of(lambda *given: launched(function, *given), bf16(8, 128), bf16(128, 128)) == [2]


def test_a_function_without_kernels_is_what_it_was():
    given = jnp.arange(4.0), {"w": jnp.ones(4)}

    def function(x: jax.Array, w: dict[str, jax.Array]) -> dict[str, Any]:
        return {"sum": x + w["w"], "same": x, "one": 1.0}

    assert jax.tree.map(np.testing.assert_array_equal, launched(function, *given), function(*given))


def test_chains_share_the_lowering_of_a_kernel():
    def function(times: int, x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(times):
            x = sm90_small.linear_residual(x, w, x)
        return x

    before = sequence._lowered.cache_info().misses
    for times in (1, 3):
        call_of(functools.partial(launched, functools.partial(function, times)), bf16(8, 384), bf16(384, 384))
    assert sequence._lowered.cache_info().misses == before + 1


@pytest.mark.parametrize(
    "also",
    [
        lambda x, w, made: made,
        lambda x, w, made: jnp.int32(5),
        lambda x, w, made: w,
        lambda x, w, made: made.reshape(-1),
    ],
    ids=["returned twice", "a constant", "an argument", "a reshape of it"],
)
def test_results_may_be_anything(also):
    def function(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        made = sm90_small.linear_residual(x, w, x)
        return made, also(x, w, made)

    given = bf16(8, 128), bf16(128, 128)
    assert launches_of(lambda *given: launched(function, *given), *given) == [1]
    assert jax.eval_shape(lambda *given: launched(function, *given), *given) == jax.eval_shape(function, *given)


def test_pages_as_they_were_before_their_update_are_refused():
    heads, kv = 2, bf16(2, 3, 1, 64, 64)
    angle, rows = jax.ShapeDtypeStruct((8, 32), jnp.float32), jax.ShapeDtypeStruct((8,), jnp.int32)

    def function(qkv, cos_sin, k, v, table, slots, lengths):
        where = (k, v, jnp.int32(0)), (table, slots, lengths)
        out, *_ = sm90_decode.decode_attention_fused(qkv, cos_sin, *where)
        return out, sm90_decode.decode_attention_fused(qkv, cos_sin, *where)

    given = bf16(8, (heads + 2) * 64), (angle, angle), kv, kv, jax.ShapeDtypeStruct((9, 3), jnp.int32), rows, rows
    with pytest.raises(ValueError, match="may not use what one was before"):
        call_of(lambda *given: launched(function, *given), *given)


def closing_over_an_argument(x: jax.Array, w: jax.Array, residual: jax.Array) -> jax.Array:
    return launched(lambda x: sm90_small.linear_residual(x, w, residual), x)


def closing_over_an_array(x: jax.Array, w: jax.Array, residual: jax.Array) -> jax.Array:
    w = jnp.ones(w.shape, w.dtype)
    return launched(lambda x: sm90_small.linear_residual(x, w, residual), x)


@pytest.mark.parametrize("function", [closing_over_an_argument, closing_over_an_array])
def test_arrays_that_a_function_closes_over_are_operands(function):
    call = call_of(function, bf16(8, 256), bf16(128, 256), bf16(8, 128))
    (launch,) = call.chain.launches
    assert [call.shapes[place.buffer] for place in launch.places[:-1]] == [[8, 256], [128, 256], [8, 128]]
    assert launch.places[-1] == BufferOffset(len(call.shapes))
    assert len(call.shapes) == 3 + 1


PLACES = st.builds(BufferOffset, st.integers(0, 500), st.integers(0, 2**40))
LAUNCHES = st.builds(KernelLaunch, st.integers(0, 9), st.lists(PLACES, max_size=5).map(tuple))


@given(
    st.builds(LaunchSequence, st.lists(st.binary(), max_size=3).map(tuple), st.lists(LAUNCHES, max_size=5).map(tuple))
)
def test_a_chain_is_the_same_behind_its_text(chain):
    text = chain.encode()
    assert text.isascii()
    assert LaunchSequence.decode(text.encode()) == chain


# Places


@dataclasses.dataclass(frozen=True)
class Program:
    """Kernels over values of which the first are arguments, then come constants."""

    values: _Values
    kernels: list[_Kernel]
    results: list[int]
    outside: list[int | None]  # of each argument, which array outside it is, or None

    @property
    def num_arguments(self) -> int:
        return len(self.outside)

    @property
    def first_result(self) -> int:
        """The buffer behind arguments, anchor and constants."""
        return self.outside.count(None) + self.is_anchored + 1

    @property
    def is_anchored(self) -> bool:
        return any(index is not None for index in self.outside)

    def place(self, argument: int) -> BufferOffset:
        index = self.outside[argument]
        return BufferOffset(self.outside[:argument].count(None) if index is None else -1 - index)

    def plan(self) -> _Placed:
        return _placed(self.values, self.kernels, self.results, self.outside)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Some values are updated in place, some never read, some of the same size as others."""
    sizes = st.sampled_from([4, 256, 300, 4096])
    values = _Values()
    known = [values.new(draw(sizes))[0] for _ in range(draw(st.integers(1, 3)))]
    arguments = known.copy()
    outside = [draw(st.sampled_from([None, 5 * value])) for value in arguments]
    for byte in range(draw(st.integers(0, 2))):
        size = draw(sizes)
        known.append(values.new(size)[0])
        values.constants[known[-1]] = np.full(size, byte + 1, np.uint8)
    kernels = []
    for _ in range(draw(st.integers(1, 12))):
        takes = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4))
        changed = [value for value in dict.fromkeys(takes) if value not in values.constants and draw(st.booleans())]
        made = [values.new(draw(sizes))[0] for _ in range(draw(st.integers(0 if changed else 1, 3)))]
        made += changed
        known = list(dict.fromkeys([*known, *made]))
        kernels.append(_Kernel(b"", tuple(takes), tuple(made)))
    never = {*values.constants, *(value for value in arguments if outside[value] is not None)}
    written = [value for value in known if value not in never]
    results = draw(st.lists(st.sampled_from(written), max_size=3, unique=True)) if written else []
    return Program(values, kernels, results, outside)


@dataclasses.dataclass
class Memory:
    """What was last written where: a write takes away all that it overlaps."""

    held: dict[tuple[int, int, int], object] = dataclasses.field(default_factory=dict)  # buffer, start, end

    def write(self, place: BufferOffset, size: int, content: object) -> None:
        buffer, start, end = place.buffer, place.offset, place.offset + size
        self.held = {at: old for at, old in self.held.items() if at[0] != buffer or at[1] >= end or at[2] <= start}
        self.held[buffer, start, end] = content

    def read(self, place: BufferOffset, size: int) -> object:
        return self.held.get((place.buffer, place.offset, place.offset + size))


def replay(program: Program, plan: _Placed) -> tuple[Memory, dict[int, int]]:
    """What is where after all launches, and how often each value was written.

    Fails where a kernel does not find what it takes, or writes over that or over its own other results.
    """
    memory, sizes = Memory(), program.values.sizes
    written = dict.fromkeys(range(program.num_arguments + len(program.values.constants)), 0)
    for value in range(program.num_arguments):
        memory.write(program.place(value), sizes[value], (value, 0))
    for kernel, launch in zip(program.kernels, plan.chain.launches, strict=True):
        places = dict(zip((*kernel.takes, *kernel.makes), launch.places, strict=True))
        for value in kernel.takes:
            if value in program.values.constants:
                array = program.values.constants[value]
                assert plan.constants[places[value].offset :][: len(array)].tobytes() == array.tobytes()
            else:
                assert memory.read(places[value], sizes[value]) == (value, written[value])
        for value in kernel.makes:
            written[value] = written.get(value, 0) + 1
            memory.write(places[value], sizes[value], (value, written[value]))
        for value in {*kernel.takes, *kernel.makes} - {*program.values.constants}:
            assert memory.read(places[value], sizes[value]) == (value, written[value])
    return memory, written


@given(programs())
def test_no_value_is_overwritten_before_it_was_read(program):
    plan = program.plan()
    memory, written = replay(program, plan)
    for i, value in enumerate(program.results):
        is_argument = value < program.num_arguments
        place = program.place(value) if is_argument else BufferOffset(program.first_result + i)
        assert memory.read(place, program.values.sizes[value]) == (value, written[value])
        assert (i in plan.aliases.values()) == is_argument
        assert not is_argument or plan.aliases[place.buffer] == i


@given(programs())
def test_places_are_aligned_and_inside_their_buffers(program):
    plan = program.plan()
    constants, scratch = program.first_result - 1, program.first_result + len(program.results)
    for kernel, launch in zip(program.kernels, plan.chain.launches, strict=True):
        for value, place in zip((*kernel.takes, *kernel.makes), launch.places, strict=True):
            assert place.offset % ALIGNMENT == 0
            room = {constants: len(plan.constants), scratch: plan.scratch_bytes}
            assert place.offset + program.values.sizes[value] <= room.get(place.buffer, program.values.sizes[value])


def test_a_line_of_kernels_takes_two_places():
    values, kernels = _Values(), []
    last, _ = values.new(4096)
    for _ in range(10):
        kernels.append(_Kernel(b"", (last,), values.new(4096)[:1]))
        (last,) = kernels[-1].makes
    assert Program(values, kernels, [last], [None]).plan().scratch_bytes == 2 * 4096
