"""AsyncLLM: what servers, batches and adapters know of the engine. Asyncio outside, threads inside."""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import math
import queue
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from jaxinfer.checkpoint.resolve import local_folder
from jaxinfer.config import EngineConfig, Limits
from jaxinfer.engine.sequence import Add, Forget, Keep, Output
from jaxinfer.errors import EngineError
from jaxinfer.llm.admission import Status, check_room, check_status, unavailable
from jaxinfer.llm.answer import NO_TEXT, Answer, feed
from jaxinfer.llm.events import STAGES, TEXTS, Announcer, Event, OnEvent, ignore
from jaxinfer.llm.lanes import AT_ONCE_CHARS, Lanes
from jaxinfer.llm.latency import Latency, timings_of
from jaxinfer.llm.mailbox import Mailbox
from jaxinfer.llm.prepare import prepare, prepare_embedding
from jaxinfer.llm.process import EngineProcess
from jaxinfer.llm.replicas import Replicas, ReplicaStats
from jaxinfer.llm.started import Started
from jaxinfer.llm.stream import Stream
from jaxinfer.llm.structure import Forms
from jaxinfer.llm.suspects import GUILTY, Suspects
from jaxinfer.llm.text_side import load_text, num_bytes, num_chars, texts_of
from jaxinfer.llm.transport import NewTransport
from jaxinfer.llm.turns import Turns
from jaxinfer.llm.types import Delta, ModelInfo, Stats, Timings
from jaxinfer.protocol.embeddings import Pooling
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.text.chat_template import encode_chat
from jaxinfer.text.grammar.trial import Tried
from jaxinfer.text.reading import Reading
from jaxinfer.text.tools.reader import ToolUse

log = logging.getLogger(__name__)

# what clients are told; the cause may hold paths of this machine, so it goes to the log alone
DEADLY = f"the engine ended {GUILTY} times in a row while it computed this request, which is not tried again"
FAILED = "the engine failed and this request with it; the server's log says why"
WOKEN_AT_ONCE = 32  # streams in a round of the event loop: about a millisecond


@dataclasses.dataclass(slots=True)
class _Open:
    """A request that was accepted and whose last delta has not been handed to the loop."""

    answer: Answer
    mailbox: Mailbox
    timings: list[Timings]  # by choice
    num_ended: int = 0  # choices whose last delta was delivered; `answer` itself runs ahead of the loop


class AsyncLLM:
    """One model behind `generate`, `abort`, `drain` and `stats`; all methods belong to one event loop.

    Beside the engines' own threads there are one that turns its outputs into text and a few for tokenizing.
    Invariant: a request is in `_open` from the moment it is posted until its last delta was handed to the loop.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_event: OnEvent = ignore,
        new_transport: NewTransport = EngineProcess,
        num_replicas: int = 1,
    ) -> None:
        """new_transport: EngineProcess, or one that makes thread.EngineThread, for an engine in this process.

        num_replicas: engines among which requests are divided, each on a device of its own where there are GPUs.
        """
        self.config = config
        self.status: Status = "starting"
        self.progress: Event | None = None  # of the newest start: what it does
        self._on_event, self._announce = on_event, Announcer(self._hear)
        self.replicas = Replicas(config, self._announce, new_transport, num_replicas)
        self._ready = asyncio.Event()
        self._failed = asyncio.Event()
        self._failure: EngineError | None = None
        self._suspects = Suspects()  # the text thread's
        self._started: Started | None = None
        self._busy_since_s = 0.0  # when `_open` was last empty
        self._closed_s = math.inf  # a drain's: only what arrived before is accepted
        self._open: dict[str, _Open] = {}
        self._posting = threading.Lock()  # held to register and post, or to end all that is open: both or neither
        self._names: dict[str, set[str]] = {}  # a client's request id -> the ids we made for it
        self._turns = Turns(WOKEN_AT_ONCE)
        self._num_active = 0  # choices accepted and not ended
        self.beginning = asyncio.Lock()  # of one request of several prompts at a time: two halves would both be refused
        self._idle = asyncio.Event()
        self._idle.set()
        self._numbers = itertools.count()
        self._outputs: queue.SimpleQueue[list[Output] | Callable[[], list[tuple[str, Delta]]] | None]
        self._outputs = queue.SimpleQueue()
        self._text_thread = threading.Thread(target=self._run_text, name="jaxinfer-text", daemon=True)
        self._lanes = Lanes()

    async def start(self) -> None:
        """Resolve, load, compile: "serving" when any request can be carried, and back here when all is compiled.

        Raises what the start raised; `status` is then "failed".
        """
        self._loop = asyncio.get_running_loop()
        try:
            await asyncio.to_thread(self._start)
            self._text_thread.start()
            if self._failure is None:
                self.status = "serving"
            await self._ready.wait()
        except BaseException:
            self.status = "failed"
            if self._started is None:
                self.replicas.close()
            raise
        if self.status == "serving":
            self.status = "ready"

    async def until_failed(self) -> None:
        """Wait for the engine to fail for good, however long; then raise why, as an EngineError."""
        await self._failed.wait()
        assert self._failure is not None, "set before the event"
        raise self._failure

    def _hear(self, event: Event) -> None:
        if event.kind in STAGES:
            self.progress = event
        try:
            self._on_event(event)
        except EngineError:  # nobody waits for this start any more: it ends here, and what runs already goes on
            if self._started is None:
                raise
        except Exception:  # as of a terminal that is gone: no reason for the thread that hears of an engine to end
            log.exception("an event cannot be passed on")
        if event.kind == "ready":
            self._loop.call_soon_threadsafe(self._ready.set)

    def _start(self) -> None:
        folder = local_folder(self.config.model)
        with ThreadPoolExecutor(1) as pool:  # beside the engine's start, where it is known already which folder it is
            early = pool.submit(load_text, self.config, folder) if folder else None
            handshake = self.replicas.start(self._outputs.put, self._put_resumption, self._end_all)
            if early is None or not early.done():
                self._hear(TEXTS)
            text = early.result() if early else load_text(self.config, Path(handshake.folder))
        self._lanes = Lanes(is_linear=text.tokenizer.is_linear)
        self._started = Started.of(handshake, text)
        text.tokenizer.start()  # behind all that may fail; close() ends it
        self._announce.release()

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    @property
    def _model(self) -> Started:
        if self._started is None:
            raise unavailable("starting")
        return self._started

    def status_for(self, arrived_s: float | None) -> Status:
        """The status for a request that came then, None is now: a drain still answers those from before it began."""
        came_before = arrived_s is not None and arrived_s < self._closed_s
        return "ready" if self.status == "draining" and came_before else self.status

    def admit(self, num_choices: int = 1, arrived_s: float | None = None) -> None:
        """Raise Unavailable or Overloaded if a request for that many choices would be refused now."""
        check_status(self.status_for(arrived_s))
        check_room(self._model.limits, self._num_active, num_choices, self.replicas.num_usable)

    async def encode(
        self, text: str, *, add_special_tokens: bool = True, must_fit: bool = True, param: str = "prompt"
    ) -> list[int]:
        """Token ids of a text; control tokens spelt in it are parsed.

        must_fit: raise InvalidRequest of `param`, before they are counted, when they can never fit into the context.
        """

        def encode() -> list[int]:
            if must_fit:
                self._model.text.check_fits(num_bytes(text), self.info.max_model_len, param)
            return self._model.text.tokenizer.encode(text, add_special_tokens=add_special_tokens)

        at_once = len(text) <= AT_ONCE_CHARS and self._model.text.tokenizer.is_linear
        return encode() if at_once else await self._lanes.run(encode, len(text))

    async def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        decode = partial(self._model.text.tokenizer.decode, ids, skip_special_tokens=skip_special_tokens)
        return await self._lanes.run(decode, len(ids))

    async def decode_each(self, ids: Sequence[int]) -> list[str]:
        """The text of each token by itself, special tokens included."""
        decode = partial(self._model.text.tokenizer.decode, skip_special_tokens=False)
        return await self._lanes.run(lambda: [decode((token_id,)) for token_id in ids], len(ids))

    async def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: dict[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation under the model's chat template. Raises InvalidRequest."""

        def render() -> list[int]:
            size = sum(num_bytes(text) for message in messages for text in texts_of(message))
            self._model.text.check_fits(size, self.info.max_model_len, "messages")
            return encode_chat(
                self._model.text.tokenizer,
                self._model.text.template,
                messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_kwargs=template_kwargs,
            )

        return await self._lanes.run(render, num_chars(messages))

    def reading(self, prompt_ids: Sequence[int], tools: ToolUse | None, params: SamplingParams) -> Reading | None:
        """How the answer to a rendered prompt is to be read, so that its deltas hold thoughts and calls apart."""
        return self._model.text.reading(prompt_ids, tools, params)

    async def generate(
        self,
        prompt_ids: Sequence[int],
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
        """Accept a request; iterate over what is returned for its deltas. Closing it early aborts the request.

        request_id: the caller's label, need not be unique.    priority: lower runs sooner.    chat: an unset max_tokens
        means the rest of the context.    salt: prefixes are shared only within one salt.    arrived_s: when it came,
        by time.monotonic(), if that was before this call.    prompt_only: the one token of the answer is not wanted;
        the prompt may fill the context.    reading: how the text is taken apart (see `reading`); None leaves it whole.
        random_seed: 64 bits for a request that names no seed, instead of fresh ones.    bulk: nobody reads the answer
        before it is whole.    session: it is a turn of one (see `keep`).    form: what `forms.check` said, if asked.
        Raises InvalidRequest, Overloaded or Unavailable here, never later.
        """
        request, sampling = prepare(
            prompt_ids,
            params,
            request_id=f"{request_id}#{next(self._numbers)}",
            info=self.info,
            limits=self._model.limits,
            random_seed=secrets.randbits(64) if random_seed is None else random_seed,
            bulk=bulk,
            session=session,
            spell=self._model.text.spell,
            chat=chat,
            priority=priority,
            salt=salt,
            prompt_only=prompt_only,
            reading=reading,
            structure=await self.forms.structure(params, reading, form, prompt_ids, chat=chat),
        )
        answer = Answer(request, sampling, self._model.text.tokenizer, self.replicas.post, reading, chat=chat)
        return self._accept(answer, request_id, arrived_s)

    async def embed(
        self,
        prompt_ids: Sequence[int],
        pooling: Pooling,
        *,
        request_id: str,
        priority: int = 0,
        salt: str = "",
        arrived_s: float | None = None,
    ) -> AsyncIterator[Delta]:
        """The same for an embedding, which comes on the only delta."""
        request = prepare_embedding(
            prompt_ids,
            pooling,
            request_id=f"{request_id}#{next(self._numbers)}",
            info=self.info,
            limits=self._model.limits,
            priority=priority,
            salt=salt,
        )
        answer = Answer(request, NO_TEXT, self._model.text.tokenizer, self.replicas.post)
        return self._accept(answer, request_id, arrived_s)

    def _accept(self, answer: Answer, request_id: str, arrived_s: float | None) -> AsyncIterator[Delta]:
        """Post its request. request_id: the caller's label."""
        request, mailbox = answer.request, Mailbox()
        with self._posting:
            self.admit(request.n, arrived_s)  # whoever is let in is among those that _end_all finds
            self._names.setdefault(request_id, set()).add(request.id)
            self._num_active += request.n
            self._idle.clear()
            if not self._open:
                self._busy_since_s = time.monotonic()
            self._open[request.id] = _Open(answer, mailbox, timings_of(request.n, arrived_s))
            self.replicas.post(Add(request))
        return Stream(mailbox, request.n, partial(self._abort, request.id))

    async def abort(self, request_id: str) -> None:
        """End every request that was accepted under this label; its streams get finish_reason "abort"."""
        for made in tuple(self._names.get(request_id, ())):
            self._abort(made)

    def _abort(self, made: str, error: str | None = None) -> None:
        if made in self._open:
            answer = self._open[made].answer
            self._outputs.put(lambda: [(made, delta) for delta in answer.abort(error)])

    def keep(self, session: str, salt: str, tokens: Sequence[int]) -> None:
        """Keep the pages of these tokens from being reused as long as there are others, instead of what this session
        kept before; without tokens it keeps nothing. A new engine has none of them: their tokens are computed again."""
        self.replicas.post(Keep(session, salt, tuple(tokens)))

    def forget(self, session: str) -> None:
        """Free what a session keeps, but for what others use or keep."""
        self.replicas.post(Forget(session))

    async def drain(self, timeout_s: float, arrived: Awaitable[None] | None = None) -> None:
        """Accept nothing that comes from now on, wait for what runs, abort what is left after `timeout_s`.

        arrived: ends when nothing that came before, but is not accepted yet, will come any more.
        """
        self.status, self._closed_s = "draining", min(self._closed_s, time.monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                if arrived is not None:
                    await arrived
                self._closed_s = -math.inf
                await self._idle.wait()
        self._closed_s = -math.inf
        for made in tuple(self._open):
            self._abort(made)
        await self._idle.wait()

    async def close(self) -> None:
        """Stop the threads; requests still open end with finish_reason "abort"."""
        self._ready.set()  # a start that waits for the last compilation need not any longer
        if self._started is not None:
            await self.drain(0.0)
            await asyncio.to_thread(self._started.text.tokenizer.close)  # texts under way need not be waited for
            await asyncio.to_thread(self.replicas.close)
            self._outputs.put(None)
            await asyncio.to_thread(self._text_thread.join)
            await asyncio.to_thread(self._started.forms.close)
        self._lanes.close()

    def stats(self) -> Stats:
        if self._started is None:
            raise unavailable("starting")
        return self.replicas.stats()

    def replica_stats(self) -> list[ReplicaStats]:
        """Of each engine."""
        return self.replicas.each()

    async def profile(self, folder: str | None) -> None:
        """Begin a trace of the engine's device into `folder`; None ends it. One call at a time. Raises EngineError."""
        await asyncio.to_thread(self.replicas.profile, folder)

    @property
    def forms(self) -> Forms:
        return self._model.forms

    @property
    def limits(self) -> Limits:
        return self._model.limits

    @property
    def latency(self) -> Latency:
        return self._model.latency

    @property
    def stalled_s(self) -> float:
        """How long the engine has had work and not gone on with it; 0 when it has none, whatever it does then."""
        return self.replicas.stalled_s() if self._open and self._started is not None else 0.0

    def _run_text(self) -> None:
        """The text thread: whatever one step put out becomes at most one wake-up of the event loop."""
        while (item := self._outputs.get()) is not None:
            batch: list[tuple[str, Delta]] = []
            try:
                if callable(item):
                    batch = item()
                else:
                    self._read(item, batch)
                self._absolve(made for made, delta in batch if delta.finish_reason is not None)
            except Exception as error:  # a bug of ours: without this thread all would look well and nobody be answered
                log.exception("what the engine puts out cannot be read")
                self._end_all(error)
            if batch:
                self._loop.call_soon_threadsafe(self._deliver, batch)

    def _read(self, outputs: list[Output], batch: list[tuple[str, Delta]]) -> None:
        """Append the deltas of one step; what is there when this raises is still to be delivered."""
        now_s = time.monotonic()
        found = [(self._open.get(output.request_id), output) for output in outputs]
        came = []
        for output, delta in feed([(held.answer, output) for held, output in found if held], self.replicas.post):
            batch.append((output.request_id, delta))
            came.append((self._open[output.request_id].timings[output.index], output, delta))
        self._model.latency.saw(came, now_s)
        self._absolve(output.request_id for output in outputs if output.token_ids)

    def _deliver(self, batch: list[tuple[str, Delta]]) -> None:
        for made, delta in batch:
            held = self._open[made]
            if delta.finish_reason is not None:
                delta.timings = held.timings[delta.index]
            if held.mailbox.put(delta):
                self._turns.take(held.mailbox.wake)
            if delta.finish_reason is not None:
                self._num_active -= 1
                held.num_ended += 1
                if held.num_ended == held.answer.request.n:
                    if held.answer.request.pooling is None:
                        self._model.latency.all_ended(held.timings, held.answer.request.max_tokens)
                    self._forget(made)

    def _forget(self, made: str) -> None:
        del self._open[made]
        self.replicas.ended(made)
        label = made.rpartition("#")[0]
        self._names[label].discard(made)
        if not self._names[label]:
            del self._names[label]
        if not self._open:
            self._idle.set()

    def _put_resumption(self, lost: list[str], unplaced: list[str]) -> None:
        self._outputs.put(lambda: self._resume(lost, unplaced))

    def _resume(self, lost: list[str], unplaced: list[str]) -> list[tuple[str, Delta]]:
        """On the text thread, behind all outputs of the engine that has ended: give its requests to another, and those
        that came while there was none.
        """
        posted, guilty = self._suspects.engine_ended([made for made in lost if self._is_unfinished(made)])
        self._post_again([*posted, *unplaced])
        answers = [(made, held.answer) for made in guilty if (held := self._open.get(made))]
        for made, _ in answers:
            log.error("request %s has ended %d engines and is given up", made, GUILTY)
        return [(made, delta) for made, answer in answers for delta in answer.abort(DEADLY)]

    def _is_unfinished(self, made: str) -> bool:
        held = self._open.get(made)  # the loop may just have forgotten it
        return held is not None and not held.answer.done

    def _absolve(self, requests: Iterable[str]) -> None:
        """These got a token or have ended: a suspect of having ended the engine may follow."""
        for made in requests if self._suspects.exist else ():
            self._post_again(self._suspects.got_token(made))

    def _post_again(self, requests: Iterable[str]) -> None:
        for made in requests:
            if (held := self._open.get(made)) is not None:
                for message in held.answer.resumption():
                    self.replicas.post(message)

    def _end_all(self, error: BaseException) -> None:
        def end() -> list[tuple[str, Delta]]:
            with self._posting:
                answers = [(made, held.answer) for made, held in list(self._open.items())]
            return [(made, delta) for made, answer in answers for delta in answer.abort(FAILED)]

        log.error("the engine has failed for good: %s", error)
        self.status = "failed"
        self._failure = EngineError(str(error))
        self._loop.call_soon_threadsafe(self._failed.set)
        self._loop.call_soon_threadsafe(self._ready.set)  # nobody needs to wait any longer
        self._outputs.put(end)
