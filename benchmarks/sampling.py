"""What does a decode step cost in each way of sampling, against a greedy one? In process, with greedy beside each.

Random weights and prompts. Each variant of sampling_variants.py answers a batch of prompts, and a greedy batch goes
before each: the medians of the decode steps of all rows are compared, and their means, and of several rounds the median
ratio is printed. An `LLM` makes the text of 32 tokens at a time in the engine's thread: means have it, medians do not,
and a server makes it in another process. Host time is the mean of what the engine's thread does in a step itself, text
included, hidden behind the device or not. Writes JSON with --json.

    PYTHONPATH=.:kernels python benchmarks/sampling.py MODEL_FOLDER [--rows 1 64 256] [--rounds 3] [--variants NAME ...]
"""

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from sampling_variants import GREEDY, MIN_TOKENS, NAMES, fields_of

from jaxinfer.bench import machine
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


def step_of(llm: LLM, log: StepLog, prompts: Prompts, rows: int, ways: list[SamplingParams]) -> tuple[float, ...]:
    """Milliseconds of decode steps of all rows: the median, the mean, and the mean of the host's own. Row i is sampled
    as ways[i]."""
    index = len(log.steps)
    each = list(itertools.islice(itertools.cycle(ways), rows))
    llm.generate([{"prompt_token_ids": ids} for ids in prompts.many(rows, PROMPT)], each)
    steps = log.since(index, rows)
    assert steps.host_s is not None, "every batch has decode steps of all its rows"
    return statistics.median(steps.wall_s) * 1e3, statistics.fmean(steps.wall_s) * 1e3, steps.host_s * 1e3


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
        print("| rows | sampling | step ms | of greedy | mean ms | of greedy | host us | of greedy |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        for rows, name in itertools.product(options.rows, options.variants):
            ways = [params_of(fields) for fields in fields_of(name)]
            step_of(llm, log, prompts, rows, ways)  # once unseen
            rounds = [
                (*step_of(llm, log, prompts, rows, greedy), *step_of(llm, log, prompts, rows, ways))
                for _ in range(options.rounds)
            ]
            step, mean, host = (statistics.median(each[i] for each in rounds) for i in (3, 4, 5))
            of_step, of_mean, of_host = (statistics.median(each[i + 3] / each[i] for each in rounds) for i in range(3))
            times = f"{step:.3f} | {of_step:.3f} | {mean:.3f} | {of_mean:.3f} | {host * 1e3:.0f} | {of_host:.2f}"
            print(f"| {rows} | {name} | {times} |", flush=True)
            of = dict(of_greedy=of_step, mean_of_greedy=of_mean)
            found.append(dict(rows=rows, name=name, step_ms=step, mean_ms=mean, host_ms=host, **of))
        compiles = timed.core.stats().compiles_after_ready
    print(f"compiles after ready: {compiles}")
    if options.json:
        facts = dict([*machine.facts(), *timed.facts, ("rounds", options.rounds)])
        options.json.write_text(json.dumps(dict(facts=facts, rows=found, compiles=compiles), indent=1))


if __name__ == "__main__":
    main()
