"""POST /v1/completions: the request. A prompt is text or token ids, one or a list of them."""

import dataclasses
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.fields import (
    GENERATING,
    REFUSED,
    OpenAIEnvelope,
    Refusal,
    check_envelope,
    check_stream_logprobs,
    read_sampling,
    read_wire,
    required,
)
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.truncation import check_truncation
from jaxinfer.protocol.validate import Verbatim, invalid, validate_prompt_ids

MAX_PROMPTS = 1024
COMPLETION_REFUSED = {
    **{name: refusal for name, refusal in REFUSED.items() if name != "best_of"},
    "suffix": Refusal(("",)),
    "session_history": Refusal((False,), cure="leave it out, a completion's session keeps no text"),
    "session_append": Refusal((False,), cure="send the whole text, or messages to /v1/chat/completions"),
}


class CompletionWire(OpenAIEnvelope, frozen=True, kw_only=True):
    """The fields of a completion request beside SamplingParams'. best_of: n or nothing.

    echo: the answer begins with the prompt, its logprobs too if there are any.
    """

    prompt: Any = None
    best_of: Any = None
    add_special_tokens: bool = True
    echo: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A completion request that can be carried out, but for its sampling, which validate_sampling checks.

    prompt_only: nothing but the echo is wanted; one token is computed and not shown.
    wants_prompt_logprobs: the client asked for the list of that name.
    max_tokens_is_ceiling: as in a ChatRequest; there is one prompt.
    """

    wire: CompletionWire
    prompts: list[str | Sequence[int]]
    sampling: SamplingParams
    unknown: tuple[str, ...]
    prompt_only: bool = False
    wants_prompt_logprobs: bool = False
    max_tokens_is_ceiling: bool = False


def read_completion(body: dict[str, Any], *, vocab_size: int) -> CompletionRequest:
    """Read a completion request's JSON object. vocab_size: the logits' width. Raises InvalidRequest."""
    raw_prompt = required(body, "prompt")
    wire, unknown = read_wire(body, CompletionWire, refused=COMPLETION_REFUSED, also_known=GENERATING)
    prompt_only = wire.echo and _is_zero(body.get("max_tokens"))
    sampling = read_sampling(body | {"max_tokens": 1} if prompt_only else body, refused=COMPLETION_REFUSED)
    check_envelope(wire)
    check_stream_logprobs(wire, sampling)
    check_truncation(wire)
    if wire.best_of is not None and (type(wire.best_of) is not int or wire.best_of != sampling.n):
        raise invalid("best_of", "left out or equal to n, an integer", wire.best_of, cure="leave it out")
    prompts = read_prompts(raw_prompt, vocab_size=vocab_size)
    asked = sampling.prompt_logprobs is not None
    if wire.echo and sampling.logprobs is not None and not asked:
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=sampling.logprobs)
    return CompletionRequest(wire, prompts, sampling, unknown, prompt_only, asked)


def _is_zero(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value == 0


def read_prompts(
    raw: Any, *, vocab_size: int, param: str = "prompt", most: int = MAX_PROMPTS
) -> list[str | Sequence[int]]:
    """The prompts of a str, [str], [int] or [[int]], at most so many; ids as u32[n], as the engine gets them."""
    if isinstance(raw, str):
        return [_read_text(raw, param)]
    if not isinstance(raw, list):
        raise invalid(param, "a string, a list of strings, token ids or a list of those", raw, cure="send a string")
    if not raw:
        raise InvalidRequest(
            f"{param} must not be empty, got []; send a string or token ids", param=param, code="invalid_value"
        )
    if not isinstance(raw[0], str | list):
        return [array("I", validate_prompt_ids(raw, vocab_size=vocab_size, param=param))]
    if len(raw) > most:
        raise invalid(
            param,
            f"a list of at most {most} texts or lists of ids",
            Verbatim(f"{len(raw)} of them"),
            cure="send the rest in another request",
        )
    if isinstance(raw[0], str):
        return [_read_text(text, f"{param}[{position}]") for position, text in enumerate(raw)]
    return [
        array("I", validate_prompt_ids(ids, vocab_size=vocab_size, param=f"{param}[{position}]"))
        for position, ids in enumerate(raw)
    ]


def _read_text(text: Any, param: str) -> str:
    """Whether it is valid Unicode is for the tokenizer to say: a long text is looked at there, off the event loop."""
    if not isinstance(text, str) or not text:
        raise invalid(param, "a string of at least one character", text, cure="send one")
    return text
