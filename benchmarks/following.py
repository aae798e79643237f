"""What schemas cost the engine's thread, of a step of 128 rows: finding masks, and following what was drawn. No device.

The vocabulary of closing.py, the schemas of structured.py. All rows draw uniformly from what their masks leave, in up
to 256 tokens, again and again with one table of masks: the first round knows nothing, later ones what was met before.

    PYTHONPATH=.:kernels python benchmarks/following.py [ROUNDS]
"""

import json
import os
import statistics
import sys

from closing import END, VOCAB, run, tokenizer
from structured import ORDER

from jaxinfer.bench.suites.toggles import SCHEMA as FORECAST
from jaxinfer.runtime.mask_table import MaskTable
from jaxinfer.text.grammar.compiler import Compiler
from jaxinfer.text.grammar.source import Constraint, source_of

ROWS, MOST, ROUNDS = 128, 256, 6


def main() -> None:
    compiler = Compiler(tokenizer, VOCAB, [END])
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; mean ms of a step, by the clock")
    for name, schema in (("an order", ORDER), ("a forecast", FORECAST)):
        grammar = compiler.compile(source_of(Constraint("json_schema", json.dumps(schema)), {})).result()
        table = MaskTable(VOCAB, ROWS)
        for seed in range(int(sys.argv[1]) if sys.argv[1:] else ROUNDS):
            _, steps = run(grammar, compiler, ROWS, closes=False, max_tokens=MOST, table=table, seed=seed)
            found, followed = (1e3 * statistics.mean(row[i] for row in steps) for i in (0, 2))
            figures = f"masks {found:.2f}, following {followed:.2f} ({len(steps)} steps)"
            print(f"{name}, round {seed + 1}: {figures}", flush=True)
    compiler.close()


if __name__ == "__main__":
    main()
