"""Real engines over tiny checkpoints, for the tests of the llm room and everything above it."""

import dataclasses
from concurrent.futures import Future
from pathlib import Path

import jax

from jaxinfer.cache.manager import CacheManager
from jaxinfer.cache.spec import layout_of
from jaxinfer.checkpoint.load import load_params
from jaxinfer.checkpoint.resolve import resolve
from jaxinfer.config import EngineConfig, ExtendBucket, Limits
from jaxinfer.engine.engine import Engine
from jaxinfer.llm.about import model_info
from jaxinfer.llm.core import Core, StartCore
from jaxinfer.llm.events import Event, OnEvent
from jaxinfer.llm.text_side import new_compiler
from jaxinfer.models.config import DType
from jaxinfer.models.registry import family_for
from jaxinfer.runtime import programs
from jaxinfer.runtime.cache import ExecutableCache
from jaxinfer.runtime.runner import DeviceRunner
from tests.support.executables import executables_folder

SMALL = Limits(
    max_model_len=256,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    page_size=16,
    num_pages=129,
    vocab_size=0,
    decode_buckets=(1, 4, 8),
    extend_buckets=(ExtendBucket(16, 8, 8), ExtendBucket(64, 8, 8)),
)
DEMO = {"device": "cpu", "max_num_seqs": 4, "max_num_batched_tokens": 64}
"""Settings of the bundled model, as the docs' commands have them (tests/docs/reader.py): all share its executables."""


def build(
    folder: Path, executables: Path, *, dtype: DType | None = None, **limits: object
) -> tuple[EngineConfig, Core]:
    """An engine over the checkpoint in `folder`, with SMALL limits but for those given.

    executables: a directory that keeps what was compiled for the engines that follow.
    dtype: the file's unless given.
    """
    config = EngineConfig(model=str(folder), device="cpu", compile_cache_dir="")
    checkpoint = resolve(config.model)
    family = family_for(checkpoint.config)
    model = family.config_from_hf(checkpoint.config)
    model = dataclasses.replace(model, dtype=dtype or model.dtype)
    concrete = dataclasses.replace(SMALL, vocab_size=model.vocab_size, **limits)
    device = jax.devices("cpu")[0]
    params = load_params(checkpoint, family.specs(model), model.dtype, device)
    runner = DeviceRunner(model, family, params, concrete, device)
    runner.warm_up(lambda *progress: None, ExecutableCache(executables))
    warming: Future[None] = Future()
    warming.set_result(None)
    info = dataclasses.replace(model_info(config, checkpoint, model), max_model_len=concrete.max_model_len)
    grammars = new_compiler(config, folder, concrete.vocab_size, info.eos_token_ids)
    cache = CacheManager(concrete, layout_of(model.caches(model.dtype), concrete.page_size))
    engine = Engine(runner, concrete, grammars, cache)
    return config, Core(engine, runner, info, concrete, folder, warming, grammars)


def from_cache(runner: DeviceRunner) -> DeviceRunner:
    """A runner that is not warmed up, and finds there what it needs, if others have compiled it."""
    runner._cache = ExecutableCache(executables_folder())
    runner._common = programs.fingerprint(runner._model, runner._device)
    return runner


def small_config(folder: Path, executables: Path) -> EngineConfig:
    """The settings for an engine in a process of its own: 64 pages, so that 8 sequences can be too many."""
    return EngineConfig(
        model=str(folder),
        device="cpu",
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        num_pages=65,
        compile_cache_dir=str(executables),
    )


def built_before(core: Core) -> StartCore:
    """A start that takes no time, for EngineThread."""

    def start(config: EngineConfig, on_event: OnEvent) -> Core:
        on_event(Event("ready", "built before"))
        return core

    return start
