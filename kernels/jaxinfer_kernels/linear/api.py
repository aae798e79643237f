"""Linear layers that every device can run. Versions for one architecture are in sm90_*.py and say what they take."""

from jaxinfer_kernels.linear.xla import linear, linear_residual, norm_gate_up, norm_linear

__all__ = ["linear", "linear_residual", "norm_gate_up", "norm_linear"]
