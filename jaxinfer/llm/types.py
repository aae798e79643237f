"""What AsyncLLM tells its callers: the model it serves, the pieces of an answer, the counters of the engine. No jax."""

import dataclasses

import msgspec

from jaxinfer.engine.histogram import Histogram as Histogram  # callers see it in a Latency
from jaxinfer.engine.stats import Work, add_up
from jaxinfer.protocol.logprobs import TokenLogprob
from jaxinfer.protocol.sampling import GenerationDefaults
from jaxinfer.runtime.plan import DeviceFacts
from jaxinfer.text.grammar.compiler import Compiles
from jaxinfer.text.tools.reader import CallDelta, merged


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """The model as clients need to know it.

    vocab_size: width of the logits; ids below it may be sampled.    hidden_size: numbers of an embedding.
    root: the folder or hub id it came from.
    max_logprobs: the most likely tokens that a request may ask for.
    tool_format: how the model writes tool calls, None if its template takes no tools or their form is unknown.
    has_thinking: whether it writes its thoughts between tags.
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
class Stats:
    """The engine's counters and gauges at one moment. Pages exclude the null page; counters count since the start.

    host_cached_tokens: of the cached ones, those found in host memory.
    held: of the waiting, those that wait for a sibling's prompt.    awaiting_grammar: requests, until theirs is
    compiled.    pages_kept: by sessions, cached or owned; pages_kept_by: by each of them.    host_pages, host_pages_by:
    of sessions, in host memory.    pages_saved, pages_loaded: to there, and back.    masked_tokens: that grammars had a
    say in.    forwarded_tokens: of those, that took no step.    closing_answers: whose tokens closing has narrowed.
    restarts: how often a new engine went on where one had ended.
    """

    running: int = 0
    waiting: int = 0
    held: int = 0
    awaiting_grammar: int = 0
    pages_free: int = 0
    pages_cached: int = 0
    pages_owned: int = 0
    pages_total: int = 0
    pages_kept: int = 0
    pages_kept_by: dict[str, int] = dataclasses.field(default_factory=dict)
    host_pages: int = 0
    host_pages_by: dict[str, int] = dataclasses.field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    host_cached_tokens: int = 0
    generated_tokens: int = 0
    computed_tokens: int = 0
    preemptions: int = 0
    embeddings: int = 0
    pages_saved: int = 0
    pages_loaded: int = 0
    finished: dict[str, int] = dataclasses.field(default_factory=dict)
    compiles_after_ready: int = 0
    nonfinite_rows: int = 0
    failed_steps: int = 0
    recoveries: int = 0
    masked_tokens: int = 0
    forwarded_tokens: int = 0
    closing_answers: int = 0
    steps: int = 0
    restarts: int = 0
    last_step_age_s: float = 0.0
    work: Work = dataclasses.field(default_factory=Work)
    device: DeviceFacts = dataclasses.field(default_factory=DeviceFacts)
    grammars: Compiles = dataclasses.field(default_factory=Compiles)

    def after(self, past: "Stats") -> "Stats":
        """These gauges, and the counters of this engine and of those before it."""
        sums = {name: getattr(past, name) + getattr(self, name) for name in _COUNTERS}
        sums["finished"], sums["work"] = add_up(past.finished, self.finished), past.work.plus(self.work)
        device, grammars = self.device.after(past.device), past.grammars.plus(self.grammars)
        return dataclasses.replace(self, device=device, grammars=grammars, **sums)


_COUNTERS = (
    "prompt_tokens",
    "cached_tokens",
    "host_cached_tokens",
    "generated_tokens",
    "computed_tokens",
    "preemptions",
    "embeddings",
    "pages_saved",
    "pages_loaded",
    "compiles_after_ready",
    "nonfinite_rows",
    "failed_steps",
    "recoveries",
    "masked_tokens",
    "forwarded_tokens",
    "closing_answers",
    "steps",
    "restarts",
)
