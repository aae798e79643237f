"""Started: what an AsyncLLM works with once its engine is ready."""

import dataclasses

from jaxinfer.config import Limits
from jaxinfer.llm.latency import Latency
from jaxinfer.llm.structure import Forms
from jaxinfer.llm.text_side import TextSide
from jaxinfer.llm.transport import Handshake, Transport
from jaxinfer.llm.types import ModelInfo, Stats


@dataclasses.dataclass(frozen=True, slots=True)
class Started:
    """past: the counters of the engines before this transport's."""

    transport: Transport
    info: ModelInfo
    limits: Limits
    text: TextSide
    latency: Latency
    forms: Forms
    past: Stats = dataclasses.field(default_factory=Stats)

    @classmethod
    def of(cls, transport: Transport, handshake: Handshake, text: TextSide) -> "Started":
        """What the first engine's start has brought."""
        info = text.facts_for(handshake.info)
        return cls(transport, info, handshake.limits, text, Latency(info.max_model_len), Forms(text, info))

    def stats(self) -> Stats:
        return self.transport.stats().after(self.past)

    def with_new(self, transport: Transport) -> "Started":
        """The same with a new engine."""
        past = self.stats()
        past.restarts += 1
        return dataclasses.replace(self, transport=transport, past=past)
