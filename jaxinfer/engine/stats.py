"""What the engine counts, and a look at all of it."""

import dataclasses


@dataclasses.dataclass(slots=True)
class Counters:
    """What happened so far. computed_tokens: rows' counts, recomputed and surplus ones included.

    nonfinite_rows: the first of each sequence that had one.    failed_steps: which the device did not carry out.
    recoveries: how often its state was built anew after one.
    """

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    computed_tokens: int = 0
    preemptions: int = 0
    nonfinite_rows: int = 0
    failed_steps: int = 0
    recoveries: int = 0
    finished: dict[str, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0)
    )


@dataclasses.dataclass(frozen=True, slots=True)
class EngineStats:
    """A look at the engine. running, waiting: sequences; waiting includes those held for a sibling's prompt.

    pages_*: of the pool; free + cached + owned = total. The rest are Counters, from the start of this engine.
    """

    running: int
    waiting: int
    pages_free: int
    pages_cached: int
    pages_owned: int
    pages_total: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    computed_tokens: int
    preemptions: int
    nonfinite_rows: int
    failed_steps: int
    recoveries: int
    finished: dict[str, int]
    steps: int
    last_step_age_s: float
