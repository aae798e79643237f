"""A load: which requests there are, when they may start, what their prompts are. Data made from a seed. No jax."""

from typing import Any

import msgspec

from jaxinfer.bench.http_client import Target
from jaxinfer.bench.prompts import Prompts


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """One request of a workload that lists them. after_s: from the start, at the earliest.

    shared_tokens: the first of the prompt's, the same in all requests of the workload.
    """

    after_s: float
    input_tokens: int
    output_tokens: int
    shared_tokens: int = 0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What all clients together do to a server.

    concurrency: requests at once, 0 for no limit.    rate: requests per second on average, 0 for as fast as allowed.
    shared_tokens: the first tokens of each prompt are one of `prefixes` beginnings.    interrupt_tokens: of one more
    prompt, sent interrupt_after_s after the start and counted apart; 0 for none.
    fields: of requests' bodies, beside or instead of `temperature: 0`; request i has those at i modulo their number.
    asks: each request by itself; then rate, input_tokens and output_tokens are of warm-up requests alone.
    """

    url: str
    model: str
    key: str = ""
    requests: int
    concurrency: int = 0
    rate: float = 0.0
    input_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    prefixes: int = 1
    vocab_size: int
    seed: int = 0
    interrupt_tokens: int = 0
    interrupt_after_s: float = 0.0
    fields: tuple[dict[str, Any], ...] = ()
    asks: tuple[Ask, ...] = ()
    ignore_eos: bool = True

    @property
    def target(self) -> Target:
        return Target(self.url, self.key)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        asks = (*self.asks, self._ask())
        return max(self.interrupt_tokens + 1, *(ask.input_tokens + ask.output_tokens for ask in asks))

    def at_once(self) -> int:
        return min(self.concurrency or self.requests, self.requests)

    def starts_s(self) -> list[float]:
        """When each request may be sent at the earliest, from the start: gaps of a Poisson process, or all at 0."""
        if self.asks:
            return [ask.after_s for ask in self.asks]
        if not self.rate:
            return [0.0] * self.requests
        import numpy as np

        gaps = np.random.default_rng(self.seed).exponential(1 / self.rate, self.requests)
        starts: list[float] = (gaps.cumsum() - gaps[0]).tolist()
        return starts

    def body(self, index: int) -> bytes:
        """The JSON of request `index`; -1, -2, ... are warm-up requests, which no other request shares more with."""
        ask = self.asks[index] if self.asks and index >= 0 else self._ask()
        shared = self._ids(0, index % self.prefixes, ask.shared_tokens)
        prompt = shared + self._ids(1, index + 2**20, ask.input_tokens - len(shared))
        fields = self.fields[index % len(self.fields)] if self.fields else {}
        return self._json(prompt, ask.output_tokens, fields)

    def interruption(self) -> bytes:
        return self._json(self._ids(2, 0, self.interrupt_tokens), 1, {})

    def _ask(self) -> Ask:
        return Ask(0.0, self.input_tokens, self.output_tokens, self.shared_tokens)

    def _ids(self, kind: int, index: int, length: int) -> list[int]:
        """The lengths take part in the seed, so that no two loads of one seed share beginnings."""
        return Prompts(self.vocab_size, (self.seed, self.input_tokens, self.requests, kind, index)).one(length)

    def _json(self, prompt: list[int], num_tokens: int, fields: dict[str, Any]) -> bytes:
        body = {"model": self.model, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0}
        body |= {"ignore_eos": True} if self.ignore_eos else {}
        body |= fields
        return msgspec.json.encode(body | {"stream": True, "stream_options": {"include_usage": True}})


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one client process does of a load: these requests, so many at once."""

    load: Load
    indices: list[int]
    at_once: int
    interrupts: bool = False


def shares(load: Load, processes: int) -> list[Share]:
    """The load spread over client processes; those that would have nothing to do are left out."""
    lanes = load.at_once()
    found = []
    for process in range(min(processes, lanes)):
        indices = [index for index in range(load.requests) if index % lanes % processes == process]
        at_once = len(range(process, lanes, processes))
        interrupts = process == 0 and load.interrupt_tokens > 0
        found.append(Share(load=load, indices=indices, at_once=at_once, interrupts=interrupts))
    return found
