"""From an EngineConfig to a running engine: resolve, plan memory, load, compile; whatever is slow reports progress."""

import dataclasses
import gc
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from jaxinfer.cache.manager import CacheManager
from jaxinfer.checkpoint.dummy import dummy_params
from jaxinfer.checkpoint.load import load_params
from jaxinfer.checkpoint.resolve import Checkpoint, needed_parts, resolve
from jaxinfer.checkpoint.rounding import round_again
from jaxinfer.config import EngineConfig, counted
from jaxinfer.engine.engine import Engine
from jaxinfer.llm.about import model_info
from jaxinfer.llm.core import Core
from jaxinfer.llm.events import Event, OnEvent
from jaxinfer.llm.text_side import new_compiler
from jaxinfer.models.config import ModelConfig
from jaxinfer.models.registry import Family, family_for
from jaxinfer.runtime.backends import Launches, as_computed, as_held
from jaxinfer.runtime.cache import ExecutableCache, open_cache
from jaxinfer.runtime.device import device_for
from jaxinfer.runtime.memory import plan_memory
from jaxinfer.runtime.runner import DeviceRunner
from jaxinfer.runtime.step import Model
from jaxinfer.runtime.timing import fastest_backends
from jaxinfer.runtime.warmup import prepare_kernels


def start_core(config: EngineConfig, on_event: OnEvent, device_for: Callable[[EngineConfig], Any] = device_for) -> Core:
    """Build an engine that can carry any plan; its other sizes go on compiling in a thread (`Core.warming`).

    device_for: as runtime.device's; another waits for one that is under way.
    Raises CheckpointError, ConfigError or DeviceError; whatever is refused is refused before weights are read.
    """
    began = time.perf_counter()
    on_event(Event("resolve", config.model))
    checkpoint = resolve(
        config.model,
        revision=config.revision,
        download_dir=config.download_dir,
        needs=needed_parts(config),
        overrides=config.hf_overrides,
        check_config=lambda raw: family_for(raw).config_from_hf(raw),
        on_progress=lambda detail: on_event(Event("resolve", detail)),
    )
    family = family_for(checkpoint.config)
    model = family.model(checkpoint.config, config.quantization)
    info = model_info(config, checkpoint, model)
    cache = open_cache(config.compile_cache_dir)
    device = device_for(config)
    model = as_computed(config, model, device)
    backends = fastest_backends(config, model, family, device, cache)
    model = as_held(model, backends)
    plan = plan_memory(config, model, family, device, backends)
    on_event(Event("plan", _device_words(device), rows=plan.rows()))
    if cache is not None and plan.backends.launches is Launches.SEQUENCE:
        facts = Model(model, family, plan.backends), plan.limits, config.dtype_for(model.dtype), device, cache
        threading.Thread(target=prepare_kernels, args=facts, name="jaxinfer-kernels", daemon=True).start()
    grammars = new_compiler(config, checkpoint.folder, plan.limits.vocab_size, info.eos_token_ids)
    params = _load(config, checkpoint, family, model, device, on_event)
    runner = DeviceRunner(model, family, params, plan.limits, device, plan.backends)
    warming = _warm_up(runner, cache, on_event, began)
    gpu_bytes = 0 if device.platform == "cpu" else plan.weights + plan.pages + plan.states
    info = dataclasses.replace(info, max_model_len=plan.limits.max_model_len, gpu_bytes=gpu_bytes)
    engine = Engine(runner, plan.limits, grammars, CacheManager(plan.limits, plan.layout))
    return Core(engine, runner, info, plan.limits, checkpoint.folder, warming, grammars)


def _device_words(device: Any) -> str:
    """The device as people call it: JAX's own name of a CPU is TFRT_CPU_0, whichever it is."""
    if device.platform == "cpu":
        return f"{counted(os.cpu_count() or 1, 'CPU')} of this machine"
    return f"{device.device_kind} ({device})"


def _warm_up(runner: DeviceRunner, cache: ExecutableCache | None, on_event: OnEvent, began: float) -> "Future[None]":
    """Compile in a thread; return as soon as any plan can be carried. Raises what the thread raised until then."""
    warming: Future[None] = Future()
    serving = threading.Event()
    num_serving = runner.num_serving
    on_event(Event("compile", "", 0, runner.num_programs, num_serving=num_serving))

    def tell(name: str, done: int, total: int, seconds: float, cached: bool) -> None:
        on_event(Event("compile", name, done, total, seconds, cached=cached, num_serving=num_serving))
        if runner.is_serving and not serving.is_set():
            on_event(Event("serving", seconds=time.perf_counter() - began))
            serving.set()

    def work() -> None:
        try:
            runner.warm_up(tell, cache, lambda name, done, total: on_event(Event("run", name, done, total)))
        except BaseException as error:
            warming.set_exception(error)
        else:
            gc.freeze()  # or the collector would look through all of it in the middle of answers, 0.2 s at a time
            on_event(Event("ready", seconds=time.perf_counter() - began))
            warming.set_result(None)
        serving.set()

    threading.Thread(target=work, name="jaxinfer-warmup", daemon=True).start()
    serving.wait()
    if warming.done():
        warming.result()
    return warming


def _load(
    config: EngineConfig, checkpoint: Checkpoint, family: Family, model: ModelConfig, device: Any, on_event: OnEvent
) -> Any:
    dtype = config.dtype_for(model.dtype)
    spec = family.specs(model)
    if config.load_format == "dummy":
        on_event(Event("load", "random weights"))
        return dummy_params(spec, dtype, config.seed, device)
    published = family.specs(dataclasses.replace(model, quantization=None)) if model.published else spec
    params = load_params(
        checkpoint, published, dtype, device, lambda done, total, s: on_event(Event("load", "", done, total, s))
    )
    return round_again(spec, params, np.dtype(dtype)) if model.published else params
