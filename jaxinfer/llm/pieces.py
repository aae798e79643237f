"""Pieces: the tokens of an answer that become text together, where nobody watches it grow."""

import dataclasses
from collections import deque
from collections.abc import Iterator

from jaxinfer.engine.logprobs import TokenLogprobs
from jaxinfer.engine.sequence import Output
from jaxinfer.llm.answer import Answer
from jaxinfer.llm.types import Delta


@dataclasses.dataclass(slots=True)
class TokenPiece:
    """Tokens of one choice that have not become text, and their logprobs, if asked for."""

    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None

    def add(self, output: Output) -> None:
        self.token_ids += output.token_ids
        if output.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += output.logprobs


@dataclasses.dataclass(slots=True)
class OpenCall:
    """What is under way: its requests, and the deltas that other calls' steps have brought it too.

    pieces: of each choice, what is no whole piece yet.
    """

    answers: dict[str, Answer]
    piece: int  # tokens of a delta, about
    unfinished: set[str]
    pieces: dict[tuple[str, int], TokenPiece] = dataclasses.field(default_factory=dict)
    deltas: deque[tuple[str, Delta]] = dataclasses.field(default_factory=deque)


def in_pieces(outputs: list[Output], calls: dict[str, OpenCall]) -> Iterator[tuple[Answer, Output]]:
    """What answers are to be fed: a choice's first token, then pieces, unless the engine waits for its text.

    calls: by request.
    """
    for output in outputs:
        call = calls.get(output.request_id)
        if call is None:
            continue
        choice = output.request_id, output.index
        held = call.pieces.get(choice)
        if held is not None:
            held.add(output)
            if len(held.token_ids) < call.piece and output.finish_reason is None:
                continue
            output.token_ids, output.logprobs, call.pieces[choice] = held.token_ids, held.logprobs, TokenPiece()
        answer = call.answers[output.request_id]
        if held is None and answer.may_lag:
            call.pieces[choice] = TokenPiece()
        yield answer, output
