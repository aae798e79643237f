"""The host rooms of the engine load on a machine without JAX."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["pages", "sequence", "scheduler", "isolation", "invariants", "engine"])
def test_it_imports_without_jax(module):
    code = f"import sys; sys.modules.update(jax=None, jaxlib=None, flax=None); import jaxinfer.engine.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
