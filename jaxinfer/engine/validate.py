"""What can never be computed: refused before it is queued, limits before anything is allocated."""

from array import array
from collections.abc import Sequence

import numpy as np

from jaxinfer.config import CONTIGUOUS_PAGES_ARE_NOT_SHARED, Limits
from jaxinfer.engine.sequence import Request
from jaxinfer.errors import ConfigError, InvalidRequest


def validate_limits(limits: Limits) -> None:
    """Raise ConfigError for limits under which a step or a sequence could never fit."""
    if limits.max_num_batched_tokens < limits.max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens must be at least max_num_seqs ({limits.max_num_seqs}), so that one step "
            f"carries every decoding sequence; got {limits.max_num_batched_tokens}"
        )
    if limits.kv_layout == "contiguous":
        if limits.enable_prefix_caching:
            raise ConfigError(CONTIGUOUS_PAGES_ARE_NOT_SHARED)
        if limits.num_pages <= limits.max_pages_per_seq:
            raise ConfigError(
                f"num_pages must be above {limits.max_pages_per_seq} with kv_layout contiguous, which reserves "
                f"max_model_len ({limits.max_model_len} tokens) for each sequence; got {limits.num_pages}; raise it or "
                "lower max_model_len"
            )


def validate_request(request: Request, limits: Limits) -> None:
    """Refuse what could never be computed. Pure: any thread may ask before it puts the request into the inbox.

    Raises:
      InvalidRequest: an empty prompt, ids outside the vocabulary, fewer than one token or choice, or (code
        "context_length_exceeded") a prompt or an answer that cannot fit.
    """
    length = len(request.prompt)
    if not length:
        raise InvalidRequest("prompt must hold at least one token, it is empty; add some text", param="prompt")
    if not _are_ids(request.prompt, limits.vocab_size):
        token = min(request.prompt) if min(request.prompt) < 0 else max(request.prompt)
        raise InvalidRequest(
            f"token ids must lie in 0 .. {limits.vocab_size - 1}, the prompt holds {token}; check that it was made "
            "with this model's tokenizer",
            param="prompt",
        )
    for name, value in (("max_tokens", request.max_tokens), ("n", request.n)):
        if value < 1:
            raise InvalidRequest(f"{name} must be at least 1, got {value}; raise it or leave it out", param=name)
    if request.pooling is not None and (request.n, request.max_tokens) != (1, 1):
        raise InvalidRequest(
            f"n and max_tokens must be 1 for an embedding, got {request.n} and {request.max_tokens}; leave them out",
            param="n" if request.n != 1 else "max_tokens",
        )
    _validate_length(length, request.max_tokens, limits)


def _are_ids(tokens: Sequence[int], vocab_size: int) -> bool:
    """Whether all lie in 0 .. vocab_size - 1: what min and max tell, in a third of their time."""
    try:
        return bool(np.frombuffer(array("I", tokens), np.uintc).max() < vocab_size)
    except OverflowError:  # below 0, or of more than 32 bits
        return False


def _validate_length(length: int, max_tokens: int, limits: Limits) -> None:
    def refuse(message: str) -> None:
        raise InvalidRequest(message, param="prompt", code="context_length_exceeded")

    # the last token drawn is never computed: if it is not wanted either, the prompt may fill the context
    if length + (max_tokens > 1) > limits.max_model_len:
        refuse(
            f"maximum context length is {limits.max_model_len} tokens (max_model_len), prompt and an answer of more "
            f"than one token together; the prompt has {length}; shorten it"
        )
    if not limits.enable_chunked_prefill and length > limits.max_num_batched_tokens:
        refuse(
            f"maximum context length is {limits.max_num_batched_tokens} tokens of prompt (max_num_batched_tokens) "
            f"while chunked prefill is off; the prompt has {length}; shorten it, or serve with chunked prefill"
        )
    room = limits.cache_tokens + 1  # the last token's keys and values are never needed
    longest = min(length + max_tokens, limits.max_model_len)
    if longest > room:
        refuse(
            f"maximum context length is {room} tokens with this pool of {limits.num_pages - 1} pages of "
            f"{limits.page_size} tokens; the prompt has {length} and max_tokens is {max_tokens}; lower max_tokens or "
            "shorten the prompt, or serve with more pages (num_pages)"
        )


def validate_outputs(request: Request, outputs: tuple[tuple[int, ...] | None, ...], limits: Limits) -> None:
    """Refuse outputs (see Add) that are not those of a request interrupted midway; none at all is a new request.

    Raises:
      InvalidRequest: not one output per choice, nothing left to compute, ids outside the vocabulary, or an output
        that had ended already.
    """
    if outputs and len(outputs) != request.n:
        raise InvalidRequest(
            f"outputs must hold one for each of the {request.n} choices, got {len(outputs)}; None stands for one that "
            "has ended"
        )
    if outputs and all(output is None for output in outputs):
        raise InvalidRequest("outputs must leave a choice unfinished, all are None; leave the request out")
    ends = request.eos_token_ids | request.stop_token_ids
    room = min(request.max_tokens, limits.max_model_len - len(request.prompt))
    for index, output in enumerate(outputs):
        if not output:
            continue
        if not 0 <= min(output) <= max(output) < limits.vocab_size:
            raise InvalidRequest(
                f"token ids must lie in 0 .. {limits.vocab_size - 1}, output {index} holds others; resume under the "
                "same model"
            )
        if len(output) >= room or not ends.isdisjoint(output):
            raise InvalidRequest(f"outputs must be unfinished or None, output {index} has ended; make it None")
