"""Which device the engine runs on, and how much of its memory it may take.

JAX takes every GPU it sees and three quarters of each one's memory, in use or not, unless told otherwise before its
first use; `select_device` tells it. A GPU that JAX cannot use is an error, never a silent step down to the CPU.
"""

import importlib.util
import os
import sys
from importlib import metadata

import jax
import numpy as np

from jaxinfer.config import EngineConfig
from jaxinfer.errors import ConfigError, DeviceError
from jaxinfer.runtime import nvidia
from jaxinfer_kernels import cpu

_OUTSIDE_POOL = 0.04  # of the free memory: CUDA graphs, cuBLAS workspaces and the context live beside JAX's pool
_cuda_graphs: bool | None = None  # as this process's first engine has it
_PLUGINS = {"cuda13": "jax-cuda13-plugin", "cuda12": "jax-cuda12-plugin"}


def select_device(name: str, memory_utilization: float = 0.9, *, cuda_graphs: bool = True) -> jax.Device:
    """The device for "auto", "cpu" or "cuda": one GPU where there is an NVIDIA driver, else the CPU.

    memory_utilization: the share of the GPU's free memory that JAX may take; it is taken at once, so that the memory
    plan cannot be overtaken by another program.    cuda_graphs: whether XLA captures what it runs.
    Where JAX was used before in this process, its settings stay.
    Raises DeviceError when a GPU was asked for, or is there, and JAX cannot use it; the message holds the command.
    Raises ConfigError when an engine of this process has the other cuda_graphs, or in JAX's mode of 64-bit numbers.
    """
    if jax.dtypes.canonicalize_dtype(np.int64) == np.int64:
        raise ConfigError("JAX's mode of 64-bit numbers must be off, it is on; unset JAX_ENABLE_X64 or jax_enable_x64")
    if not uses_gpu(name):
        return _first("cpu", "cpu")
    gpus = nvidia.list_gpus()
    _check_visible(gpus)
    _take_one_gpu(nvidia.visible_gpus(gpus), memory_utilization)
    _set_flags(cuda_graphs)
    try:
        return _first("cuda", "cuda,cpu")
    except RuntimeError as error:
        raise DeviceError(_why_no_gpu(error)) from error


def device_for(config: EngineConfig) -> jax.Device:
    """select_device for an engine of these settings. Raises as it does."""
    return select_device(config.device, config.gpu_memory_utilization, cuda_graphs=config.cuda_graphs)


def device_rows() -> list[tuple[str, str]]:
    """(what, fact) about GPUs and JAX's plugins, for `jaxinfer doctor`; JAX itself is not started."""
    gpus = nvidia.list_gpus()
    shown = nvidia.visible_gpus(gpus)
    rows = [(f"gpu {gpu.index}", _gpu_fact(gpu) + ("" if gpu in shown else ", hidden")) for gpu in gpus]
    found = {package: _version(package) for package in _PLUGINS.values()}
    plugins = ", ".join(f"{package} {version}" for package, version in found.items() if version) or "none"
    isa = cpu.best()
    ours = "none: XLA computes (they are compiled where there is a C++ compiler)" if isa is None else f"by {isa.name}"
    driver = (
        gpus[0].driver if gpus else "present, but nvidia-smi does not answer" if nvidia.driver_present() else "none"
    )
    return [("driver", driver), *rows, ("jax cuda plugin", plugins), ("kernels for CPUs", ours)]


def _gpu_fact(gpu: nvidia.Gpu) -> str:
    return f"{gpu.name}, {gpu.free_bytes / 2**30:.1f} of {gpu.total_bytes / 2**30:.1f} GiB free"


def uses_gpu(name: str) -> bool:
    """Whether "auto", "cpu" or "cuda" means a GPU; JAX is not started.

    auto does where a driver is, and neither CUDA_VISIBLE_DEVICES nor JAX_PLATFORMS says no.
    """
    return name == "cuda" or (
        name == "auto" and _may_use_gpu() and not nvidia.hidden_gpus() and nvidia.driver_present()
    )


def _may_use_gpu() -> bool:
    platforms = jax.config.jax_platforms
    return not platforms or not {"cuda", "gpu"}.isdisjoint(platforms.split(","))


def _check_visible(gpus: list[nvidia.Gpu]) -> None:
    """Raise DeviceError if the environment leaves no GPU to use, with the variable at fault."""
    asked = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not _may_use_gpu():
        fact = f"JAX_PLATFORMS={jax.config.jax_platforms} hides them all"
    elif nvidia.hidden_gpus():
        fact = f"CUDA_VISIBLE_DEVICES={asked!r} hides them all"
    elif gpus and not nvidia.visible_gpus(gpus) and not asked.startswith("MIG"):  # nvidia-smi lists no MIG parts
        fact = f"CUDA_VISIBLE_DEVICES={asked!r} names none of this machine's, 0 .. {len(gpus) - 1}"
    else:
        return
    raise DeviceError(f"the cuda device needs a visible GPU, {fact}; change the variable or use --device cpu")


def _first(platform: str, platforms: str) -> jax.Device:
    """The first device of a platform; `platforms` are the ones that JAX may start if it has not started yet."""
    before = jax.config.jax_platforms
    if not before:
        jax.config.update("jax_platforms", platforms)
    try:
        return jax.devices(platform)[0]
    except RuntimeError:
        jax.config.update("jax_platforms", before)
        raise


def _take_one_gpu(visible: list[nvidia.Gpu], memory_utilization: float) -> None:
    """Tell JAX, before it starts, to see the first visible GPU alone and how large its memory pool is."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # CUDA then numbers the GPUs as nvidia-smi does
    jax.config.update("jax_cuda_visible_devices", "0")
    if not visible or {"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"} & set(os.environ):
        return
    share = min(memory_utilization, 1 - _OUTSIDE_POOL) * visible[0].free_bytes / visible[0].total_bytes
    jax.config.update("jax_pjrt_client_create_options", {"memory_fraction": share})


def _set_flags(cuda_graphs: bool) -> None:
    """XLA reads XLA_FLAGS when JAX starts, once; what the user has put there stays.

    Raises ConfigError where this process has an engine that was started with the other setting.
    """
    global _cuda_graphs
    if _cuda_graphs is not None:
        if _cuda_graphs is not cuda_graphs:
            law = "cuda_graphs must be the same for all engines of a process, since XLA reads it once"
            raise ConfigError(f"{law}, got {cuda_graphs} after {_cuda_graphs}; start another process for it")
        return
    _cuda_graphs = cuda_graphs
    # Before XLA has found that every page array is updated in place, it takes a step for one that needs three pools,
    # and spends minutes in vain on making it smaller.
    wanted = {"--xla_disable_hlo_passes": "rematerialization"}
    if not cuda_graphs:
        wanted["--xla_gpu_enable_command_buffer"] = ""
    flags = os.environ.get("XLA_FLAGS", "").split()
    flags += [f"{name}={value}" for name, value in wanted.items() if not any(f.startswith(name) for f in flags)]
    os.environ["XLA_FLAGS"] = " ".join(flags)


def _why_no_gpu(error: RuntimeError) -> str:
    """The law, the fact and the command that mends it."""
    gpus = nvidia.list_gpus()
    if not gpus and not nvidia.driver_present():
        return nvidia.NO_DRIVER
    driver = gpus[0].driver if gpus else "of unknown version"
    extra = nvidia.cuda_extra(driver)
    if _version(_PLUGINS[extra]) is None:
        fact = f"{_PLUGINS[extra]}, which it needs, is not installed"
        cure = f"run `{_install_command(extra)}`"
    else:
        fact = f"JAX says: {error}"
        cure = "run `jaxinfer doctor` and `nvidia-smi` to see what is wrong"
    return f"JAX must be able to use the GPU of NVIDIA driver {driver}, but {fact}; {cure}, or use --device cpu"


def _install_command(extra: str) -> str:
    has_pip = importlib.util.find_spec("pip") is not None
    install = f"{sys.executable} -m pip install" if has_pip else f"uv pip install --python {sys.executable}"
    return f"{install} 'jax[{extra}]=={jax.__version__}'"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
