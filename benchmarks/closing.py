"""What closing within max_tokens costs the engine's thread, of a step of many rows that all close. No device, no model.

A made-up vocabulary of 152,000 tokens: bytes, JSON's signs, words of letters. All rows draw uniformly from what their
masks leave, in 60 tokens, three times over: without closing, closing on the engine's thread, closing in the grammars'
threads. Figures are of one step: the thread's time by the clock and its processor time, medians over the steps.

    PYTHONPATH=.:kernels python benchmarks/closing.py 1 16 64
"""

import functools
import itertools
import json
import os
import random
import statistics
import string
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np

from jaxinfer.engine.sequence import Request, Structure
from jaxinfer.engine.stats import Counters
from jaxinfer.engine.structured import Grammar, Structured, masks_of
from jaxinfer.runtime.mask_table import MaskTable
from jaxinfer.text.grammar.compiler import Compiler
from jaxinfer.text.grammar.source import Constraint, source_of
from jaxinfer.text.tokenizer import Tokenizer

VOCAB, MAX_TOKENS, TRIES = 152_000, 60, 2
END = VOCAB - 1
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMS = {
    "an object of a string and an integer": Constraint("json_schema", json.dumps(PERSON)),
    "[a-z]{1,300}(xx|yz)": Constraint("regex", "[a-z]{1,300}(xx|yz)"),
    "a UUID's regex": Constraint("regex", "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
}


class InPlace:
    """The same grammars, with nothing done in a thread of theirs."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler

    def compile(self, text: str, *, closes: bool = False) -> "Future[Grammar]":
        return self._compiler.compile(text, closes=closes)

    def fill(self, grammars: Sequence[Grammar], masks: np.ndarray) -> None:
        self._compiler.fill(grammars, masks)

    def spread[T, R](self, call: Callable[[list[T]], R], items: list[T]) -> "list[Future[R]]":
        future: Future[R] = Future()
        future.set_result(call(items))
        return [future]


def tokenizer_json(vocab_size: int = VOCAB) -> str:
    """tokenizer.json of a byte-level BPE that finds each token whole; its last one ends answers."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    texts = [letters[byte] for byte in range(256)]
    texts += ["".join(signs) for n in (2, 3) for signs in itertools.product('{}[]":,', repeat=n)]
    draw = random.Random(7)
    words = dict.fromkeys(texts)
    while len(words) < vocab_size - 1:
        word = "".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 9)))
        words[draw.choice(["", letters[32]]) + word] = None
    vocab = {text: i for i, text in enumerate([*words, "<end>"])}
    end = {"id": vocab_size - 1, "content": "<end>", "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "ignore_merges": True, "vocab": vocab, "merges": []}
    parts = {"added_tokens": [end | flags], "pre_tokenizer": level, "decoder": level, "model": model}
    return json.dumps({"version": "1.0", **parts})


def tokenizer() -> Tokenizer:
    """The same, read."""
    return Tokenizer(tokenizer_json().encode())


def run(
    grammar: Grammar,
    grammars: Any,
    num_rows: int,
    *,
    closes: bool,
    max_tokens: int = MAX_TOKENS,
    drawn: list[list[int]] | None = None,
    table: MaskTable | None = None,
    seed: int = 0,
) -> Any:
    """Draw, or follow what was drawn. Returns the tokens, and each step's seconds by the clock and of the processor, of
    finding masks and of following tokens."""
    table = table or MaskTable(VOCAB, num_rows)
    structure = Structure("", frozenset({END}), closes=closes)
    request = Request("a", array("I", [5]), max_tokens, structure=structure)
    rows = [Structured(grammar.copy(), request, VOCAB, max_tokens) for _ in range(num_rows)]
    draws = [random.Random(seed * num_rows + i) for i in range(num_rows)]
    tokens: list[list[int]] = [[] for _ in rows]
    took = []
    for step in range(max_tokens):
        live = [i for i in range(num_rows) if END not in tokens[i]]
        sequences = [SimpleNamespace(structured=rows[i], has_ended=False, tokens=[5, *tokens[i]]) for i in live]
        planned: Any = SimpleNamespace(
            sequences=sequences, plan=SimpleNamespace(rows=[SimpleNamespace(masked=True)] * len(live))
        )
        if not live:
            break
        began = time.perf_counter(), time.thread_time()
        masks, failed = masks_of(planned, grammars, table, Counters())
        found = time.perf_counter() - began[0], time.thread_time() - began[1]
        assert not failed
        for i, row in zip(live, masks.rows.tolist(), strict=True):
            tokens[i].append(drawn[i][step] if drawn else draws[i].choice(allowed(table.words[row].tobytes())))
        began = time.perf_counter(), time.thread_time()
        for i in live:
            rows[i].follow(tokens[i][-1])
        followed = time.perf_counter() - began[0], time.thread_time() - began[1]
        if len(live) == num_rows:
            took.append([*found, *followed])
    return tokens, took


@functools.lru_cache(500)
def allowed(mask: bytes) -> Sequence[int]:
    """The tokens that a mask's bits leave."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[:VOCAB]).tolist()


def main() -> None:
    compiler = Compiler(tokenizer, VOCAB, [END])
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; ms of a step, clock / processor")
    for name, form in FORMS.items():
        grammar = compiler.compile(source_of(form, {}), closes=True).result()
        for num_rows in map(int, sys.argv[1:] or ("1", "16", "64")):
            found: dict[str, list[list[float]]] = {"no closing": [], "in place": [], "in threads": []}
            for _ in range(TRIES):  # in turn, for whoever else uses the machine
                drawn, in_place = run(grammar, InPlace(compiler), num_rows, closes=True)
                same, in_threads = run(grammar, compiler, num_rows, closes=True)
                assert drawn == same
                _, free = run(grammar, compiler, num_rows, closes=False, drawn=drawn)
                for way, steps in zip(found, (free, in_place, in_threads), strict=True):
                    found[way] += steps
            figures = "; ".join(f"{way} {figures_of(steps)}" for way, steps in found.items())
            print(f"{name}, {num_rows} rows: {figures}")
    compiler.close()


def figures_of(steps: list[list[float]]) -> str:
    clock, processor = (sorted(1e3 * (row[i] + row[i + 2]) for row in steps) for i in range(2))
    p90 = clock[int(0.9 * len(clock))]
    return f"{statistics.median(clock):.1f} (p90 {p90:.1f}) / {statistics.median(processor):.1f}"


if __name__ == "__main__":
    main()
