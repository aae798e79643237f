"""Settings shared by all tests: no implicit dtype promotion, and two CPU devices' worth of honesty about warnings."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
