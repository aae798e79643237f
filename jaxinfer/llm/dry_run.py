"""A dry run: the real server, text, scheduler and engine over a runner that makes its tokens up (engine/mock.py).

It reads a model's config.json and tokenizer, and needs neither weights nor a device nor jax. Whether the model could be
served is not checked, and settings of weights and device change nothing.
As a program, `python -m jaxinfer.llm.dry_run FD STEP_S`, it is the engine process of `jaxinfer serve --dry-run`.
"""

import dataclasses
import re
import sys
from concurrent.futures import Future
from functools import partial

from jaxinfer.checkpoint.resolve import needed_parts, resolve
from jaxinfer.config import EngineConfig, Limits
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.mock import MockRunner
from jaxinfer.errors import ConfigError
from jaxinfer.llm import child
from jaxinfer.llm.about import model_info
from jaxinfer.llm.core import Core
from jaxinfer.llm.events import Event, OnEvent
from jaxinfer.llm.text_side import load_tokenizer, new_compiler
from jaxinfer.models.config import HFConfig, raise_faults, token_ids
from jaxinfer.text.rust import panics_unprinted
from jaxinfer.text.tokenizer import Tokenizer

MODULE = "jaxinfer.llm.dry_run"
NOTE = "this is a dry run (--dry-run): no model was loaded, the answers are made up"
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, PAGE_SIZE = 256, 8192, 64  # what the settings leave open, as on a GPU
MAX_POOL_TOKENS = 2**20
_WORD = re.compile(rb" ?[A-Za-z]+")


@dataclasses.dataclass(frozen=True)
class Outline:
    """What a dry run needs of a config.json, which may be of an architecture that no family reads."""

    vocab_size: int
    hidden_size: int
    max_position: int
    eos_token_ids: tuple[int, ...]
    num_params: int = 0


def start_dry_run(config: EngineConfig, on_event: OnEvent, *, step_s: float = 0.0) -> Core:
    """A StartCore. step_s: how long each step takes, as if on a device. Raises CheckpointError or ConfigError."""
    on_event(Event("resolve", f"{config.model}, settings and tokenizer only"))
    checkpoint = resolve(
        config.model,
        revision=config.revision,
        download_dir=config.download_dir,
        needs=needed_parts(dataclasses.replace(config, load_format="dummy")),
        overrides=config.hf_overrides,
    )
    outline = _outline(checkpoint.config)
    limits = _limits(config, outline)
    on_event(Event("plan", "no device", rows=_rows(limits)))
    info = model_info(config, checkpoint, outline)
    info = dataclasses.replace(
        info, max_model_len=limits.max_model_len, fingerprint=f"{info.fingerprint}-dry-run", note=NOTE
    )
    with panics_unprinted():  # the server tries the tokenizer at the same time, and says what is wrong with it
        tokenizer = load_tokenizer(config, checkpoint.folder)
    words = _words(tokenizer, limits.vocab_size)
    runner = MockRunner(limits, words, info.eos_token_ids, step_s, info.hidden_size)
    warming: Future[None] = Future()
    warming.set_result(None)
    on_event(Event("ready"))
    grammars = new_compiler(config, checkpoint.folder, limits.vocab_size, info.eos_token_ids)
    return Core(Engine(runner, limits, grammars), runner, info, limits, checkpoint.folder, warming, grammars)


def _outline(raw: dict[str, object]) -> Outline:
    config = HFConfig(raw)
    vocab_size = config.integer("vocab_size")
    outline = Outline(
        vocab_size,
        config.integer("hidden_size"),
        config.integer("max_position_embeddings"),
        token_ids(config, "eos_token_id", vocab_size),
    )
    raise_faults("a dry run", config.faults)
    return outline


def _limits(config: EngineConfig, outline: Outline) -> Limits:
    """The settings, and where they leave something open what a large device would have."""
    longest = config.max_model_len or outline.max_position
    if longest > outline.max_position:
        raise ConfigError(
            f"max_model_len must be at most what the model can address, {outline.max_position}, got {longest}; lower "
            f"it to {outline.max_position}"
        )
    seqs = config.max_num_seqs or MAX_NUM_SEQS
    size = config.page_size or PAGE_SIZE
    per_seq = -(-longest // size)
    least = seqs if config.enable_chunked_prefill else max(seqs, longest)
    pages = config.num_pages or max(per_seq, min(seqs * per_seq, MAX_POOL_TOKENS // size)) + 1
    return Limits(
        max_model_len=longest,
        max_num_seqs=seqs,
        max_num_batched_tokens=config.max_num_batched_tokens or max(MAX_NUM_BATCHED_TOKENS, least),
        page_size=size,
        num_pages=pages,
        vocab_size=outline.vocab_size,
        decode_buckets=(),
        extend_buckets=(),
        decode_contexts=(),
        num_host_pages=pages if config.enable_prefix_caching and config.kv_offloading_bytes != 0 else 0,
        **config.kept_in_limits(),
    )


def _rows(limits: Limits) -> tuple[tuple[str, str], ...]:
    return (
        ("weights", "none"),
        ("pages", f"{limits.num_pages - 1:,} pages of {limits.page_size}"),
        ("max_model_len", f"{limits.max_model_len:,} tokens"),
        ("max_num_seqs", f"{limits.max_num_seqs} together, {limits.max_num_batched_tokens:,} tokens a step"),
    )


def _words(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """The ids to answer with: plain words where the tokenizer tells, else all that are not special."""
    ids = [i for i in range(min(tokenizer.vocab_size, vocab_size)) if i not in tokenizer.special_ids]
    table = tokenizer.piece_table(skip_special_tokens=True)
    words = [] if table is None else [i for i in ids if _WORD.fullmatch(table[i])]
    return words or ids


if __name__ == "__main__":
    child.main(partial(start_dry_run, step_s=float(sys.argv[2])), has_device=False)
