"""Free memory is the machine's, or the container's when that is less."""

import threading
from pathlib import Path

import jax
import pytest

from jaxinfer.checkpoint import memory
from jaxinfer.checkpoint.memory import available_device_bytes, available_host_bytes, check_memory, take_pool
from jaxinfer.errors import DeviceError

GIB = 2**30


class FakeGpu:
    """A device with 80 GiB, 30 of them taken."""

    platform = "gpu"
    device_kind = "NVIDIA H200"
    id = 3

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": 80 * GIB, "bytes_in_use": 30 * GIB}


def machine(folder: Path, *, free_gib: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "meminfo").write_text(f"MemTotal: {64 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {free_gib * 2**20} kB\n")
    return folder


def cgroup(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_without_a_container_the_machine_decides(tmp_path: Path) -> None:
    proc = machine(tmp_path / "proc", free_gib=20)
    assert available_host_bytes(proc, tmp_path / "none") == 20 * GIB
    unlimited = cgroup(tmp_path / "cgroup", {"memory.max": "max\n", "memory.current": "5\n"})
    assert available_host_bytes(proc, unlimited) == 20 * GIB


def test_a_cgroup_counts_its_file_cache_as_free(tmp_path: Path) -> None:
    proc = machine(tmp_path / "proc", free_gib=20)
    stat = f"anon 1\ninactive_file {GIB}\n"
    group = {"memory.max": f"{8 * GIB}\n", "memory.current": f"{5 * GIB}\n", "memory.stat": stat}
    assert available_host_bytes(proc, cgroup(tmp_path / "two", group)) == 4 * GIB
    old = {"memory.limit_in_bytes": f"{6 * GIB}", "memory.usage_in_bytes": f"{5 * GIB}", "memory.stat": ""}
    cgroup(tmp_path / "one" / "memory", old)
    assert available_host_bytes(proc, tmp_path / "one") == GIB


def test_a_full_cgroup_leaves_nothing_and_never_less(tmp_path: Path) -> None:
    proc = machine(tmp_path / "proc", free_gib=20)
    group = {"memory.max": "100", "memory.current": "200", "memory.stat": ""}
    assert available_host_bytes(proc, cgroup(tmp_path / "two", group)) == 0


def test_a_gpus_free_memory_counts_not_its_total() -> None:
    gpu = FakeGpu()
    assert available_device_bytes(gpu) == 50 * GIB  # type: ignore[arg-type]
    check_memory(50 * GIB, gpu)  # type: ignore[arg-type]
    with pytest.raises(
        DeviceError, match=r"weights need 51\.00 GiB, NVIDIA H200 3 has 50\.00 GiB free; free some memory"
    ):
        check_memory(51 * GIB, gpu)  # type: ignore[arg-type]


def test_this_machine_has_some_memory_left() -> None:
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert 0 < available_device_bytes(jax.devices("cpu")[0]) <= int(total.split()[1]) * 1024


def test_the_pools_of_gpus_are_taken_in_threads_of_their_own(monkeypatch):
    took = []
    monkeypatch.setattr(memory, "_first_array", lambda device: lambda: took.append((device.id, threading.get_ident())))
    take_pool([jax.devices("cpu")[0], FakeGpu()])  # type: ignore[list-item]
    for thread in threading.enumerate():
        if thread.name == "jaxinfer-pool":
            thread.join()
    assert [device for device, _ in took] == [FakeGpu.id], "a CPU has none"
    assert took[0][1] != threading.get_ident()


def test_a_pool_is_taken_by_an_array_of_the_device():
    cpu = jax.devices("cpu")[0]
    assert memory._first_array(cpu)().devices() == {cpu}
