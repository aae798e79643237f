"""Linear layers that every device can run. Versions for one architecture are in sm90_*.py and say what they take."""

from jaxinfer_kernels.linear.xla import gate_up, linear, linear_residual

__all__ = ["gate_up", "linear", "linear_residual"]
