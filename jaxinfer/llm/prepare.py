"""From what a caller asked for to what the engine computes: one path for HTTP, Python, the CLI and batch rows."""

from collections.abc import Sequence

from jaxinfer.config import Limits
from jaxinfer.engine.sequence import Request
from jaxinfer.errors import InvalidRequest
from jaxinfer.llm.types import ModelInfo
from jaxinfer.protocol.sampling import ResolvedSampling, SamplingParams, resolve_max_tokens, resolve_sampling
from jaxinfer.protocol.validate import validate_prompt_ids, validate_sampling


def prepare(
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    request_id: str,
    info: ModelInfo,
    limits: Limits,
    random_seed: int,
    chat: bool = False,
    priority: int = 0,
    salt: str = "",
) -> tuple[Request, ResolvedSampling]:
    """Validate and fill in one request. random_seed: 64 bits, used when the request names none.

    Raises InvalidRequest when a field is out of range, an id lies outside the logits' width, or it can never fit.
    """
    validate_sampling(params, vocab_size=info.vocab_size)
    validate_prompt_ids(prompt_ids, vocab_size=info.vocab_size)
    sampling = resolve_sampling(params, info.defaults, random_seed=random_seed)
    max_tokens = resolve_max_tokens(
        params, info.defaults, num_prompt_tokens=len(prompt_ids), max_model_len=info.max_model_len, chat=chat
    )
    _check_pool(len(prompt_ids) + max_tokens, limits)
    request = Request(
        id=request_id,
        prompt=tuple(prompt_ids),
        max_tokens=max_tokens,
        n=sampling.n,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        eos_token_ids=frozenset() if sampling.ignore_eos else frozenset(info.eos_token_ids),
        stop_token_ids=sampling.stop_token_ids,
        priority=priority,
        salt=salt,
        text_lag=bool(sampling.stop),
    )
    return request, sampling


def _check_pool(num_tokens: int, limits: Limits) -> None:
    # the last token drawn is never computed, so it needs no page
    needed, there = -(-(num_tokens - 1) // limits.page_size), limits.num_pages - 1
    if needed > there:
        raise InvalidRequest(
            f"This server's maximum context length is {there * limits.page_size} tokens (its {there} pages), prompt "
            f"and answer together; the request may need {num_tokens}. Shorten the prompt, lower max_tokens, or start "
            "with more num_pages.",
            param="max_tokens",
            code="context_length_exceeded",
        )
