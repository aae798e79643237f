"""jaxinfer: open-weight language models on JAX, served, in a notebook or in batches.

The names below are imported when they are first used, so that `import jaxinfer` costs nothing and never imports jax.
Nothing of Python's library is imported either: a Ctrl-C meanwhile ends the program in a traceback.
"""

from jaxinfer.version import __version__

TYPE_CHECKING = False  # typing's own takes 10 ms to import; type checkers know the name

if TYPE_CHECKING:
    from jaxinfer.config import EngineConfig
    from jaxinfer.llm.async_llm import AsyncLLM
    from jaxinfer.llm.llm import LLM
    from jaxinfer.protocol.sampling import SamplingParams

__all__ = ["LLM", "AsyncLLM", "EngineConfig", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "jaxinfer.llm.llm",
    "AsyncLLM": "jaxinfer.llm.async_llm",
    "EngineConfig": "jaxinfer.config",
    "SamplingParams": "jaxinfer.protocol.sampling",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxinfer' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
