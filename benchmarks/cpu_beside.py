"""How fast does a CPU compute prompts and answers: by our kernels, by XLA alone, and by llama.cpp, in turns in one run?

Random weights in the shape of Qwen3-0.6B, bfloat16. llama.cpp is asked by llama-cpp-python, in an environment of its
own that also has the package gguf (cpu_llama.py). Prints tok/s, the best of each, beside the rate at which this machine
reads memory.

    PYTHONPATH=.:kernels python benchmarks/shapes.py /tmp/shapes
    PYTHONPATH=.:kernels python benchmarks/cpu_beside.py /tmp/shapes/0.6b [--rounds 5] [--llama /path/to/its/python]
"""

import argparse
import subprocess
import time
from pathlib import Path
from typing import Any

PROMPTS, ANSWER, BEFORE = (128, 512), 16, 64  # tokens: of prompts; of the answer that is timed, and what it follows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--llama", help="a Python that has llama_cpp and gguf")
    options = parser.parse_args()
    engines: dict[str, Any] = {name: ours(options.model, name) for name in ("xla", "auto")}
    if options.llama:
        engines["llama.cpp"] = theirs(options.llama)
    best: dict[tuple[str, str], float] = {}
    for _ in range(options.rounds):
        for name, ask in engines.items():
            for what, rate in ask().items():
                best[name, what] = max(best.get((name, what), 0.0), rate)
    print(f"memory, read by NumPy: {memory_rate():.1f} GB/s")
    for (name, what), rate in best.items():
        print(f"{name:10} {what:12} {rate:8.1f} tok/s")


def memory_rate() -> float:
    import numpy as np

    array, rates = np.ones(2**28, np.float32), []
    for _ in range(5):
        began = time.perf_counter()
        array.sum()
        rates.append(array.nbytes / (time.perf_counter() - began) / 1e9)
    return max(rates)


def ours(model: Path, backend: str) -> Any:
    from jaxinfer import LLM, SamplingParams

    sizes = dict(max_model_len=1024, max_num_seqs=4, max_num_batched_tokens=512, enable_prefix_caching=False)
    llm = LLM(str(model), load_format="dummy", dtype="bfloat16", device="cpu", attention_backend=backend, **sizes)

    def seconds(prompt: int, answer: int) -> float:
        params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
        began = time.perf_counter()
        llm.generate([[(7 * i) % 1000 for i in range(prompt)]], params)
        return time.perf_counter() - began

    def ask() -> dict[str, float]:
        found = {f"prompt {count}": count / seconds(count, 1) for count in PROMPTS}
        first = seconds(BEFORE, 1)
        return found | {"answer": ANSWER / (seconds(BEFORE, 1 + ANSWER) - first)}

    return ask


def theirs(python: str) -> Any:
    """A process of its own: it prints a line of figures for each that it reads."""
    command = [python, __file__.replace("cpu_beside", "cpu_llama")]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None and other.stdout is not None
    given, told = other.stdin, other.stdout
    assert told.readline() == "ready\n", "it could not start"

    def ask() -> dict[str, float]:
        print("go", file=given, flush=True)
        names = [*(f"prompt {count}" for count in PROMPTS), "answer"]
        return dict(zip(names, map(float, told.readline().split()), strict=True))

    return ask


if __name__ == "__main__":
    main()
