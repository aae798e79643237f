"""How much memory this process may still take: the machine's, or less inside a container; and taking a GPU's."""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from jaxinfer.config import size_words
from jaxinfer.errors import DeviceError


def available_host_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be taken without swapping: MemAvailable, or what is left of the cgroup's limit if that is less."""
    machine = _field(proc / "meminfo", "MemAvailable:", unit=1024)
    left = [
        _cgroup_left(cgroup, "memory.max", "memory.current", "inactive_file"),
        _cgroup_left(cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ]
    return min([size for size in (machine, *left) if size is not None], default=0)


def available_device_bytes(device: jax.Device) -> int:
    """Bytes that arrays on this device can still take; on the CPU that is the host's memory."""
    if device.platform == "cpu":
        return available_host_bytes()
    stats = device.memory_stats() or {}
    return int(stats.get("bytes_limit", 0)) - int(stats.get("bytes_in_use", 0))


def check_memory(needed_bytes: int, device: jax.Device) -> None:
    """Raise DeviceError unless `needed_bytes` of parameters fit in the device's free memory."""
    available = available_device_bytes(device)
    if needed_bytes > available:
        raise DeviceError(
            f"the model's weights need {size_words(needed_bytes)}, {device.device_kind} {device.id} has "
            f"{size_words(available)} free; free some memory, choose a smaller model, or a larger machine"
        )


def take_pool(devices: Iterable[jax.Device]) -> None:
    """Begin to take the pools of GPUs, as their first arrays would: 1.7 to 1.9 s on an H200, beside other work.

    By a program's result: who puts an array there holds Python's lock meanwhile.
    """
    for device in devices:
        if device.platform == "gpu":
            threading.Thread(target=_first_array(device), name="jaxinfer-pool", daemon=True).start()


def _first_array(device: jax.Device) -> Callable[[], object]:
    where = SingleDeviceSharding(device)
    return jax.jit(lambda: jnp.zeros((), jnp.uint8), out_shardings=where)


def _cgroup_left(folder: Path, limit_name: str, usage_name: str, cache_field: str) -> int | None:
    """Limit - usage + reclaimable file cache; None when there is no such group or no limit."""
    try:
        limit = int((folder / limit_name).read_text())
        usage = int((folder / usage_name).read_text())
    except (OSError, ValueError):  # no such file; or the limit is the word "max"
        return None
    return max(0, limit - usage + (_field(folder / "memory.stat", cache_field, unit=1) or 0))


def _field(path: Path, name: str, *, unit: int) -> int | None:
    """The number after `name` in a file of "name number" lines."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    values = [line.split()[1] for line in lines if line.split()[:1] == [name]]
    return int(values[0]) * unit if values else None
