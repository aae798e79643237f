"""The dense family over meshes of 1, 2 and 4 devices, through `forward`: the tokens and logits of one device.

Each of its traits, and kv heads as many as the devices and fewer (tests/support/mesh.py).
"""

from pathlib import Path

import pytest

from tests.support.processes import run_on_four_devices

PROGRAM = "-m", "tests.support.mesh"


def test_four_devices_that_share_two_kv_heads_compute_the_logits_of_one(tmp_path: Path) -> None:
    run_on_four_devices(*PROGRAM, tmp_path, "qwen2", 2, "quick")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kv_heads"), [("qwen2", 1), ("qwen3", 2), ("llama", 4)])
def test_tokens_and_logits_of_loaded_and_random_weights_are_those_of_one_device(
    family: str, kv_heads: int, tmp_path: Path
) -> None:
    run_on_four_devices(*PROGRAM, tmp_path, family, kv_heads)
