"""The engine as the server sees it: what AsyncLLM offers, as a protocol, so that this room imports no jax."""

from collections.abc import AsyncIterator
from typing import Any, Literal, Protocol

from jaxinfer.llm.types import Delta, ModelInfo, Stats
from jaxinfer.protocol.sampling import SamplingParams

Status = Literal["starting", "serving", "ready", "draining", "failed"]


class Backend(Protocol):
    """AsyncLLM. While `status` is "starting" or "failed", nothing else is touched."""

    @property
    def status(self) -> Status: ...

    @property
    def info(self) -> ModelInfo: ...

    def admit(self, num_choices: int = 1) -> None:
        """Raise Unavailable or Overloaded if a request for that many choices would be refused now."""

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    async def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str: ...

    async def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: dict[str, Any] | None = None,
    ) -> list[int]: ...

    async def generate(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        chat: bool = False,
        salt: str = "",
    ) -> AsyncIterator[Delta]:
        """Validate and enqueue: what can be refused is refused here. Then iterate."""
        ...

    async def abort(self, request_id: str) -> None:
        """Free what the request holds; nothing to do when it has ended or never was."""

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests at once; return when the running ones have ended, aborted after `timeout_s`."""

    def stats(self) -> Stats: ...
