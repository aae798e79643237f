"""Our kernels for CPUs: the library that scripts/compile_cpu.py makes of the cpu.cc files, if it is there."""

import ctypes
import enum
import functools
from pathlib import Path

import jax

LIBRARY = Path(__file__).with_name("_cpu.so")
_HANDLERS = "Linear", "DecodeAttention"  # as the library exports them


class Isa(enum.IntEnum):
    """What of a processor is used, each all that those before it do (cpu.h)."""

    PLAIN = 0
    AVX2 = 1
    AVX512 = 2
    AMX = 3


@functools.cache
def best() -> Isa | None:
    """The most that this processor can do by our kernels, whose handlers are registered; None where there are none."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None
    for name in _HANDLERS:
        jax.ffi.register_ffi_target(target(name), jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return Isa(library.jaxinfer_best_isa())


def target(name: str) -> str:
    """What XLA knows a handler by."""
    return f"jaxinfer_cpu_{name}"
