"""A crowd of clients that ask for everything there is, three in ten leaving before they have it, and how each fared."""

import asyncio
import contextlib
import dataclasses
import json
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import jsonschema_rs
import msgspec

from jaxinfer.bench.http_client import Connection, Reply, Target
from tests.server.http import CHAT, COMPLETIONS

NUM_CLIENTS = 10
THINK_S = 0.25  # between two requests of one client, on average: the server is busy, not always full
LEAVING = 0.38  # of whom some have their answer before
PATIENCE_S = 0.25  # of those who leave: anything up to this
PHRASES = ("the horse looked at five friends", "it rained all day", "seven plus five is", "a river", "spells the word")
REGEX = "[a-z]{3,9}( [a-z]{2,9}){0,3}"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "is_old": {"type": "boolean"}},
    "required": ["name", "is_old"],
    "additionalProperties": False,
}
EXTRAS: tuple[dict[str, Any], ...] = (
    {},
    {"n": 3},
    {"n": 8, "max_tokens": 16},
    {"stop": ["e ", "\n", "never this"]},
    {"frequency_penalty": 0.5, "presence_penalty": 0.3, "repetition_penalty": 1.1},
    {"logit_bias": {"5": -100, "17": 3.5}, "bad_words": ["horse"]},
    {"min_tokens": 4, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"ignore_eos": True, "max_tokens": 200},
    {"structured_outputs": {"regex": REGEX}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PERSON}}, "n": 2},
)
TOOLS = [{"type": "function", "function": {"name": "meet", "parameters": PERSON}}]


@dataclasses.dataclass(frozen=True)
class Request:
    path: str
    body: dict[str, Any]

    @property
    def num_choices(self) -> int:
        return int(self.body.get("n", 1))


def draw_request(draw: random.Random, user: str) -> Request:
    """Of any kind; a tenth have prompts of 100 phrases and more."""
    num_phrases = draw.randint(100, 200) if draw.random() < 0.1 else draw.randint(1, 10)
    text = " ".join(draw.choices(PHRASES, k=num_phrases))
    body: dict[str, Any] = {"user": user, "max_tokens": draw.randint(4, 64), "temperature": draw.choice((0, 0.7, 1.3))}
    body |= draw.choice(EXTRAS)
    if draw.random() < 0.5:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    wants_logprobs = draw.random() < 0.2
    if draw.random() < 0.5:
        body["messages"] = [{"role": "user", "content": text}]
        if draw.random() < 0.25 and not body.keys() & {"structured_outputs", "response_format", "stop"}:
            body |= {"tools": TOOLS, "tool_choice": draw.choice(("auto", "required"))}
        return Request(CHAT, body | ({"logprobs": True, "top_logprobs": 5} if wants_logprobs else {}))
    return Request(COMPLETIONS, body | {"prompt": text} | ({"logprobs": 5, "echo": True} if wants_logprobs else {}))


def end_of(reply: Reply, request: Request) -> str:
    """How a request ended that its client waited for; "broken" is what no client may see."""
    if reply.status != 200:
        return f"HTTP {reply.status} {json.loads(reply.body)['error']['code']}" if reply.status else reply.error
    if request.body.get("stream"):
        *frames, done, rest = reply.body.decode().split("\n\n")
        if (done, rest) != ("data: [DONE]", ""):
            return f"broken: a stream ends with {done[-40:]!r}"
        events = [json.loads(frame.removeprefix("data: ")) for frame in frames if not frame.startswith(":")]
    else:
        events = [json.loads(reply.body)]
    if "error" in events[-1]:
        return f"error {events[-1]['error']['code']}"
    ended = [choice["index"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    if sorted(ended) != list(range(request.num_choices)):
        return f"broken: of {request.num_choices} choices these ended: {ended}"
    if fault := form_fault(events, request.body):
        return f"broken: {fault}"
    return "whole" if events[-1].get("usage") else "broken: no usage"


def form_fault(events: list[dict[str, Any]], body: dict[str, Any]) -> str:
    """What is wrong with an answer that ended by itself and must be of a form; "" if nothing is."""
    said, calls, ends = dict[int, str](), dict[tuple[int, int], str](), dict[int, str]()
    for choice in (choice for event in events for choice in event["choices"]):
        index, part = choice["index"], choice.get("message") or choice.get("delta") or choice
        said[index] = said.get(index, "") + (part.get("content") or part.get("text") or "")
        for number, call in enumerate(part.get("tool_calls") or ()):
            key = index, call.get("index", number)
            calls[key] = calls.get(key, "") + (call["function"].get("arguments") or "")
        ends[index] = choice["finish_reason"] or ends.get(index, "")
    prompt = body.get("prompt", "") if body.get("echo") else ""
    for index, text in said.items():
        form = text.removeprefix(prompt)
        if ends[index] != "stop":
            continue
        if "structured_outputs" in body and not re.fullmatch(REGEX, form):
            return f"{form!r} is no match"
        if "response_format" in body and not is_person(form):
            return f"{form!r} is not of its schema"
        if body.get("tool_choice") == "required":
            return f"{form!r} is no call"
    wrong = (text for (index, _), text in calls.items() if ends[index] == "tool_calls" and not is_person(text))
    return next((f"the arguments {text!r} are not of their schema" for text in wrong), "")


def is_person(text: str) -> bool:
    try:
        return bool(jsonschema_rs.is_valid(PERSON, json.loads(text)))
    except ValueError:
        return False


@dataclasses.dataclass
class Tally:
    """How requests ended, and how long those took that came whole.

    ends: "whole", "left", "HTTP 429 queue_full", "error non_finite", "broken: ..." and so on.
    """

    ends: Counter[str] = dataclasses.field(default_factory=Counter)
    seconds: list[float] = dataclasses.field(default_factory=list)


class Crowd:
    """Clients on one server. names: how many distinct users, models and paths were named so far, together."""

    def __init__(self, port: int, seed: int) -> None:
        self._target = Target(f"http://127.0.0.1:{port}")
        self._draw = random.Random(seed)
        self.tally = Tally()
        self.names = 0

    def clients(self, seconds: float) -> list[Coroutine[Any, Any, None]]:
        """All of them, for a run of that length: ten thousand models and paths are named in it, 60 texts too long."""
        ordinary = [self.client() for _ in range(NUM_CLIENTS)]
        return [*ordinary, self.stranger(max(0.1, seconds / 5000)), self.glutton(seconds / 60)]

    async def client(self) -> None:
        """One client, until it is cancelled."""
        while True:
            await asyncio.sleep(self._draw.expovariate(1 / THINK_S))
            async with self._connected() as connection:
                while connection.is_open:
                    await self._ask(connection, draw_request(self._draw, self._name("user")))
                    await asyncio.sleep(self._draw.expovariate(1 / THINK_S))

    async def stranger(self, pause_s: float) -> None:
        """Name models and paths that are not there, each once, until it is cancelled."""
        async with self._connected() as connection:
            while True:
                await asyncio.sleep(pause_s)
                body = msgspec.json.encode({"prompt": "x", "model": self._name("model")})
                for request in (
                    self._target.request("POST", COMPLETIONS, body),
                    self._target.request("GET", f"/{self._name('path')}"),
                ):
                    reply = await connection.ask(request)
                    self.tally.ends[f"stranger: HTTP {reply.status}"] += 1

    async def glutton(self, pause_s: float) -> None:
        """Send 8 MB that can never fit, until it is cancelled."""
        while True:
            await asyncio.sleep(pause_s)
            async with self._connected() as connection:
                body = msgspec.json.encode({"prompt": "x " * 2**22})
                reply = await connection.ask(self._target.request("POST", COMPLETIONS, body))
                self.tally.ends[f"glutton: HTTP {reply.status}"] += 1

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        connection = await self._target.connect()
        try:
            yield connection
        finally:
            connection.close()

    def _name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}-{self.names}"

    async def _ask(self, connection: Connection, request: Request) -> None:
        asked = self._target.request("POST", request.path, msgspec.json.encode(request.body))
        has_left, leave = asyncio.Event(), None

        def go() -> None:
            has_left.set()
            connection.close()

        if self._draw.random() < LEAVING:
            leave = asyncio.get_running_loop().call_later(self._draw.uniform(0, PATIENCE_S), go)
        begun_s = time.monotonic()
        reply = await connection.ask(asked)
        if leave is not None:
            leave.cancel()
        # whom the server leaves before that has not left
        early = has_left.is_set() and reply.error.startswith("the connection ended early")
        end = "left" if early else end_of(reply, request)
        self.tally.ends[end] += 1
        if end == "whole":
            self.tally.seconds.append(time.monotonic() - begun_s)
