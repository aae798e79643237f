"""The dense family over meshes of 1, 2 and 4 devices, through `forward`: the tokens and logits of one device.

Each of its traits, and kv heads as many as the devices and fewer (tests/support/mesh.py).
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT, environment


def run(*arguments: object) -> None:
    command = [sys.executable, "-m", "tests.support.mesh", *map(str, arguments)]
    settings = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_NUMPY_DTYPE_PROMOTION": "strict"}
    ran = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment(**settings), timeout=280, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_four_devices_that_share_two_kv_heads_compute_the_logits_of_one(tmp_path: Path) -> None:
    run(tmp_path, "qwen2", 2, "quick")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kv_heads"), [("qwen2", 1), ("qwen3", 2), ("llama", 4)])
def test_tokens_and_logits_of_loaded_and_random_weights_are_those_of_one_device(
    family: str, kv_heads: int, tmp_path: Path
) -> None:
    run(tmp_path, family, kv_heads)
