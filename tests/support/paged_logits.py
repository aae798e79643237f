"""Logits at every position of sequences that the real engine computes together through its paged steps."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxinfer.config import ExtendBucket, Limits
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.sequence import Add, Request
from jaxinfer.models.dense import DenseConfig
from jaxinfer.models.registry import dense
from jaxinfer.runtime import buckets, packing, step
from jaxinfer.runtime.packing import extend_layout
from jaxinfer.runtime.pending import PendingStep
from jaxinfer.runtime.plan import Plan
from jaxinfer.runtime.state import DeviceState, init_state


@dataclasses.dataclass(frozen=True)
class Computed:
    """One sequence as the engine computed it. logits: f32[T, V] after each token but the last. output: what it drew."""

    logits: np.ndarray
    output: list[int]


def compute(
    config: DenseConfig, params: Any, prompts: Sequence[np.ndarray], max_tokens: int, **limits: Any
) -> list[Computed]:
    """Greedy answers to all prompts at once: prompt chunks and decode rows share steps, pages are shared out as usual.

    limits: fields of Limits other than the defaults here (steps of 48 tokens, pages of 16, one step ahead).
    """
    concrete = Limits(
        **{
            "max_model_len": max(map(len, prompts)) + max_tokens,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 48,
            "page_size": 16,
            "num_pages": 97,
            "vocab_size": config.vocab_size,
            "decode_buckets": (4,),
            "extend_buckets": (ExtendBucket(48, 4, 4),),
            **limits,
        }
    )
    runner = LogitsRunner(config, params, concrete)
    engine = Engine(runner, concrete)
    outputs: list[list[int]] = [[] for _ in prompts]
    for i, prompt in enumerate(prompts):
        engine.inbox.put(Add(Request(id=str(i), prompt=tuple(prompt.tolist()), max_tokens=max_tokens)))
    while engine.has_work:
        for output in engine.step():
            assert output.error is None
            outputs[int(output.request_id)] += output.token_ids
    engine.check()
    lengths = [len(prompt) + max_tokens - 1 for prompt in prompts]
    return [Computed(runner.logits(prompt, n), out) for prompt, n, out in zip(prompts, lengths, outputs, strict=True)]


class LogitsRunner:
    """A plan.Runner of the step functions that ship, compiled so that they also give the logits of all their tokens.

    A slot serves one sequence in the runner's whole life: at most max_num_seqs requests are sent.
    """

    def __init__(self, config: DenseConfig, params: Any, limits: Limits) -> None:
        self._config = config
        self._params = params
        self._limits = limits
        dtype = jax.tree.leaves(params)[0].dtype
        self._state = init_state(limits, config, dtype)
        self._step = jax.jit(_step_with_logits, static_argnums=(0, 1), donate_argnums=3)
        self._steps: list[tuple[Plan, jax.Array]] = []

    def run(self, plan: Plan) -> PendingStep:
        if plan.is_decode and all(len(row.new_pages) <= 1 for row in plan.rows):
            bucket = None
            batch = buckets.pick_size(self._limits.decode_buckets, len(plan.rows))
            upload = packing.pack_decode(plan, batch, masked=False)
        else:
            need = ExtendBucket(plan.num_tokens, len(plan.rows), len(plan.rows))
            bucket = buckets.pick_extend(self._limits.extend_buckets, need)
            layout = extend_layout(bucket, self._limits.page_size)
            upload = packing.pack_extend(plan, layout, packing.page_updates(plan.rows), masked=False)
        self._state, tokens, logits = self._step(self._config, bucket, self._params, self._state, upload)
        self._steps.append((plan, logits))
        return PendingStep(tokens, len(plan.rows))

    def zero_pages(self, page_ids: Sequence[int]) -> None:
        raise AssertionError("no row of these models is non-finite")

    def save_pages(self, page_ids: Sequence[int]) -> Sequence[object]:
        raise AssertionError("these limits have no host pages")

    def load_pages(self, page_ids: Sequence[int], contents: Sequence[object]) -> None:
        raise AssertionError("these limits have no host pages")

    def reset(self) -> None:
        raise AssertionError("no step of these fails")

    def logits(self, prompt: np.ndarray, length: int) -> np.ndarray:
        """f32[length, V] of the sequence with this prompt; every position must have been computed exactly once."""
        first = next(
            row
            for plan, _ in self._steps
            for row in plan.rows
            if row.tokens is not None and row.start == 0 and list(row.tokens) == prompt[: row.count].tolist()
        )
        found: dict[int, np.ndarray] = {}
        for plan, logits in self._steps:
            offset, rows = 0, np.asarray(logits)
            for row in plan.rows:
                if row.slot == first.slot:
                    assert not found.keys() & set(range(row.start, row.start + row.count))
                    found |= {row.start + i: rows[offset + i] for i in range(row.count)}
                offset += row.count
        return np.stack([found[position] for position in range(length)])


def _step_with_logits(
    config: DenseConfig, bucket: ExtendBucket | None, params: Any, state: DeviceState, upload: jax.Array
) -> tuple[DeviceState, jax.Array, jax.Array]:
    """A step as it ships, and logits f32[T, V] of all its tokens: the family remembers the trace's hidden states."""
    hidden = []

    def forward(*args: Any) -> Any:
        result = dense.forward(*args)
        hidden.append(result[0])
        return result

    model = step.Model(config, dataclasses.replace(dense, forward=forward))
    run = _decode if bucket is None else functools.partial(_extend, bucket)
    state, tokens = run(model, params, state, upload)
    return state, tokens, dense.unembed(config, params, hidden[0])


def _decode(model: step.Model, *args: Any) -> tuple[DeviceState, jax.Array]:
    return step.decode(model, None, *args)


def _extend(bucket: ExtendBucket, model: step.Model, *args: Any) -> tuple[DeviceState, jax.Array]:
    return step.extend(model, bucket, *args)
