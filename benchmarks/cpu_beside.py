"""How fast does a CPU compute prompts and answers: by our kernels, by XLA alone, and by llama.cpp, in turns in one run?

Random weights in the shape of Qwen3-0.6B, in bfloat16, int8 and int4 beside BF16, Q8_0 and Q4_0. llama.cpp is asked by
llama-cpp-python, in an environment of its own that also has the package gguf (cpu_llama.py). Prints tok/s, the best of
each, beside the rate at which this machine reads memory; and of pairs the median of the rounds' quotients, which other
work on the machine disturbs least.

    PYTHONPATH=.:kernels python benchmarks/shapes.py /tmp/shapes
    PYTHONPATH=.:kernels python benchmarks/cpu_beside.py /tmp/shapes/0.6b [--rounds 5] [--llama /path/to/its/python]
        [--engines xla,bfloat16,int8,int4] [--files FOLDER]
"""

import argparse
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

PROMPTS = 128, 512  # tokens
ANSWERS, ANSWER, BEFORE = (1, 4, 8), 16, 64  # answers at once, tokens of each that are timed, and what they follow
THEIRS = {"bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
NAMES = [*(f"prompt of {count}" for count in PROMPTS), *(f"{rows} at once" for rows in ANSWERS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--llama", help="a Python that has llama_cpp and gguf")
    parser.add_argument("--engines", default="xla,bfloat16,int8,int4", help="xla alone, or by our kernels in each")
    parser.add_argument("--files", type=Path, default=Path(tempfile.gettempdir()) / "cpu_llama", help="llama.cpp's")
    options = parser.parse_args()
    options.files.mkdir(parents=True, exist_ok=True)
    engines: dict[str, Any] = {}
    for name in options.engines.split(","):
        engines[name] = ours(options.model, name)
        if options.llama and name in THEIRS:
            engines[THEIRS[name]] = theirs(options.llama, THEIRS[name], options.files)
    rounds = [{name: ask() for name, ask in engines.items()} for _ in range(options.rounds)]
    print(f"memory, read by NumPy: {memory_rate():.1f} GB/s")
    print(" " * 10 + "".join(f"{what:>16}" for what in NAMES))
    for name in engines:
        rates = (max(one[name][what] for one in rounds) for what in NAMES)
        print(f"{name:10}" + "".join(f"{rate:16.1f}" for rate in rates))
        if (other := THEIRS.get(name)) in engines:
            quotients = ([one[name][what] / one[other][what] for one in rounds] for what in NAMES)
            print(" " * 10 + "".join(f"{median(found):15.2f}x" for found in quotients) + f" {other}")


def memory_rate() -> float:
    import numpy as np

    array, rates = np.ones(2**28, np.float32), []
    for _ in range(5):
        began = time.perf_counter()
        array.sum()
        rates.append(array.nbytes / (time.perf_counter() - began) / 1e9)
    return max(rates)


def ours(model: Path, name: str) -> Any:
    from jaxinfer import LLM, SamplingParams

    how: dict[str, Any] = dict(attention_backend="xla") if name == "xla" else {}
    how |= dict(quantization=name) if name.startswith("int") else {}
    how |= dict(max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=512, enable_prefix_caching=False)
    llm = LLM(str(model), load_format="dummy", dtype="bfloat16", device="cpu", **how)

    def seconds(prompt: int, answer: int, rows: int = 1) -> float:
        params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
        prompts = [[(7 * i + row) % 1000 for i in range(prompt)] for row in range(rows)]
        began = time.perf_counter()
        llm.generate(prompts, params)
        return time.perf_counter() - began

    def ask() -> dict[str, float]:
        rates = [count / seconds(count, 1) for count in PROMPTS]
        for rows in ANSWERS:
            first = seconds(BEFORE, 1, rows)
            rates.append(rows * ANSWER / (seconds(BEFORE, 1 + ANSWER, rows) - first))
        return dict(zip(NAMES, rates, strict=True))

    return ask


def theirs(python: str, kind: str, files: Path) -> Any:
    """A process of its own: it prints a line of figures for each that it reads."""
    command = [python, __file__.replace("cpu_beside", "cpu_llama"), kind, str(files)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None and other.stdout is not None
    given, told = other.stdin, other.stdout
    assert told.readline() == "ready\n", "it could not start"

    def ask() -> dict[str, float]:
        print("go", file=given, flush=True)
        return dict(zip(NAMES, map(float, told.readline().split()), strict=True))

    return ask


if __name__ == "__main__":
    main()
