"""What structured output costs in steps of 128 rows: constrained and free answers of one engine, in turns.

The 1.5B shape with random weights and the made-up vocabulary of closing.py. Free answers get the prompts of the
constrained ones and are as long; rounds go free, constrained, constrained, free.

    PYTHONPATH=.:kernels python benchmarks/structured.py [--rows 128] [--rounds 3] [--tiny]
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from closing import tokenizer_json
from shapes import SHAPES, TINY

from jaxinfer.bench.arrivals import drive
from jaxinfer.bench.http_client import Outcome
from jaxinfer.bench.load import Ask
from jaxinfer.bench.outcomes import first_tokens, gaps, output_rate
from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.steps import StepLog, Timed, TimedEngine
from jaxinfer.bench.suites.toggles import SCHEMA as FORECAST
from jaxinfer.config import EngineConfig
from jaxinfer.engine.sequence import Structure
from jaxinfer.text.grammar.source import Constraint, source_of

PROMPT, MOST, SINGLES = 128, 256, 20
LARGE = 300_000  # bytes of the cold schema
NAME = {"type": "string", "minLength": 3, "maxLength": 24}
ITEM = {"sku": NAME, "quantity": {"type": "integer", "minimum": 1, "maximum": 999}, "is_gift": {"type": "boolean"}}


def record(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


ORDER = record(
    {
        "customer": NAME,
        "email": {"type": "string", "pattern": "^[a-z]{2,12}@[a-z]{2,12}\\.(com|org)$"},
        "status": {"enum": ["open", "paid", "shipped", "returned"]},
        "total_cents": {"type": "integer", "minimum": 0, "maximum": 10_000_000},
        "note": {"anyOf": [{"type": "string", "maxLength": 60}, {"type": "null"}]},
        "items": {"type": "array", "items": record(ITEM), "minItems": 2, "maxItems": 5},
        "address": record({"street": NAME, "city": NAME, "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"}}),
    }
)


def large(seed: int) -> dict[str, Any]:
    """A schema of LARGE bytes whose grammar nobody has seen."""
    fields: dict[str, Any] = {}
    while len(json.dumps(fields)) < LARGE:
        number = len(fields)
        values = {"enum": [f"value_{seed}_{number}_{choice}" for choice in range(8)]}
        fields[f"field_{seed}_{number}"] = record({"name": NAME, "kind": values, "count": {"type": "integer"}})
    return record(fields)


class Bench:
    """A started engine, and sides of it that differ in what Limits say."""

    def __init__(self, timed: Timed, vocab_size: int) -> None:
        self._timed, self._vocab_size = timed, vocab_size
        self._limits = dataclasses.replace(timed.core.limits, enable_prefix_caching=False)
        self.phases = ""  # what the engine's thread did in each step of the last run, mean ms

    def structure(self, schema: dict[str, Any]) -> Structure:
        text = source_of(Constraint("json_schema", json.dumps(schema)), {})
        return Structure(text, frozenset({self._vocab_size - 1}))

    def run(
        self, asks: Sequence[Ask], structures: Sequence[Structure | None], seed: int, *, forwards: bool = False
    ) -> list[Outcome]:
        limits = dataclasses.replace(self._limits, enable_fast_forward=forwards)
        prompts = Prompts(self._vocab_size, (0, seed))
        engine = TimedEngine(self._timed.core, limits, StepLog())
        outcomes = drive(engine, asks, [prompts.one(ask.input_tokens) for ask in asks], structures)
        counters = engine.scheduler.counters
        phases = {name: seconds / counters.steps * 1e3 for name, seconds in counters.work.phase_s.items()}
        self.phases = ", ".join(f"{name} {ms:.2f}" for name, ms in phases.items())
        return outcomes

    def ratios(self, schema: dict[str, Any], rows: int, rounds: int, *, forwards: bool) -> None:
        """Print tokens a second, and how many times those of free answers that are as long."""
        structure, found, phases = self.structure(schema), list[tuple[float, float]](), ""
        asks, lengths = [Ask(0.0, PROMPT, MOST)] * rows, list[int]()
        for seed in range(rounds):
            lengths = [outcome.tokens for outcome in self.run(asks, [structure] * rows, seed, forwards=forwards)]
            alike = [Ask(0.0, PROMPT, length) for length in lengths]
            sides = [(alike, None), (asks, structure)]
            if seed % 2:
                sides.reverse()
            rates = {}
            for wanted, form in sides:
                rates[form is None] = output_rate(self.run(wanted, [form] * rows, seed, forwards=forwards))
                phases = self.phases if form is not None else phases
            found.append((rates[False], rates[True]))
        shares = [formed / free for formed, free in found]
        formed, free = (statistics.median(column) for column in zip(*found, strict=True))
        way, answers = "masks and fast-forward" if forwards else "masks alone", f"{min(lengths)} to {max(lengths)}"
        print(
            f"  {way}: {formed:,.0f} tok/s, free {free:,.0f}: {statistics.median(shares):.3f} times "
            f"({min(shares):.3f} to {max(shares):.3f}), answers of {answers} tokens; ms of a step with masks: {phases}",
            flush=True,
        )

    def first_mask_ms(self, schema: dict[str, Any]) -> tuple[float, float]:
        """To the first token of one request alone, free and with a form that is there: medians."""
        structure = self.structure(schema)
        sides: tuple[list[float], list[float]] = ([], [])
        for seed in range(SINGLES):
            for side, form in zip(sides, (None, structure), strict=True):
                side.append(first_tokens(self.run([Ask(0.0, PROMPT, 2)], [form], seed))[0])
        return statistics.median(sides[0]) * 1e3, statistics.median(sides[1]) * 1e3

    def cold(self, rows: int, schemas: Sequence[dict[str, Any] | None]) -> list[tuple[float, float]]:
        """For each schema, ms to the first token of a request with it that comes among rows - 1 streams, and the
        longest gap of these from just before it came on."""
        asks = [Ask(0.0, PROMPT, 4 * MOST)] * (rows - 1) + [Ask(1.0, PROMPT, 8)]
        found = []
        for seed, schema in enumerate(schemas):
            form = None if schema is None else self.structure(schema)
            *streams, late = self.run(asks, [None] * (rows - 1) + [form], seed)
            for stream in streams:
                stream.times_s = [at_s for at_s in stream.times_s if at_s > late.sent_s - 0.1]
            found.append((first_tokens([late])[0] * 1e3, max(gaps(streams)) * 1e3))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="another shape, to try the script anywhere")
    options = parser.parse_args()
    shape = SHAPES["1.5b"] | (TINY | {"vocab_size": 32_000} if options.tiny else {})
    shape |= {"eos_token_id": shape["vocab_size"] - 1}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(shape))
        Path(folder, "tokenizer.json").write_text(tokenizer_json(shape["vocab_size"]))
        config = EngineConfig(
            model=folder,
            dtype="bfloat16",
            load_format="dummy",
            max_num_seqs=options.rows if options.tiny else 256,
            max_model_len=2048,
        )
        with Timed.start(config, lambda event: None) as timed:
            bench = Bench(timed, shape["vocab_size"])
            for name, schema in (("an order", ORDER), ("a forecast, nearly all of it forced", FORECAST)):
                print(f"{name}: {len(json.dumps(schema))} bytes, {options.rows} rows", flush=True)
                for forwards in (False, True):
                    bench.ratios(schema, options.rows, options.rounds, forwards=forwards)
            free_ms, formed_ms = bench.first_mask_ms(ORDER)
            print(f"one request, first token: free {free_ms:.2f} ms, with a form that is there {formed_ms:.2f} ms")
            new: list[dict[str, Any] | None] = [None, large(1), None, large(2), large(3)]
            for one, (first_ms, gap_ms) in zip(new, bench.cold(options.rows, new), strict=True):
                what = "free" if one is None else f"a new schema of {len(json.dumps(one)) // 1000} kB"
                print(f"{what} among streams: first token {first_ms:.1f} ms, their longest gap {gap_ms:.1f} ms")
            compiled, text = timed.core.grammars, bench.structure(large(4)).text
            assert compiled is not None
            began = time.perf_counter()
            compiled.compile(text).result()
            print(f"compiling one alone: {(time.perf_counter() - began) * 1e3:.1f} ms")
            print("compiles after ready:", timed.core.stats().compiles_after_ready)


if __name__ == "__main__":
    main()
