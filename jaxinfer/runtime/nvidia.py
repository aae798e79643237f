"""What the NVIDIA driver says of this machine, asked without JAX and without touching a GPU."""

import dataclasses
import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from jaxinfer.errors import DeviceError

NO_DRIVER = "the cuda device needs an NVIDIA driver, this machine has none; install one or use --device cpu"
_FIELDS = ("index", "uuid", "name", "driver_version", "memory.total", "memory.free")
_TIMEOUT_S = 20
_CUDA13_DRIVER = 580  # the first driver that runs CUDA 13


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi lists it, in the order of the PCI bus."""

    index: int
    uuid: str
    name: str
    driver: str
    total_bytes: int
    free_bytes: int


_early: "Future[list[Gpu]] | None" = None  # what was asked before it is needed


def ask_early() -> None:
    """Begin to ask, for the next list_gpus: nvidia-smi takes seconds where no other program holds the driver."""
    global _early
    _early = ThreadPoolExecutor(1, thread_name_prefix="jaxinfer-nvidia").submit(_ask)


def list_gpus() -> list[Gpu]:
    """The machine's GPUs; empty when there is no driver or it does not answer."""
    global _early
    early, _early = _early, None
    return early.result() if early else _ask()


def _ask() -> list[Gpu]:
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_gpus(answer.stdout)


def parse_gpus(table: str) -> list[Gpu]:
    """nvidia-smi's table of `_FIELDS`, memory in MiB, without the rows it could not fill (a GPU that fell off)."""
    rows = [[cell.strip() for cell in line.split(",")] for line in table.splitlines()]
    return [
        Gpu(int(index), uuid, name, driver, int(total) * 2**20, int(free) * 2**20)
        for index, uuid, name, driver, total, free in (row for row in rows if len(row) == len(_FIELDS))
        if index.isdigit() and total.isdigit() and free.isdigit()
    ]


def driver_present(device_folder: Path = Path("/dev")) -> bool:
    """Whether the driver's control device is here; in a container without GPUs it is not, whatever the host has."""
    return (device_folder / "nvidiactl").exists() or bool(list_gpus())


def visible_gpus(gpus: list[Gpu], env: Mapping[str, str] = os.environ) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order: all when it is unset. An unknown entry ends the list."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    chosen = []
    for entry in (part.strip() for part in visible.split(",")):
        match = [gpu for gpu in gpus if entry == str(gpu.index) or (entry and gpu.uuid.startswith(entry))]
        if not match:
            break
        chosen.append(match[0])
    return chosen


def show_only(replica: int) -> None:
    """Before JAX starts: hide all GPUs that are visible but one from this process, which is one of several replicas.

    The first takes the first GPU, as it would alone. Where JAX may use no GPU there is nothing to hide. Raises
    DeviceError.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if replica == 0 or hidden_gpus() or (platforms and not {"cuda", "gpu"} & set(platforms.split(","))):
        return
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [gpu.uuid for gpu in list_gpus()] if asked is None else [name.strip() for name in asked.split(",")]
    if not names and not driver_present():
        return
    if replica >= len(names):
        law = f"each replica needs a GPU of its own, replica {replica + 1} has none of the {len(names)} visible"
        raise DeviceError(f"{law}; lower --data-parallel-size, or name more of them in CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["CUDA_VISIBLE_DEVICES"] = names[replica]


def hidden_gpus(env: Mapping[str, str] = os.environ) -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides every GPU on purpose."""
    return env.get("CUDA_VISIBLE_DEVICES", "all").strip() in {"", "-1", "none", "void", "NoDevFiles"}


def cuda_extra(driver: str) -> str:
    """The extra of ours that fits this driver version."""
    major = driver.partition(".")[0]
    return "cuda12" if major.isdigit() and int(major) < _CUDA13_DRIVER else "cuda13"
