"""From what a request says of its answer's form to what the engine is told."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from jaxinfer.engine.sequence import Structure
from jaxinfer.errors import ApiError, EngineError, InvalidRequest, Overloaded
from jaxinfer.llm.text_side import TOKENIZER_FILE, TextSide
from jaxinfer.llm.types import ModelInfo
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.structured import constraint_of
from jaxinfer.protocol.validate import unsupported
from jaxinfer.text.grammar.compiler import Compiler
from jaxinfer.text.grammar.source import Constraint
from jaxinfer.text.grammar.trial import MEMORY_BYTES, Trial, TrialSetting, Tried, left_free, refuse, try_one
from jaxinfer.text.reading import Reading
from jaxinfer.text.tools.formats import LAYOUTS
from jaxinfer.text.tools.grammar import loosened, tool_grammar
from jaxinfer.text.tools.opening import opening_of

log = logging.getLogger(__name__)

MANY_TOOLS = 128  # the grammar of so many takes some 10 ms to write
MAX_WAITING_TRIALS = 16  # of new grammars, which are tried one after another


def constraint_for(
    params: SamplingParams, reading: Reading | None, control_tokens: Mapping[str, int]
) -> Constraint | None:
    """What an answer must be, tool calls included; None: anything. Raises InvalidRequest."""
    asked = constraint_of(params)
    if reading is None or reading.form is None:
        return asked
    if asked is not None and (lead := LAYOUTS[reading.form].lead):
        asked = msgspec.structs.replace(asked, lead=lead)
    if reading.tools is None:
        return asked
    form, use = reading.form, reading.tools
    warnings = loosened(form, use)
    if use.due:
        if asked is not None:
            message = f"tool_choice required or by name must come without {asked.param}; leave one of them out"
            raise InvalidRequest(message, param="tool_choice", code="invalid_value")
        calls = tool_grammar(form, use, due=True, control_tokens=control_tokens)
        return Constraint("tools", calls=calls, param="tools", strict=bool(use.strict), warnings=warnings)
    if asked is not None:
        if asked.kind in ("grammar", "structural_tag"):
            cure = 'leave it out, or send tool_choice "none"'
            raise unsupported(f"{asked.param} beside tools", cure=cure, param=asked.param)
        calls = tool_grammar(form, use, due=True, control_tokens=control_tokens)
        return msgspec.structs.replace(asked, calls=calls, warnings=warnings, frees=True)
    strict = bool(use.strict)
    if strict and (calls := tool_grammar(form, use, due=False, control_tokens=control_tokens)) is not None:
        return Constraint("tools", calls=calls, param="tools", strict=True, warnings=warnings, frees=True)
    after = opening_of(form, use.schemas, control_tokens)
    try:
        calls = tool_grammar(form, use, due=False, control_tokens=control_tokens, begun=True)
    except InvalidRequest as refusal:
        if strict:
            raise
        log.warning("tools: arguments are not held to their schemas: %s", refusal)
        return None
    return Constraint("tools", calls=calls, param="tools", strict=strict, after=after, warnings=warnings, frees=True)


def structure_of(
    form: Tried,
    side: TextSide,
    prompt_ids: Sequence[int],
    end_ids: Sequence[int],
    params: SamplingParams,
    *,
    chat: bool,
) -> Structure | None:
    """form: what was said of the grammar.    end_ids: the model's.    chat: the prompt is a rendered conversation, so
    that thoughts may come before the answer.
    """
    text, closes = form.text, params.close_within_max_tokens
    if not text:
        return None
    thinking = side.thinking if chat else None
    if thinking is None or (start := thinking.start(prompt_ids)) == "answering":
        return Structure(text, frozenset(end_ids), closes=closes, after=form.after, strict=form.strict)
    open_id = thinking.open_id if start == "either" else None
    return Structure(text, frozenset(end_ids), open_id, thinking.close_id, closes, form.after, form.strict)


class Forms:
    """What answers must be, tried in a child over a model's tokenizer that is started when the first one comes."""

    def __init__(self, side: TextSide, info: ModelInfo) -> None:
        self._side, self._end_ids = side, info.eos_token_ids
        file, control_tokens = str(side.folder / TOKENIZER_FILE), side.tokenizer.control_tokens
        self._trial = Trial(TrialSetting(file, info.vocab_size, list(info.eos_token_ids), control_tokens, MEMORY_BYTES))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="jaxinfer-trial")
        self._num_waiting = 0

    async def check(self, params: SamplingParams, reading: Reading | None) -> Tried | None:
        """The grammar of what the answer must be, tried; None: it may be anything.

        Raises InvalidRequest, Overloaded when too many wait for theirs, and EngineError when the child cannot start.
        """
        constraint = await self._constraint(params, reading)
        if constraint is None:
            return None
        try:
            return self._trial.known(constraint) or await self._check(constraint)
        except (ApiError, EngineError) as refusal:  # the latter: the child cannot start
            return _left_free(constraint, refusal)

    async def _constraint(self, params: SamplingParams, reading: Reading | None) -> Constraint | None:
        """What the answer must be; what many tools make of it is written down off the event loop."""
        control_tokens = self._side.tokenizer.control_tokens
        if reading is None or reading.tools is None or len(reading.tools.schemas) <= MANY_TOOLS:
            return constraint_for(params, reading, control_tokens)
        return await asyncio.to_thread(constraint_for, params, reading, control_tokens)

    async def _check(self, constraint: Constraint) -> Tried:
        if self._num_waiting >= MAX_WAITING_TRIALS:
            law = f"at most {MAX_WAITING_TRIALS} requests may wait for new grammars to be tried, and as many do"
            raise Overloaded(f"{law}; try again shortly", code="grammars_full", retry_after_s=1.0)
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._trial.check, constraint)
        finally:
            self._num_waiting -= 1

    async def structure(
        self,
        params: SamplingParams,
        reading: Reading | None,
        form: Tried | None,
        prompt_ids: Sequence[int],
        *,
        chat: bool,
    ) -> Structure | None:
        """The same for the engine, for one prompt. form: what `check` said, if it was asked."""
        form = form or await self.check(params, reading)
        if form is None:
            return None
        return structure_of(form, self._side, prompt_ids, self._end_ids, params, chat=chat)

    def close(self) -> None:
        """End the child."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._trial.close()
        self._thread.shutdown()


def check_here(compiler: Compiler | None, constraint: Constraint, control_tokens: Mapping[str, int]) -> Tried:
    """What a Trial does, in this process: for callers who write their own grammars. Raises InvalidRequest."""
    try:
        if compiler is None:
            raise unsupported(constraint.kind)
        return refuse(try_one(compiler.vocabulary, constraint, control_tokens), constraint)
    except InvalidRequest as refusal:
        return _left_free(constraint, refusal)


def _left_free(constraint: Constraint, refusal: ApiError | EngineError) -> Tried:
    """What nobody asked for is left free, with a warning, where it cannot be had; else raises the refusal."""
    if not constraint.may_be_left:
        raise refusal
    return left_free(constraint, str(refusal))
