"""The devices that `jaxinfer plan` plans for: the cards of --for, and what this machine has. Nothing is started."""

import dataclasses
import difflib
import os
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from jaxinfer.config import EngineConfig, counted, nearest_name, parse_int, size_words
from jaxinfer.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from jaxinfer.models.config import ModelConfig
    from jaxinfer.models.registry import Family
    from jaxinfer.runtime.backends import Backends
    from jaxinfer.runtime.memory import MemoryPlan

GIB = 2**30
LEAST_MEMORY = 2**20  # bytes


@dataclasses.dataclass(frozen=True)
class TargetDevice:
    """A device to plan for. flops: of dense bfloat16 products; None is unknown. core_count: its multiprocessors.

    The names of what a jax.Device has as well are JAX's.
    """

    device_kind: str
    platform: str
    free_bytes: int
    bytes_per_s: float
    flops: float | None = None
    compute_capability: str = "unknown"
    core_count: int | None = None  # where our kernels run, as is the next
    shared_memory_per_block_optin: int | None = None
    key: str = ""  # what --for calls it; "" of what is not listed
    own_bytes: int | None = None  # free where --memory is left out


_HOPPER = 232_448  # bytes of shared memory
# Memory as nvidia-smi shows it, rounded down. Bandwidth, bfloat16 peak (dense, float32 sums) and capability: NVIDIA's
# data sheets of each card; for GeForce and RTX PRO the architecture white papers (Ampere GA102, Ada, Blackwell RTX).
# Checked on 2026-11-27: the peak of cards of 8.6, 8.9 and 12.0 is multiprocessors x 512 multiply-adds x boost clock,
# half of that on a GeForce; A10 to B200 as in citsjtu2020/LLM-Prof, hardware_spec.md, at 8434c8d1.
_LISTED = {
    "b200": TargetDevice("NVIDIA B200", "gpu", 178 * GIB, 8.0e12, 2250e12, "10.0"),
    "h200": TargetDevice("NVIDIA H200", "gpu", 140 * GIB, 4.8e12, 989e12, "9.0", 132, _HOPPER),
    "h100": TargetDevice("NVIDIA H100", "gpu", 79 * GIB, 3.35e12, 989e12, "9.0", 132, _HOPPER),
    "h20": TargetDevice("NVIDIA H20", "gpu", 95 * GIB, 4.0e12, 148e12, "9.0", 78, _HOPPER),
    "a100": TargetDevice("NVIDIA A100", "gpu", 79 * GIB, 2.04e12, 312e12, "8.0"),
    "h100pcie": TargetDevice("NVIDIA H100 PCIe", "gpu", 79 * GIB, 2.04e12, 756e12, "9.0", 114, _HOPPER),
    "l40s": TargetDevice("NVIDIA L40S", "gpu", 44 * GIB, 0.864e12, 362e12, "8.9"),
    "l4": TargetDevice("NVIDIA L4", "gpu", 22 * GIB, 0.3e12, 121e12, "8.9"),
    "a10": TargetDevice("NVIDIA A10", "gpu", 22 * GIB, 0.6e12, 125e12, "8.6"),
    "rtxpro6000": TargetDevice("NVIDIA RTX PRO 6000 Blackwell", "gpu", 95 * GIB, 1.792e12, 503.8e12, "12.0"),
    "5090": TargetDevice("NVIDIA GeForce RTX 5090", "gpu", 31 * GIB, 1.792e12, 209.5e12, "12.0"),
    "4090": TargetDevice("NVIDIA GeForce RTX 4090", "gpu", 23 * GIB, 1.008e12, 165.2e12, "8.9"),
    "4060ti": TargetDevice("NVIDIA GeForce RTX 4060 Ti 16 GB", "gpu", 15 * GIB, 0.288e12, 44.1e12, "8.9"),
    "3090": TargetDevice("NVIDIA GeForce RTX 3090", "gpu", 23 * GIB, 0.936e12, 71e12, "8.6"),
}
GPUS = {key: dataclasses.replace(card, key=key) for key, card in _LISTED.items()}


def choose_target(name: str | None, memory: str | None, device: str) -> TargetDevice:
    """The GPU or CPU to plan for: the one named, else this machine's first visible GPU, else its CPU."""
    from jaxinfer.runtime import nvidia

    named = None if name is None else named_target(name)
    gpus = [] if name or device == "cpu" else nvidia.visible_gpus(nvidia.list_gpus())
    if device == "cuda" and name is None and not gpus:
        raise DeviceError("the cuda device needs an NVIDIA GPU, this machine shows none; name a card with --for")
    if named is not None:
        target = named
    elif gpus:
        target = known_gpu(gpus[0])
    else:
        from jaxinfer.checkpoint.memory import available_host_bytes

        cpus = counted(os.cpu_count() or 1, "CPU")
        target = TargetDevice(f"this machine's {cpus}", "cpu", available_host_bytes(), read_speed())
    if memory is None:
        return target
    return dataclasses.replace(target, free_bytes=memory_bytes(memory), own_bytes=target.free_bytes)


def memory_bytes(text: str) -> int:
    """The value of --memory. A number of so few bytes has lost its unit. Raises ConfigError."""
    try:
        num_bytes = parse_int(text)
    except ValueError:
        raise ConfigError(f"--memory must be bytes, got {text!r}; write it as in 80G") from None
    if num_bytes < LEAST_MEMORY:
        cure = f"add a unit: --memory {text}G" if text.isdecimal() and num_bytes else "write it as in 80G"
        raise ConfigError(f"--memory must be at least 1M of bytes, as in 80G, got {text!r}; {cure}")
    return num_bytes


# behind a card's own name in the driver's, which tell of no other card
_OF_DRIVERS = re.compile(r" (sxm\d?|hbm\d\w?|blackwell|server edition|workstation edition)(?= |$)")


def named_target(name: str) -> TargetDevice | None:
    """A card by its name, with or without its memory and the words that a maker and a driver put around it; None for
    the CPU. Raises ConfigError.
    """
    key, memory = re.sub(r"[ _-]+", " ", name.strip().lower()), ""
    if said := re.search(r" (\d+) ?gi?b?(?= |$)", key):
        key, memory = key[: said.start()] + key[said.end() :], said[1]
    key = re.sub(r"^(nvidia ?)?(geforce ?)?(rtx ?(?=\d))?", "", _OF_DRIVERS.sub("", key)).replace(" ", "")
    key = key if key in GPUS else key.removesuffix("pcie")
    if key not in {*GPUS, "cpu"}:
        raise ConfigError(unknown_card(key, card_within(name)))
    target = GPUS.get(key)
    if target is not None and memory and not 0.9 * int(memory) <= target.free_bytes / GIB <= int(memory):
        fact = f"--for {key} has {target.free_bytes // GIB} GiB free, got {name!r}"
        raise ConfigError(f"{fact}; say --for {key} --memory {memory}G")
    return target


def unknown_card(key: str, kin: str) -> str:
    """The message for a name that is not listed: most are of other cards, for which one that is listed can stand.

    kin: the card whose name is a part of it, whose memory is the likeliest.
    """
    if nearest_name(key, ["cpu"]):
        return f"unknown --for {key!r}, did you mean 'cpu'?"
    alike = [kin] if kin else difflib.get_close_matches(key, GPUS, n=1)
    listed = f"the nearest is {alike[0]!r}" if alike else "`jaxinfer plan --help` lists the cards"
    memory = GPUS[kin].free_bytes // GIB if kin else 16
    example = f"--for {alike[0] if alike else '4090'} --memory {memory}G"
    return f"unknown --for {key!r}, {listed}; for another card name one like it and its memory: {example}"


def known_gpu(gpu: Any) -> TargetDevice:
    """The GPU with what is free on it now; its speed is known if its name is. One with less memory than the card of
    that name, as an A100 of 40 GB, is not that card.
    """
    known = GPUS.get(card_within(gpu.name), TargetDevice("", "gpu", 0, 0.0))
    key = known.key if gpu.total_bytes >= known.free_bytes * 0.9 else ""
    return dataclasses.replace(known, device_kind=gpu.name, free_bytes=gpu.free_bytes, key=key)


def card_within(name: str) -> str:
    """The key of the card whose name is a part of this one, the longest of them; "" of none."""
    words = name.lower().replace("-", " ").split()
    names = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    return max(names & {*GPUS}, key=len, default="")


def read_speed(num_bytes: int = 64 * 2**20) -> float:
    """Bytes per second that all CPUs together read from memory, measured now in about 0.2 s."""
    import numpy as np

    threads = os.cpu_count() or 1
    arrays = [np.ones(num_bytes // 8, np.float64) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = []
        for _ in range(3):
            began_s = time.perf_counter()
            list(pool.map(np.max, arrays))
            seconds.append(time.perf_counter() - began_s)
    return threads * num_bytes / min(seconds)


def describe(target: TargetDevice) -> str:
    speed = f", {target.bytes_per_s / 1e9:,.0f} GB/s" if target.bytes_per_s else ", of unknown speed"
    flops = f", {target.flops / 1e12:.0f} TFLOP/s in bfloat16" if target.flops else ""
    free = f"{target.free_bytes / GIB:.1f} GiB" if target.free_bytes >= GIB else size_words(target.free_bytes)
    return f"{target.device_kind}, {free} free{speed}{flops}"


def check_device(name: str | None, device: str, sources: Mapping[str, str]) -> None:
    """Raise ConfigError for a --for that names another kind of device than --device does. A variable or a file that
    sets the device is of this machine, and --for is of another.
    """
    if name is None or device == "auto" or not sources.get("device", "").startswith("--"):
        return
    kind = "cpu" if named_target(name) is None else "cuda"
    if kind != device:
        raise ConfigError(f"--for and --device must name one device, got --for {name} and --device {device}; drop one")


def model_on(
    config: EngineConfig, facts: Mapping[str, Any], target: TargetDevice, family: "Family"
) -> "tuple[ModelConfig, Backends]":
    """The model of a config.json as this device holds it. Raises CheckpointError, and ConfigError where the device has
    no kernels for it.
    """
    from jaxinfer.runtime.backends import as_computed, as_held
    from jaxinfer.runtime.memory import backends_for

    model = as_computed(config, family.model(facts, config.quantization), target)
    backends = backends_for(config, model, target)
    return as_held(model, backends), backends


def plan_on(
    config: EngineConfig, target: TargetDevice, model: "ModelConfig", family: "Family", backends: "Backends"
) -> "MemoryPlan":
    """Raises DeviceError where the device is too small, ConfigError for settings at odds with each other."""
    from jaxinfer.runtime.memory import plan_for

    free = usable_bytes(config, target)
    return plan_for(config, model, family, platform=target.platform, free=free, backends=backends)


def usable_bytes(config: EngineConfig, target: TargetDevice) -> int:
    """What may be used of the free bytes, as runtime/device.py sizes the pool."""
    return int(target.free_bytes * (config.gpu_memory_utilization if target.platform == "gpu" else 1.0))


def fits(model: "ModelConfig", plan: "MemoryPlan") -> str:
    """That the model fits, and with how much of its context."""
    length = plan.limits.max_model_len
    whole = (
        "its whole context" if length == model.max_position else f"{length:,} of its {model.max_position:,} positions"
    )
    return f"yes, with {whole}"
