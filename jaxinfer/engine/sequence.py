"""What the engine is asked for (Request and the inbox messages), what it computes (Sequence), what it says (Output)."""

import dataclasses
import enum
import time
from array import array
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, Literal

import msgspec
import numpy as np

from jaxinfer.cache.manager import SequenceCache
from jaxinfer.cache.prefix import root_key
from jaxinfer.config import Limits
from jaxinfer.engine.logprobs import TokenLogprobs
from jaxinfer.engine.structured import Structured
from jaxinfer.engine.watch import Watch
from jaxinfer.runtime.plan import Controls, Sampler, Sampling
from jaxinfer.text.grammar.compiler import Grammar
from jaxinfer.text.thinking import MAX_LEAD, Start, Thoughts
from jaxinfer.text.tools.opening import Opening

# A sequence with stop strings may be this many tokens ahead of the text state that looks for them: enough to hide the
# way there and back through two busy interpreters, little enough to throw away.
MAX_TEXT_LAG = 16
Pooling = Literal["last", "mean"]


@dataclasses.dataclass(frozen=True, slots=True)
class ThoughtLimit:
    """At most so many tokens of thoughts, then close_id follows, whatever the model would draw."""

    open_id: int  # begins thoughts
    close_id: int
    budget: int  # tokens, at least 0
    is_open: bool  # the prompt has begun them


@dataclasses.dataclass(frozen=True, slots=True)
class Structure:
    """The answer is one of a grammar. Where open_id and close_id are None, there are no thoughts."""

    text: str  # as llguidance reads it
    end_ids: frozenset[int]  # the model's ends, also where they are otherwise ignored: they end a complete grammar
    open_id: int | None = None  # begins thoughts; None: the prompt has. An answer held from its start may begin so
    close_id: int | None = None  # ends thoughts: the grammar begins after it
    closes: bool = False  # as max_tokens nears, the answer is led to its grammar's end
    after: int | Opening | None = None  # token or text after which the grammar begins, but not among thoughts
    strict: bool = False  # with `after`: an answer that cannot be held to the grammar fails

    @property
    def may_be_left(self) -> bool:
        """Whether nobody has asked for it."""
        return self.after is not None and not self.strict

    def thoughts(self) -> Thoughts:
        """Those of an answer, at its beginning."""
        start: Start = "answering" if self.close_id is None else "thinking" if self.open_id is None else "either"
        return Thoughts(start, self.open_id, self.close_id, 1 if self.after is None else MAX_LEAD)


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how to continue it, `n` times. Every value is concrete and in range (protocol/validate.py)."""

    id: str  # unique among unfinished requests
    prompt: array[int]  # u32[n]
    max_tokens: int  # of each answer; it also ends where the context is full
    n: int = 1
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    eos_token_ids: frozenset[int] = frozenset()  # empty when EOS is to be ignored
    stop_token_ids: frozenset[int] = frozenset()
    priority: int = 0  # a lower number runs sooner
    salt: str = ""  # requests with different salts share no cached pages
    bulk: bool = False  # nobody reads the answer before it is whole: it may pause while prompts fill steps
    session: bool = False  # a turn of one: its pages are worth saving where others take their place
    text_lag: bool = False  # has stop strings: it waits for Acknowledge rather than run MAX_TEXT_LAG tokens ahead
    controls: Controls | None = None
    logprobs: int | None = None  # how many of the most likely tokens come with each of the answer's
    prompt_logprobs: int | None = None  # the same of the prompt's
    thoughts: ThoughtLimit | None = None  # not with logprobs: a forced token has none
    structure: Structure | None = None
    pooling: Pooling | None = None  # no tokens but an embedding: of the prompt's last hidden state, or of their mean


class Times(msgspec.Struct, gc=False, array_like=True):
    """Of one choice in this engine."""

    queued_s: float  # until it was first admitted
    prefill_s: float  # from there to its first token
    preemptions: int  # since


class Output(msgspec.Struct, gc=False, array_like=True, omit_defaults=True):
    """News of one choice of one request."""

    request_id: str
    index: int
    token_ids: list[int]  # newly committed; an EOS or stop token that ended the choice is the last of them
    finish_reason: str | None = None  # "stop", "length", "abort" or "error" on the choice's last Output
    stop_reason: int | None = None  # the id of `stop_token_ids` that ended it
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    error: str | None = None  # why, when finish_reason is "error"
    code: str | None = None  # the same for programs: "non_finite", "step_failed", or what InvalidRequest says
    logprobs: list[TokenLogprobs] | None = None  # of token_ids, if asked for
    prompt_logprobs: list[TokenLogprobs] | None = None  # of the prompt but its first token, once for each request
    times: Times | None = None  # with the first tokens, with the first after a preemption, with an embedding
    embedding: bytes | None = None  # little-endian f32[D], on the last Output


@dataclasses.dataclass(frozen=True, slots=True)
class Add:
    """Start a request, or resume one that another engine began.

    outputs: to resume, what each choice has had of its output so far, all of it seen by its text state; None is a
      choice that has ended. The others go on as if nothing had happened, and their Outputs carry new tokens only.
    One that cannot be served is answered by Outputs with finish_reason "error".
    """

    request: Request
    outputs: tuple[tuple[int, ...] | None, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Abort:
    """End a request now; each unfinished choice gets an Output with finish_reason "abort". Unknown ids are ignored."""

    request_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Acknowledge:
    """The text states of some choices have come on. seen: (request id, index, the first so many output tokens)."""

    seen: list[tuple[str, int, int]]


@dataclasses.dataclass(frozen=True, slots=True)
class StopStringFound:
    """The text state found a stop string. No Output answers it: who sent it knows."""

    request_id: str
    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class Keep:
    """A session keeps the full pages of these tokens that are found, instead of what it kept; no tokens, no pages.

    They are reused only where no other page is left that nobody owns, and then their content goes to the host.
    """

    session: str
    salt: str
    tokens: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Forget:
    """A session has ended: its pages are free at once, on the host too, but for those that others use or keep."""

    session: str


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """Run `function` on the engine's thread, between two steps, and put what it returns or raises into `future`."""

    function: Callable[[], Any]
    future: "Future[Any]"


@dataclasses.dataclass(frozen=True, slots=True)
class Compiled:
    """A request's grammar is there, or can never be: from the threads that compile them."""

    request_id: str
    grammar: "Future[Grammar]"


Message = Add | Abort | Acknowledge | StopStringFound | Keep | Forget | Call | Compiled


class State(enum.Enum):
    """Where a sequence stands.

    HELD: waits until its first sibling's prompt pages are published.    WAITING: for a slot and pages.
    RUNNING: owns both.    ENDED: owns nothing; rows of it still in flight are dropped at commit.
    """

    HELD = enum.auto()
    WAITING = enum.auto()
    RUNNING = enum.auto()
    ENDED = enum.auto()


@dataclasses.dataclass(slots=True, eq=False)
class Sequence:
    """One stream of tokens that the engine computes.

    While it decodes, dispatched + 1 - len(tokens) sampled tokens are in flight.
    """

    request: Request
    index: int
    rank: tuple[int, int, int]  # seniority, unique: lower is sooner in, later preempted
    tokens: list[int]  # the prompt and the committed output
    num_prompt: int  # tokens that were given
    max_length: int  # len(tokens) at which it ends for length
    end_ids: frozenset[int]  # tokens that end it
    cache: SequenceCache  # its pages and what else it has of the cache
    state: State = State.WAITING
    slot: int = 0
    dispatched: int = 0  # positions given to the device
    decoding: bool = False  # its last row sampled: the device holds its next token and position
    held: list["Sequence"] = dataclasses.field(default_factory=list)  # siblings that wait for its prompt
    acknowledged: int = 0
    cached_tokens: int = -1  # until it is first admitted
    preemptions: int = 0
    added_s: float = dataclasses.field(default_factory=time.monotonic)
    admitted_s: float = 0.0
    times: Times | None = None  # as they were last put out
    sampler: Sampler = Sampler.LARGEST
    is_plain: bool = True  # its rows need nothing else, but for a mask
    may_end_at: int | None = None  # len(tokens) at which min_tokens is reached
    is_pooled: bool = False  # it draws no token and ends with its prompt, as an embedding
    may_wait: bool = False  # whether must_wait can ever hold
    num_to_score: int = 0  # prompt tokens whose logprobs are still to be put out
    scores: list[TokenLogprobs] = dataclasses.field(default_factory=list)  # those that are known
    thoughts: Thoughts | None = None  # where they are limited
    close_at: int | None = None  # len(tokens) at which thoughts are closed; None when none are open
    pooled: np.ndarray | None = None  # f32[D], the sum of what its rows have pooled
    structured: Structured | None = None  # its grammar's state
    forced: list[int] = dataclasses.field(default_factory=list)  # known tokens, the first in flight; until committed
    grammar: Grammar | None = None  # compiled, for a structure that has not begun
    num_stale: int = 0  # rows in flight whose tokens it does not take
    is_held: bool = False  # its structure says what may be drawn
    watch: Watch | None = None  # looks for where its grammar begins
    opens: Collection[int] = ()  # tokens after which it may begin

    def __post_init__(self) -> None:
        structure = self.request.structure
        self.hold(structure is not None and structure.after is None)
        self.is_pooled = self.request.pooling is not None
        self.may_wait = self.request.text_lag or self.request.thoughts is not None
        if (limit := self.request.thoughts) is not None:
            lead = MAX_LEAD if structure is None or structure.after is not None else 1
            self.thoughts = Thoughts("thinking" if limit.is_open else "either", limit.open_id, limit.close_id, lead)
            self.close_at = self.num_prompt + limit.budget if limit.is_open else None
        for length in range(self.num_prompt + 1, len(self.tokens) + 1):
            self.follow_thoughts(self.tokens[length - 1], length)

    def hold(self, is_held: bool) -> None:
        """Whether its structure says from now on what may be drawn."""
        structure = self.request.structure
        self.is_held = is_held
        if structure is not None and is_held:
            self.end_ids |= structure.end_ids
        self.settle_controls()

    def settle_controls(self) -> None:
        """Take the sampler that its controls need from now on, and see how long they stay the same."""
        request, controls = self.request, self.controls
        changes = controls is not None and bool(controls.min_tokens or controls.bans_by_context)
        draws_plainly = not changes and request.logprobs is None  # what does not change, its slot knows
        self.is_plain = draws_plainly and request.pooling is None and request.prompt_logprobs is None
        self.sampler = self.sampling.sampler
        self.may_end_at = None
        if controls is not None and controls.min_tokens:
            self.may_end_at = self.num_prompt + controls.min_tokens

    @property
    def controls(self) -> Controls | None:
        """Those of the request that can still change what is drawn. min_tokens cannot once there are so many, where no
        token ends the sequence, and where masks say what may end it."""
        controls = self.request.controls
        if controls is None:
            return None
        is_short = len(self.tokens) < self.num_prompt + controls.min_tokens
        if controls.min_tokens and (self.is_held or not self.end_ids or not is_short):
            controls = dataclasses.replace(controls, min_tokens=0)
        return None if controls == Controls() else controls

    def new_times(self) -> Times | None:
        """What is to be put out with what a row of known tokens has just brought; None: nothing has changed."""
        if self.times is None:
            prefill_s = time.monotonic() - self.admitted_s
            self.times = Times(self.admitted_s - self.added_s, prefill_s, self.preemptions)
        elif self.times.preemptions != self.preemptions:
            self.times = Times(self.times.queued_s, self.times.prefill_s, self.preemptions)
        else:
            return None
        return self.times

    @property
    def sampling(self) -> Sampling:
        r = self.request
        bounds, has_logprobs = (r.temperature, r.top_k, r.top_p, r.min_p), r.logprobs is not None
        return Sampling(*bounds, r.seed, self.index, self.controls, has_logprobs, self.is_held)

    @property
    def known(self) -> list[int]:
        """The tokens that it has, or is certain to have once its row in flight is committed."""
        return self.tokens + self.forced if self.forced else self.tokens

    @property
    def has_ended(self) -> bool:
        return self.state is State.ENDED

    @property
    def will_decode(self) -> bool:
        """Whether it goes on after its next token."""
        return not self.is_pooled and len(self.tokens) + 1 < self.max_length

    @property
    def may_not_start(self) -> bool:
        """Whether a waiting sequence must see its grammar, or more of its text, first."""
        is_compiled = self.grammar is not None or self.structured is not None
        return (self.request.structure is not None and not is_compiled) or self.must_wait_for_text

    def append(self, token: int, *, is_forced: bool = False) -> None:
        """A token has been committed. is_forced: its grammar has said that it must come."""
        self.tokens.append(token)
        if self.structured is not None:
            self.structured.follow(token, is_forced=is_forced)

    def stop_decoding(self) -> None:
        """Its next row computes tokens that the device has not drawn."""
        self.decoding = False
        if self.request.controls is not None and self.request.controls.penalize:
            self.cache.num_sent = 0  # its slot is written anew: the device counted what it drew, penalties count these

    def begin_grammar(self, grammar: Grammar, vocab_size: int) -> None:
        """It is compiled; follow it to where the sequence is, if it has begun by then."""
        self.grammar, structure = grammar, self.request.structure
        assert structure is not None, "a grammar comes with a request for one"
        start = self.num_prompt
        if structure.after is not None:
            self.watch = self.watch or Watch(structure, grammar, start)
            found = self.watch.look(self.tokens)
            self.opens = self.watch.worth_a_look if found is None else ()
            if found is None:
                return
            start, head = found
            grammar.accept_text(head)
            self.hold(True)
        self.structured = Structured(grammar, self.request, vocab_size, self.max_length - start)
        for token in self.tokens[start:]:
            self.structured.follow(token)

    def begin_late(self, vocab_size: int) -> None:
        """A token after which its grammar may begin has been committed: if it does, hold the answer to it from here on.

        Until then nothing masked the answer. A row in flight has sampled without a mask: its token is dropped, and the
        row computed again.
        """
        assert self.grammar is not None, "a grammar begins late only if there is one"
        self.begin_grammar(self.grammar, vocab_size)
        if not self.is_held:
            return
        if self.decoding:
            self.num_stale = self.dispatched + 1 - len(self.tokens)
            self.dispatched -= self.num_stale
            self.decoding = False
        self.cache.num_sent = 0  # its slot is written anew: masks say when it may end

    @property
    def needs_scores(self) -> bool:
        """Whether logprobs of its prompt are still to be computed."""
        return len(self.scores) < self.num_to_score

    @property
    def needs_all_rows(self) -> bool:
        """Whether every position must be computed, none taken from the prefix cache: each adds to the answer."""
        return self.needs_scores or self.request.pooling == "mean"

    @property
    def must_wait(self) -> bool:
        """Whether a decoding sequence must see more of its tokens, here or in its text state, before the next."""
        limit, thoughts = self.request.thoughts, self.thoughts
        reads_back = self.close_at is not None and self.dispatched + 1 >= self.close_at
        if limit is not None and thoughts is not None and limit.budget == 0:
            reads_back |= thoughts.may_begin  # of which there may be none: the next token may have to close them
        return (reads_back and self.dispatched >= len(self.tokens)) or self.must_wait_for_text

    def follow_thoughts(self, token: int, length: int) -> None:
        """A token has been committed, the sequence's `length`th."""
        limit, thoughts = self.request.thoughts, self.thoughts
        if limit is None or thoughts is None:
            return
        were_on = thoughts.are_on
        thoughts.follow(token)
        if thoughts.are_on != were_on:
            self.close_at = length + limit.budget if thoughts.are_on else None

    def take_token(self, token: int) -> int:
        """Commit what its row drew, or the end of thoughts that the prompt has begun and that may have no token."""
        limit = self.request.thoughts
        if limit is not None and len(self.tokens) == self.close_at:
            token = limit.close_id
            self.stop_decoding()  # the next row computes it: the device has drawn another
        self.append(token)
        return token

    def close_thoughts(self, output: Output, token: int) -> bool:
        """End thoughts that are as long as they may be, by a token that nobody drew: the next row computes it."""
        limit, length = self.request.thoughts, len(self.tokens)
        self.follow_thoughts(token, length)
        if limit is None or length != self.close_at or length == self.max_length or token in self.end_ids:
            return False
        self.append(limit.close_id)
        self.follow_thoughts(limit.close_id, length + 1)
        output.token_ids.append(limit.close_id)
        self.stop_decoding()
        return True

    @property
    def must_wait_for_text(self) -> bool:
        """Whether one more sampled token would be too far ahead of the text state."""
        if not self.request.text_lag:
            return False
        known = self.dispatched + 1 if self.decoding else len(self.tokens)
        return known - self.num_prompt - self.acknowledged >= MAX_TEXT_LAG


def sequences_of(
    request: Request, outputs: tuple[tuple[int, ...] | None, ...], arrival: int, limits: Limits
) -> list[Sequence]:
    """One sequence for each choice that is to be computed; `outputs` as in Add. arrival: grows with each request."""
    root = root_key(request.salt)
    sequences = [
        Sequence(
            request,
            index,
            rank=(request.priority, arrival, index),
            tokens=(tokens := [*request.prompt, *output]),
            num_prompt=len(request.prompt),
            max_length=len(request.prompt)
            + max(1, min(request.max_tokens, limits.max_model_len - len(request.prompt))),
            end_ids=request.eos_token_ids | request.stop_token_ids,
            cache=SequenceCache(root, tokens, request.prompt, request.session, (request.id, index)),
            acknowledged=len(output),
        )
        for index, output in enumerate(outputs or [()] * request.n)
        if output is not None
    ]
    if request.prompt_logprobs is not None:
        sequences[0].num_to_score = len(request.prompt) - 1
    return sequences
