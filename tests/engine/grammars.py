"""Grammars without llguidance: which tokens may come is a hash of those that came. Compiled when a test says so."""

import functools
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from jaxinfer.engine.sequence import Request, Structure
from jaxinfer.runtime.plan import Controls
from jaxinfer.text.grammar.states import Spot
from jaxinfer.text.tools.opening import Opening
from tests.engine.numbers import CURSED, VOCAB, completes_a_bad_word, mix


class HashGrammar:
    """text: "seed:end". Of the tokens that break nothing about a quarter may come next, and now and then the end; after
    every third token only one may, which is not the end."""

    def __init__(self, text: str, state: int | None = None) -> None:
        seed, end = map(int, text.split(":"))
        self._text, self.error = text, ""
        self._end = end
        self._state = mix(seed) if state is None else state

    def copy(self) -> "HashGrammar":
        assert not self.error, "a copy of what is broken"
        return HashGrammar(self._text, self._state)

    def accept(self, token_id: int, *, is_allowed: bool = False) -> None:
        assert not is_allowed or token_id in self.allowed()
        if token_id not in self.allowed():
            self.error = f"{token_id} may not come"
        self._state = mix(self._state, token_id)

    def accept_text(self, text: bytes) -> None:
        self._state = mix(self._state, *text) if text else self._state

    def spell(self, token_id: int) -> bytes:
        return spelt(token_id)

    @property
    def spot(self) -> Spot | None:
        """Of half of them nothing is known."""
        return None if self.error or mix(self._state, 9) % 2 else _spot(self._state, self._end)

    def forced(self) -> list[int]:
        ahead, found = self.copy(), []
        while len(allowed := ahead.allowed()) == 1 and self._end not in allowed:
            found += allowed
            ahead.accept(found[-1])
        return found

    def allowed(self) -> frozenset[int]:
        return _allowed(self._state, self._end)


def spelt(token_id: int) -> bytes:
    """None to two of three letters, so that a text is spelt in many ways."""
    return bytes(b"ab "[token_id // 3 ** (i + 1) % 3] for i in range(token_id % 3))


# A text that may come anywhere, and one with which an answer begins or not
OPENINGS = Opening((("abba", "h"),)), Opening((("a", "h"),), is_first=True, firsts="a")


@functools.lru_cache(1 << 8)
def _spot(state: int, end: int) -> Spot:
    return Spot()


@functools.lru_cache(1 << 14)
def _allowed(state: int, end: int) -> frozenset[int]:
    if mix(state, 5) % 3 == 0:
        only = mix(state, 6) % CURSED
        return frozenset({only if only != end else (only + 1) % CURSED})
    found = {token for token in range(CURSED) if mix(state, token) % 4 == 0 and token != end}
    return frozenset(found | ({end} if mix(state, 7) % 6 == 0 or not found else set()))


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


def begins(structure: Structure, output: list[int]) -> tuple[int, bytes] | None:
    """Where in an answer its grammar begins, thoughts left to it, and what it has read there; None: it has not."""
    if structure.after is None:
        return 0, b""
    text = b""
    thinks = structure.close_id is not None and structure.open_id is None
    may_think = structure.close_id is not None
    for i, token in enumerate(output):
        if not thinks and may_think and i < 4 and token == structure.open_id:
            thinks, may_think = True, False
        elif thinks:
            thinks = token != structure.close_id
        elif token == structure.after:
            return i + 1, b""
        elif isinstance(structure.after, Opening):
            text += spelt(token)
            for pattern, head in structure.after.patterns:
                at = text.find(pattern.encode())
                if at == 0 or (at > 0 and not structure.after.is_first):
                    return i + 1, head.encode() + text[at + len(pattern) :]
    return None


def permitted(request: Request, output: list[int]) -> set[int]:
    """The oracle: what may be drawn after this output."""
    structure, controls = request.structure, request.controls or Controls()
    assert structure is not None
    found = begins(structure, output)
    assert found is not None
    begun, head = found
    ends = request.eos_token_ids | request.stop_token_ids | structure.end_ids
    unwanted = ends if len(output) < controls.min_tokens else structure.end_ids - request.eos_token_ids
    thinks = structure.close_id is not None and (structure.open_id is None or output[:1] == [structure.open_id])
    if structure.after is not None:
        thinks = False
    elif thinks:
        begun = output.index(structure.close_id) + 1 if structure.close_id in output else 0
    may_think = structure.open_id is not None and structure.after is None and not output
    if thinks and structure.close_id not in output:
        found = set(range(VOCAB)) - ends
    else:
        grammar = HashGrammar(structure.text)
        grammar.accept_text(head)
        for token in output[begun:]:
            grammar.accept(token)
        assert not grammar.error
        found = grammar.allowed() | ({structure.open_id} if may_think else set())
    found -= completes_a_bad_word(controls, [*request.prompt, *output])
    return found - unwanted or found


def bits_to_ids(mask: np.ndarray) -> list[int]:
    return [i for i in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist() if i < VOCAB]
