"""What a failed step or request is: whose fault, who can go on after it, and what the client is told."""

NOT_FINITE = (
    "the model's hidden state must be finite, it held NaN or infinity; the request cannot go on: check the checkpoint "
    "and the dtype (float16 overflows where bfloat16 does not)"
)
STEP_FAILED = (
    "the steps that compute a request must succeed, two with this request alone failed; it cannot be computed by this "
    "server, whose log names the cause"
)

# Codes of what an engine finds out about a request that cannot be carried out: the fault is the request's.
OF_THE_REQUEST = frozenset({"no_token_left", "invalid_grammar", "no_grammars", "context_length_exceeded"})

# The CUDA driver's errors (cuda.h, CUresult) after which every call in the process fails: the context is lost. The
# runtime's texts are listed beside the driver's names, since XLA reports libraries' errors by text.
STICKY = (
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "illegal memory access",
    "CUDA_ERROR_LAUNCH_FAILED",
    "unspecified launch failure",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "illegal instruction",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "misaligned address",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_CONTAINED",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "CUDA_ERROR_DEINITIALIZED",
    "CUDA_ERROR_DEVICE_UNAVAILABLE",
    "CUDA_ERROR_SYSTEM_NOT_READY",
    "CUDA_ERROR_UNKNOWN",
)


def is_sticky(error: BaseException) -> bool:
    """Whether an exception says that this process has lost its device.

    Only what JAX raises counts; it is known by its class's name, so that a host without JAX can ask.
    """
    from_jax = any(kind.__name__ == "JaxRuntimeError" for kind in type(error).__mro__)
    return from_jax and any(sign in str(error) for sign in STICKY)
