"""The text side of one request: engine outputs in, deltas out. Driven in token order by one thread at a time."""

import dataclasses
from collections.abc import Callable

from jaxinfer.engine.sequence import Abort, Acknowledge, Add, End, Message, Output, Request
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.sampling import ResolvedSampling
from jaxinfer.text.detokenizer import Detokenizer
from jaxinfer.text.state import TextState
from jaxinfer.text.tokenizer import Tokenizer

Post = Callable[[Message], None]


@dataclasses.dataclass(slots=True)
class _Choice:
    text: TextState
    token_ids: list[int] = dataclasses.field(default_factory=list)  # all that the engine committed
    ended: bool = False


class Answer:
    """Turns a request's engine outputs into deltas; decides stop strings and tells the engine when one ended a choice.

    Invariant: each choice gets exactly one delta with a finish_reason, and none after it.
    """

    def __init__(self, request: Request, sampling: ResolvedSampling, tokenizer: Tokenizer, post: Post) -> None:
        self.request = request
        self._include_stop = sampling.include_stop_str_in_output
        self._post = post
        self._cached_tokens = 0
        self._choices = [
            _Choice(
                TextState(
                    Detokenizer(tokenizer, skip_special_tokens=sampling.skip_special_tokens),
                    stop=sampling.stop,
                    include_stop=sampling.include_stop_str_in_output,
                )
            )
            for _ in range(sampling.n)
        ]

    @property
    def done(self) -> bool:
        return all(choice.ended for choice in self._choices)

    def feed(self, output: Output) -> Delta | None:
        """The delta this output makes, or None: nothing to show yet, or its choice has already ended."""
        choice = self._choices[output.index]
        if choice.ended:
            return None
        # the EOS or stop token that ended the sequence is counted but not shown, unless it was asked for
        hidden = output.finish_reason == "stop" and not (self._include_stop and output.stop_reason is not None)
        shown = output.token_ids[:-1] if hidden else output.token_ids
        choice.token_ids += output.token_ids
        text = choice.text.feed(shown)
        self._cached_tokens = output.cached_tokens
        delta = Delta(
            output.index,
            text.text,
            list(output.token_ids),
            output.finish_reason,
            output.stop_reason,
            prompt_tokens=len(self.request.prompt),
            cached_tokens=output.cached_tokens,
            error=output.error,
            code=output.code,
        )
        if text.stop is not None:
            delta.token_ids, delta.finish_reason, delta.stop_reason = shown[: text.num_tokens], "stop", text.stop
            if output.finish_reason is None:
                self._post(End(self.request.id, output.index))
        elif delta.finish_reason is not None:
            delta.text += choice.text.finish()
        elif self.request.text_lag:
            self._post(Acknowledge(self.request.id, output.index, len(choice.token_ids)))
        choice.ended = delta.finish_reason is not None
        return delta if delta.text or delta.token_ids or choice.ended else None

    def abort(self, error: str | None = None) -> list[Delta]:
        """End every choice that has not ended; the engine's own end of them will be ignored."""
        ended = []
        for index, choice in enumerate(self._choices):
            if not choice.ended:
                choice.ended = True
                text, reason = choice.text.finish(), "abort" if error is None else "error"
                num_prompt = len(self.request.prompt)
                ended.append(Delta(index, text, [], reason, None, num_prompt, self._cached_tokens, error))
        if ended:
            self._post(Abort(self.request.id))
        return ended

    def resumption(self) -> list[Message]:
        """What another engine must be told to go on where this one ended."""
        if self.done:
            return []
        outputs = tuple(None if choice.ended else tuple(choice.token_ids) for choice in self._choices)
        seen = [Acknowledge(self.request.id, i, len(ids)) for i, ids in enumerate(outputs) if ids is not None]
        return [Add(self.request, outputs), *(seen if self.request.text_lag else [])]
