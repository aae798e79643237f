"""Thoughts that a client does not want to see: taken out of an answer, their logprobs too. They count in its usage."""

from dataclasses import dataclass, field

from jaxinfer.llm.types import Delta
from jaxinfer.text.reading import Reading
from jaxinfer.text.thinking import Start, Thinking, Thoughts


@dataclass(slots=True)
class HiddenThoughts:
    """Which tokens of each choice are thoughts, as `thinking` tells them from answers."""

    thinking: Thinking
    start: Start
    choices: dict[int, Thoughts] = field(default_factory=dict)

    @classmethod
    def of(cls, reading: Reading | None) -> "HiddenThoughts | None":
        """None for a model that has none."""
        return None if reading is None or reading.thinking is None else cls(reading.thinking, reading.start)

    def take_out(self, index: int, delta: Delta) -> None:
        """Change the next delta of choice `index`."""
        delta.reasoning = ""
        if delta.logprobs is None:
            return
        if index not in self.choices:
            self.choices[index] = Thoughts(self.start, self.thinking.open_id, self.thinking.close_id)
        follow = self.choices[index].follow
        delta.logprobs = [entry for entry in delta.logprobs if not follow(entry.token_id)]
