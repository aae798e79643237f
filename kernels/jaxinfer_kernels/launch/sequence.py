"""Mosaic kernels behind each other as one operation of XLA's, so that each may begin while the one before it ends.

XLA makes a CUDA graph of its own of every custom call, and between graphs a kernel waits for the whole of what precedes
it: programmatic dependent launch (CUDA Programming Guide, "Programmatic Dependent Launch and Synchronization") changes
nothing there. `launched` finds the kernels of a function that follow each other, and hands XLA one custom call that
launches them all on one stream: one graph, in which the weights of a kernel are fetched while the kernel before it
still runs. It is also
one call for the host to prepare instead of 140.

The call takes weights by address where they are `Bound`: each array that a program is given costs the host 1 us of
every step, and a model has hundreds.

Intermediate results share one scratch buffer. A kernel that begins early writes nothing before its
`griddepcontrol_wait`, so a place may be used again as soon as the last kernel that reads it precedes.
"""

import base64
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jaxlib.mlir.dialects import stablehlo

TARGET = "jaxinfer_chain"
ALIGNMENT = 256  # bytes, of each place in the scratch and the constants: what XLA gives its own buffers
KERNEL = "mosaic_gpu_v2"
_KERNEL_PRIMITIVES = frozenset(["mpmd_map", "core_map", "pallas_call"])  # of Pallas, as versions of JAX name them


@dataclasses.dataclass(frozen=True)
class BufferOffset:
    """Where an array lies: in which buffer of the call (arguments, anchor, constants, results, scratch) and how far in.

    buffer: below 0, -1 - i is the i-th array outside.
    """

    buffer: int
    offset: int = 0  # bytes


@dataclasses.dataclass(frozen=True)
class KernelLaunch:
    """One kernel. module: its index among the chain's.    places: of its arguments, then of its results."""

    module: int
    places: tuple[BufferOffset, ...]


@dataclasses.dataclass(frozen=True)
class LaunchSequence:
    """What the custom call is told: kernels as serialized Mosaic modules, each once, and the launches in order.

    anchor: the argument by whose address those of the arrays outside are found, if there are any.
    """

    modules: tuple[bytes, ...]
    launches: tuple[KernelLaunch, ...]
    anchor: int | None = None

    def encode(self) -> str:
        """As text, which XLA keeps with the executable."""
        launches = [[one.module, *((place.buffer, place.offset) for place in one.places)] for one in self.launches]
        modules = [base64.b64encode(one).decode() for one in self.modules]
        facts = {"modules": modules, "launches": launches, "anchor": self.anchor}
        return base64.b64encode(zlib.compress(json.dumps(facts).encode())).decode()

    @classmethod
    def decode(cls, text: bytes) -> "LaunchSequence":
        facts = json.loads(zlib.decompress(base64.b64decode(text)))
        launches = tuple(
            KernelLaunch(first, tuple(BufferOffset(*place) for place in rest)) for first, *rest in facts["launches"]
        )
        return cls(tuple(base64.b64decode(one) for one in facts["modules"]), launches, facts["anchor"])


@dataclasses.dataclass(frozen=True)
class Bound:
    """Weights that kernels find by address, and that a program is not given: `ffi.place` says where they lie.

    arrays: a tree of avals.    anchor: an argument of the program, by whose address a launch finds theirs.
    """

    arrays: Any
    anchor: jax.Array


def launched(function: Callable[..., Any], *arguments: Any, bound: Bound | None = None) -> Any:
    """function(*arguments), its Mosaic kernels launched in sequences, each one operation. On a GPU, under jit.

    A sequence is made of kernels and of reshapes between them. An operation that needs a result of the sequence and is
    no kernel closes it; operations that need none run before it. What kernels update in place is updated in place.
    bound: its arrays are the function's first argument.
    Raises ValueError if an array is used after its update, or if a bound one is used by anything but a kernel.
    """
    weights, shape = jax.tree.flatten(() if bound is None else bound.arrays)
    leaves, structure = jax.tree.flatten(arguments)

    def of_leaves(*leaves: jax.Array) -> Any:
        first = () if bound is None else (jax.tree.unflatten(shape, leaves[: len(weights)]),)
        return function(*first, *jax.tree.unflatten(structure, leaves[len(weights) :]))

    closed, results = jax.make_jaxpr(of_leaves, return_shape=True)(*weights, *leaves)
    jaxpr = closed.jaxpr
    indices = {var: i for i, var in enumerate(jaxpr.invars[: len(weights)])}
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars[len(weights) :]), (*closed.consts, *leaves), strict=True))
    for part in _parts(jaxpr):
        if part.is_sequence:
            made = _call(part, known, indices, None if bound is None else bound.anchor)
        else:
            made = _evaluate(part, known, jaxpr)
        known |= zip(part.outvars, made, strict=True)
    return jax.tree.unflatten(jax.tree.structure(results), [_value(atom, known) for atom in jaxpr.outvars])


@dataclasses.dataclass(frozen=True)
class _Part:
    """Equations that are launched as one, or that are XLA's.    invars: made before.    outvars: needed after."""

    eqns: list[Any]
    invars: list[Any]
    outvars: list[Any]
    is_sequence: bool = True


def _parts(jaxpr: Any) -> list[_Part]:
    """The function's equations in an order in which they can be computed, kernels that follow each other together."""
    parts: list[tuple[bool, list[Any]]] = []
    sequence: list[Any] = []
    made: set[Any] = set()  # by the kernels of `sequence`
    for equation in jaxpr.eqns:
        needs = any(not isinstance(atom, Literal) and atom in made for atom in equation.invars)
        if _is_kernel(equation) or (needs and equation.primitive.name == "reshape"):
            sequence.append(equation)
            made.update(equation.outvars)
            continue
        if needs:
            parts.append((True, sequence))
            sequence, made = [], set()
        if not parts or parts[-1][0]:
            parts.append((False, []))
        parts[-1][1].append(equation)
    if sequence:
        parts.append((True, sequence))
    return _with_ends(parts, jaxpr.outvars)


def _with_ends(parts: list[tuple[bool, list[Any]]], results: Sequence[Any]) -> list[_Part]:
    """Parts that know what they take, in the order of its first use, and what of theirs is needed after them."""
    needed = dict.fromkeys(atom for atom in results if not isinstance(atom, Literal))
    last = {var: i for i, var in enumerate(needed)}
    found: list[_Part] = []

    def add(eqns: list[Any], is_sequence: bool) -> None:
        made = dict.fromkeys(var for one in eqns for var in one.outvars)
        used = dict.fromkeys(a for one in eqns for a in one.invars if not isinstance(a, Literal))
        taken = [var for var in used if var not in made]
        others_need = sorted((var for var in made if var in needed), key=lambda var: last.get(var, -1))
        found.append(_Part(eqns, taken, others_need, is_sequence))
        for var in made:
            needed.pop(var, None)
        needed.update(dict.fromkeys(taken))

    for is_sequence, eqns in reversed(parts):
        # A reshape makes no array of its own in a sequence, so that one which is needed after it is XLA's.
        after = [one for one in eqns if is_sequence and one.primitive.name == "reshape" and one.outvars[0] in needed]
        if after:
            add(after, False)
        add(eqns, is_sequence)
    return found[::-1]


def _is_kernel(equation: Any) -> bool:
    return equation.primitive.name == "jit" and _is_made_of_kernels(equation.params["jaxpr"])


@functools.lru_cache(maxsize=256)  # the layers share what they call
def _is_made_of_kernels(closed: Any) -> bool:
    """Whether a jitted function is of Mosaic kernels and reshapes alone."""
    if not _holds_kernel(closed.jaxpr):
        return False
    values = _Values()
    try:
        _read_function(closed, [values.new(_aval_bytes(aval)) for aval in closed.in_avals], values, [])
    except ValueError:
        return False
    return True


def _holds_kernel(jaxpr: Any) -> bool:
    if any(equation.primitive.name in _KERNEL_PRIMITIVES for equation in jaxpr.eqns):
        return True
    parameters = (one for equation in jaxpr.eqns for one in equation.params.values())
    inner = (one for given in parameters for one in (given if isinstance(given, tuple | list) else (given,)))
    return any(_holds_kernel(one.jaxpr) for one in inner if hasattr(one, "jaxpr"))


def _value(atom: Any, known: dict[Any, Any]) -> Any:
    return atom.val if isinstance(atom, Literal) else known[atom]


def _evaluate(part: _Part, known: dict[Any, Any], jaxpr: Any) -> Sequence[Any]:
    """Operations of XLA's."""
    for var in part.invars:
        if var not in known:
            user = next(one for one in part.eqns if var in [a for a in one.invars if not isinstance(a, Literal)])
            raise ValueError(f"only kernels find {var.aval} by address, {user.primitive.name} needs it too: {user}")
    inner = jaxpr.replace(constvars=[], invars=part.invars, outvars=part.outvars, eqns=part.eqns)
    return jaxpr_as_fun(ClosedJaxpr(inner, []))(*(known[var] for var in part.invars))


def _call(
    sequence: _Part, known: dict[Any, Any], indices: dict[Any, int], anchor: jax.Array | None
) -> Sequence[jax.Array]:
    """The one operation that launches a sequence.    indices: of bound arrays, by their variables."""
    order = {var: i for i, var in enumerate((*indices, *known))}
    sequence = dataclasses.replace(sequence, invars=sorted(sequence.invars, key=order.__getitem__))
    operands = [known[var] for var in sequence.invars if var not in indices]
    if len(operands) < len(sequence.invars):
        assert anchor is not None, "bound arrays come with an anchor"
        operands.append(anchor)
    plan = _placed(*_read(sequence), [indices.get(var) for var in sequence.invars])
    outs = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in sequence.outvars]
    scratch = jax.ShapeDtypeStruct((plan.scratch_bytes,), jnp.uint8)
    call = jax.ffi.ffi_call(TARGET, (*outs, scratch), input_output_aliases=plan.aliases)
    text = plan.chain.encode()
    constants = jnp.asarray(plan.constants)
    *made, _ = call(*operands, constants, digest=hashlib.sha256(text.encode()).hexdigest(), chain=text)
    return made


@dataclasses.dataclass(frozen=True)
class _Placed:
    chain: LaunchSequence
    aliases: dict[int, int]  # arguments updated in place: the result each becomes
    constants: np.ndarray  # u8[n]
    scratch_bytes: int


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """A launch before its arrays have places: indices of the values it takes and of those it makes or updates."""

    module: bytes
    takes: tuple[int, ...]
    makes: tuple[int, ...]


type _Seen = tuple[int, int]  # an array's index, and how often it had been updated


@dataclasses.dataclass
class _Values:
    """Every array of the function that needs a place: reshapes and updates in place make none."""

    sizes: list[int] = dataclasses.field(default_factory=list)  # bytes
    updates: list[int] = dataclasses.field(default_factory=list)  # how many
    constants: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)

    def new(self, num_bytes: int) -> _Seen:
        self.sizes.append(num_bytes)
        self.updates.append(0)
        return len(self.sizes) - 1, 0

    def constant(self, array: np.ndarray) -> _Seen:
        seen = self.new(array.nbytes)
        self.constants[seen[0]] = array
        return seen

    def updated(self, index: int) -> _Seen:
        self.updates[index] += 1
        return index, self.updates[index]

    def read(self, seen: Sequence[_Seen]) -> tuple[int, ...]:
        """The indices. Raises ValueError if one is no longer what was seen: there is one place for both."""
        if any(self.updates[index] != times for index, times in seen):
            raise ValueError("a chain updates arrays in place, and may not use what one was before; give it a copy")
        return tuple(index for index, _ in seen)


def _read(sequence: _Part) -> tuple[_Values, list[_Kernel], tuple[int, ...]]:
    """What a sequence is made of: its values, its kernels in order, its results. Raises ValueError."""
    values, kernels = _Values(), []
    known = {var: values.new(_aval_bytes(var.aval)) for var in sequence.invars}

    def seen(atom: Any) -> _Seen:
        if not isinstance(atom, Literal):
            return known[atom]
        return values.constant(np.asarray(atom.val, atom.aval.dtype))

    for equation in sequence.eqns:
        name = equation.primitive.name
        takes = [seen(atom) for atom in equation.invars]
        if name == "reshape":
            made: Sequence[_Seen] = takes
        else:
            made = _read_function(equation.params["jaxpr"], takes, values, kernels)
        known |= zip(equation.outvars, made, strict=True)
    results = values.read([seen(atom) for atom in sequence.outvars])
    return values, kernels, results


def _read_function(closed: Any, takes: Sequence[_Seen], values: _Values, kernels: list[_Kernel]) -> Sequence[_Seen]:
    """What a jitted function returns; its kernels are added. Raises ValueError if it has something else."""
    functions = {op.name.value: op for op in _lowered(closed).body.operations}
    return _walk(functions, functions["main"], takes, values, kernels)


@functools.lru_cache(maxsize=256)
def _lowered(closed: Any) -> Any:
    """A jitted function as StableHLO. Traced again with arrays like before, it is the same object: the layers of all
    steps share what is lowered here, and lowering a kernel takes 0.2 s."""
    traced = jax.jit(jaxpr_as_fun(closed), keep_unused=True).trace(*closed.in_avals)
    return traced.lower(lowering_platforms=("cuda",)).compiler_ir("stablehlo")


def _walk(
    functions: dict[str, Any], function: Any, arguments: Sequence[_Seen], values: _Values, kernels: list[_Kernel]
) -> Sequence[_Seen]:
    """What a function returns."""
    known = dict(zip(function.arguments, arguments, strict=True))
    for operation in function.entry_block.operations:
        op = operation.operation
        takes = [known[operand] for operand in op.operands]
        if op.name in ("func.return", "stablehlo.return"):
            return takes
        match op.name:
            case "func.call":
                callee = functions[operation.callee.value]
                made = _walk(functions, callee, takes, values, kernels)
            case "stablehlo.constant":
                made = [values.constant(_constant(operation))]
            case "stablehlo.reshape":
                made = takes
            case "stablehlo.custom_call" if operation.call_target_name.value == KERNEL:
                made = _kernel(operation, takes, values, kernels)
            case _:
                raise _refusal(op.name, op)
        known |= zip(op.results, made, strict=True)
    raise AssertionError("a function ends by returning")


def _constant(operation: Any) -> np.ndarray:
    try:
        return np.array(operation.value)
    except TypeError as error:  # of bfloat16, say, which no kernel takes
        raise _refusal("stablehlo.constant", operation) from error


def _refusal(name: str, what: Any) -> ValueError:
    return ValueError(f"a chain is made of Mosaic kernels and reshapes, got {name}; compute it outside: {what}")


def _kernel(operation: Any, seen: list[_Seen], values: _Values, kernels: list[_Kernel]) -> list[_Seen]:
    takes, aliases = values.read(seen), _aliases(operation)
    made = [
        values.updated(takes[aliases[i]]) if i in aliases else values.new(_num_bytes(result.type))
        for i, result in enumerate(operation.operation.results)
    ]
    module = operation.attributes["mhlo.backend_config"]["module"].value_bytes
    kernels.append(_Kernel(module, takes, tuple(index for index, _ in made)))
    return made


def _aliases(operation: Any) -> dict[int, int]:
    """Results that are updated arguments: the index of the argument."""
    many = len(operation.operation.results) > 1
    found = {}
    for one in operation.output_operand_aliases:
        one = stablehlo.OutputOperandAlias(one)
        found[one.output_tuple_indices[0] if many else 0] = one.operand_index
    return found


def _num_bytes(kind: Any) -> int:
    return math.prod(kind.shape) * kind.element_type.width // 8


def _aval_bytes(aval: Any) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize


def _placed(
    values: _Values, kernels: Sequence[_Kernel], results: Sequence[int], indices: Sequence[int | None]
) -> _Placed:
    """Give every value a place: arguments and results where they are, constants together, the rest in the scratch.

    indices: of each argument, which array outside it is, or None.
    """
    numbers = itertools.count()
    places = {i: BufferOffset(next(numbers) if index is None else -1 - index) for i, index in enumerate(indices)}
    anchor = None if indices.count(None) == len(indices) else next(numbers)
    constants_buffer, first_result = next(numbers), next(numbers)
    scratch_buffer = first_result + len(results)
    aliases = {}
    for i, value in enumerate(results):
        if value < len(indices):
            aliases[places[value].buffer] = i
        else:
            places[value] = BufferOffset(first_result + i)
    constants = b""
    for value, array in values.constants.items():
        places[value] = BufferOffset(constants_buffer, len(constants))
        constants += array.tobytes().ljust(_rounded(array.nbytes), b"\0")
    scratch_bytes = _place_scratch(values, kernels, places, scratch_buffer)
    modules = list(dict.fromkeys(kernel.module for kernel in kernels))
    launches = tuple(
        KernelLaunch(modules.index(one.module), tuple(places[value] for value in (*one.takes, *one.makes)))
        for one in kernels
    )
    buffer = np.frombuffer(constants or bytes(ALIGNMENT), np.uint8)
    return _Placed(LaunchSequence(tuple(modules), launches, anchor), aliases, buffer, max(scratch_bytes, ALIGNMENT))


def _place_scratch(values: _Values, kernels: Sequence[_Kernel], places: dict[int, BufferOffset], buffer: int) -> int:
    """Places for what only the chain sees, used again after their last reader. Returns the bytes of them all."""
    last_use = {value: i for i, kernel in enumerate(kernels) for value in (*kernel.takes, *kernel.makes)}
    free: dict[int, list[int]] = {}  # bytes: offsets
    end = 0
    for i, kernel in enumerate(kernels):
        for value in kernel.makes:
            if value not in places:
                size = _rounded(values.sizes[value])
                spare = free.get(size)
                if spare:
                    places[value] = BufferOffset(buffer, spare.pop())
                else:
                    places[value] = BufferOffset(buffer, end)
                    end += size
        for value in {*kernel.takes, *kernel.makes}:
            if last_use[value] == i and places[value].buffer == buffer:
                free.setdefault(_rounded(values.sizes[value]), []).append(places[value].offset)
    return end


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
