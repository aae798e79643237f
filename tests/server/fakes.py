"""AsyncLLM without an engine: scripted deltas, one token per byte of text, and a record of what it was asked."""

import asyncio
import contextlib
import dataclasses
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import msgspec
import numpy as np

from jaxinfer.config import EngineConfig, Limits
from jaxinfer.errors import InvalidRequest, Overloaded, Unavailable
from jaxinfer.llm.events import Event
from jaxinfer.llm.latency import Latency
from jaxinfer.llm.replicas import ReplicaStats
from jaxinfer.llm.structure import constraint_for
from jaxinfer.llm.types import Delta, ModelInfo, Stats
from jaxinfer.protocol.sampling import GenerationDefaults, SamplingParams, resolve_max_tokens
from jaxinfer.protocol.validate import check_prompt_ids, validate_sampling
from jaxinfer.runtime.plan import BackendTime, DeviceFacts
from jaxinfer.text.grammar.trial import Tried
from jaxinfer.text.reading import Reading
from jaxinfer.text.tools.reader import ToolUse

TIMINGS = (
    BackendTime("decode_attention", "xla", "decode 8", 5e-4, 4e-4),
    BackendTime("decode_attention", "cpu", "decode 8", 1e-3, 9e-4),
)
Step = Delta | float | asyncio.Event | Exception  # a delta; seconds or an event to wait for; what to raise
Script = Callable[[list[int], SamplingParams], Iterable[Step]]

INFO = ModelInfo(
    served_names=("tiny", "org/tiny-1B"),
    root="org/tiny-1B",
    max_model_len=512,
    vocab_size=300,
    hidden_size=4,
    eos_token_ids=(257,),
    defaults=GenerationDefaults(),
    has_chat_template=True,
    fingerprint="jaxinfer-test",
    created=1_700_000_000,
    tool_format="hermes",
)
SMALL = Limits(
    max_model_len=512,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    page_size=16,
    num_pages=11,
    vocab_size=300,
    decode_buckets=(),
    extend_buckets=(),
)


@dataclasses.dataclass(frozen=True)
class Call:
    """One generate(), or one embed(), which has a pooling."""

    prompt_ids: list[int]
    params: SamplingParams
    request_id: str
    priority: int
    chat: bool
    salt: str
    pooling: str | None = None
    bulk: bool = False
    random_seed: int | None = None

    @property
    def prompt(self) -> str:
        return bytes(self.prompt_ids).decode()


def hello(prompt_ids: list[int], params: SamplingParams) -> Iterable[Step]:
    """Two pieces and an end for each of the n choices, interleaved."""
    for index in range(params.n):
        yield Delta(index, "Hel", [1, 2])
    for index in range(params.n):
        yield Delta(index, "", [3])
        yield Delta(index, "lo", [4, 257], "stop")


def vector(prompt_ids: list[int]) -> np.ndarray:
    """The embedding of a prompt, f32[4]."""
    return np.array([len(prompt_ids), prompt_ids[0], -prompt_ids[-1], 0.5], np.float32)


class FakeLLM:
    """As the server sees an AsyncLLM. `running` holds the ids that would hold pages."""

    def __init__(
        self, script: Script = hello, *, status: str = "ready", max_running: int = 64, stolen: int = 0, **info: Any
    ) -> None:
        self.status = status
        self.progress: Event | None = None
        self.calls: list[Call] = []
        self.aborts: list[str] = []
        self.encoded: list[str] = []
        self.rendered: list[dict[str, Any]] = []
        self.uses: list[ToolUse | None] = []
        self.running: set[str] = set()
        self.kept: dict[str, tuple[str, list[int]]] = {}  # salt and tokens by the engine's name of a session
        self.forgotten: list[str] = []
        self.stalled_s = 0.0
        self._closed_s = -math.inf
        self.config = EngineConfig()
        self.limits = SMALL
        self.latency = Latency(INFO.max_model_len)
        self.beginning = asyncio.Lock()
        self._script = script
        self._max_running = max_running
        self._stolen = stolen  # room that others take between admit() and generate()
        self._info = dataclasses.replace(INFO, **info)

    def replica_stats(self) -> list[ReplicaStats]:
        return [ReplicaStats(0, True, 0, 0, self.stats())]

    @property
    def info(self) -> ModelInfo:
        assert self.status not in ("starting", "failed"), "nobody may ask before the model is there"
        return self._info

    def status_for(self, arrived_s: float | None) -> str:
        return "ready" if self.status == "draining" and (arrived_s or math.inf) < self._closed_s else self.status

    def admit(self, num_choices: int = 1, arrived_s: float | None = None) -> None:
        if len(self.running) + num_choices > self._max_running:
            raise Overloaded("the queue is full", code="queue_full", retry_after_s=2.2)

    async def encode(
        self, text: str, *, add_special_tokens: bool = True, must_fit: bool = True, param: str = "prompt"
    ) -> list[int]:
        self.encoded.append(text)
        return ([256] if add_special_tokens else []) + list(text.encode())

    async def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        names = {} if skip_special_tokens else {256: b"<bos>", 257: b"<eos>"}
        return b"".join(bytes((i,)) if i < 256 else names.get(i, b"") for i in ids).decode(errors="replace")

    async def decode_each(self, ids: list[int]) -> list[str]:
        return [await self.decode([token_id], skip_special_tokens=False) for token_id in ids]

    async def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: dict[str, Any] | None = None,
    ) -> list[int]:
        self.rendered.append({"messages": messages, "add": add_generation_prompt, "go_on": continue_final_message})
        self.rendered[-1]["kwargs"] = template_kwargs
        self.rendered[-1]["tools"] = tools
        text = "".join(f"{message['role']}:{message['content']}\n" for message in messages)
        return list((text + ("assistant:" if add_generation_prompt else "")).encode())

    def reading(self, prompt_ids: list[int], tools: ToolUse | None, params: SamplingParams) -> Reading | None:
        self.uses.append(tools)
        return None  # the scripted deltas are apart already

    @property
    def forms(self):
        return self

    async def check(self, params, reading):
        """Of what answers must be the shape is checked, as by a real one; nothing is compiled."""
        constraint_for(params, reading, {})

    async def generate(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        chat: bool = False,
        salt: str = "",
        arrived_s: float | None = None,
        prompt_only: bool = False,
        reading: Reading | None = None,
        random_seed: int | None = None,
        bulk: bool = False,
        session: bool = False,
        form: Tried | None = None,
    ) -> AsyncIterator[Delta]:
        if self.status_for(arrived_s) == "draining":
            raise Unavailable("draining", code="draining")
        check_prompt_ids(prompt_ids, vocab_size=self._info.vocab_size)
        validate_sampling(params, vocab_size=self._info.vocab_size)
        resolve_max_tokens(
            params,
            self._info.defaults,
            num_prompt_tokens=len(prompt_ids),
            max_model_len=self._info.max_model_len,
            chat=chat,
            prompt_only=prompt_only,
        )
        asked = {"bulk": bulk, "random_seed": random_seed}
        return self._accept(Call(list(prompt_ids), params, request_id, priority, chat, salt, **asked), self._script)

    async def embed(
        self,
        prompt_ids: list[int],
        pooling: str,
        *,
        request_id: str,
        priority: int = 0,
        salt: str = "",
        arrived_s: float | None = None,
    ) -> AsyncIterator[Delta]:
        """Scripts other than `hello` say what comes instead of an embedding."""
        assert self.status_for(arrived_s) != "draining" and len(prompt_ids) <= self._info.max_model_len
        call = Call(list(prompt_ids), SamplingParams(), request_id, priority, False, salt, pooling)
        whole = Delta(0, "", [], "stop", embedding=vector(prompt_ids).tobytes())
        return self._accept(call, (lambda *_: [whole]) if self._script is hello else self._script)

    def _accept(self, call: Call, script: Script) -> AsyncIterator[Delta]:
        if call.request_id in self.running:
            raise InvalidRequest("request ids must differ")
        if len(self.running) >= self._max_running - self._stolen:
            raise Overloaded("the queue is full", code="queue_full", retry_after_s=2.2)
        self.calls.append(call)
        self.running.add(call.request_id)
        steps = script(call.prompt_ids, call.params)
        return self._stream(call.request_id, call.prompt_ids, steps, set(range(call.params.n)))

    async def _stream(
        self, request_id: str, prompt_ids: list[int], script: Iterable[Step], unfinished: set[int]
    ) -> AsyncIterator[Delta]:
        for step in script:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, float):
                await asyncio.sleep(step)
            elif request_id not in self.running:
                for index in unfinished:
                    yield Delta(index, "", [], "abort")
                return
            else:
                unfinished -= {step.index} if step.finish_reason else set()
                cached = step.cached_tokens or len(prompt_ids) // 2
                yield msgspec.structs.replace(step, prompt_tokens=len(prompt_ids), cached_tokens=cached)
        self.running.discard(request_id)

    async def abort(self, request_id: str) -> None:
        self.aborts.append(request_id)
        self.running.discard(request_id)

    def keep(self, session: str, salt: str, tokens: list[int]) -> None:
        self.kept[session] = salt, list(tokens)
        if not tokens:
            del self.kept[session]

    def forget(self, session: str) -> None:
        self.forgotten.append(session)
        self.kept.pop(session, None)

    async def until_failed(self) -> None:
        await asyncio.Event().wait()

    async def drain(self, timeout_s: float, arrived: Awaitable[None] | None = None) -> None:
        """Like AsyncLLM: what still runs after the timeout is aborted, not an error."""
        self.status, self._closed_s = "draining", time.monotonic() if self.status == "ready" else self._closed_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                if arrived is not None:
                    await arrived
                while self.running:
                    await asyncio.sleep(0.01)
        self._closed_s = -math.inf
        self.running.clear()

    def stats(self) -> Stats:
        num_running = len(self.running)
        return Stats(
            running=num_running,
            waiting=1,
            pages_free=10 - num_running,
            pages_owned=num_running,
            pages_total=10,
            pages_kept=len(self.kept),
            pages_kept_by={session: len(tokens) // 16 for session, (_, tokens) in self.kept.items()},
            host_pages_by=dict.fromkeys(self.kept, 2),
            prompt_tokens=100,
            cached_tokens=40,
            generated_tokens=7,
            finished={"stop": 3, "length": 1},
            steps=12,
            device=DeviceFacts(
                {"weights": 1000, "pages": 500}, {"decode_attention": "xla"}, timings=TIMINGS, compiled=2, loaded=3
            ),
        )
