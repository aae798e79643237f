"""jax.experimental.pallas.mosaic_gpu, imported by the first kernel that is built.

That import takes most of a second. A machine without a Hopper GPU builds no kernel and does not pay it.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    from jax.experimental.pallas import mosaic_gpu

    return getattr(mosaic_gpu, name)
