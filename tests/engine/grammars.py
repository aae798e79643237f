"""Grammars without llguidance: which tokens may come is a hash of those that came. Compiled when a test says so."""

import functools
from collections.abc import Sequence, Set
from concurrent.futures import Future

import numpy as np

from jaxinfer.engine.sequence import Request
from jaxinfer.runtime.plan import Controls
from tests.engine.numbers import CURSED, VOCAB, completes_a_bad_word, mix


class HashGrammar:
    """text: "seed:end". Of the tokens that break nothing about a quarter may come next, and now and then the end."""

    def __init__(self, text: str, state: int | None = None) -> None:
        seed, end = map(int, text.split(":"))
        self._text, self.error = text, ""
        self._end = end
        self._state = mix(seed) if state is None else state

    def copy(self) -> "HashGrammar":
        assert not self.error, "a copy of what is broken"
        return HashGrammar(self._text, self._state)

    def accept(self, token_id: int) -> None:
        if token_id not in self.allowed():
            self.error = f"{token_id} may not come"
        self._state = mix(self._state, token_id)

    def allowed(self) -> Set[int]:
        return allowed(self._state, self._end)


@functools.lru_cache(2**14)  # the engine and the oracle come through the same states again and again
def allowed(state: int, end: int) -> Set[int]:
    found = frozenset(token for token in range(CURSED) if mix(state, token) % 4 == 0 and token != end)
    return found | ({end} if mix(state, 7) % 6 == 0 or not found else set())


class HashGrammars:
    """Grammars; a future is done when `release` is called."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, Future[HashGrammar]]] = []

    def compile(self, text: str, *, closes: bool = False) -> "Future[HashGrammar]":
        future: Future[HashGrammar] = Future()
        self.waiting.append((text, future))
        return future

    def release(self) -> None:
        """Let all be compiled."""
        waiting, self.waiting = self.waiting, []
        for text, future in waiting:
            future.set_result(HashGrammar(text))

    def spread(self, call, items):
        futures = [Future() for _ in items]
        for future, item in zip(futures, items, strict=True):
            future.set_result(call([item]))
        return futures

    def fill(self, grammars: Sequence[HashGrammar], masks: np.ndarray) -> None:
        for grammar, mask in zip(grammars, masks, strict=True):
            bits = np.zeros(len(mask) * 32, bool)
            bits[sorted(grammar.allowed())] = True
            mask[:] = np.packbits(bits, bitorder="little").view(np.int32)


def permitted(request: Request, output: list[int]) -> Set[int]:
    """The oracle: what may be drawn after this output."""
    structure, controls = request.structure, request.controls or Controls()
    assert structure is not None
    ends = request.eos_token_ids | request.stop_token_ids | structure.end_ids
    unwanted = ends if len(output) < controls.min_tokens else structure.end_ids - request.eos_token_ids
    thinks = structure.close_id is not None and (structure.open_id is None or output[:1] == [structure.open_id])
    if thinks and structure.close_id not in output:
        found: Set[int] = set(range(VOCAB)) - ends
    else:
        grammar = HashGrammar(structure.text)
        for token in output[output.index(structure.close_id) + 1 if thinks else 0 :]:
            grammar.accept(token)
        assert not grammar.error
        found = grammar.allowed() | ({structure.open_id} if structure.open_id is not None and not output else set())
    found = found - completes_a_bad_word(controls, [*request.prompt, *output])
    return found - unwanted or found


def bits_to_ids(mask: np.ndarray) -> list[int]:
    return [i for i in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist() if i < VOCAB]
