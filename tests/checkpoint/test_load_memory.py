"""Loading takes a few chunks of host memory beyond the parameters themselves, however large the model."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkpoints import model_config, tensor_shapes, write_checkpoint, write_raw_safetensors

REPOSITORY = Path(__file__).parents[2]
MIB = 2**20

# On the CPU the parameters are host memory too, so what counts is the peak beyond them.
SCRIPT = """
import sys
from pathlib import Path
import jax
import jax.numpy as jnp
from jaxinfer.checkpoint.load import load_params
from jaxinfer.checkpoint.resolve import resolve
from tests.support.loading import specs_of

def memory(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))

folder, chunk_bytes = sys.argv[1], int(sys.argv[2])
checkpoint = resolve(folder)
specs = specs_of(checkpoint)
jnp.zeros(1).block_until_ready()
idle = memory("VmRSS:")
params = load_params(checkpoint, specs, "bfloat16", jax.devices()[0], chunk_bytes=chunk_bytes)
params_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
print(params_bytes, memory("VmHWM:") - idle - params_bytes)
"""


def write_large_checkpoint(folder: Path, **overrides: object) -> None:
    """A folder whose weights are zeros that take no disk: the file is one hole."""
    write_checkpoint(folder)
    config = model_config("qwen3", weights_dtype="bfloat16", **overrides)
    (folder / "config.json").write_text(json.dumps(config))
    header, offset = {}, 0
    for name, shape in tensor_shapes(config).items():
        num_bytes = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + num_bytes]}
        offset += num_bytes
    path = folder / "model.safetensors"
    write_raw_safetensors(path, header, [])
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + offset)


def peak_beyond_params(folder: Path, chunk_bytes: int) -> tuple[int, int]:
    """(bytes of the parameters, peak bytes of the process beyond them and what it took before)."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(chunk_bytes)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'kernels'}", "JAX_PLATFORMS": "cpu"},
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    params_bytes, peak = map(int, result.stdout.split())
    return params_bytes, peak


@pytest.mark.slow
def test_small_chunks_keep_the_peak_far_below_the_model(tmp_path: Path) -> None:
    write_large_checkpoint(tmp_path, hidden_size=1024, intermediate_size=4096, num_hidden_layers=20, vocab_size=60_000)
    params_bytes, peak = peak_beyond_params(tmp_path, 2 * MIB)
    assert params_bytes > 600 * MIB
    assert peak < 200 * MIB  # measured: 30 to 70; a second copy of the model would be 600


@pytest.mark.slow
def test_a_model_larger_than_two_gib_loads_within_two_gib_beyond_it(tmp_path: Path) -> None:
    # Its embedding alone takes 1.2 GiB: no single tensor may be held whole either.
    write_large_checkpoint(tmp_path, hidden_size=4096, intermediate_size=8192, num_hidden_layers=6, vocab_size=160_000)
    params_bytes, peak = peak_beyond_params(tmp_path, 64 * MIB)
    assert params_bytes > 2 * 2**30
    assert peak < 2**30
