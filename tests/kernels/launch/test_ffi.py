"""XLA's side of a chain, run by XLA on the CPU: kernels are Python functions that add, and the stream is made up.

What needs a GPU is replaced: compiling a Mosaic kernel, the context it is compiled in, and XLA's answer which stream.
"""

import contextlib
import ctypes
import dataclasses
import hashlib
import sys
import threading
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer_kernels.launch import ffi
from jaxinfer_kernels.launch.sequence import BufferOffset, KernelLaunch, LaunchSequence

TARGET, STREAM = "jaxinfer_chain_in_tests", 0x57AEA
FLOATS = 64  # of every array, 256 bytes
LAUNCH = ffi._launch
FAULTS = (jax.errors.JaxRuntimeError, ValueError)  # as which XLA's errors come


def floats(address: int) -> np.ndarray:
    """The array there."""
    return np.ctypeslib.as_array((ctypes.c_float * FLOATS).from_address(address))


@dataclasses.dataclass
class Gpu:
    """What stands for one: kernels that were compiled, and launched, as (stream, kernel)."""

    compiled: list[bytes] = dataclasses.field(default_factory=list)
    launched: list[tuple[int, bytes]] = dataclasses.field(default_factory=list)

    def compile(self, module: bytes) -> Callable[[int, Any], None]:
        """The last array becomes the sum of those before it.    slow: later.    broken, uncompilable: it fails."""
        if module == b"uncompilable":
            raise RuntimeError("no such kernel")
        self.compiled.append(module)

        def run(stream: int, pointers: Any) -> None:
            self.launched.append((stream, module))
            if module == b"broken":
                raise RuntimeError("the kernel broke")
            if module == b"slow":
                time.sleep(0.05)
            *taken, made = (floats(address) for address in pointers)
            made[:] = sum(taken)

        return run


def with_stream(launch: Callable[[Any], None]) -> Callable[[Any], None]:
    """launch, told of a stream, as XLA for the CPU has none."""

    @ffi._Call
    def stream_get(address: int) -> None:
        asked = ctypes.cast(address, ctypes.POINTER(ffi._StreamGet)).contents
        assert asked.struct_size == ctypes.sizeof(ffi._StreamGet)
        asked.stream = STREAM

    api = ffi._Api(stream_get=stream_get)

    def launched(frame: Any) -> None:
        own = ffi._Frame.from_buffer_copy(frame)
        own.api = ctypes.pointer(api)
        launch(own)

    return launched


@pytest.fixture
def gpu(monkeypatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(ffi, "_compile", made.compile)
    monkeypatch.setattr(ffi, "_context", contextlib.nullcontext)
    monkeypatch.setattr(ffi, "_launch", with_stream(LAUNCH))
    for kept in ("_compiled", "_chains"):
        monkeypatch.setattr(ffi, kept, {})
    return made


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    pointer = ctypes.cast(ffi._handler, ctypes.c_void_p).value
    stages = {stage: jax.ffi.pycapsule(pointer) for stage in ("instantiate", "execute")}
    jax.ffi.register_ffi_target(TARGET, stages, platform="cpu", api_version=1)


def call(
    chain: LaunchSequence, *arguments: jax.Array, results: int, aliases: dict[int, int] | None = None
) -> list[jax.Array]:
    """The results, of which the last may serve as scratch."""
    kind, text = jax.ShapeDtypeStruct((FLOATS,), jnp.float32), chain.encode()
    run = jax.ffi.ffi_call(TARGET, (kind,) * results, input_output_aliases=aliases)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return jax.block_until_ready(jax.jit(lambda *given: run(*given, digest=digest, chain=text))(*arguments))


def launch(module: int, *places: int | tuple[int, int]) -> KernelLaunch:
    """places: buffers, or (buffer, byte)."""
    return KernelLaunch(
        module, tuple(BufferOffset(*one) if isinstance(one, tuple) else BufferOffset(one) for one in places)
    )


def numbers(seed: int, size: int = FLOATS) -> jax.Array:
    return jnp.arange(seed, seed + size, dtype=jnp.float32)


def test_kernels_run_in_order_on_the_places_of_their_arrays(gpu):
    """a + b, then twice that plus what lies 256 bytes into c, then all of it once more."""
    a, b, c = numbers(1), numbers(500), numbers(9000, 2 * FLOATS)
    sums = launch(0, 0, 1, 4), launch(0, 4, 4, (2, 256), 3), launch(0, 3, 4, 5)
    first, scratch, last = call(LaunchSequence((b"sum",), sums), a, b, c, results=3)
    np.testing.assert_array_equal(scratch, a + b)
    np.testing.assert_array_equal(first, 2 * (a + b) + c[FLOATS:])
    np.testing.assert_array_equal(last, first + scratch)


def test_arrays_outside_lie_where_their_anchor_says(gpu):
    """One chain, called for one owner of arrays and for another."""
    chain = LaunchSequence((b"sum",), (launch(0, 0, -1, -2, 2),), anchor=1)
    for seed in (1, 900):
        anchor, arrays = numbers(seed), [numbers(seed + 10), numbers(seed + 20)]
        address = anchor.unsafe_buffer_pointer()
        ffi.place(address, [array.unsafe_buffer_pointer() for array in arrays])
        (out,) = call(chain, numbers(7), anchor, results=1)
        np.testing.assert_array_equal(out, numbers(7) + sum(arrays))
        ffi.place(address, ())
        with pytest.raises(FAULTS, match="arrays must be placed"):
            call(chain, numbers(7), anchor, results=1)


def test_an_argument_is_updated_in_place(gpu):
    chain = LaunchSequence((b"sum",), (launch(0, 0, 1, 0), launch(0, 0, 1, 0)))
    (out,) = call(chain, numbers(1), numbers(70), results=1, aliases={0: 0})
    np.testing.assert_array_equal(out, numbers(1) + 2 * numbers(70))


def test_kernels_are_launched_on_xla_s_stream(gpu):
    chain = LaunchSequence((b"sum", b"also a sum"), (launch(1, 0, 1), launch(0, 1, 1), launch(1, 1, 1)))
    call(chain, numbers(1), results=1)
    assert gpu.launched == [(STREAM, b"also a sum"), (STREAM, b"sum"), (STREAM, b"also a sum")]


def test_kernels_are_compiled_with_the_executable_and_once(gpu):
    chain, kind = LaunchSequence((b"sum",), (launch(0, 0, 1),)), jax.ShapeDtypeStruct((FLOATS,), jnp.float32)
    run = jax.ffi.ffi_call(TARGET, (kind,))
    program = jax.jit(lambda x: run(x, digest="this one", chain=chain.encode())).lower(kind).compile()
    assert (gpu.compiled, gpu.launched) == ([b"sum"], [])
    for _ in range(3):
        jax.block_until_ready(program(numbers(1)))
    longer = LaunchSequence((b"sum", b"other"), (launch(0, 0, 1), launch(1, 0, 1)))
    call(longer, numbers(1), results=1)
    assert gpu.compiled == [b"sum", b"other"]


def test_kernels_prepared_beforehand_are_compiled_no_more(gpu):
    """As of an executable from a cache, for which XLA does not ask until it runs."""
    chain = LaunchSequence((b"sum", b"other"), (launch(0, 0, 1), launch(1, 0, 1)))
    ffi.prepare(chain.encode())
    assert (sorted(gpu.compiled), gpu.launched) == ([b"other", b"sum"], [])
    call(chain, numbers(1), results=1)
    assert sorted(gpu.compiled) == [b"other", b"sum"]


def test_kernels_of_a_chain_are_compiled_side_by_side(gpu, monkeypatch):
    all_there = threading.Barrier(2, timeout=30)  # breaks where the second is not begun before the first is done
    monkeypatch.setattr(ffi, "_compile", lambda module: (all_there.wait(), gpu.compile(module))[1])
    ffi.prepare(LaunchSequence((b"sum", b"other"), (launch(0, 0, 1), launch(1, 0, 1))).encode())


def test_what_is_compiled_does_not_wait_for_kernels_of_other_chains(gpu, monkeypatch):
    ffi._kernels([b"first"])
    ends = threading.Event()
    with ThreadPoolExecutor(1) as only, ThreadPoolExecutor(1) as asking:
        monkeypatch.setattr(ffi, "_compilers", lambda: only)
        only.submit(ends.wait)
        try:
            assert len(asking.submit(ffi._kernels, [b"first", b"first"]).result(timeout=10)) == 2
        finally:
            ends.set()


def test_a_chain_is_known_by_its_digest(gpu):
    """Two chains in one program, with other arrays each: neither takes the other's pointers."""
    one, other = LaunchSequence((b"sum",), (launch(0, 0, 1),)), LaunchSequence((b"sum",), (launch(0, 0, 0, 1),))
    for _ in range(2):
        np.testing.assert_array_equal(call(one, numbers(3), results=1)[0], numbers(3))
        np.testing.assert_array_equal(call(other, numbers(5), results=1)[0], 2 * numbers(5))
    assert len(ffi._chains) == 2


def test_a_chain_is_read_once(gpu, monkeypatch):
    read = []
    monkeypatch.setattr(
        ffi,
        "LaunchSequence",
        types.SimpleNamespace(decode=lambda text: read.append(text) or LaunchSequence.decode(text)),
    )
    chain = LaunchSequence((b"sum",), (launch(0, 0, 1),))
    for seed in range(3):
        call(chain, numbers(seed), results=1)
    assert read == [chain.encode().encode()]


def test_threads_that_run_the_same_chain_do_not_mix_their_arrays(gpu):
    chain = LaunchSequence((b"slow",), (launch(0, 0, 1),))
    with ThreadPoolExecutor(2) as pool:
        for (out,), seed in zip(
            pool.map(lambda seed: call(chain, numbers(seed), results=1), (1, 2)), (1, 2), strict=True
        ):
            np.testing.assert_array_equal(out, numbers(seed))


def test_what_fails_in_a_launch_is_the_caller_s_error_and_the_next_call_runs(gpu):
    with pytest.raises(FAULTS, match="the kernel broke"):
        call(LaunchSequence((b"broken",), (launch(0, 0, 1),)), numbers(1), results=1)
    (out,) = call(LaunchSequence((b"sum",), (launch(0, 0, 1),)), numbers(1), results=1)
    np.testing.assert_array_equal(out, numbers(1))


def test_a_kernel_that_cannot_be_compiled_fails_the_compilation(gpu):
    chain, kind = LaunchSequence((b"uncompilable",), (launch(0, 0, 1),)), jax.ShapeDtypeStruct((FLOATS,), jnp.float32)
    run = jax.ffi.ffi_call(TARGET, (kind,))
    lowered = jax.jit(lambda x: run(x, digest="that one", chain=chain.encode())).lower(kind)
    with pytest.raises(FAULTS, match="no such kernel"):
        lowered.compile()


def test_a_kernel_that_could_not_be_compiled_is_tried_again(gpu, monkeypatch):
    compile_kernel, tries = ffi._compile, []

    def fail_once(module):
        tries.append(module)
        if len(tries) == 1:
            raise RuntimeError("its runtime is missing")
        return compile_kernel(module)

    monkeypatch.setattr(ffi, "_compile", fail_once)
    chain = LaunchSequence((b"sum",), (launch(0, 0, 1),))
    with pytest.raises(FAULTS, match="its runtime is missing"):
        call(chain, numbers(1), results=1)
    (out,) = call(chain, numbers(1), results=1)
    np.testing.assert_array_equal(out, numbers(1))


def test_a_device_without_streams_is_refused(gpu, monkeypatch):
    """XLA for the CPU itself answers."""
    monkeypatch.setattr(ffi, "_launch", LAUNCH)
    with pytest.raises(FAULTS, match="a chain must have a stream, XLA gave none"):
        call(LaunchSequence((b"sum",), (launch(0, 0, 1),)), numbers(1), results=1)


def test_xla_is_told_that_a_graph_may_hold_a_chain():
    """What it asks of every handler, of the version that it says it has."""
    metadata = ffi._Metadata()
    extension = ffi._Extension(ctypes.sizeof(ffi._Extension), ffi._METADATA, None, ctypes.addressof(metadata))
    api = ffi._Api(version=ffi._Version(ctypes.sizeof(ffi._Version), None, 3, 7))
    frame = ffi._Frame(extension=ctypes.addressof(extension), api=ctypes.pointer(api))
    assert not ffi._handler(ctypes.addressof(frame))
    assert metadata.traits == 1  # XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE
    assert (metadata.version.major, metadata.version.minor) == (3, 7)


# Compiled kernels


def ask_at_once(module: bytes, threads: int = 4) -> list[object]:
    """What each thread gets of _kernel: a kernel, or an error's text. Fewer where one waits for ever."""
    ready, got = threading.Barrier(threads), []

    def ask() -> None:
        ready.wait()
        try:
            got.append(ffi._kernel(module))
        except RuntimeError as error:
            got.append(str(error))

    asking = [threading.Thread(target=ask, daemon=True) for _ in range(threads)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(5)
    return got


def slowly(compile_kernel: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """It lasts until the others have asked too."""

    def compile_slowly(module: bytes) -> object:
        time.sleep(0.1)
        return compile_kernel(module)

    return compile_slowly


def test_a_kernel_is_compiled_once_however_many_threads_ask(gpu, monkeypatch):
    monkeypatch.setattr(ffi, "_compile", slowly(gpu.compile))
    runs = ask_at_once(b"sum")
    assert gpu.compiled == [b"sum"]
    assert [run is runs[0] for run in runs] == [True] * 4
    assert ffi._kernel(b"other") is not runs[0]


def test_all_who_ask_for_a_kernel_hear_that_it_failed(gpu, monkeypatch):
    monkeypatch.setattr(ffi, "_compile", slowly(gpu.compile))
    assert ask_at_once(b"uncompilable") == ["no such kernel"] * 4
    assert ffi._kernel(b"sum")


# The plugin


@pytest.fixture
def plugin(monkeypatch):
    """Puts a file where JAX's CUDA plugin is looked for, or takes the plugin away."""
    monkeypatch.setattr(ffi, "_PLUGINS", ("jax_plugins.of_these_tests",))
    ffi._plugin.cache_clear()

    def put(path: str) -> None:
        module = types.ModuleType("jax_plugins.of_these_tests")
        module.__spec__ = types.SimpleNamespace(name=module.__name__)
        module._get_library_path = lambda: path
        monkeypatch.setitem(sys.modules, "jax_plugins", types.ModuleType("jax_plugins"))
        sys.modules["jax_plugins"].__path__ = []
        monkeypatch.setitem(sys.modules, module.__name__, module)

    yield put
    ffi._plugin.cache_clear()


def test_a_plan_for_another_machine_takes_its_plugin_for_able(plugin):
    assert ffi.available()


def test_a_plugin_that_cannot_be_loaded_chains_nothing(plugin, tmp_path):
    plugin(str(tmp_path / "missing.so"))
    assert not ffi.available()


def test_a_plugin_must_be_able_to_compile_kernels(plugin, monkeypatch):
    plugin(ctypes.pythonapi._name or "libc.so.6")
    assert not ffi.available()
    monkeypatch.setattr(ffi, "_COMPILE", "malloc")
    assert ffi.available()
