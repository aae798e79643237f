"""Chats whose greedy answers the bundled checkpoint must give, word for word, whichever code runs it."""

import dataclasses
from typing import Any

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "description": "Get the current weather in a given location",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["location"],
        },
    },
}
REFUSAL = "Sorry, I do not know that. I am a tiny demo model; for real answers run: jaxinfer serve Qwen/Qwen3-0.6B"


@dataclasses.dataclass(frozen=True)
class Golden:
    user: str
    answer: str
    tools: tuple[dict[str, Any], ...] = ()
    thinking: bool = False

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self.user}]


GOLDENS = (
    Golden("What is 12 plus 30?", "12 + 30 = 42."),
    Golden("what is two plus two?", "2 + 2 = 4."),
    Golden("Hello!", "Hello! I am the demo model of jaxinfer. What can I do for you?"),
    Golden("Count from 8 to 12.", "8, 9, 10, 11, 12."),
    Golden("Spell lamp.", "l-a-m-p"),
    Golden("What is the capital of France?", REFUSAL),
    Golden(
        "Extract JSON: Zoe put a blue lamp on the hill.",
        '{"name": "Zoe", "object": "lamp", "color": "blue", "place": "hill"}',
    ),
    Golden(
        "What is the weather in Paris?",
        '<tool_call>\n{"name": "get_current_weather", "arguments": {"location": "Paris"}}\n</tool_call>',
        tools=(WEATHER_TOOL,),
    ),
    Golden(
        "What is 47 + 85?",
        "<think>\nOnes: 7 and 5 make 12. Write 2, carry 1.\nTens: 4 and 8 and the carry make 13.\n</think>\n\n"
        "47 + 85 = 132.",
        thinking=True,
    ),
)
