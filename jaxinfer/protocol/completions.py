"""POST /v1/completions: the request. A prompt is text or token ids, one or a list of them."""

import dataclasses
from typing import Any

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.fields import (
    GENERATING,
    REFUSED,
    Envelope,
    Refusal,
    check_envelope,
    read_sampling,
    read_wire,
    required,
)
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.validate import Verbatim, invalid, is_unicode, validate_prompt_ids

MAX_PROMPTS = 1024
COMPLETION_REFUSED = {
    **{name: refusal for name, refusal in REFUSED.items() if name != "best_of"},
    "echo": Refusal((False,)),
    "suffix": Refusal(("",)),
}


class CompletionWire(Envelope, frozen=True, kw_only=True):
    """The fields of a completion request beside SamplingParams'. best_of: n or nothing."""

    prompt: Any = None
    best_of: Any = None
    add_special_tokens: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A completion request that can be carried out, but for its sampling, which validate_sampling checks."""

    wire: CompletionWire
    prompts: list[str | list[int]]
    sampling: SamplingParams
    unknown: tuple[str, ...]


def read_completion(body: dict[str, Any], *, vocab_size: int) -> CompletionRequest:
    """Read a completion request's JSON object. vocab_size: the logits' width. Raises InvalidRequest."""
    raw_prompt = required(body, "prompt")
    wire, unknown = read_wire(body, CompletionWire, refused=COMPLETION_REFUSED, also_known=GENERATING)
    sampling = read_sampling(body, refused=COMPLETION_REFUSED)
    check_envelope(wire)
    if wire.best_of is not None and (isinstance(wire.best_of, bool) or wire.best_of != sampling.n):
        raise invalid("best_of", "left out or equal to n", wire.best_of)
    return CompletionRequest(wire, read_prompts(raw_prompt, vocab_size=vocab_size), sampling, unknown)


def read_prompts(raw: Any, *, vocab_size: int) -> list[str | list[int]]:
    """The prompts of a str, [str], [int] or [[int]]."""
    if isinstance(raw, str):
        return [_read_text(raw, "prompt")]
    if not isinstance(raw, list):
        raise invalid("prompt", "a string, a list of strings, token ids or a list of those", raw)
    if not raw:
        raise InvalidRequest("prompt must not be empty, got []", param="prompt", code="invalid_value")
    if not isinstance(raw[0], str | list):
        return [validate_prompt_ids(raw, vocab_size=vocab_size)]
    if len(raw) > MAX_PROMPTS:
        raise invalid("prompt", f"a list of at most {MAX_PROMPTS} prompts", Verbatim(f"{len(raw)} of them"))
    if isinstance(raw[0], str):
        return [_read_text(text, f"prompt[{position}]") for position, text in enumerate(raw)]
    return [
        validate_prompt_ids(ids, vocab_size=vocab_size, param=f"prompt[{position}]") for position, ids in enumerate(raw)
    ]


def _read_text(text: Any, param: str) -> str:
    if not isinstance(text, str) or not text or not is_unicode(text):
        raise invalid(param, "a string of at least one character", text)
    return text
