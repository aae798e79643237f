"""Our kernels for CPUs: the library that scripts/compile_cpu.py makes of the cpu*.cc files, if it is there.

Its name tells the version of XLA's FFI that it was compiled for: a jaxlib takes its own version and those before.
"""

import ctypes
import enum
import functools
import logging
import re
from pathlib import Path

import jax

logger = logging.getLogger(__name__)

_HANDLERS = "Linear", "LinearInt8", "LinearInt4", "DecodeAttention"  # as the library exports them
_VERSION = re.compile(r"#define XLA_FFI_API_M(?:AJ|IN)OR (\d+)")


class Isa(enum.IntEnum):
    """What of a processor is used, the fastest last (cpu.h). VNNI: products of bytes."""

    PLAIN = 0
    AVX2 = 1
    AVX_VNNI = 2
    AVX512 = 3
    AVX512_VNNI = 4
    AMX = 5


@functools.cache
def best() -> Isa | None:
    """The fastest that this processor has; its kernels' handlers are registered. None where there are no kernels."""
    ours = tuple(map(int, _VERSION.findall(Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text("utf-8"))))
    libraries = Path(__file__).parent.glob("_cpu_*.so")
    found = {tuple(map(int, path.stem.split("_")[2].split("."))): path for path in libraries}
    fitting = [version for version in found if version[0] == ours[0] and version <= ours]
    if not fitting:
        return None
    try:
        library = ctypes.CDLL(str(found[max(fitting)]))
    except OSError as error:  # of another platform or C library
        logger.warning("kernels for CPUs cannot be loaded (%s): XLA computes", error)
        return None
    for name in _HANDLERS:
        jax.ffi.register_ffi_target(target(name), jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return Isa(library.jaxinfer_isa_for(ctypes.c_int64(Isa.AMX)))


def target(name: str) -> str:
    """What XLA knows a handler by."""
    return f"jaxinfer_cpu_{name}"
