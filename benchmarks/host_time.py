"""What the host's own Python costs: of a decode step, in each way of sampling, of a request that brings it, and of
LLM.generate over many requests. No device, no model.

The real scheduler, packing and text side over a DeviceRunner whose programs are never called: each dispatch hands back
the same tokens at once. Figures are CPU time of the one thread, the least of several tries, to be compared
on a machine that others use too. XLA's call and the transfers are not in them: `jaxinfer profile` shows those.

    PYTHONPATH=.:kernels python benchmarks/host_time.py
"""

import dataclasses
import gc
import time
from array import array
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxinfer.config import EngineConfig, ExtendBucket, Limits
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.scheduler import Step
from jaxinfer.engine.sequence import Add, Output, Request
from jaxinfer.llm.dry_run import start_dry_run
from jaxinfer.llm.events import ignore
from jaxinfer.llm.llm import LLM
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.runtime import buckets
from jaxinfer.runtime.controls import logprob_width
from jaxinfer.runtime.mask_table import MaskTable
from jaxinfer.runtime.packing import pack_slot
from jaxinfer.runtime.pending import PendingStep
from jaxinfer.runtime.plan import Controls, History, Plan, Row, Sampler, Sampling, StepResult
from jaxinfer.runtime.programs import Draw, Key
from jaxinfer.runtime.runner import DeviceRunner

MAX_SEQS, MAX_TOKENS, VOCAB, STEPS, TRIES = 256, 8192, 320, 60, 12
SAMPLED, QWENS_VOCAB, TOP = 64, 151_936, 20
REQUESTS, PROMPT, OUTPUT = 512, 512, 256
LIMITS = Limits(
    max_model_len=16384,
    max_num_seqs=MAX_SEQS,
    max_num_batched_tokens=MAX_TOKENS,
    page_size=64,
    num_pages=MAX_SEQS * 16384 // 64 + 1,
    vocab_size=VOCAB,
    decode_buckets=buckets.decode_buckets(MAX_SEQS),
    extend_buckets=(ExtendBucket(MAX_TOKENS, MAX_SEQS, MAX_SEQS),),
    decode_contexts=(),
)
CONTROLS = {
    "presence penalty": Controls(presence_penalty=1.5),
    "10 biases": Controls(logit_bias=tuple((i, -5.0) for i in range(10))),
    "200 biases": Controls(logit_bias=tuple((i, -5.0) for i in range(200))),
    "300 allowed": Controls(allowed_token_ids=tuple(range(300))),
    "a bad word of three tokens": Controls(bad_words=((11, 12, 13),)),
    "min_tokens": Controls(min_tokens=10_000),
}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "T 0.7": dict(temperature=0.7),
    **{name: dict(temperature=0.7, controls=controls) for name, controls in CONTROLS.items()},
    "5 logprobs": dict(logprobs=5),
}


class Drawn:
    """What every step draws, as if it were on a device."""

    def __init__(self, *width: int) -> None:
        self._tokens = np.full((MAX_SEQS, *width), 7, np.int32)

    def copy_to_host_async(self) -> None:
        """It is there already."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._tokens


class NoDevice(DeviceRunner):
    """A DeviceRunner up to the call of a program. pack_s: CPU seconds in `run`."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._decode_ready = buckets.decode_sizes(limits.decode_buckets, limits.decode_contexts)
        self._extend_ready = limits.extend_buckets
        self._by_token, self._max_read_again, self._has_state = set[ExtendBucket](), 0, False
        self.mask_table = MaskTable(limits.vocab_size, limits.max_num_seqs)
        self._drawn, self._told = Drawn(), Drawn(1 + logprob_width(TOP))
        self._draws_tell_logprobs, self._top_sizes = True, buckets.draw_sizes(limits.max_num_seqs, Sampler.ANY)
        self._draw_sizes = {Sampler.ANY: self._top_sizes}
        self.pack_s = 0.0

    def run(self, plan: Plan) -> PendingStep:
        began_s = time.thread_time()
        pending = self._run(plan)
        self.pack_s += time.thread_time() - began_s
        return pending

    def _again(self, kind: type, upload: np.ndarray) -> np.ndarray:
        return upload

    def _dispatch(self, key: Key, upload: np.ndarray | jax.Array, *contents: Any, masked: bool = False) -> Drawn:
        return self._told if isinstance(key, Draw) else self._drawn


class TimedEngine(Engine):
    """An Engine whose scheduler's calls are timed."""

    def __init__(self, runner: NoDevice, limits: Limits) -> None:
        super().__init__(runner, limits)
        self.plan_s = self.commit_s = 0.0
        plan, commit = self.scheduler.plan, self.scheduler.commit

        def timed_plan() -> Any:
            began_s = time.thread_time()
            found = plan()
            self.plan_s += time.thread_time() - began_s
            return found

        def timed_commit(step: Step, result: StepResult) -> list[Output]:
            began_s = time.thread_time()
            found = commit(step, result)
            self.commit_s += time.thread_time() - began_s
            return found

        self.scheduler.plan, self.scheduler.commit = timed_plan, timed_commit  # type: ignore[method-assign]


def least_us(call: Callable[[], object]) -> float:
    tries = []
    for _ in range(TRIES):
        began_s = time.thread_time()
        for _ in range(STEPS):
            call()
        tries.append((time.thread_time() - began_s) / STEPS)
    return min(tries) * 1e6


def start(engine: Engine, rows: int, way: dict[str, Any] | None = None) -> None:
    """Bring so many sequences to where each decodes."""
    for i in range(rows):
        engine.inbox.put(Add(Request(id=str(i), prompt=array("I", [i + 1] * 33), max_tokens=16000, **way or {})))
    while sum(sequence.decoding for sequence in engine.scheduler.running) < rows:
        engine.step()


def parts_us(rows: int) -> list[float]:
    """Of a step: plan, pack, commit; the least of TRIES."""
    runner = NoDevice(LIMITS)
    engine = TimedEngine(runner, LIMITS)
    start(engine, rows)
    found = []
    for _ in range(TRIES):
        engine.plan_s = engine.commit_s = runner.pack_s = 0.0
        for _ in range(STEPS):
            engine.step()
        found.append((engine.plan_s, runner.pack_s, engine.commit_s))
    return [min(column) / STEPS * 1e6 for column in zip(*found, strict=True)]


def slot_us(controls: Controls | None) -> float:
    """Of what a request with controls brings to its slot, of Qwen's vocabulary."""
    if controls is None:
        return 0.0
    history = History(list(range(PROMPT)), [], frozenset({1, 2}))
    row = Row(1, 0, PROMPT, sampling=Sampling(controls=controls), history=history)
    return least_us(lambda: pack_slot(row, QWENS_VOCAB))


def generate_us(prefix_caching: bool, detokenize: bool, num_tokens: int) -> float:
    """Of one LLM.generate, for each of its requests."""
    config = EngineConfig(model="demo")
    limits = dataclasses.replace(LIMITS, enable_prefix_caching=prefix_caching)
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=detokenize)
    core, random, tries = start_dry_run(config, ignore), np.random.default_rng(0), []
    info = dataclasses.replace(core.info, max_model_len=limits.max_model_len)
    for _ in range(3):
        own = dataclasses.replace(core, engine=Engine(NoDevice(limits), limits), limits=limits, info=info)
        prompts = [{"prompt_token_ids": random.integers(0, VOCAB, PROMPT).tolist()} for _ in range(REQUESTS)]
        llm = LLM.over(config, own)
        began_s = time.thread_time()
        llm.generate(prompts, params)
        tries.append(time.thread_time() - began_s)
    return min(tries) / REQUESTS * 1e6


def main() -> None:
    gc.collect()
    gc.freeze()
    print("| rows of a decode step | us of the host | plan, pack, commit |")
    print("|---|---|---|")
    for rows in (1, 32, 64, 128, 256):
        engine = Engine(NoDevice(LIMITS), LIMITS)
        start(engine, rows)
        whole, parts = least_us(engine.step), ", ".join(f"{us:.0f}" for us in parts_us(rows))
        print(f"| {rows} | {whole:.0f} | {parts} |", flush=True)
    print(f"\n| {SAMPLED} rows sampled so | us of the host | us of a request's slot |\n|---|---|---|")
    for name, way in WAYS.items():
        engine = Engine(NoDevice(LIMITS), LIMITS)
        start(engine, SAMPLED, way)
        print(f"| {name} | {least_us(engine.step):.0f} | {slot_us(way.get('controls')):.0f} |", flush=True)
    print(f"\n| LLM.generate of {REQUESTS} x ({PROMPT}, {OUTPUT}) | us a request, one token | us a token after it |")
    print("|---|---|---|")
    for prefix_caching in (False, True):
        for detokenize in (False, True):
            one, all_of = (generate_us(prefix_caching, detokenize, number) for number in (1, OUTPUT))
            name = f"{'with' if detokenize else 'no'} text, {'with' if prefix_caching else 'no'} prefix cache"
            print(f"| {name} | {one:.0f} | {(all_of - one) / (OUTPUT - 1):.2f} |", flush=True)


if __name__ == "__main__":
    main()
