"""A prompt cut to length, since the request says so; nothing else ever cuts one. A template's tokens go as well."""

from collections.abc import Sequence

from jaxinfer.protocol.fields import CommonWire
from jaxinfer.protocol.validate import invalid

TO_FIT = -1  # of truncate_prompt_tokens: as much as leaves room for the answer


def check_truncation(request: CommonWire) -> None:
    """Raise InvalidRequest unless it says what is to be left."""
    wanted = request.truncate_prompt_tokens
    if wanted is not None and wanted != TO_FIT and wanted < 1:
        raise invalid(
            "truncate_prompt_tokens",
            f"an integer of at least 1, or {TO_FIT} for what fits",
            wanted,
            cure="leave it out to refuse what is too long",
        )


def truncated(ids: Sequence[int], request: CommonWire, max_tokens: int, *, max_model_len: int) -> Sequence[int]:
    """The same, or what is left of it. max_tokens that leave no room are refused later, in their own words."""
    wanted = request.truncate_prompt_tokens
    if wanted == TO_FIT:
        wanted = max_model_len - max_tokens
    if wanted is None or wanted < 1 or len(ids) <= wanted:
        return ids
    return ids[:wanted] if request.truncation_side == "right" else ids[-wanted:]
