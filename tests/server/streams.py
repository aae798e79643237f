"""Many completions and chats at once, each streamed, as a client sees them: what came, when, and how it ended."""

import asyncio
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import httpx2

from tests.server.http import CHAT, COMPLETIONS
from tests.support.attempts import Stopwatch


def strict_json(text: str | bytes) -> Any:
    """Parsed as RFC 8259 has it: NaN and Infinity are no JSON."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@dataclasses.dataclass
class Answer:
    """One streamed completion, or a chat with its calls as they are written.

    texts, reasons: by choice.    tokens, logprobs: if they were asked for.
    longest_gap_s: between two frames, by a Stopwatch.
    """

    status: int = 0
    texts: dict[int, str] = dataclasses.field(default_factory=dict)
    reasons: dict[int, str] = dataclasses.field(default_factory=dict)
    tokens: list[str] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    longest_gap_s: float = 0.0

    @property
    def said(self) -> tuple[Any, ...]:
        """All that must not depend on what happens to others or to the engine; of logprobs the last bit may."""
        usage = self.usage and (self.usage["prompt_tokens"], self.usage["completion_tokens"])
        return self.texts, self.reasons, self.tokens, self.error, usage

    def add(self, frame: dict[str, Any]) -> None:
        if "error" in frame:
            self.error = frame["error"]
            return
        self.usage = frame.get("usage") or self.usage
        for choice in frame["choices"]:
            index = choice["index"]
            assert index not in self.reasons, "a choice went on after its end"
            self.texts[index] = self.texts.get(index, "") + text_of(choice)
            if found := choice.get("logprobs"):
                self.tokens += found["tokens"]
                self.logprobs += found["token_logprobs"]
            if choice["finish_reason"]:
                self.reasons[index] = choice["finish_reason"]


def text_of(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    calls = [call["function"] for call in choice["delta"].get("tool_calls") or ()]
    return (choice["delta"].get("content") or "") + "".join((c.get("name") or "") + c["arguments"] for c in calls)


OnFrame = Callable[[], None]


async def stream(client: httpx2.AsyncClient, body: dict[str, Any], on_frame: OnFrame) -> Answer:
    asked: dict[str, Any] = {"stream": True, "ignore_eos": True, **body}
    if asked["stream"]:
        asked["stream_options"] = {"include_usage": True}
    answer, watch = Answer(), None
    async with client.stream("POST", CHAT if "messages" in body else COMPLETIONS, json=asked) as response:
        answer.status = response.status_code
        if response.status_code != 200:
            answer.error = strict_json(await response.aread())["error"]
            return answer
        async for line in response.aiter_lines():
            if not line:
                continue
            answer.longest_gap_s = max(answer.longest_gap_s, watch.seconds() if watch else 0.0)
            watch = Stopwatch()
            on_frame()
            if line.startswith("data: ") and line != "data: [DONE]":
                answer.add(strict_json(line.removeprefix("data: ")))
    return answer


def ask_all(port: int, bodies: list[dict[str, Any]], on_frame: OnFrame = lambda: None) -> list[Answer]:
    """All of them at once. on_frame: called for each frame that comes."""

    async def run() -> list[Answer]:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            return await asyncio.gather(*(stream(client, body, on_frame) for body in bodies))

    return asyncio.run(run())


def ask_alone(port: int, bodies: list[dict[str, Any]]) -> list[Answer]:
    """One after the other."""
    return [answer for body in bodies for answer in ask_all(port, [body])]
