"""The host rooms of the engine load on a machine without JAX."""

import subprocess
import sys

import pytest

MODULES = ["jaxinfer.cache.manager", "jaxinfer.engine.invariants", "jaxinfer.engine.engine", "tests.engine.client"]


@pytest.mark.parametrize("module", MODULES)
def test_it_imports_without_jax(module):
    """The last of them is what the scheduler's tests drive an engine with."""
    code = f"import sys; sys.modules.update(jax=None, jaxlib=None, flax=None); import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
