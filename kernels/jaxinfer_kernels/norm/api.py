"""RMS norm that every device can run. The version for Hopper is in sm90.py."""

from jaxinfer_kernels.norm.xla import rms_norm

__all__ = ["rms_norm"]
