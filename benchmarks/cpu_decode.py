"""How fast does a CPU decode one sequence, and does a larger max_model_len cost anything?

Random weights in the shape of Qwen3-0.6B, bfloat16, batch 1, through the runner that ships. The two lengths take turns
step by step, so that whatever else the machine does falls on both alike. Prints a line per length and their ratio.

    PYTHONPATH=.:kernels python benchmarks/cpu_decode.py [--steps 40] [--layers 28]
"""

import argparse
import dataclasses
import statistics
import time

import jax

from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.config import EngineConfig
from jaxinfer.layers.spec import Rope
from jaxinfer.models.dense import DenseConfig
from jaxinfer.models.registry import dense
from jaxinfer.runtime.memory import plan_for
from jaxinfer.runtime.plan import Plan, Row, Sampling
from jaxinfer.runtime.runner import DeviceRunner

QWEN3_06B = DenseConfig(
    architecture="Qwen3ForCausalLM",
    vocab_size=151936,
    hidden_size=1024,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=3072,
    norm_eps=1e-6,
    rope=Rope(theta=1e6),
    max_position=40960,
    qkv_bias=False,
    qk_norm=True,
    tie_embeddings=True,
    dtype="bfloat16",
)
LENGTHS = (2048, 32768)
PROMPT_TOKENS, NUM_PAGES = 16, 2100


def start(model: DenseConfig, params: object, max_model_len: int) -> DeviceRunner:
    """A runner whose slot 1 holds a prompt of 16 tokens and one decoded: both steps are compiled."""
    settings = EngineConfig(max_model_len=max_model_len, num_pages=NUM_PAGES)
    limits = plan_for(settings, model, dense, platform="cpu", free=64 * 2**30).limits
    runner = DeviceRunner(model, dense, params, limits, jax.devices("cpu")[0])
    pages = [(i, i + 1) for i in range(64)]
    prompt = list(range(100, 100 + PROMPT_TOKENS))
    runner.run(Plan([Row(1, 0, PROMPT_TOKENS, prompt, new_pages=pages, sampling=Sampling())])).wait()
    decode(runner, PROMPT_TOKENS)
    return runner


def decode(runner: DeviceRunner, position: int) -> float:
    """Seconds of one decode step at batch 1."""
    began = time.perf_counter()
    runner.run(Plan([Row(1, position, 1)])).wait()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--layers", type=int, default=QWEN3_06B.num_layers)
    arguments = parser.parse_args()
    model = dataclasses.replace(QWEN3_06B, num_layers=arguments.layers)
    params = dummy_params(dense.parameters(model), model.dtype, 0, jax.devices("cpu")[0])
    runners = [start(model, params, length) for length in LENGTHS]
    seconds: list[list[float]] = [[] for _ in runners]
    for position in range(PROMPT_TOKENS + 1, PROMPT_TOKENS + 1 + arguments.steps):
        for runner, times in zip(runners, seconds, strict=True):
            times.append(decode(runner, position))
    medians = [statistics.median(times) for times in seconds]
    for length, median, times in zip(LENGTHS, medians, seconds, strict=True):
        print(f"max_model_len {length:6d}: {1 / median:5.2f} tok/s median, {1 / min(times):5.2f} best")
    print(f"ratio of the medians: {medians[1] / medians[0]:.3f}")


if __name__ == "__main__":
    main()
