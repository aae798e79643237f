"""`jaxinfer doctor`: the facts that a bug report needs, and what stands in the way of a GPU."""

import os
import platform
import shutil
import sys
from importlib import import_module, metadata
from pathlib import Path

import click

from jaxinfer.cli.checklist import reading, show_table
from jaxinfer.cli.options import GroupedCommand, resolve_config
from jaxinfer.errors import ConfigError, DeviceError
from jaxinfer.version import __version__

PACKAGES = ("jax", "jaxlib", "flax", "numpy", "tokenizers", "huggingface-hub", "msgspec", "starlette", "uvicorn")
GIB = 2**30


def run() -> int:
    """Print the facts. Returns 0, or the code of what stands in the way: a device, a misspelt JAXINFER_ variable."""
    with reading("this machine"):
        rows = [("jaxinfer", __version__), *software_rows(), *_device_rows(), *folder_rows(), *hub_rows()]
    show_table(rows)
    try:
        resolve_config(None, None, {})  # of the environment
        with reading("what JAX finds"):
            device = _auto_device()
        click.echo(f"ready: --device auto runs on {device}")
    except (DeviceError, ConfigError) as error:
        click.echo(f"problem: {error}")
        return error.exit_code
    return 0


def software_rows() -> list[tuple[str, str]]:
    """Python, the system, and the packages whose versions matter."""
    rows = [
        ("python", f"{platform.python_version()} ({platform.python_implementation()})"),
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} CPUs"),
    ]
    for package in PACKAGES:
        try:
            rows.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            rows.append((package, "not installed"))
    return [*rows, ("bytecode", bytecode_fact())]


def bytecode_fact(package: str = "jax") -> str:
    """Whether Python keeps what it compiles of the packages: else each start compiles them all. Imports this one."""
    spec = import_module(package).__spec__
    if spec is None or spec.cached is None or Path(spec.cached).exists():
        return "kept"
    why, cure = f"{Path(spec.cached).parent} cannot be written", "run `python -m compileall` as its owner"
    if sys.dont_write_bytecode:
        why, cure = "PYTHONDONTWRITEBYTECODE is set", "unset it"
    return f"not kept, {why}: each start compiles the packages anew, for seconds; {cure}"


def folder_rows() -> list[tuple[str, str]]:
    """Where compiled steps and downloads go, and the room there."""
    from huggingface_hub.constants import HF_HUB_CACHE

    from jaxinfer.runtime.cache import default_cache_dir

    return [("compile cache", folder_fact(default_cache_dir())), ("downloads", folder_fact(Path(HF_HUB_CACHE)))]


def folder_fact(folder: Path) -> str:
    """The folder, its size and the free space of its disk; it need not exist yet."""
    home = next(path for path in (folder, *folder.parents) if path.exists())
    free = f"{shutil.disk_usage(home).free / GIB:.1f} GiB free"
    if not os.access(home, os.W_OK | os.X_OK):
        free += ", but nothing can be written there"
    if home != folder:
        return f"{folder} (not there yet), {free}"
    size = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    return f"{folder} ({size / GIB:.2f} GiB), {free}"


def hub_rows() -> list[tuple[str, str]]:
    """Whether there is a Hugging Face token, never what it is."""
    from huggingface_hub import get_token
    from huggingface_hub.constants import HF_HUB_OFFLINE

    return [("hub token", "yes" if get_token() else "no"), ("hub offline", "yes" if HF_HUB_OFFLINE else "no")]


def _device_rows() -> list[tuple[str, str]]:
    from jaxinfer.checkpoint.memory import available_host_bytes
    from jaxinfer.runtime.device import device_rows

    return [("host memory", f"{available_host_bytes() / GIB:.1f} GiB free"), *device_rows()]


def _auto_device() -> str:
    from jaxinfer.runtime.device import select_device

    device = select_device("auto", memory_utilization=0.01)  # enough to see that it works
    return f"{device.device_kind} ({device.platform})"


command = GroupedCommand(
    "doctor",
    run,
    help="Show versions, devices, drivers, folders and whether JAX can use the GPU.",
)
