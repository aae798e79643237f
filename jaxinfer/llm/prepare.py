"""From what a caller asked for to what the engine computes: one path for HTTP, Python, the CLI and batch rows."""

from array import array
from collections.abc import Callable, Iterator, Sequence

from jaxinfer.config import Limits
from jaxinfer.engine.sequence import Request, Structure, ThoughtLimit
from jaxinfer.errors import InvalidRequest
from jaxinfer.llm.types import ModelInfo
from jaxinfer.protocol.embeddings import POOLINGS, Pooling, check_input_length
from jaxinfer.protocol.sampling import (
    ResolvedSampling,
    SamplingParams,
    resolve_max_tokens,
    resolve_min_tokens,
    resolve_sampling,
)
from jaxinfer.protocol.validate import DROP, check_prompt_ids, invalid, too_long, validate_sampling
from jaxinfer.runtime.plan import Controls
from jaxinfer.text.reading import Reading


def prepare(
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    request_id: str,
    info: ModelInfo,
    limits: Limits,
    random_seed: int,
    spell: Callable[[str], list[int]],
    chat: bool = False,
    priority: int = 0,
    salt: str = "",
    prompt_only: bool = False,
    bulk: bool = False,
    session: bool = False,
    reading: Reading | None = None,
    structure: Structure | None = None,
) -> tuple[Request, ResolvedSampling]:
    """Validate and fill in one request.

    random_seed: 64 bits, used when the request names none.    spell: the tokens that add a text to an answer.
    reading: how the answer is taken apart.    structure: what it must be.    bulk: nobody reads it before it is whole.
    session: it is a turn of one.
    prompt_only: the one token that is drawn is not wanted, so that it needs no room.
    Raises InvalidRequest when a field is out of range, an id lies outside the logits' width, or it can never fit.
    """
    validate_sampling(params, vocab_size=info.vocab_size, max_logprobs=limits.max_logprobs)
    sampling = resolve_sampling(params, info.defaults, random_seed=random_seed)
    lengths = dict(num_prompt_tokens=len(prompt_ids), max_model_len=info.max_model_len)
    max_tokens = resolve_max_tokens(params, info.defaults, **lengths, chat=chat, prompt_only=prompt_only)
    check_prompt_ids(prompt_ids, vocab_size=info.vocab_size)  # now, since of millions it would take a second
    min_tokens = resolve_min_tokens(params, info.defaults, max_tokens=max_tokens, **lengths)
    eos = frozenset() if sampling.ignore_eos else frozenset(info.eos_token_ids)
    controls = _controls(sampling, min_tokens, tuple(_spellings(sampling.bad_words, info.vocab_size, spell)))
    _check_choice(controls, eos | sampling.stop_token_ids, info.vocab_size)
    _check_room(len(prompt_ids), max_tokens, limits, "messages" if chat else "prompt")
    request = Request(
        id=request_id,
        prompt=array("I", prompt_ids),
        max_tokens=max_tokens,
        n=sampling.n,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        eos_token_ids=eos,
        stop_token_ids=sampling.stop_token_ids,
        priority=priority,
        salt=salt,
        bulk=bulk,
        session=session,
        text_lag=bool(sampling.stop),
        controls=None if controls == Controls() else controls,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        thoughts=_thoughts(sampling.thinking_token_budget, reading),
        structure=structure,
    )
    return request, sampling


def _thoughts(budget: int | None, reading: Reading | None) -> ThoughtLimit | None:
    if budget is None:
        return None
    if reading is None or reading.thinking is None:
        raise invalid(
            "thinking_token_budget", "left out but for a chat with a model that thinks", budget, cure="leave it out"
        )
    if reading.start == "answering":
        return None
    tags = reading.thinking
    return ThoughtLimit(tags.open_id, tags.close_id, budget, reading.start == "thinking")


def prepare_embedding(
    prompt_ids: Sequence[int],
    pooling: Pooling,
    *,
    request_id: str,
    info: ModelInfo,
    limits: Limits,
    priority: int = 0,
    salt: str = "",
) -> Request:
    """Validate one request for an embedding. Raises InvalidRequest."""
    if pooling not in POOLINGS:
        raise invalid("pooling", f"one of {', '.join(POOLINGS)}", pooling, cure=DROP)
    check_prompt_ids(prompt_ids, vocab_size=info.vocab_size, param="input")
    check_input_length(len(prompt_ids), info.max_model_len, param="input")
    _check_room(len(prompt_ids), 1, limits, "input")
    return Request(request_id, array("I", prompt_ids), max_tokens=1, priority=priority, salt=salt, pooling=pooling)


def _controls(sampling: ResolvedSampling, min_tokens: int, bad_words: tuple[tuple[int, ...], ...]) -> Controls:
    return Controls(
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.repetition_penalty,
        sampling.logit_bias,
        sampling.allowed_token_ids,
        bad_words,
        min_tokens,
    )


def _spellings(words: Sequence[str], vocab_size: int, spell: Callable[[str], list[int]]) -> Iterator[tuple[int, ...]]:
    """Token ids of each word as it stands and at a word's start, with a space before it; ids that can be drawn."""
    for word in words:
        spelt = {tuple(spell(text)) for text in (word, " " + word.lstrip())}
        yield from sorted(ids for ids in spelt if ids and max(ids) < vocab_size)


def _check_choice(controls: Controls, end_ids: frozenset[int], vocab_size: int) -> None:
    """Refuse controls under which there could be nothing left to draw."""
    removed = {word[-1] for word in controls.bad_words} | (end_ids if controls.min_tokens else frozenset())
    allowed = controls.allowed_token_ids
    left = vocab_size > len(removed) if allowed is None else not removed.issuperset(allowed)
    if not left:
        raise InvalidRequest(
            "allowed_token_ids, bad_words and min_tokens must leave at least one token that may always be drawn, these "
            "leave none; allow more, forbid less, or lower min_tokens",
            param="bad_words" if allowed is None else "allowed_token_ids",
            code="invalid_value",
        )


def room_for_answer(num_prompt_tokens: int, info: ModelInfo, limits: Limits) -> int:
    """How many tokens an answer may have behind such a prompt, as far as context and pages go; below 1 for none."""
    # the last token drawn is never computed, so it needs no page
    return min(info.max_model_len, limits.cache_tokens + 1) - num_prompt_tokens


def _check_room(num_prompt_tokens: int, max_tokens: int, limits: Limits, prompt: str) -> None:
    """What the engine would refuse where nobody is told of it in the API's words. prompt: the field that holds it."""
    there, needed = limits.cache_tokens, num_prompt_tokens + max_tokens
    if needed > there + 1:
        cure = "Shorten the prompt, lower max_tokens, or start with more num_pages"
        pages = there // limits.page_size
        fact = f" here ({pages} pages), prompt and answer together; the request may need {needed}. {cure}"
        param = "max_tokens" if num_prompt_tokens <= there else prompt
        raise too_long(there, fact, param=param, prompt_tokens=num_prompt_tokens)
    most = limits.max_num_batched_tokens
    if not limits.enable_chunked_prefill and num_prompt_tokens > most:
        fact = f" of prompt here, where chunked prefill is off; your prompt has {num_prompt_tokens}"
        cure = "Shorten it, or start with more max_num_batched_tokens or with chunked prefill"
        raise too_long(most, f"{fact}. {cure}", param=prompt, prompt_tokens=num_prompt_tokens)
