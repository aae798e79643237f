"""What the engine counts, and a look at all of it."""

import dataclasses
from collections.abc import Mapping

from jaxinfer.engine.histogram import Histogram

ROW_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PHASES = ("plan", "dispatch", "masks", "wait", "commit")


@dataclasses.dataclass(slots=True)
class Work:
    """What the steps were made of and where their time went."""

    decode_rows: int = 0  # of all steps
    prompt_rows: int = 0
    rows: Histogram = dataclasses.field(default_factory=lambda: Histogram(ROW_BOUNDS))  # of each step
    tokens: Histogram = dataclasses.field(default_factory=lambda: Histogram(TOKEN_BOUNDS))  # of each step
    phase_s: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))  # plan: inbox too
    busy_s: float = 0.0  # with a step given to the device and not yet read: at least as long as the device has worked

    def add_step(self, num_decode_rows: int, num_prompt_rows: int, num_tokens: int) -> None:
        self.decode_rows += num_decode_rows
        self.prompt_rows += num_prompt_rows
        self.rows.add(num_decode_rows + num_prompt_rows)
        self.tokens.add(num_tokens)

    def plus(self, other: "Work") -> "Work":
        return Work(
            self.decode_rows + other.decode_rows,
            self.prompt_rows + other.prompt_rows,
            self.rows.plus(other.rows),
            self.tokens.plus(other.tokens),
            add_up(self.phase_s, other.phase_s),
            self.busy_s + other.busy_s,
        )


def add_up[T: (int, float)](one: Mapping[str, T], other: Mapping[str, T]) -> dict[str, T]:
    """The sums by name; a name that is missing counts nothing."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


@dataclasses.dataclass(slots=True)
class Counters:
    """What happened so far."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    host_cached_tokens: int = 0  # of the cached ones, found in host memory
    generated_tokens: int = 0
    computed_tokens: int = 0  # rows' counts, recomputed and surplus ones included
    preemptions: int = 0
    embeddings: int = 0  # prompts that became one
    pages_saved: int = 0  # to host memory
    pages_loaded: int = 0  # from host memory
    nonfinite_rows: int = 0  # the first of each sequence that had one
    failed_steps: int = 0  # which the device did not carry out
    recoveries: int = 0  # how often the device's state was built anew after one
    masked_tokens: int = 0  # that grammars had a say in
    forwarded_tokens: int = 0  # of those, that took no step of their own
    closing_answers: int = 0  # whose tokens closing within max_tokens has narrowed
    finished: dict[str, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0)
    )
    work: Work = dataclasses.field(default_factory=Work)

    def copy(self) -> "Counters":
        """One that counts no further."""
        return dataclasses.replace(self, finished=dict(self.finished), work=self.work.plus(Work()))


@dataclasses.dataclass(slots=True)
class EngineStats(Counters):
    """A look at the engine: what it counted since its start, and what is now. Pages are those of the pool, without the
    null page; free + cached + owned = total."""

    running: int = 0  # sequences
    waiting: int = 0  # sequences, those held for a sibling's prompt included
    held: int = 0
    awaiting_grammar: int = 0  # requests whose grammar is being compiled
    pages_free: int = 0
    pages_cached: int = 0
    pages_owned: int = 0
    pages_total: int = 0
    pages_kept: int = 0  # of those cached or owned, the ones that sessions pin
    pages_kept_by: dict[str, int] = dataclasses.field(default_factory=dict)  # by session; a page may have several
    host_pages: int = 0  # in host memory
    host_pages_by: dict[str, int] = dataclasses.field(default_factory=dict)  # likewise
    is_failing: bool = False  # the last steps have all failed, two or more
    last_step_age_s: float = 0.0
