"""What clients of structured output ask for: a model that the demo can fill in, and one with all sorts of fields."""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SENTENCE = "Extract JSON: Anna has a red ball in the garden."
SETTINGS = {"temperature": 0, "max_tokens": 300}


class Sentence(BaseModel):
    """What the demo knows to extract, in an order of its own."""

    name: str
    color: Literal["red", "blue", "green", "yellow"]
    object: str


class Thing(BaseModel):
    """Without a length a small model's text may have no end."""

    model_config = ConfigDict(extra="forbid")
    label: str = Field(max_length=10)
    count: int = Field(ge=0, le=9)


class Scene(BaseModel):
    """What the demo has never seen."""

    model_config = ConfigDict(extra="forbid")
    owner: str = Field(max_length=20)
    place: str | None = Field(default=None, max_length=20)
    best: Thing
    things: list[Thing] = Field(min_length=2, max_length=2)
    mood: Literal["good", "bad"] = "good"


def wanted(ask: Callable[[type[BaseModel]], Any]) -> list[Any]:
    """ask: what the client makes of the answer to the sentence that must be of a model."""
    sentence, scene = ask(Sentence), ask(Scene)
    parts = [scene, scene.best, *scene.things]
    return [type(sentence).__name__, sentence.model_dump(), [type(part).__name__ for part in parts]]
