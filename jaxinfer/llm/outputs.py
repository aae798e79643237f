"""What LLM.generate and LLM.chat return."""

import dataclasses
import html

from jaxinfer.llm.types import Delta


@dataclasses.dataclass(slots=True)
class CompletionOutput:
    """One choice. finish_reason: "stop", "length", "abort" or "error"; error says why in the last case."""

    index: int
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.finish_reason, self.stop_reason, self.error = delta.finish_reason, delta.stop_reason, delta.error


@dataclasses.dataclass(slots=True)
class Metrics:
    """Of one request: seconds from submission, and how many prompt tokens were found in the prefix cache."""

    time_to_first_token_s: float = 0.0
    total_s: float = 0.0
    cached_tokens: int = 0


@dataclasses.dataclass(slots=True)
class RequestOutput:
    """One prompt's answer: `outputs` holds its n choices in order."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: Metrics = dataclasses.field(default_factory=Metrics)

    def _repr_html_(self) -> str:
        prompt = html.escape(self.prompt or f"{len(self.prompt_token_ids)} tokens")
        rows = "".join(
            f"<tr><td>{choice.index}</td><td style='white-space:pre-wrap;text-align:left'>{html.escape(choice.text)}"
            f"</td><td>{len(choice.token_ids)}</td><td>{choice.finish_reason}</td></tr>"
            for choice in self.outputs
        )
        head = "<tr><th></th><th>text</th><th>tokens</th><th>finish</th></tr>"
        return f"<div><b>{prompt}</b><table>{head}{rows}</table></div>"
