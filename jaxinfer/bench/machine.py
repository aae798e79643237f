"""What a figure was measured on: versions, card, commit, date, and what the device reads and multiplies at most.

The limits are measured by a program (bench.limits) that is gone before the engine takes the memory. No jax.
"""

import dataclasses
import datetime
import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from jaxinfer import children
from jaxinfer.config import EngineConfig, Resolved
from jaxinfer.errors import DeviceError
from jaxinfer.llm.events import Event, OnEvent, ignore
from jaxinfer.runtime import nvidia
from jaxinfer.version import __version__


@dataclasses.dataclass(frozen=True)
class MachineLimits:
    """A device and what it gave: bytes copied (read and written) and bytes read per second, matmul operations."""

    platform: str
    kind: str
    copy_bytes_per_s: float
    read_bytes_per_s: float
    flops: float

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth that shares are of: the better of reading alone and copying."""
        return max(self.copy_bytes_per_s, self.read_bytes_per_s)

    def facts(self) -> list[tuple[str, str]]:
        reads = f"{self.read_bytes_per_s / 1e9:,.1f} GB/s read, {self.copy_bytes_per_s / 1e9:,.1f} GB/s copied"
        kind = "bfloat16" if self.platform == "gpu" else "float32"
        return [("limits, measured now", f"{reads}, {self.flops / 1e12:.3g} TFLOP/s in {kind}")]


def measure_limits(device: str, on_event: OnEvent = ignore) -> MachineLimits:
    """The limits of EngineConfig.device's device, in about ten seconds. Raises DeviceError."""
    on_event(Event("measure", "what this device reads and multiplies at most"))
    command = children.python("-m", "jaxinfer.bench.limits", device)
    done = subprocess.run(command, capture_output=True, text=True, env=children.environment())
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise DeviceError(f"the device's limits must be measurable, the program for it said: {last}")
    return MachineLimits(**json.loads(done.stdout.splitlines()[-1]))


def facts(limits: MachineLimits | None = None, resolved: Resolved | None = None) -> list[tuple[str, str]]:
    """The head of every report."""
    gpus = nvidia.visible_gpus(nvidia.list_gpus())
    rows = [("model", _model(resolved.config))] if resolved else []
    rows += [("machine", _device(limits, gpus))]
    rows += [("driver", gpus[0].driver)] if gpus else []
    versions = f"jaxinfer {__version__}, jax {metadata.version('jax')}, Python {platform.python_version()}"
    rows += [("versions", versions), ("commit", commit()), ("date", f"{datetime.datetime.now(datetime.UTC):%F %R} UTC")]
    settings = [f"{name} {value}" for name, value in (resolved.rows() if resolved else ()) if name != "model"]
    rows += [("settings", ", ".join(settings) or "all by default")] if resolved else []
    return rows + (limits.facts() if limits else [])


def commit() -> str:
    """$GIT_COMMIT, for copies of a tree that git knows nothing of; else this file's, with a + when files differ."""
    if given := os.environ.get("GIT_COMMIT"):
        return given
    folder = str(Path(__file__).parent)
    try:
        found = _git(folder, "rev-parse", "--short", "HEAD")
        return found + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown: no git here and no $GIT_COMMIT"


def _git(folder: str, *arguments: str) -> str:
    return subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True).stdout.strip()


def _model(config: EngineConfig) -> str:
    path = Path(config.model)
    name = path.name if path.is_dir() else config.model  # where it lies is nobody's business
    name += "" if config.quantization == "auto" else f", {config.quantization}"
    return name + (", random weights" if config.load_format == "dummy" else "")


def _device(limits: MachineLimits | None, gpus: list[nvidia.Gpu]) -> str:
    cpus = f"{os.cpu_count()} CPUs ({platform.machine()})"
    if limits is None:
        return f"{gpus[0].name}, {cpus}" if gpus else cpus
    return cpus if limits.platform == "cpu" else f"{limits.kind}, {cpus}"
