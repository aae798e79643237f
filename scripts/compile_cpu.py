"""Compile our kernels for CPUs, the cpu*.cc files of kernels/, into the library that jaxinfer_kernels/cpu.py loads.

Run by hand, or by hatchling when it makes an editable installation: where there is no compiler, or no jaxlib with the
headers, there is no library and XLA computes, which is said and no fault. A wheel is for any machine and has none,
unless JAXINFER_CPU_WHEEL=1 asks for one of this platform; then what is missing is a fault.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "kernels" / "jaxinfer_kernels"
FLAGS = ("-std=gnu++17", "-O3", "-fPIC", "-Wall", "-Wextra", "-Wno-psabi")


def headers() -> Path | None:
    """Those of the jaxlib that is installed."""
    jaxlib = importlib.util.find_spec("jaxlib")
    return None if jaxlib is None or jaxlib.origin is None else Path(jaxlib.origin).parent / "include"


def library_for(include: Path) -> Path:
    """Named for the version of XLA's FFI that it is compiled for: a jaxlib takes its own version and those before. The
    point in its name tells Python that it is no module.
    """
    text = (include / "xla" / "ffi" / "api" / "c_api.h").read_text("utf-8")
    major, minor = (re.search(rf"#define XLA_FFI_API_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR"))
    return FOLDER / f"_cpu_{major}.{minor}.so"


def compile_library() -> str:
    """Why there is no library, or "" when there is one that is not older than its sources."""
    include = headers()
    if include is None:
        return "jaxlib is not installed, whose headers they need"
    library, sources = library_for(include), sorted(FOLDER.rglob("cpu*.cc"))
    newest = max(path.stat().st_mtime for path in [*sources, *FOLDER.rglob("cpu*.h"), Path(__file__)])
    if library.exists() and library.stat().st_mtime >= newest:
        return ""
    if not sys.platform.startswith("linux"):
        return f"they are for Linux, this is {sys.platform}"
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return "there is no C++ compiler (Debian, Ubuntu: apt-get install g++)"
    flags = *FLAGS, *shlex.split(os.environ.get("JAXINFER_CPU_FLAGS", "")), "-isystem", str(include)

    def run(*arguments: object) -> None:
        subprocess.run([compiler, *flags, *map(str, arguments)], capture_output=True, text=True, check=True)

    try:
        with (
            tempfile.TemporaryDirectory(prefix="_cpu_", dir=FOLDER) as made,
            ThreadPoolExecutor(os.cpu_count()) as threads,
        ):
            objects = [Path(made) / f"{number}.o" for number in range(len(sources))]
            list(threads.map(lambda source, made: run("-c", source, "-o", made), sources, objects))
            run("-shared", *objects, "-o", linked := Path(made) / library.name)
            linked.replace(library)
    except subprocess.CalledProcessError as error:
        return f"the compiler failed: {error.stderr[-2000:]}"
    except OSError as error:
        return f"they cannot be written: {error}"
    return ""


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # by hand, without what builds wheels
    pass
else:

    class CpuKernels(BuildHookInterface):  # type: ignore[type-arg]
        """What hatchling calls before it builds."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            is_wanted = os.environ.get("JAXINFER_CPU_WHEEL") == "1"
            if self.target_name != "wheel" or not (is_wanted or version == "editable"):
                return
            if reason := compile_library():
                if is_wanted:
                    raise RuntimeError(f"a wheel with kernels for CPUs needs them compiled, but {reason}")
                self.app.display_warning(f"jaxinfer: no kernels for CPUs, XLA computes there: {reason}")
                return
            if is_wanted:
                platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
                include = headers()
                assert include is not None, "it was compiled with them"
                library = library_for(include)
                build_data["force_include"][str(library)] = f"jaxinfer_kernels/{library.name}"
                build_data.update(pure_python=False, tag=f"py3-none-{platform}")


if __name__ == "__main__":
    sys.exit(compile_library() or None)
