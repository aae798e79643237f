"""The text side of one request: engine outputs in, deltas out. Driven in token order by one thread at a time."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator

from jaxinfer.engine.logprobs import TokenLogprobs
from jaxinfer.engine.sequence import Abort, Acknowledge, Add, Message, Output, Request, StopStringFound
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.logprobs import TokenLogprob
from jaxinfer.protocol.sampling import GenerationDefaults, ResolvedSampling, SamplingParams, resolve_sampling
from jaxinfer.text.detokenizer import Detokenizer
from jaxinfer.text.message import MessageText
from jaxinfer.text.reading import Reading
from jaxinfer.text.rust import LibraryPanic
from jaxinfer.text.state import NoText, TextState
from jaxinfer.text.tokenizer import Tokenizer

Post = Callable[[Message], None]
log = logging.getLogger(__name__)
# the cause may hold what the model said, so it goes to the log alone
UNREADABLE = "the server failed to read what the model answered; its log says why"
UNDECODABLE = (
    "an answer must be one that the model's tokenizer can decode, and it fails on this one; "
    "serve the model with another --tokenizer"
)


@dataclasses.dataclass(slots=True)
class _Choice:
    text: TextState | NoText | MessageText
    token_ids: list[int] = dataclasses.field(default_factory=list)  # all that the engine committed
    ended: bool = False


def feed(pairs: Iterable[tuple["Answer", Output]], post: Post) -> Iterator[tuple[Output, Delta]]:
    """Feed one step's outputs to their answers; each delta with the output that made it.

    Then the engine is told, in one message for all of them, how far the texts are that it waits for.
    """
    seen: list[tuple[str, int, int]] = []
    for answer, output in pairs:
        delta = answer.feed(output)
        if delta is None:
            continue
        if answer.request.text_lag and delta.finish_reason is None:
            seen.append((output.request_id, output.index, answer.num_tokens(output.index)))
        yield output, delta
    if seen:
        post(Acknowledge(seen))


# Of an embedding there is no text.
NO_TEXT = resolve_sampling(SamplingParams(temperature=0, detokenize=False), GenerationDefaults(), random_seed=0)


class Answer:
    """Turns a request's engine outputs into deltas; decides stop strings and tells the engine when one ended a choice.

    Invariant: each choice gets exactly one delta with a finish_reason, and none after it.
    """

    def __init__(
        self,
        request: Request,
        sampling: ResolvedSampling,
        tokenizer: Tokenizer,
        post: Post,
        reading: Reading | None = None,
        *,
        chat: bool = True,
    ) -> None:
        """reading: how the text is taken apart; None leaves it whole.    chat: it is one by itself, not the prompt's
        that goes on.
        """
        self.request = request
        self._include_stop = sampling.include_stop_str_in_output
        self._post = post
        self._tokenizer = tokenizer
        spelt = tokenizer.piece_table(skip_special_tokens=False)
        self._bytes_of: Callable[[int], bytes] = self._decoded if spelt is None else spelt.__getitem__
        self._cached_tokens = 0
        self._prompt_logprobs: list[TokenLogprob] | None = None
        if request.prompt_logprobs is not None and len(request.prompt) == 1:
            self._prompt_logprobs = [self._unscored(request.prompt[0])]  # the engine has nothing to say of it
        verbatim = request.structure is not None and request.structure.after is None
        goes_on = verbatim or (not chat and not tokenizer.special_ids.issuperset(request.prompt))
        texts = (self._new_text(sampling, reading, goes_on=goes_on, verbatim=verbatim) for _ in range(sampling.n))
        self._choices = [_Choice(text) for text in texts]

    def _new_text(
        self, sampling: ResolvedSampling, reading: Reading | None, *, goes_on: bool, verbatim: bool
    ) -> TextState | NoText | MessageText:
        if not sampling.detokenize:
            return NoText()
        stop, include_stop, skip = sampling.stop, self._include_stop, sampling.skip_special_tokens
        start_after = self.request.controls.min_tokens if self.request.controls else 0
        whole = self.request.structure is not None
        if reading is not None:
            return reading.new_text(
                self._tokenizer,
                stop=stop,
                include_stop=include_stop,
                start_after=start_after,
                skip=skip,
                verbatim=verbatim,
                whole=whole,
            )
        detokenizer = Detokenizer(self._tokenizer, skip_special_tokens=skip, goes_on=goes_on, whole=whole)
        return TextState(detokenizer, stop=stop, include_stop=include_stop, start_after=start_after)

    @property
    def done(self) -> bool:
        return all(choice.ended for choice in self._choices)

    @property
    def may_lag(self) -> bool:
        """Whether nothing is lost when several of the engine's outputs are fed as one."""
        return not self.request.text_lag

    def feed(self, output: Output) -> Delta | None:
        """The delta this output makes, or None: nothing to show yet, or its choice has already ended.

        A bug in reading it, ours or of the tokenizer's decoder, ends its choice with an error: other requests' texts go
        through the same thread.
        """
        choice = self._choices[output.index]
        if choice.ended:
            return None
        try:
            return self._read(choice, output)
        except Exception as error:
            choice.ended = True
            if output.finish_reason is None:
                self._post(StopStringFound(self.request.id, output.index))
            return self._unreadable(output.index, error)

    def _unreadable(self, index: int, error: Exception) -> Delta:
        """The end of a choice in whose text there is a bug, which is being handled."""
        said, num_prompt = UNREADABLE, len(self.request.prompt)
        if isinstance(error, LibraryPanic):  # the fault of a file, which a page of our code does not explain
            said = UNDECODABLE
            log.error("the answer to request %s cannot be decoded: %s", self.request.id, error)
        else:
            log.exception("the answer to request %s cannot be read", self.request.id)
        return Delta(index, "", [], "error", None, num_prompt, self._cached_tokens, said, "internal")

    def _read(self, choice: _Choice, output: Output) -> Delta | None:
        # the EOS or stop token that ended the sequence is counted but not shown, unless it was asked for
        hidden = output.finish_reason == "stop" and not (self._include_stop and output.stop_reason is not None)
        shown = output.token_ids[:-1] if hidden else output.token_ids
        if output.prompt_logprobs is not None:
            later = self._named(output.prompt_logprobs)
            self._prompt_logprobs = [self._unscored(self.request.prompt[0]), *later]
        is_first = not choice.token_ids
        choice.token_ids += output.token_ids
        text = choice.text.feed(shown)
        self._cached_tokens = output.cached_tokens
        delta = Delta(
            output.index,
            text.text,
            output.token_ids,
            output.finish_reason,
            output.stop_reason,
            len(self.request.prompt),
            output.cached_tokens,
            output.error,
            output.code,
            None if output.logprobs is None else self._named(output.logprobs),
            self._prompt_logprobs if is_first else None,
            embedding=output.embedding,
        )
        if text.stop is not None:
            delta.token_ids, delta.finish_reason, delta.stop_reason = shown[: text.num_tokens], "stop", text.stop
            if delta.logprobs is not None:
                del delta.logprobs[text.num_tokens :]
            if output.finish_reason is None:
                self._post(StopStringFound(self.request.id, output.index))
        elif delta.finish_reason is not None:
            delta.text += choice.text.finish()
        _add_parts(delta, choice.text)
        choice.ended = delta.finish_reason is not None
        return delta if delta.text or delta.token_ids or choice.ended else None

    def abort(self, error: str | None = None) -> list[Delta]:
        """End every choice that has not ended; the engine's own end of them will be ignored."""
        ended = []
        for index, choice in enumerate(self._choices):
            if not choice.ended:
                choice.ended = True
                ended.append(self._cut_short(index, choice.text, error))
        if ended:
            self._post(Abort(self.request.id))
        return ended

    def _cut_short(self, index: int, text: TextState | NoText | MessageText, error: str | None) -> Delta:
        reason, num_prompt = "abort" if error is None else "error", len(self.request.prompt)
        try:
            delta = Delta(index, text.finish(), [], reason, None, num_prompt, self._cached_tokens, error)
            _add_parts(delta, text)
        except Exception as error:
            return self._unreadable(index, error)
        return delta

    def resumption(self) -> list[Message]:
        """What another engine must be told to go on where this one ended."""
        if self.done:
            return []
        outputs = tuple(None if choice.ended else tuple(choice.token_ids) for choice in self._choices)
        request = self.request
        if self._prompt_logprobs is not None:  # they have come
            request = dataclasses.replace(request, prompt_logprobs=None)
        return [Add(request, outputs)]

    def num_tokens(self, index: int) -> int:
        """How many tokens a choice was fed."""
        return len(self._choices[index].token_ids)

    def _named(self, found: list[TokenLogprobs]) -> list[TokenLogprob]:
        """The engine's logprobs with the tokens' bytes."""
        bytes_of = self._bytes_of
        return [
            TokenLogprob(
                one.token_id, bytes_of(one.token_id), one.logprob, one.rank, one.raw_ids, one.raw_logprobs, bytes_of
            )
            for one in found
        ]

    def _unscored(self, token_id: int) -> TokenLogprob:
        return TokenLogprob(token_id, self._bytes_of(token_id), None, None)

    def _decoded(self, token_id: int) -> bytes:
        detokenizer = Detokenizer(self._tokenizer, skip_special_tokens=False)
        return (detokenizer.feed((token_id,)) + detokenizer.flush()).encode()


def _add_parts(delta: Delta, text: TextState | NoText | MessageText) -> None:
    """What the text holds beside its content; an answer that ends with calls ends because of them."""
    if isinstance(text, MessageText):
        parts = text.take()
        delta.reasoning, delta.calls, delta.thinking_tokens = parts.reasoning, parts.calls or None, parts.num_thinking
        if delta.finish_reason == "stop" and text.stop is None and text.has_calls:
            delta.finish_reason = "tool_calls"
