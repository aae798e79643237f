"""What LLM's methods return."""

import dataclasses
import html
from typing import Protocol

import msgspec

from jaxinfer.config import counted
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.logprobs import TokenLogprob, token_text
from jaxinfer.text.tools.reader import WholeCalls

SHOWN = 50  # of a list of results
BEGIN = 4  # numbers of an embedding


class Shown(Protocol):
    """What a notebook shows in its own way."""

    def _repr_html_(self) -> str: ...


class Logprob(msgspec.Struct, frozen=True, gc=False):
    """Of one token at one position, under the model alone. rank: 1 is the most likely."""

    logprob: float
    rank: int
    decoded_token: str


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
    """arguments: a JSON object, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclasses.dataclass(slots=True)
class CompletionOutput:
    """One choice. finish_reason: "stop", "length", "tool_calls", "abort" or "error"; error says why in the last case.

    reasoning, tool_calls: of a chat, what the model thought and which tools it calls; `text` holds neither.
    """

    index: int
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    reasoning: str = ""
    _calls: WholeCalls = dataclasses.field(default_factory=WholeCalls, repr=False)

    _logprobs: list[dict[int, Logprob]] | None = dataclasses.field(default=None, repr=False)
    _unread: list[TokenLogprob] = dataclasses.field(default_factory=list, repr=False)

    @property
    def logprobs(self) -> list[dict[int, Logprob]] | None:
        """One dict per token, if asked for, by id: the token itself and the most likely ones. They are made when they
        are read: 20 of each token take as long as a step of 256 answers."""
        if self._logprobs is not None:
            self._logprobs += map(_by_id, self._unread)
            self._unread.clear()
        return self._logprobs

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [ToolCall(call.id or "", call.name or "", call.arguments) for call in self._calls.calls]

    def add(self, delta: Delta) -> None:
        self.text += self._calls.add(delta.calls, delta.text) if delta.calls else delta.text
        self.reasoning += delta.reasoning
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self._logprobs = self._logprobs or []
            self._unread += delta.logprobs
        self.finish_reason, self.stop_reason, self.error = delta.finish_reason, delta.stop_reason, delta.error


@dataclasses.dataclass(slots=True)
class Metrics:
    """Of one request: seconds from submission, and how many prompt tokens were found in the prefix cache."""

    time_to_first_token_s: float = 0.0
    total_s: float = 0.0
    cached_tokens: int = 0


@dataclasses.dataclass(slots=True)
class RequestOutput:
    """One prompt's answer: `outputs` holds its n choices in order.

    prompt_logprobs: if asked for, one dict per token of the prompt as in CompletionOutput; None for the first.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: Metrics = dataclasses.field(default_factory=Metrics)
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None

    def add(self, delta: Delta) -> None:
        """The next piece of one of the choices."""
        if delta.prompt_logprobs is not None and self.prompt_logprobs is None:
            first, *later = delta.prompt_logprobs
            self.prompt_logprobs = [None, *map(_by_id, later)]
        self.outputs[delta.index].add(delta)

    def _repr_html_(self) -> str:
        prompt = _named(self.prompt, self.prompt_token_ids)
        rows = "".join(
            f"<tr><td>{choice.index}</td><td style='white-space:pre-wrap;text-align:left'>{html.escape(choice.text)}"
            f"</td><td>{len(choice.token_ids)}</td><td>{choice.finish_reason}</td></tr>"
            for choice in self.outputs
        )
        head = "<tr><th></th><th>text</th><th>tokens</th><th>finish</th></tr>"
        return f"<div><b>{prompt}</b><table>{head}{rows}</table></div>"


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    embedding: list[float]

    def _repr_html_(self) -> str:
        return f"<div>{self.summary}</div>"

    @property
    def summary(self) -> str:
        """Its length and where it begins."""
        begin = ", ".join(f"{value:.4f}" for value in self.embedding[:BEGIN])
        return f"{len(self.embedding):,} numbers: {begin}{', ...' if len(self.embedding) > BEGIN else ''}"


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """One prompt's embedding."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: EmbeddingOutput

    def _repr_html_(self) -> str:
        return f"<div><b>{_named(self.prompt, self.prompt_token_ids)}</b> {self.outputs.summary}</div>"


@dataclasses.dataclass(frozen=True, slots=True)
class ScoringOutput:
    score: float


@dataclasses.dataclass(frozen=True, slots=True)
class ScoringRequestOutput:
    """How alike the prompts of one pair are. prompt_token_ids: of both, one after the other."""

    prompt_token_ids: list[int]
    outputs: ScoringOutput

    def _repr_html_(self) -> str:
        return f"<div><b>{self.outputs.score:.4f}</b> of {counted(len(self.prompt_token_ids), 'token')}</div>"


class Results[T: Shown](list[T]):
    """A list that a notebook shows as its items show themselves, the first SHOWN of them."""

    def _repr_html_(self) -> str:
        more = f"<p>and {len(self) - SHOWN:,} more</p>" if len(self) > SHOWN else ""
        return "".join(item._repr_html_() for item in self[:SHOWN]) + more


def _named(prompt: str | None, token_ids: list[int]) -> str:
    """A prompt in HTML."""
    return html.escape(prompt or counted(len(token_ids), "token"))


def _by_id(entry: TokenLogprob) -> dict[int, Logprob]:
    assert entry.logprob is not None and entry.rank is not None, "only a prompt's first token has no logprob"
    found = {entry.token_id: Logprob(entry.logprob, entry.rank, token_text(entry.token))}
    tops = zip(entry.top_ids, entry.top_tokens, entry.top_logprobs, strict=True)
    for rank, (token_id, token, logprob) in enumerate(tops, 1):
        found.setdefault(token_id, Logprob(logprob, rank, token_text(token)))
    return found
