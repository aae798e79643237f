"""What a route does with each field name: carry it out, refuse it by name, accept it by design, or warn about it.

A null is the same as leaving the field out, as OpenAI's clients write it.
"""

import dataclasses
import re
from typing import Any, Literal

import msgspec

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.structured import STRUCTURED, read_structured
from jaxinfer.protocol.validate import CACHE_SALT, DROP, MAX_SALT_CHARS, convert, invalid, is_same, unsupported

MAX_WARNINGS = 16
# what a server's answer is made of is text: detokenize is for Python
SAMPLING_FIELDS = frozenset(field.name for field in msgspec.structs.fields(SamplingParams)) - {
    "detokenize",
    "form_field",
}
LEAVE_OUT = "leave it out"
NO_LIMIT = -1  # of max_tokens
PRIORITY_LAW = "an integer of 32 bits, lower runs sooner"
_PRIORITY = re.compile(r"-?[0-9]{1,10}")


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A field that we know and cannot carry out; `neutral` are the values that ask for nothing."""

    neutral: tuple[Any, ...] = ()
    cure: str = LEAVE_OUT


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """include_usage: a last chunk with the usage.    continuous_usage_stats: the usage so far on every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # OpenAI pads chunks to hide their length; asks for nothing here


class CommonWire(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that every route shares that computes. model: None is the first served name.

    cache_salt: cached prompts are found under the same one only.    truncate_prompt_tokens: see truncation.py.
    truncation_side: where to cut.
    """

    model: str | None = None
    priority: int = 0  # lower runs sooner
    cache_salt: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] = "left"


class Envelope(CommonWire, frozen=True, kw_only=True):
    """The fields that every generating route of every API shares.

    session_id: see session.py; the header says it as well.
    """

    stream: bool = False
    session_id: str | None = None


class OpenAIEnvelope(Envelope, frozen=True, kw_only=True):
    """Those of chat and of completions. include_metrics: the answer, or a stream's last chunk, says how long its parts
    took.
    """

    stream_options: StreamOptions | None = None
    include_metrics: bool = False


Verbosity = Literal["low", "medium", "high"]


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Much of the answer, which a client knows before."""

    type: Literal["content"]
    content: str | list[dict[str, Any]]


class PromptCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How OpenAI is to keep a prompt."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: str | None = None


class Ignored(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that change nothing in the answer, and that clients send by habit. Another type than OpenAI's API has is
    refused, and so is a word that it has not, so that a client learns of its mistake here too. Tiers and lifetimes are
    named by other hosts too, and become more: any text is taken, as is any object for metadata.
    """

    user: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None  # the second in older clients
    prompt_cache_options: PromptCacheOptions | None = None
    prediction: Prediction | None = None
    verbosity: Verbosity | None = None


TOLD = frozenset({"verbosity"})  # a wish that no open model can be held to: the answer says that nobody reads it
GENERATING = SAMPLING_FIELDS | STRUCTURED
# Known from OpenAI, vLLM, SGLang or llama.cpp, for chat and completions alike.
REFUSED: dict[str, Refusal] = {
    "use_beam_search": Refusal((False,)),
    "best_of": Refusal((1,), cure="set n"),
    "beam_width": Refusal(),
    "length_penalty": Refusal((1,)),
    "early_stopping": Refusal((False,)),
    "spaces_between_special_tokens": Refusal((True,)),
    "stream_interval": Refusal((1,)),
    "detokenize": Refusal((True,)),
    "return_token_ids": Refusal((False,)),
    "return_tokens_as_token_ids": Refusal((False,)),
    "return_prompt_text": Refusal((False,)),
    "request_id": Refusal(cure="send it as the header x-request-id"),
    "rid": Refusal(cure="send it as the header x-request-id"),
    "session_params": Refusal(cure="send session_id"),
    **{
        name: Refusal()
        for name in (
            *("stop_regex", "no_stop_trim", "logprob_token_ids"),
            *("prompt_embeds", "custom_logit_processor", "logits_processors", "kv_transfer_params", "vllm_xargs"),
            *("lora_path", "repetition_detection", "watermarking"),
            *("extra_key", "custom_labels", "bootstrap_host", "bootstrap_port", "bootstrap_room"),
            *("reasoning", "reasoning_effort", "include_reasoning", "thinking_token_budget"),
        )
    },
}


def read_wire[Wire: msgspec.Struct](
    body: dict[str, Any],
    wire: type[Wire],
    *,
    refused: dict[str, Refusal],
    also_known: frozenset[str] = frozenset(),
    ignored: type[msgspec.Struct] | None = Ignored,
) -> tuple[Wire, tuple[str, ...]]:
    """A body's wire type, and the names that nobody reads. also_known: names that are read elsewhere.    ignored: the
    fields that are looked at and have no effect. Raises InvalidRequest for a refused field and for a value of a wrong
    type.
    """
    given = {name: value for name, value in body.items() if value is not None}
    for name in sorted(given.keys() & refused.keys()):
        check_refused(name, given[name], refused[name])
    own = wire.__struct_fields__
    request = convert({name: value for name, value in given.items() if name in own}, wire)
    others = {name: value for name, value in given.items() if name not in own and name not in refused}
    if ignored is not None:
        convert({name: value for name, value in others.items() if name in ignored.__struct_fields__}, ignored)
        also_known = also_known | ignored_by(ignored)
    return request, tuple(name for name in others if name not in also_known)


def ignored_by(ignored: type[msgspec.Struct]) -> frozenset[str]:
    """The names of those fields that no warning tells of."""
    return frozenset(ignored.__struct_fields__) - TOLD


def read_sampling(body: dict[str, Any], *, refused: dict[str, Refusal]) -> SamplingParams:
    """A body's sampling parameters as they were written; validate_sampling comes next."""
    names = SAMPLING_FIELDS - refused.keys()
    given = {name: value for name, value in body.items() if name in names and value is not None}
    if is_no_limit(given.get("max_tokens")):
        del given["max_tokens"]
    structured = {name: value for name, value in body.items() if name not in refused}
    return SamplingParams(**given | read_structured(structured))


def is_no_limit(max_tokens: Any) -> bool:
    """Whether it is left out as clients of llama.cpp and LM Studio do."""
    return type(max_tokens) is int and max_tokens == NO_LIMIT


def check_refused(name: str, value: Any, refusal: Refusal) -> None:
    """Raise InvalidRequest unless the value asks for nothing."""
    if not any(is_same(value, neutral) for neutral in refusal.neutral):
        raise unsupported(name, cure=refusal.cure)


def check_common(request: CommonWire) -> None:
    """The rules of the shared fields that their types do not say."""
    if not -(2**31) <= request.priority < 2**31:
        raise invalid("priority", PRIORITY_LAW, request.priority, cure=DROP)
    if request.cache_salt is not None and not CACHE_SALT.fullmatch(request.cache_salt):
        law = f"1 to {MAX_SALT_CHARS} characters without @, /, \\ and NUL"
        raise invalid("cache_salt", law, request.cache_salt, cure="take others, as of a hexadecimal number")


def read_priority(header: str) -> int:
    """What the header X-Vllm-Priority says, which counts for more than the field. Raises InvalidRequest."""
    if not _PRIORITY.fullmatch(header) or not -(2**31) <= int(header) < 2**31:
        raise invalid("priority", f"{PRIORITY_LAW}, in the header x-vllm-priority too", header, cure=DROP)
    return int(header)


def check_envelope(request: OpenAIEnvelope) -> None:
    """The same of chat's and completions' fields."""
    check_common(request)
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest(
            "stream_options must come with stream set to true; set it or leave stream_options out",
            param="stream_options",
            code="invalid_value",
        )


def check_stream_logprobs(request: Envelope, sampling: SamplingParams) -> None:
    """The logprobs of a prompt come with whole answers only."""
    if request.stream and sampling.prompt_logprobs is not None:
        raise InvalidRequest(
            "prompt_logprobs must come without stream; set stream to false, or send /v1/completions echo and logprobs",
            param="prompt_logprobs",
            code="invalid_value",
        )


def required(body: dict[str, Any], name: str) -> Any:
    """The field's value; raises InvalidRequest when it is missing or null."""
    if body.get(name) is None:
        given = "null" if name in body else "nothing"
        raise InvalidRequest(
            f"{name} must be given, got {given}; send it", param=name, code="missing_required_parameter"
        )
    return body[name]


def refuse_unknown(unknown: tuple[str, ...]) -> None:
    """Raise InvalidRequest if there are fields that nobody reads."""
    if unknown:
        message = f"every field must be one that this server reads (--strict), got {_listed(unknown)}; leave it out"
        raise InvalidRequest(message, param=_shown(unknown[0]), code="unknown_parameter")


def warning_text(unknown: tuple[str, ...]) -> str:
    """One header line that names the ignored fields, known or not; "" for none. Safe to send: printable ASCII."""
    return f"ignored: {_listed(unknown)}" if unknown else ""


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - MAX_WARNINGS} more" if len(names) > MAX_WARNINGS else ""
    return ", ".join(map(_shown, names[:MAX_WARNINGS])) + more


def _shown(name: str) -> str:
    return ascii(name)[1:-1][:40]
