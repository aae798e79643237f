"""What AsyncLLM tells its callers: the model it serves, the pieces of an answer, the counters of the engine. No jax."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

from jaxinfer.engine.histogram import Histogram as Histogram  # callers see it in a Latency
from jaxinfer.engine.stats import Counters, EngineStats, add_up
from jaxinfer.protocol.logprobs import TokenLogprob
from jaxinfer.protocol.sampling import GenerationDefaults
from jaxinfer.runtime.plan import DeviceFacts
from jaxinfer.text.grammar.compiler import Compiles
from jaxinfer.text.tools.reader import CallDelta, merged


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """What a model's files say, for clients that list models.

    family: config.json's model_type.    context_length: tokens it was made for; the server may take fewer.
    dtype: of its numbers, or the method by which they are quantized.
    num_params: as its config makes them; 0 in a dry run.    weight_bytes: of its weights' files.
    digest: SHA-256 of config.json's content and of the files' names and sizes.
    modified_s: when the newest of its files was written, in seconds since 1970.
    """

    family: str = ""
    context_length: int = 0
    num_layers: int = 0
    dtype: str = ""
    num_params: int = 0
    weight_bytes: int = 0
    digest: str = ""
    modified_s: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """The model as clients need to know it.

    vocab_size: width of the logits; ids below it may be sampled.    hidden_size: numbers of an embedding.
    root: the folder or hub id it came from.
    max_logprobs: the most likely tokens that a request may ask for.
    tool_format: how the model writes tool calls, None if its template takes no tools or their form is unknown.
    has_thinking: whether it writes its thoughts between tags.    chat_template: Jinja's source, "" where there is none.
    gpu_bytes: of weights and pages on the GPU, 0 on a CPU.
    note: said on every surface when the model is no real one (the demo, random weights), else "".
    """

    served_names: tuple[str, ...]
    root: str
    max_model_len: int
    vocab_size: int
    hidden_size: int
    eos_token_ids: tuple[int, ...]
    defaults: GenerationDefaults
    fingerprint: str
    created: int
    has_chat_template: bool = False
    is_demo: bool = False
    max_logprobs: int = 20
    tool_format: str | None = None
    has_thinking: bool = False
    note: str = ""
    chat_template: str = ""
    facts: CheckpointFacts = CheckpointFacts()
    gpu_bytes: int = 0


@dataclasses.dataclass(slots=True)
class Timings:
    """Of one choice; moments are by time.monotonic(), and 0 until they have come.

    arrived_s: when its request came.    accepted_s: when that was ready for the engine.    first_s, last_s: when its
    first and its latest token came.    queue_s, prefill_s: how long it waited there and until its first token.
    """

    arrived_s: float
    accepted_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    num_tokens: int = 0
    preemptions: int = 0


class Delta(msgspec.Struct, gc=False):
    """The next piece of one choice. A choice's last delta, and no other, has a finish_reason.

    token_ids: the ids that count, a deciding EOS or stop token included; text: what they add, held-back text excluded.
    finish_reason: None, "stop", "length", "tool_calls", "abort" or "error".
    stop_reason: the stop string or stop token id.
    prompt_tokens, cached_tokens: of the request, on every delta.
    logprobs: one for each of token_ids, if asked for.    prompt_logprobs: one for each token of the prompt, if asked
    for, on the choice's first delta.
    timings: on the choice's last delta, from AsyncLLM alone.
    embedding: if asked for, on the only delta, little-endian f32[D].
    reasoning, calls: what the text holds beside the content, where a Reading was asked for; neither is in `text`.
    thinking_tokens: how many of token_ids are thoughts.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None
    code: str | None = None  # of the error, for programs
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    timings: Timings | None = None
    reasoning: str = ""
    calls: list[CallDelta] | None = None
    thinking_tokens: int = 0
    embedding: bytes | None = None

    def extend(self, later: "Delta") -> None:
        """Append the choice's next delta."""
        if later.calls:
            for call in later.calls:
                call.at += len(self.text)
            self.calls = merged([*(self.calls or ()), *later.calls])
        self.text += later.text
        self.reasoning += later.reasoning
        self.thinking_tokens += later.thinking_tokens
        self.token_ids += later.token_ids
        if later.logprobs is not None:
            self.logprobs = (self.logprobs or []) + later.logprobs
        self.prompt_logprobs = self.prompt_logprobs or later.prompt_logprobs
        self.cached_tokens = later.cached_tokens
        self.finish_reason, self.stop_reason = later.finish_reason, later.stop_reason
        self.error, self.code, self.timings = later.error, later.code, later.timings
        self.embedding = later.embedding


@dataclasses.dataclass(slots=True)
class Stats(EngineStats):
    """An engine's counters and gauges at one moment; counters go on from those of the engines before it.

    restarts: how often a new engine went on where one had ended.
    """

    compiles_after_ready: int = 0
    restarts: int = 0
    device: DeviceFacts = dataclasses.field(default_factory=DeviceFacts)
    grammars: Compiles = dataclasses.field(default_factory=Compiles)

    def after(self, past: "Stats") -> "Stats":
        """These gauges, and the counters of this engine and of those before it."""
        sums = {name: getattr(past, name) + getattr(self, name) for name in _COUNTERS}
        sums["finished"], sums["work"] = add_up(past.finished, self.finished), past.work.plus(self.work)
        device, grammars = self.device.after(past.device), past.grammars.plus(self.grammars)
        return dataclasses.replace(self, device=device, grammars=grammars, **sums)

    def with_others(self, others: Sequence["Stats"]) -> "Stats":
        """Of several engines together: sums, but for the latest step, and they fail if all do."""
        everything = self
        for other in others:
            sums: dict[str, Any] = {name: getattr(everything, name) + getattr(other, name) for name in _GAUGES}
            for name in _GAUGES_BY_NAME:
                sums[name] = add_up(getattr(everything, name), getattr(other, name))
            device = other.device.after(everything.device)
            memory = add_up(everything.device.memory_bytes, other.device.memory_bytes)
            sums["device"] = dataclasses.replace(device, memory_bytes=memory)
            everything = dataclasses.replace(other.after(everything), **sums)
        everything.is_failing = all(one.is_failing for one in (self, *others))
        everything.last_step_age_s = min(one.last_step_age_s for one in (self, *others))
        return everything


# the numbers that only grow
_COUNTERS = (
    *(field.name for field in dataclasses.fields(Counters) if field.name not in ("finished", "work")),
    *("compiles_after_ready", "restarts"),
)
_GAUGES_BY_NAME = ("pages_kept_by", "host_pages_by")
_GAUGES = tuple(
    {field.name for field in dataclasses.fields(EngineStats)}
    - {field.name for field in dataclasses.fields(Counters)}
    - {*_GAUGES_BY_NAME, "is_failing", "last_step_age_s"}
)
