"""A prompt cut to length, since the request says so; nothing else ever cuts one. A template's tokens go as well."""

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.fields import CommonWire
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.validate import invalid

TO_FIT = -1  # of truncate_prompt_tokens: as much as leaves room for max_tokens


def check_truncation(request: CommonWire, sampling: SamplingParams) -> None:
    """Raise InvalidRequest unless it says what is to be left."""
    wanted = request.truncate_prompt_tokens
    if wanted is not None and wanted != TO_FIT and wanted < 1:
        raise invalid("truncate_prompt_tokens", f"an integer of at least 1, or {TO_FIT} for what fits", wanted)
    if wanted == TO_FIT and sampling.max_tokens is None:
        raise InvalidRequest(
            f"truncate_prompt_tokens of {TO_FIT} must come with max_tokens, the room to leave; set it",
            param="truncate_prompt_tokens",
            code="invalid_value",
        )


def truncated(ids: list[int], request: CommonWire, sampling: SamplingParams, *, max_model_len: int) -> list[int]:
    """The same list, or what is left of it. max_tokens that leave no room are refused later, in their own words."""
    wanted = request.truncate_prompt_tokens
    if wanted == TO_FIT:
        wanted = max_model_len - (sampling.max_tokens or 0)
    if wanted is None or wanted < 1 or len(ids) <= wanted:
        return ids
    return ids[:wanted] if request.truncation_side == "right" else ids[-wanted:]
