"""Generated documents as rows of tokens: several documents to a row, each with its own positions, none cut.

Imports no jax: it runs in worker processes.
"""

import dataclasses
import functools
import multiprocessing
import os
import random
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from jaxinfer.demo.corpus.dialogues import conversation, plain_text
from jaxinfer.demo.rendering import AnswerMasks, Renderer

_OPEN_ROWS = 24  # rows a document may still be put into

type Array = Any  # numpy's here; jax's once the rows are on the device


class Rows(NamedTuple):
    """All [R, T]. tokens u16; positions u16, from 0 in each document; documents u16, 0 is padding; written bool."""

    tokens: Array
    positions: Array
    documents: Array
    written: Array


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How many documents of how many turns go into rows of `row_length` tokens; longer ones are left out."""

    row_length: int
    num_documents: int
    turns: tuple[int, ...]
    turn_weights: tuple[float, ...]
    plain_share: float = 0.03
    shard_documents: int = 2_000


def build_rows(recipe: Recipe, tokenizer_json: str, seed: int, num_workers: int | None = None) -> Rows:
    """Generate, tokenize and pack. The result depends on the recipe and the seed, not on the number of workers."""
    num_shards = -(-recipe.num_documents // recipe.shard_documents)
    make = functools.partial(_shard, recipe, tokenizer_json, seed)
    with multiprocessing.get_context("spawn").Pool(num_workers or os.cpu_count()) as pool:
        shards = pool.map(make, range(num_shards), chunksize=1)
    return Rows(*map(np.concatenate, zip(*shards, strict=True)))


def _shard(recipe: Recipe, tokenizer_json: str, seed: int, shard: int) -> Rows:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process per core as it is
    rng = random.Random(f"corpus {seed} {recipe.row_length} {shard}")
    tokenizer = Tokenizer.from_str(tokenizer_json)
    texts, plain = documents(recipe, rng)
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    masks = AnswerMasks(tokenizer)
    written = [
        np.ones(len(ids), bool) if is_plain else masks.written(ids)
        for ids, is_plain in zip(encoded, plain, strict=True)
    ]
    return pack(encoded, written, recipe.row_length)


def documents(recipe: Recipe, rng: random.Random) -> tuple[list[str], list[bool]]:
    """One shard's texts, and which of them are plain ones."""
    renderer = Renderer()
    texts, plain = [], []
    for _ in range(recipe.shard_documents):
        plain.append(rng.random() < recipe.plain_share)
        if plain[-1]:
            texts.append(plain_text(rng) + "<|endoftext|>")
        else:
            num_turns = rng.choices(recipe.turns, recipe.turn_weights)[0]
            texts.append(renderer.document(conversation(rng, num_turns)))
    return texts, plain


def pack(encoded: list[list[int]], written: list[np.ndarray], row_length: int) -> Rows:
    rows: list[list[int]] = []  # indices of the documents in each row
    room: list[int] = []
    for index, ids in enumerate(encoded):
        if len(ids) > row_length:
            continue
        first_open = max(0, len(rows) - _OPEN_ROWS)
        fits = [row for row in range(first_open, len(rows)) if room[row] >= len(ids)]
        if not fits:
            rows.append([])
            room.append(row_length)
            fits = [len(rows) - 1]
        best = min(fits, key=lambda row: room[row])
        rows[best].append(index)
        room[best] -= len(ids)
    shape = (len(rows), row_length)
    packed = Rows(*(np.zeros(shape, dtype) for dtype in (np.uint16, np.uint16, np.uint16, bool)))
    for row, members in enumerate(rows):
        start = 0
        for number, index in enumerate(members, start=1):
            part = slice(start, start + len(encoded[index]))
            packed.tokens[row, part] = encoded[index]
            packed.positions[row, part] = np.arange(len(encoded[index]))
            packed.documents[row, part] = number
            packed.written[row, part] = written[index]
            start = part.stop
    return packed
