"""Started: what an AsyncLLM works with once its engine is ready."""

import dataclasses

from jaxinfer.config import Limits
from jaxinfer.llm.latency import Latency
from jaxinfer.llm.structure import Forms
from jaxinfer.llm.text_side import TextSide
from jaxinfer.llm.transport import Handshake
from jaxinfer.llm.types import ModelInfo


@dataclasses.dataclass(frozen=True, slots=True)
class Started:
    """What is known of the model. It outlives any engine."""

    info: ModelInfo
    limits: Limits
    text: TextSide
    latency: Latency
    forms: Forms

    @classmethod
    def of(cls, handshake: Handshake, text: TextSide) -> "Started":
        """What the first engine's start has brought."""
        info = text.facts_for(handshake.info)
        return cls(info, handshake.limits, text, Latency(info.max_model_len), Forms(text, info))
