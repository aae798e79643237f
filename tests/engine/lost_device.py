"""Lose the GPU of this process in a given way, then print what JAX says and how jaxinfer takes it.

Run as `python -m tests.engine.lost_device illegal_address`; the context of this process, and nothing else, is lost.
"""

import ctypes
import sys

import jax.numpy as jnp

from jaxinfer.engine.failures import is_sticky

BODIES = {
    "illegal_address": "mov.u64 %p, 64; st.global.u32 [%p], 1;",
    "misaligned_address": "add.u64 %p, %p, 1; st.global.u32 [%p], 1;",
    "launch_failed": "trap;",
}
KERNEL = """.version 7.8
.target sm_80
.address_size 64
.visible .entry fault(.param .u64 where) {{ .reg .u64 %p; ld.param.u64 %p, [where]; {body} ret; }}
"""


def launch(body: str, where: int) -> None:
    """Run one thread of `body` in the context that JAX uses."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    calls = [
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuModuleLoadData(ctypes.byref(module), KERNEL.format(body=body).encode()),
        cuda.cuModuleGetFunction(ctypes.byref(function), module, b"fault"),
    ]
    argument = ctypes.c_uint64(where)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    calls.append(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None))
    assert calls == [0] * 5, f"the driver refused with {calls}"
    cuda.cuCtxSynchronize()


def main(fault: str) -> None:
    x = jnp.arange(1024)
    (x + 1).sum().item()  # XLA has its pinned memory for results: without it, it crashes rather than raises
    if fault != "exhausted":
        launch(BODIES[fault], x.unsafe_buffer_pointer())
    for _ in range(2):  # a lost device stays lost
        try:
            jnp.zeros(1 << 48 if fault == "exhausted" else 1 << 20, jnp.uint8).block_until_ready()
            (x + 1).sum().item()
            print("fine")
        except Exception as error:
            print(f"{type(error).__name__} sticky={is_sticky(error)}: {str(error)[:300]}")
    if fault == "exhausted":
        print("after it", (x + 1).sum().item())


if __name__ == "__main__":
    main(sys.argv[1])
