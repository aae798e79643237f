"""XLA's side of a chain: the FFI handler that launches its kernels, and where compiled kernels come from.

Called when XLA makes an executable, runs it outside of its CUDA graphs or records one, never when a graph is
replayed: Python costs a replay nothing. Structures: xla/ffi/api/c_api.h of jaxlib's include folder. Kernels are
compiled by MosaicGpuCompile of the CUDA plugin, with which jax itself makes them callable for PyTorch
(jax/experimental/mosaic/gpu/core.py).
"""

import contextlib
import ctypes
import functools
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

import jax

from jaxinfer_kernels.launch.sequence import TARGET, LaunchSequence

_METADATA = 1  # XLA_FFI_Extension_Metadata
_INSTANTIATE = 0  # the stage in which an executable is compiled, in threads; all others run
_RECORDABLE, _INTERNAL = 1, 13  # the trait of what a CUDA graph may hold; an error's code
_PLUGINS = "jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12"
_COMPILE = "MosaicGpuCompile"


def _struct(name: str, fields: list[tuple[str, Any]]) -> type[ctypes.Structure]:
    """One of XLA's structures, which all begin alike."""
    return type(name, (ctypes.Structure,), {"_fields_": [("struct_size", c_size_t), ("extension", c_void_p), *fields]})


_Extension = type(
    "_Extension",
    (ctypes.Structure,),
    {"_fields_": [("struct_size", c_size_t), ("type", c_int), ("next", c_void_p), ("metadata", c_void_p)]},
)
_Version = _struct("_Version", [("major", c_int), ("minor", c_int)])
_Metadata = type(
    "_Metadata",
    (ctypes.Structure,),
    {"_fields_": [("struct_size", c_size_t), ("version", _Version), ("traits", c_uint32), ("state", c_int64)]},
)
_Buffer = _struct("_Buffer", [("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", c_void_p)])
_Span = type("_Span", (ctypes.Structure,), {"_fields_": [("data", c_void_p), ("size", c_size_t)]})
_Arrays = _struct("_Arrays", [("size", c_int64), ("types", c_void_p), ("items", POINTER(POINTER(_Buffer)))])
_Attributes = _struct(
    "_Attributes",
    [("size", c_int64), ("types", c_void_p), ("names", POINTER(POINTER(_Span))), ("items", POINTER(POINTER(_Span)))],
)
_StreamGet = _struct("_StreamGet", [("context", c_void_p), ("stream", c_void_p)])
_ErrorCreate = _struct("_ErrorCreate", [("message", c_char_p), ("code", c_int)])
_Call = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_Api = _struct(
    "_Api",
    [
        ("version", _Version),
        ("internal", c_void_p),
        ("error_create", _Call),
        ("error_details", c_void_p),
        ("error_destroy", c_void_p),
        ("register", c_void_p),
        ("stream_get", _Call),
    ],
)
_Frame = _struct(
    "_Frame",
    [
        ("api", POINTER(_Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", _Arrays),
        ("results", _Arrays),
        ("attributes", _Attributes),
    ],
)

type Run = Callable[[int, Any], None]  # stream, pointers to arguments and results
_compiled: dict[bytes, Future[Run]] = {}  # by module
type Launches = list[tuple[Run, tuple[tuple[int, int], ...], Any]]
_chains: dict[bytes, tuple[int | None, Launches]] = {}  # by digest, the argument that is an anchor first
_outside: dict[int, list[int]] = {}  # addresses, by the anchor's
_lock = threading.Lock()  # of what is compiled, and of the pointers that launches are given


def available() -> bool:
    """Whether JAX's CUDA plugin compiles kernels for us. Where none is installed: what one of this version would do."""
    try:
        return hasattr(_plugin(), _COMPILE)
    except ImportError:
        return True
    except OSError:
        return False


@functools.cache
def register() -> None:
    """Tell XLA of the handler, once a process, before a chain is compiled or loaded."""
    pointer = ctypes.cast(_handler, c_void_p).value
    stages = {stage: jax.ffi.pycapsule(pointer) for stage in ("instantiate", "execute")}
    jax.ffi.register_ffi_target(TARGET, stages, platform="CUDA", api_version=1)


def load_runtime() -> None:
    """Import what tells Mosaic's kernels where the library lies whose functions they call.

    Who lowers a kernel has imported it. Who loads one that was compiled in another process has not.
    """
    importlib.import_module("jax.experimental.mosaic.gpu")


def place(anchor: int, arrays: Sequence[int]) -> None:
    """Say where the arrays lie that are outside of programs called with this anchor: addresses. None: nowhere now."""
    if arrays:
        _outside[anchor] = list(arrays)
    else:
        _outside.pop(anchor, None)


def prepare(chain: str) -> None:
    """Compile a chain's kernels before it first runs. chain: `LaunchSequence.encode`'s text. Raises RuntimeError.

    XLA asks for it (`_INSTANTIATE`) when it compiles an executable, not when it loads one.
    """
    _kernels(LaunchSequence.decode(chain.encode()).modules)


def _kernels(modules: Sequence[bytes]) -> list[Run]:
    """Mosaic kernels, compiled side by side: the seven of one chain take 4.4 s (H200's host). Raises RuntimeError.

    What is compiled already does not wait for a thread: kernels of other chains may keep all of them.
    """
    list(_compilers().map(_kernel, [module for module in modules if module not in _compiled]))
    return [_kernel(module) for module in modules]


@functools.cache
def _compilers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="mosaic")


def _kernel(module: bytes) -> Run:
    """A Mosaic kernel, compiled once a process. Raises RuntimeError."""
    with _lock:
        mine = module not in _compiled
        future = _compiled.setdefault(module, Future())
    if mine:
        try:
            with _context():
                future.set_result(_compile(module))
        except Exception as error:
            del _compiled[module]  # whoever asks again may have what it lacked
            future.set_exception(error)
    return future.result()


def _compile(module: bytes) -> Run:
    load_runtime()
    compile_kernel = getattr(_plugin(), _COMPILE)
    compile_kernel.argtypes, compile_kernel.restype = (c_char_p, c_int), POINTER(c_void_p)
    made = compile_kernel(module, len(module))
    if not made:
        raise RuntimeError("JAX's CUDA plugin must compile a chain's kernels, it did not; look above for its reason")
    launch = ctypes.PYFUNCTYPE(None, c_void_p, c_void_p, POINTER(c_void_p))(made[1])
    return functools.partial(launch, made[0])


@functools.cache
def _plugin() -> ctypes.CDLL:
    """JAX's CUDA plugin. Raises ImportError if there is none, OSError if it cannot be loaded."""
    name = next((name for name in _PLUGINS if importlib.util.find_spec(name)), _PLUGINS[0])
    return ctypes.CDLL(str(importlib.import_module(name)._get_library_path()))


@contextlib.contextmanager
def _context() -> Iterator[None]:
    """The first visible GPU's context, in which XLA runs, made the calling thread's: XLA's compiling threads have none.

    Raises RuntimeError.
    """
    cuda, context = ctypes.CDLL("libcuda.so.1"), c_void_p()
    if cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxPushCurrent_v2(context):
        raise RuntimeError("a chain's kernels must be loaded on a GPU, CUDA has none for them")
    try:
        yield
    finally:
        cuda.cuCtxPopCurrent_v2(ctypes.byref(c_void_p()))


def _handle(address: int) -> int | None:
    """What XLA calls. Returns None, or the address of an error that it owns."""
    frame = ctypes.cast(address, POINTER(_Frame)).contents
    if frame.extension and _describe(frame):
        return None
    try:
        if frame.stage == _INSTANTIATE:
            _chain_of(frame)
        else:
            _launch(frame)
    except BaseException as error:  # ctypes would drop it, and XLA take the chain for launched
        message = str(error).encode()
        asked = _ErrorCreate(ctypes.sizeof(_ErrorCreate), None, message, _INTERNAL)
        return frame.api.contents.error_create(ctypes.addressof(asked))
    return None


def _describe(frame: Any) -> bool:
    """Answer XLA's question what this handler is, if that is what it asks."""
    extension = ctypes.cast(frame.extension, POINTER(_Extension)).contents
    if extension.type != _METADATA:
        return False
    metadata = ctypes.cast(extension.metadata, POINTER(_Metadata)).contents
    metadata.version = frame.api.contents.version if frame.api else _Version(ctypes.sizeof(_Version), None, 0, 1)
    metadata.traits = _RECORDABLE
    return True


def _launch(frame: Any) -> None:
    anchor, launches = _chain_of(frame)
    asked = _StreamGet(ctypes.sizeof(_StreamGet), None, frame.context, None)
    if frame.api.contents.stream_get(ctypes.addressof(asked)):
        raise RuntimeError("a chain must have a stream, XLA gave none")
    bases = [arrays.items[i].contents.data for arrays in (frame.arguments, frame.results) for i in range(arrays.size)]
    outside = None if anchor is None else _outside.get(bases[anchor])
    if anchor is not None and outside is None:
        raise RuntimeError("a chain's arrays must be placed before it runs, nobody has; call ffi.place")
    with _lock:
        for run, places, pointers in launches:
            for i, (buffer, offset) in enumerate(places):
                pointers[i] = bases[buffer] + offset if buffer >= 0 else outside[-1 - buffer]
            run(asked.stream, pointers)


def _chain_of(frame: Any) -> tuple[int | None, Launches]:
    """Which argument is the anchor, and kernels ready to be launched, each with the places of its arrays and room for
    their addresses."""
    attributes = frame.attributes
    given = {_text(attributes.names[i]): attributes.items[i] for i in range(attributes.size)}
    digest = _text(given[b"digest"])
    if digest not in _chains:
        chain = LaunchSequence.decode(_text(given[b"chain"]))
        runs = _kernels(chain.modules)
        places = [tuple((place.buffer, place.offset) for place in one.places) for one in chain.launches]
        launches = [
            (runs[one.module], where, (c_void_p * len(where))())
            for one, where in zip(chain.launches, places, strict=True)
        ]
        _chains[digest] = chain.anchor, launches
    return _chains[digest]


def _text(span: Any) -> bytes:
    return ctypes.string_at(span.contents.data, span.contents.size)


_handler = _Call(_handle)  # kept: XLA holds its address
