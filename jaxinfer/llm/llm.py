"""LLM: the engine in the caller's own thread, for notebooks and scripts. No event loop, no extra threads."""

import contextlib
import functools
import itertools
import logging
import random
import time
from collections.abc import Buffer, Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxinfer.config import EngineConfig, config_from_values
from jaxinfer.engine.sequence import Add, Call, Forget, Keep, Structure
from jaxinfer.errors import BatchError, EngineError, InvalidRequest
from jaxinfer.llm.answer import NO_TEXT, Answer, feed
from jaxinfer.llm.borrowed import run_over
from jaxinfer.llm.build import start_core
from jaxinfer.llm.core import Core
from jaxinfer.llm.events import TEXTS, Announcer, OnEvent, ignore
from jaxinfer.llm.outputs import (
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    RequestOutput,
    Results,
    ScoringOutput,
    ScoringRequestOutput,
)
from jaxinfer.llm.pieces import OpenCall, in_pieces
from jaxinfer.llm.prepare import prepare, prepare_embedding
from jaxinfer.llm.recording import Recording
from jaxinfer.llm.structure import check_here, constraint_for, structure_of
from jaxinfer.llm.text_side import load_text
from jaxinfer.llm.types import Delta, Stats
from jaxinfer.protocol.doubles import check_json
from jaxinfer.protocol.embeddings import Pooling, check_dimensions, check_pairs, paired, shaped, similarity
from jaxinfer.protocol.fields import warning_text
from jaxinfer.protocol.messages import PYTHON, read_messages
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.tools import read_tools, unknown_form
from jaxinfer.protocol.validate import check_prompt_ids, invalid
from jaxinfer.text.chat_template import encode_chat
from jaxinfer.text.grammar.source import Constraint
from jaxinfer.text.grammar.trial import Tried
from jaxinfer.text.messages import plain_objects
from jaxinfer.text.reading import Reading

if TYPE_CHECKING:
    from jaxinfer.offline.tally import Tally

log = logging.getLogger(__name__)

Prompt = str | Sequence[int] | dict[str, Any]
Message = dict[str, Any]
Encoded = tuple[str | None, list[int]]  # the text, where one was given, and its ids

PIECE = 32  # tokens of an answer that become text together where nobody watches it grow


class LLM:
    """A loaded model. `generate`, `chat` and `stream` step the engine until their own requests have ended.

    Invariant: between two calls the engine holds no request but those of streams that are being read, so an interrupted
    call leaves nothing behind.
    """

    def __init__(self, model: str = "demo", *, on_event: OnEvent = ignore, **settings: Any) -> None:
        """model: a folder, a hub id or "demo".    settings: any field of EngineConfig by name.

        Raises ConfigError, CheckpointError or DeviceError.
        """
        config = config_from_values({"model": model, **settings})
        announce = Announcer(on_event)
        core = start_core(config, announce)
        core.warming.result()
        announce(TEXTS)
        try:
            self._own(config, core)
        except BaseException:
            core.close()  # nobody else could: whoever catches the error keeps its frames, and these the weights
            raise
        announce.release()

    @classmethod
    def over(cls, config: EngineConfig, core: Core) -> "LLM":
        """An LLM over an engine that has been built already."""
        llm = cls.__new__(cls)
        llm._own(config, core)
        return llm

    def _own(self, config: EngineConfig, core: Core) -> None:
        self.config = config
        self._core = core
        self._engine = core.engine
        self._text = load_text(config, core.folder)
        self.info = self._text.facts_for(core.info)
        self._text.tokenizer.start()  # behind all that may fail
        self._numbers = itertools.count()
        self._random = random.Random(config.seed)
        self._calls: dict[str, OpenCall] = {}  # those under way, by request
        self._is_closed = False

    def stats(self) -> Stats:
        return self._core.stats()

    @contextlib.contextmanager
    def record(self) -> Iterator[Recording]:
        """Note what each step of the calls inside is made of."""
        recording = Recording(self._engine.scheduler)
        self._engine.on_step = recording.note
        try:
            yield recording
        finally:
            self._engine.on_step = None

    def keep(self, session: str, token_ids: Sequence[int]) -> None:
        """Keep the pages of a conversation for its next turn, instead of what this session kept before.

        Where others need their places they go to host memory (`kv_offloading_bytes`), and come back with that turn.
        """
        self._tell(Keep(session, "", tuple(token_ids)))

    def forget(self, session: str) -> None:
        """Free what a session keeps, but for what others keep."""
        self._tell(Forget(session))

    def export_prefix(self, prompt: Prompt) -> bytes:
        """The longest prefix of a prompt whose pages are cached, as bytes for `import_prefix` of the same model.

        The first call reads all weights, for a digest. Raises ConfigError where no page is cached, or none may be in
        host memory (`kv_offloading_bytes`).
        """
        _, ids = self._encode(prompt)
        check_prompt_ids(ids, vocab_size=self.info.vocab_size)
        return self._call(self._engine.export_prefix, ids)

    def import_prefix(self, data: Buffer) -> int:
        """Cache an exported prefix in host memory, where later prompts find it. Returns how many tokens it has.

        Raises ConfigError for what is damaged or of another model, page size or version, and where there is no room.
        """
        return self._call(self._engine.import_prefix, data)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Complete each prompt: a string, token ids, or {"prompt": ...} / {"prompt_token_ids": [...]}.

        One SamplingParams for all, or one per prompt. Raises InvalidRequest before anything is computed.
        """
        encoded = [self._encode(prompt) for prompt in _as_list(prompts)]
        return self._run(encoded, _per_prompt(sampling_params, len(encoded)), [None] * len(encoded), chat=False)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: str | dict[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or a list of them, under the model's chat template. Messages are read as the server
        reads those of a chat, but results of tools need no tool_call_id here, as in Hugging Face's form; the server
        requires it, as OpenAI's type does.

        tools, tool_choice, parallel_tool_calls: as in OpenAI's API. Thoughts and calls come apart from the text.
        """
        for name, value in (("tools", tools), ("tool_choice", tool_choice), ("template_kwargs", template_kwargs)):
            check_json(value, name)
        offered = read_tools(tools, tool_choice, parallel_tool_calls)
        if offered is not None and self.info.tool_format is None:
            raise unknown_form(self.info.root)
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        encoded: list[Encoded] = [
            (
                None,
                encode_chat(
                    self._text.tokenizer,
                    self._text.template,
                    _read(conversation),
                    tools=None if offered is None else offered.shown,
                    template_kwargs=template_kwargs,
                ),
            )
            for conversation in conversations
        ]
        use, params = None if offered is None else offered.use, _per_prompt(sampling_params, len(encoded))
        readings = [self._text.reading(ids, use, each) for (_, ids), each in zip(encoded, params, strict=True)]
        return self._run(encoded, params, readings, chat=True)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling = "last",
        normalize: bool = True,
        dimensions: int | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Each prompt's hidden state after the final norm: of its last token, or the mean of all tokens'.

        dimensions: keep so many of its numbers.    normalize: then bring it to length 1.
        Raises InvalidRequest before anything is computed.
        """
        check_dimensions(dimensions, self.info.hidden_size)
        encoded = [self._encode(prompt) for prompt in _as_list(prompts)]
        vectors = (
            shaped(raw, normalize=normalize, dimensions=dimensions).tolist() for raw in self._embed(encoded, pooling)
        )
        return Results(
            EmbeddingRequestOutput(text, ids, EmbeddingOutput(vector))
            for (text, ids), vector in zip(encoded, vectors, strict=True)
        )

    def score(
        self,
        first: Prompt | Sequence[Prompt],
        second: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling = "last",
    ) -> list[ScoringRequestOutput]:
        """The cosine of the embeddings of each pair; one prompt is compared with all of the other side's."""
        sides = [[self._encode(prompt) for prompt in _as_list(prompts)] for prompts in (first, second)]
        check_pairs(*map(len, sides), param="first")
        found = self._embed([*sides[0], *sides[1]], pooling)
        raw = [(ids, vector) for (_, ids), vector in zip([*sides[0], *sides[1]], found, strict=True)]
        pairs = paired(raw[: len(sides[0])], raw[len(sides[0]) :])
        return Results(
            ScoringRequestOutput(a + b, ScoringOutput(similarity(one, other))) for (a, one), (b, other) in pairs
        )

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[Delta]:
        """The deltas of one prompt as they are made. Leaving the loop early aborts the request.

        It starts when the first is asked for. Other calls, and other streams, may be made inside the loop.
        """
        encoded = self._encode(prompt)
        answers = self._prepare([encoded], [sampling_params or SamplingParams()], [None], chat=False, bulk=False)
        return (delta for _, delta in self._step_until_done(answers, piece=1))

    def generate_file(
        self,
        input: str | Path,  # noqa: A002 the command line's word
        output: str | Path,
        *,
        input_format: str | None = None,
        output_format: str | None = None,
        ordered: bool = True,
        window: int | None = None,
        resume: bool = False,
        overwrite: bool = False,
        defaults: dict[str, Any] | None = None,
    ) -> "Tally":
        """Answer every row of a JSONL, CSV or Parquet file, as `jaxinfer batch` does; see docs/batch.md.

        defaults: fields of a request for the rows that do not name them.    The others: as in offline/batch.py.
        Raises ConfigError, or BatchError, also while a stream is open, before anything is computed. An interrupted call
        can be resumed.
        """
        from jaxinfer.offline.batch import BatchJob, open_batch

        if self._calls:
            count = "1 stream is" if len(self._calls) == 1 else f"{len(self._calls)} streams are"
            raise BatchError(f"a batch must have the engine to itself, but {count} open; read to the end or close them")
        batch = BatchJob(
            input=str(input),
            output=str(output),
            input_format=input_format,
            output_format=output_format,
            ordered=ordered,
            window=window,
            resume=resume,
            overwrite=overwrite,
            seed=self.config.seed,
            defaults=defaults or {},
        )
        with open_batch(batch) as job:
            if job.is_finished:
                job.look_back()
            else:
                run_over(self.config, self._core, job.run)
                job.publish()
            return job.tally

    def _run(
        self, encoded: list[Encoded], params: list[SamplingParams], readings: list[Reading | None], *, chat: bool
    ) -> list[RequestOutput]:
        began = time.perf_counter()
        answers = self._prepare(encoded, params, readings, chat=chat, bulk=True)
        results = {
            answer.request.id: RequestOutput(text, ids, [CompletionOutput(i) for i in range(answer.request.n)])
            for (text, ids), answer in zip(encoded, answers.values(), strict=True)
        }
        for request_id, delta in self._step_until_done(answers, piece=PIECE):
            result = results[request_id]
            result.add(delta)
            elapsed = time.perf_counter() - began
            result.metrics.time_to_first_token_s = result.metrics.time_to_first_token_s or elapsed
            result.metrics.total_s = elapsed
            if delta.index == 0:  # its siblings find what it has computed
                result.metrics.cached_tokens = delta.cached_tokens
        return Results(results.values())

    def _embed(self, encoded: list[Encoded], pooling: Pooling) -> list[bytes]:
        """Embeddings as the engine gives them."""
        made = [
            prepare_embedding(
                ids, pooling, request_id=str(next(self._numbers)), info=self.info, limits=self._core.limits
            )
            for _, ids in encoded
        ]
        answers = {
            request.id: Answer(request, NO_TEXT, self._text.tokenizer, self._engine.inbox.put) for request in made
        }
        found = {}
        for request_id, delta in self._step_until_done(answers, piece=1):
            if delta.embedding is None:
                raise EngineError(delta.error or "the engine ended an embedding without giving it")
            found[request_id] = delta.embedding
        return [found[request.id] for request in made]

    def _prepare(
        self,
        encoded: list[Encoded],
        params: list[SamplingParams],
        readings: list[Reading | None],
        *,
        chat: bool,
        bulk: bool,
    ) -> dict[str, Answer]:
        answers: dict[str, Answer] = {}
        tried: dict[Constraint, Tried] = {}  # many prompts, as a rule, have one form
        for (_, ids), sampling_params, reading in zip(encoded, params, readings, strict=True):
            form = self._form(sampling_params, reading, tried)
            request, sampling = prepare(
                ids,
                sampling_params,
                request_id=str(next(self._numbers)),
                info=self.info,
                limits=self._core.limits,
                random_seed=self._random.getrandbits(64),
                spell=self._text.spell,
                chat=chat,
                bulk=bulk,
                reading=reading,
                structure=self._structure(form, ids, sampling_params, chat=chat),
            )
            answers[request.id] = Answer(
                request, sampling, self._text.tokenizer, self._engine.inbox.put, reading, chat=chat
            )
        return answers

    def _form(self, params: SamplingParams, reading: Reading | None, tried: dict[Constraint, Tried]) -> Tried | None:
        """The grammar of what an answer must be. tried: those that were before. Raises InvalidRequest."""
        control_tokens = self._text.tokenizer.control_tokens
        constraint = constraint_for(params, reading, control_tokens)
        if constraint is None:
            return None
        if constraint not in tried:
            tried[constraint] = check_here(self._core.grammars, constraint, control_tokens)
            for warning in tried[constraint].warnings:
                log.warning("%s: %s", constraint.param, warning)
        return tried[constraint]

    def _structure(self, form: Tried | None, ids: list[int], params: SamplingParams, *, chat: bool) -> Structure | None:
        if form is None:
            return None
        return structure_of(form, self._text, ids, self.info.eos_token_ids, params, chat=chat)

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineError("an LLM must be open to be used, this one has been closed; make another")

    def _tell(self, message: Keep | Forget) -> None:
        """What needs no step of the device and is done at once."""
        self._check_open()
        self._engine.inbox.put(message)
        self._step()

    def _call[T](self, function: Callable[..., T], *args: object) -> T:
        """What the engine does between two steps."""
        self._check_open()
        future: Future[T] = Future()
        self._engine.inbox.put(Call(functools.partial(function, *args), future))
        self._step()
        return future.result()

    def _step_until_done(self, answers: dict[str, Answer], piece: int) -> Iterator[tuple[str, Delta]]:
        """The deltas of these answers, each of about `piece` tokens. They start together with the first."""
        self._check_open()
        call = OpenCall(answers, piece, set(answers))
        self._calls |= dict.fromkeys(answers, call)
        try:
            for answer in answers.values():
                self._engine.inbox.put(Add(answer.request))
            while call.deltas or call.unfinished:
                if call.deltas:
                    yield call.deltas.popleft()
                elif self._engine.has_work:
                    self._step()
                elif self._engine.awaits_grammar:
                    self._engine.wait(1.0)
                else:
                    raise EngineError(f"the engine is idle although {len(call.unfinished)} requests have not ended")
        finally:
            for request_id, answer in answers.items():
                answer.abort()
                del self._calls[request_id]
            while self._engine.has_work and not (self._calls and self._has_left(answers)):
                self._step()

    def _has_left(self, answers: dict[str, Answer]) -> bool:
        """Whether the engine holds none of these any longer."""
        return self._engine.inbox.empty() and self._engine.scheduler.live.keys().isdisjoint(answers)

    def _step(self) -> None:
        """Step the engine once, and let each call have what is its own."""
        for output, delta in feed(in_pieces(self._engine.step(), self._calls), self._engine.inbox.put):
            call = self._calls[output.request_id]
            call.deltas.append((output.request_id, delta))
            if delta.finish_reason is not None and call.answers[output.request_id].done:
                call.unfinished.discard(output.request_id)

    def _encode(self, prompt: Prompt) -> Encoded:
        text, ids = prompt if isinstance(prompt, str) else None, None
        if isinstance(prompt, dict):
            text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        elif text is None:
            ids = prompt
        if text is not None and not isinstance(text, str):
            raise invalid("prompt", "a string", text)
        if ids is not None:
            return text, _listed(ids, "token ids")
        if text is None:
            raise InvalidRequest("a prompt must have 'prompt' or 'prompt_token_ids'", param="prompt")
        return text, self._text.tokenizer.encode(text)

    def close(self) -> None:
        """Free the device memory and end all processes; the object cannot be used afterwards."""
        self._is_closed = True
        self._text.tokenizer.close()
        self._core.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _read(conversation: Any) -> list[Message]:
    """Its messages as the server reads them. Raises InvalidRequest."""
    check_json(conversation, "messages")
    messages, unread = read_messages(plain_objects(conversation, "messages"), PYTHON)
    if unread:
        log.warning("%s", warning_text(unread))
    return messages


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | dict):
        return [prompts]
    listed = _listed(prompts, "prompts")
    return [listed] if listed and all(isinstance(item, int) for item in listed) else listed


def _listed(values: Any, what: str) -> list[Any]:
    """Of a list, a tuple, an array. Bytes are numbers to Python and a text to who wrote them; a set has no order."""
    if isinstance(values, bytes | bytearray | memoryview | Set | Mapping) or not isinstance(values, Iterable):
        raise invalid("prompt", f"a string or a list of {what}", values)
    return list(values)


def _per_prompt(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, list | tuple) or not all(isinstance(each, SamplingParams) for each in params):
        raise invalid("sampling_params", "a SamplingParams or a list of them", params)
    if len(params) != count:
        raise InvalidRequest(
            f"there must be one SamplingParams for all prompts or one for each, got {len(params)} for {count}",
            param="sampling_params",
        )
    return list(params)
