"""What does a decode step cost in each way of sampling, against a greedy one? In process, with greedy beside each.

Random weights and prompts. Each variant of sampling_variants.py answers a batch of prompts, and a greedy batch goes
before each: the medians of their decode steps are compared, and of several rounds the median ratio is printed. Host
time is what the engine's thread does in a step itself, hidden behind the device or not. Writes JSON with --json.

    PYTHONPATH=.:kernels python benchmarks/sampling.py MODEL_FOLDER [--rows 1 64 256] [--rounds 3] [--variants NAME ...]
"""

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from sampling_variants import GREEDY, MIN_TOKENS, NAMES, fields_of

from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.steps import StepLog, Timed
from jaxinfer.config import EngineConfig
from jaxinfer.llm.llm import LLM
from jaxinfer.protocol.sampling import SamplingParams

PROMPT, TOKENS = 128, MIN_TOKENS + 2


def params_of(fields: dict[str, Any]) -> SamplingParams:
    """Request fields of /v1/completions as an LLM takes them; text is made only where stop strings are looked for."""
    rest = dict(max_tokens=TOKENS, ignore_eos=True, detokenize="stop" in fields)
    return SamplingParams(**(fields | rest))


def step_of(llm: LLM, log: StepLog, prompts: Prompts, rows: int, ways: list[SamplingParams]) -> tuple[float, float]:
    """Milliseconds of the median decode step of all rows, and of it the host's own. Row i is sampled as ways[i]."""
    index = len(log.steps)
    each = list(itertools.islice(itertools.cycle(ways), rows))
    llm.generate([{"prompt_token_ids": ids} for ids in prompts.many(rows, PROMPT)], each)
    steps = log.since(index)
    assert steps.host_s is not None, "every batch has decode steps"
    return statistics.median(steps.wall_s) * 1e3, steps.host_s * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variants", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = EngineConfig(
        model=options.model, load_format="dummy", dtype=options.dtype, max_num_seqs=max(options.rows), max_model_len=512
    )
    greedy, found = [params_of(GREEDY)], []
    with Timed.start(config, lambda event: None) as timed:
        print(", ".join(f"{name}: {value}" for name, value in timed.facts), flush=True)
        llm, log = timed.llm(prefix_caching=False)
        prompts = Prompts(llm.info.vocab_size, 0)
        print("| rows | sampling | step ms | of greedy | host us | of greedy |\n|---|---|---|---|---|---|", flush=True)
        for rows, name in itertools.product(options.rows, options.variants):
            ways = [params_of(fields) for fields in fields_of(name)]
            step_of(llm, log, prompts, rows, ways)  # once unseen
            rounds = [
                (*step_of(llm, log, prompts, rows, greedy), *step_of(llm, log, prompts, rows, ways))
                for _ in range(options.rounds)
            ]
            step, host = (statistics.median(each[i] for each in rounds) for i in (2, 3))
            of_step, of_host = (statistics.median(each[i + 2] / each[i] for each in rounds) for i in (0, 1))
            print(f"| {rows} | {name} | {step:.3f} | {of_step:.3f} | {host * 1e3:.0f} | {of_host:.2f} |", flush=True)
            found.append(dict(rows=rows, name=name, step_ms=step, of_greedy=of_step, host_ms=host))
        compiles = timed.core.stats().compiles_after_ready
    print(f"compiles after ready: {compiles}")
    if options.json:
        options.json.write_text(json.dumps(dict(facts=dict(timed.facts), rows=found, compiles=compiles), indent=1))


if __name__ == "__main__":
    main()
