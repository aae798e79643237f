"""The device is the one asked for or an error that names the command, and only one GPU is ever taken."""

import os
import sys
from pathlib import Path

import jax
import pytest

from jaxinfer.errors import ConfigError, DeviceError
from jaxinfer.runtime import device, nvidia

TABLE = """\
0, GPU-aaaa-1, NVIDIA H200, 580.159.04, 143771, 143156
1, GPU-bbbb-2, NVIDIA H200, 580.159.04, 143771, 71578
2, GPU-cccc-3, NVIDIA H200, 580.159.04, [N/A], [Unknown Error]
"""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine whose nvidia-smi prints a table; None is a machine without a driver."""
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setattr(device, "_cuda_graphs", None)
    for name in ("CUDA_VISIBLE_DEVICES", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)

    def build(table: str | None) -> None:
        gpus = nvidia.parse_gpus(table or "")
        monkeypatch.setattr(nvidia, "list_gpus", lambda: gpus)
        monkeypatch.setattr(nvidia, "driver_present", lambda: bool(gpus))

    return build


@pytest.fixture
def platforms(monkeypatch):
    """JAX_PLATFORMS as select_device sees it; what it changes is recorded, not done: JAX is running already."""
    updates: dict[str, object] = {}

    class Config:
        jax_platforms: str | None = None

        def update(self, name: str, value: object) -> None:
            updates[name] = value

    config = Config()
    monkeypatch.setattr(jax, "config", config)
    return config, updates


@pytest.fixture
def nvidia_smi(monkeypatch, tmp_path):
    """A program of that name, which prints what it is given and notes each call."""
    calls = tmp_path / "calls"

    def build(table: str, *, status: int = 0, hangs: bool = False) -> Path:
        path = tmp_path / "nvidia-smi"
        then = "exec sleep 60" if hangs else f"cat <<'END'\n{table}END\nexit {status}"
        path.write_text(f"#!/bin/sh\necho called >>{calls}\n{then}\n")
        path.chmod(0o755)
        calls.touch()
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return calls

    monkeypatch.setattr(nvidia, "_early", None)
    return build


@pytest.mark.parametrize(
    ("asked", "platforms", "replica", "left"),
    [
        (None, None, 0, None),
        (None, None, 1, "GPU-bbbb-2"),
        ("1,0", None, 1, "0"),
        ("MIG-a,MIG-b", None, 1, "MIG-b"),
        ("", None, 1, ""),
        (None, "cpu", 3, None),
        (None, "cuda,cpu", 1, "GPU-bbbb-2"),
    ],
)
def test_a_replica_sees_one_of_the_visible_gpus(machine, monkeypatch, asked, platforms, replica, left):
    machine(TABLE)
    for name, value in (("CUDA_VISIBLE_DEVICES", asked), ("JAX_PLATFORMS", platforms)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    nvidia.show_only(replica)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == left


@pytest.mark.parametrize(("asked", "count"), [(None, 2), ("0", 1), ("MIG-a,MIG-b", 2)])
def test_a_replica_without_a_gpu_of_its_own_is_refused(machine, monkeypatch, asked, count):
    machine(TABLE)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if asked is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", asked)
    with pytest.raises(DeviceError, match=f"replica 3 has none of the {count} visible; lower --data-parallel-size"):
        nvidia.show_only(2)


def test_without_a_gpu_there_is_nothing_to_hide(machine, monkeypatch):
    machine(None)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    nvidia.show_only(1)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_what_was_asked_early_is_asked_once_and_what_comes_later_anew(nvidia_smi):
    calls = nvidia_smi(TABLE)
    nvidia.ask_early()
    assert [gpu.name for gpu in nvidia.list_gpus()] == ["NVIDIA H200"] * 2
    assert len(calls.read_text().split()) == 1
    assert len(nvidia.list_gpus()) == 2
    assert len(calls.read_text().split()) == 2


def test_a_driver_that_fails_or_does_not_answer_has_no_gpus(nvidia_smi, monkeypatch):
    nvidia_smi(TABLE, status=9)
    assert nvidia.list_gpus() == []
    nvidia_smi(TABLE, hangs=True)
    monkeypatch.setattr(nvidia, "_TIMEOUT_S", 0.2)
    assert nvidia.list_gpus() == []


def test_without_nvidia_smi_there_is_nothing_to_ask(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nvidia, "_early", None)
    nvidia.ask_early()
    assert nvidia.list_gpus() == []


def test_the_cpu_is_there_on_every_machine(machine):
    machine(None)
    assert device.select_device("cpu").platform == "cpu"
    assert device.select_device("auto").platform == "cpu"


def test_cuda_without_a_driver_is_an_error(machine, platforms):
    machine(None)
    with pytest.raises(DeviceError, match="needs an NVIDIA driver, this machine has none; .* --device cpu"):
        device.select_device("cuda")


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_a_driver_that_jax_cannot_use_is_an_error_with_the_exact_command(machine, platforms, monkeypatch, name):
    machine(TABLE)
    monkeypatch.setattr(device, "_version", lambda package: None)
    with pytest.raises(DeviceError) as error:
        device.select_device(name)
    command = f"'jax[cuda13]=={jax.__version__}'"
    assert "jax-cuda13-plugin, which it needs, is not installed" in str(error.value)
    assert command in str(error.value)
    assert sys.executable in str(error.value)
    assert "--device cpu" in str(error.value)


def test_an_old_driver_gets_the_command_for_cuda_12(machine, platforms, monkeypatch):
    machine(TABLE.replace("580.159.04", "550.54"))
    monkeypatch.setattr(device, "_version", lambda package: None)
    with pytest.raises(DeviceError, match=r"driver 550.54, .*'jax\[cuda12\]=="):
        device.select_device("auto")


def test_an_installed_plugin_that_fails_passes_on_what_jax_says(machine, platforms, monkeypatch):
    machine(TABLE)
    monkeypatch.setattr(device, "_version", lambda package: "0.11.2")
    with pytest.raises(DeviceError, match="JAX says: .*jaxinfer doctor"):
        device.select_device("auto")


def test_one_gpu_is_taken_and_the_share_is_of_its_free_memory(machine, platforms, monkeypatch):
    config, updates = platforms
    machine(TABLE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with pytest.raises(DeviceError):
        device.select_device("cuda", memory_utilization=0.5)
    assert updates["jax_cuda_visible_devices"] == "0"  # the first of those that CUDA_VISIBLE_DEVICES leaves
    assert updates["jax_pjrt_client_create_options"] == {"memory_fraction": pytest.approx(0.5 * 71578 / 143771)}
    assert updates["jax_platforms"] is None  # put back: the process can still use the CPU


def test_room_stays_outside_the_pool_whatever_share_is_asked_for(machine, platforms):
    _, updates = platforms
    machine(TABLE)
    with pytest.raises(DeviceError):
        device.select_device("cuda", memory_utilization=1.0)
    assert updates["jax_pjrt_client_create_options"] == {"memory_fraction": pytest.approx(0.96 * 143156 / 143771)}


NO_GRAPHS, NO_REMATERIALIZATION = "--xla_gpu_enable_command_buffer=", "--xla_disable_hlo_passes=rematerialization"


@pytest.mark.parametrize(
    ("before", "graphs", "after"),
    [
        ([], True, [NO_REMATERIALIZATION]),
        ([], False, [NO_REMATERIALIZATION, NO_GRAPHS]),
        (["--xla_dump_to=here"], False, ["--xla_dump_to=here", NO_REMATERIALIZATION, NO_GRAPHS]),
        ([f"{NO_GRAPHS}FUSION"], False, [f"{NO_GRAPHS}FUSION", NO_REMATERIALIZATION]),
        (["--xla_disable_hlo_passes=dce"], True, ["--xla_disable_hlo_passes=dce"]),
    ],
)
def test_xla_is_told_what_to_leave_out_unless_the_user_has_spoken(
    machine, platforms, monkeypatch, before, graphs, after
):
    """Without cuda_graphs, nothing is captured."""
    machine(TABLE)
    monkeypatch.setenv("XLA_FLAGS", " ".join(before))
    with pytest.raises(DeviceError):
        device.select_device("cuda", cuda_graphs=graphs)
    assert os.environ["XLA_FLAGS"].split() == after


def test_a_process_has_graphs_or_none(machine, platforms, monkeypatch):
    """XLA would not hear of it, and what it compiles would be kept under the other's name."""
    machine(TABLE)
    monkeypatch.setenv("XLA_FLAGS", "")
    for graphs, error in ((True, DeviceError), (True, DeviceError), (False, ConfigError)):
        with pytest.raises(error):
            device.select_device("cuda", cuda_graphs=graphs)
    assert os.environ["XLA_FLAGS"] == NO_REMATERIALIZATION


def test_numbers_of_64_bits_are_refused_by_name(machine):
    machine(None)
    with jax.enable_x64(True), pytest.raises(ConfigError, match="unset JAX_ENABLE_X64"):
        device.select_device("auto")


def test_the_cpu_needs_no_flags(machine, monkeypatch):
    machine(None)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=here")
    device.select_device("cpu", cuda_graphs=False)
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=here"


def test_hidden_gpus_mean_the_cpu_for_auto_and_an_error_for_cuda(machine, platforms, monkeypatch):
    machine(TABLE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device.select_device("auto").platform == "cpu"
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES='' hides them all"):
        device.select_device("cuda")


def test_jax_platforms_without_cuda_means_the_cpu_for_auto_and_an_error_for_cuda(machine, platforms):
    config, _ = platforms
    machine(TABLE)
    config.jax_platforms = "cpu"
    assert device.select_device("auto").platform == "cpu"
    with pytest.raises(DeviceError, match="JAX_PLATFORMS=cpu hides them all"):
        device.select_device("cuda")


def test_a_gpu_that_is_not_there_is_named(machine, platforms, monkeypatch):
    machine(TABLE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES='7' names none of this machine's, 0 .. 1"):
        device.select_device("auto")


def test_rows_that_nvidia_smi_could_not_fill_are_left_out():
    assert [gpu.index for gpu in nvidia.parse_gpus(TABLE)] == [0, 1]
    assert nvidia.parse_gpus("NVIDIA-SMI has failed because it could not talk to the driver\n") == []


@pytest.mark.parametrize(
    ("visible", "indices"),
    [(None, [0, 1]), ("1", [1]), ("1,0", [1, 0]), ("GPU-bbbb", [1]), ("0,9,1", [0]), ("", [])],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(visible, indices):
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [gpu.index for gpu in nvidia.visible_gpus(nvidia.parse_gpus(TABLE), env)] == indices


@pytest.mark.parametrize(("driver", "extra"), [("580.65.06", "cuda13"), ("600.1", "cuda13"), ("579.99", "cuda12")])
def test_the_extra_follows_the_driver(driver, extra):
    assert nvidia.cuda_extra(driver) == extra


def test_the_facts_name_driver_gpus_and_plugins(machine, monkeypatch):
    machine(TABLE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    rows = dict(device.device_rows())
    assert rows["driver"] == "580.159.04"
    assert rows["gpu 1"] == "NVIDIA H200, 69.9 of 140.4 GiB free, hidden"
    assert rows["jax cuda plugin"]
