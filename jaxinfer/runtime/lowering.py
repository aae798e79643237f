"""Tracing and lowering steps in processes of their own, which hold nobody's lock.

All steps of a model are a minute of Python on an H200's host, and every thread that compiles waits for Python's lock
now and then. `python -m jaxinfer.runtime.lowering FD` is such a process. It sees no GPU, and lowers for one; JAX's
export brings a step back, of which 0.03 s are left to do here.
"""

import contextlib
import dataclasses
import functools
import queue
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

import jax
from jax import export
from jax.sharding import SingleDeviceSharding

from jaxinfer import children
from jaxinfer.config import Limits
from jaxinfer.errors import EngineError
from jaxinfer.models.config import DType, ModelConfig
from jaxinfer.models.parameters import dtype_of
from jaxinfer.models.registry import family_for
from jaxinfer.runtime import programs, step
from jaxinfer.runtime.backends import Backends
from jaxinfer.runtime.programs import Program
from jaxinfer_kernels.launch import sequence

MODULE = "jaxinfer.runtime.lowering"
_DONE = b"+"  # what an answer begins with that is no error's text
_PATIENCE_S = 120.0  # for a start on a busy machine and one step: seconds are usual
_PLATFORMS = {"gpu": "cuda"}  # as JAX calls devices: as it calls what it lowers for
_KERNELS = tuple(export.DisabledSafetyCheck.custom_call(name) for name in (sequence.KERNEL, sequence.TARGET))
# JAX's settings that such a process does not share: which devices there are, and how much of their memory is taken
_OF_DEVICES = frozenset(["jax_platforms", "jax_cuda_visible_devices", "jax_pjrt_client_create_options"])


@dataclasses.dataclass(frozen=True)
class Facts:
    """The first message: what steps are made of. settings: JAX's, which change what a function is traced to."""

    config: ModelConfig
    limits: Limits
    backends: Backends
    dtype: DType
    platform: str
    settings: dict[str, str | bool | int | float | None]

    @classmethod
    def of(cls, model: step.Model, limits: Limits, params: step.Params, device: jax.Device) -> "Facts":
        settings = {
            name: value
            for name, value in jax.config.values.items()
            if isinstance(value, str | bool | int | float | None) and name not in _OF_DEVICES
        }
        dtype = str(dtype_of(model.family.specs(model.config), params))
        platform = _PLATFORMS.get(device.platform, device.platform)
        return cls(model.config, limits, model.backends, dtype, platform, settings)


class Lowerer:
    """A process that lowers, started with the first step and ended by `close`. For one thread at a time."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def lower(self, program: Program) -> jax.stages.Lowered:
        """As program.lower(), of a step. Raises EngineError where the process cannot do it, for whatever reason."""
        try:
            connection = self._connection or self._start()
            connection.send_bytes(program.name.encode())
            if not connection.poll(_PATIENCE_S):
                raise TimeoutError(f"no answer in {_PATIENCE_S:.0f} s")
            answer = connection.recv_bytes()
        except (OSError, EOFError) as error:
            self._connection = None  # a late answer would be taken for the next one
            self.close()
            raise EngineError(f"a process must lower {program.name}, it did not: {error!r}") from error
        if answer[:1] != _DONE:
            raise EngineError(f"a process must lower {program.name}, it says: {answer[1:].decode()}")
        exported = export.deserialize(bytearray(answer[1:]))
        if _shapes(exported.in_avals) != _shapes(jax.tree.leaves(program.arguments)):
            raise EngineError(f"a process must lower {program.name} for our arrays, it did for {exported.in_avals}")
        return program.lower(functools.partial(_call, exported, program.result))

    def _start(self) -> Connection:
        hidden = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        # Ctrl-C is for the server, which then ends this
        self._process, ours = children.start(MODULE, variables=hidden, new_session=True)
        self._connection = Connection(ours.detach())
        self._connection.send(self._facts)
        return self._connection

    def close(self) -> None:
        """End the process, also while another thread waits for it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Lowerers:
    """So many of them."""

    def __init__(self, count: int, facts: Facts) -> None:
        self.count = count
        self._all = [Lowerer(facts) for _ in range(count)]
        self._free: queue.SimpleQueue[Lowerer] = queue.SimpleQueue()
        for one in self._all:
            self._free.put(one)

    def lower(self, program: Program) -> jax.stages.Lowered:
        """By the next that is free. Raises EngineError, as there."""
        one = self._free.get()
        try:
            return one.lower(program)
        finally:
            self._free.put(one)

    def close(self) -> None:
        for one in self._all:
            one.close()


def _shapes(avals: Any) -> list[tuple[tuple[int, ...], str]]:
    return [(aval.shape, str(aval.dtype)) for aval in avals]


def _call(exported: export.Exported, result: Any, *arguments: Any) -> Any:
    """The function as it was lowered, whose arguments and results are leaves there."""
    return jax.tree.unflatten(jax.tree.structure(result), exported.call(*jax.tree.leaves(arguments)))


# What the process does


def listed(facts: Facts) -> dict[str, Program]:
    """The programs of a runner by name, without one."""
    for name, value in facts.settings.items():
        if jax.config.values.get(name) != value:
            jax.config.update(name, value)
    family = family_for({"architectures": [facts.config.architecture]})
    model, where = step.Model(facts.config, family, facts.backends), SingleDeviceSharding(jax.devices("cpu")[0])
    return {program.name: program for program in programs.without_arrays(model, facts.limits, facts.dtype, where)}


def exported(program: Program, platform: str) -> export.Exported:
    """A step as a function of leaves, lowered for a platform that need not be here."""
    leaves, structure = jax.tree.flatten(program.arguments)

    def of_leaves(*leaves: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(program.function(*jax.tree.unflatten(structure, leaves)))

    return export.export(jax.jit(of_leaves), platforms=(platform,), disabled_checks=_KERNELS)(*leaves)


def main(fd: int) -> None:
    """The facts come first, then names of steps, each of which is answered."""
    connection = Connection(fd)
    with contextlib.suppress(EOFError, ConnectionError):  # nothing left to do, or nobody left to do it for
        facts = connection.recv()
        known = functools.cache(lambda: listed(facts))
        while True:
            name = connection.recv_bytes().decode()
            try:
                answer = _DONE + exported(known()[name], facts.platform).serialize()
            except Exception as error:
                answer = b"-" + repr(error).encode()
            connection.send_bytes(answer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
