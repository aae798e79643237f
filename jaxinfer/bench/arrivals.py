"""Requests that come to an engine in this process while it works, and what each of them saw. No server, no threads."""

import time
from array import array
from collections import deque
from collections.abc import Sequence

from jaxinfer.bench.http_client import Outcome
from jaxinfer.bench.load import Ask
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.sequence import Add, Output, Request, Structure
from jaxinfer.errors import EngineError

GRAMMAR_S = 0.01  # to wait for one at a time, since requests may come meanwhile


def drive(
    engine: Engine,
    asks: Sequence[Ask],
    prompts: Sequence[Sequence[int]],
    structures: Sequence[Structure | None] | None = None,
) -> list[Outcome]:
    """Give each prompt to the engine when its time has come, greedy and without an end but its length.

    asks: in the order of their times.    structures: of each answer, which then ends with its grammar; None: of none.
    Raises EngineError when one is not answered.
    """
    waiting = deque(enumerate(asks))
    outcomes = [Outcome(0.0) for _ in asks]
    began = time.monotonic()
    while waiting or engine.has_work or engine.awaits_grammar:
        while waiting and began + waiting[0][1].after_s <= time.monotonic():
            index, ask = waiting.popleft()
            outcomes[index].sent_s, outcomes[index].prompt_tokens = began + ask.after_s, ask.input_tokens
            structure = structures[index] if structures is not None else None
            request = Request(str(index), array("I", prompts[index]), ask.output_tokens, structure=structure)
            engine.inbox.put(Add(request))
        if engine.has_work:
            for output in engine.step():
                _note(outcomes[int(output.request_id)], output)
        elif engine.awaits_grammar:
            engine.wait(GRAMMAR_S)
        elif waiting:
            time.sleep(max(0.0, began + waiting[0][1].after_s - time.monotonic()))
    return outcomes


def _note(outcome: Outcome, output: Output) -> None:
    if output.error is not None:
        raise EngineError(f"every request of a suite must be answered, one was not: {output.error}")
    if output.token_ids:
        outcome.times_s.append(time.monotonic())
        outcome.tokens += len(output.token_ids)
        outcome.cached_tokens = output.cached_tokens
    outcome.finish_reason = output.finish_reason or outcome.finish_reason
