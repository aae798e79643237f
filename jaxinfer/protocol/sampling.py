"""SamplingParams as a client writes them, the model's defaults, and the concrete values the engine runs with.

Order of precedence: the request, then the model's generation_config.json, then OpenAI's defaults.
"""

from typing import Any

import msgspec

from jaxinfer.config import unknown_name
from jaxinfer.errors import CheckpointError, InvalidRequest
from jaxinfer.protocol.validate import invalid, too_long, validate_sampling

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions, also LLM.generate's
GREEDY_BELOW = 1e-5  # a temperature this small is a division by almost zero; the answer is the greedy one
# below 1 / V of any vocabulary, so that the likeliest token reaches it; float32 has none that nothing reaches
LEAST_TOP_P = 1e-7


_CONSTRAINTS = ("json_schema", "regex", "choice", "grammar", "structural_tag")
# fields of other engines and of HTTP, each of which holds one of ours: none is a misspelling
_OTHER_CONSTRAINTS = frozenset(
    ["structured_outputs", "guided_decoding", "response_format", "guided_json", "guided_regex", "guided_choice"]
    + ["guided_grammar", "json_object", "schema", "json", "ebnf"]
)


class _Hinting(msgspec.StructMeta):
    """A struct whose call names the field that a misspelt one is meant to be."""

    def __call__(cls, *args: Any, **fields: Any) -> Any:
        """Raises TypeError."""
        try:
            return super().__call__(*args, **fields)
        except TypeError:
            unknown = next((name for name in fields if name not in cls.__struct_fields__), None)
            if unknown is None:
                raise
            if unknown in _OTHER_CONSTRAINTS:
                cure = f"a constraint is one of {', '.join(_CONSTRAINTS)}"
                raise TypeError(f"unknown field of {cls.__name__} {unknown!r}, {cure}") from None
            raise TypeError(unknown_name(unknown, cls.__struct_fields__, f"field of {cls.__name__}")) from None


class SamplingParams(msgspec.Struct, metaclass=_Hinting, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a request's tokens are drawn and when they end; None means: not set.

    n: choices per prompt.    temperature: 0 is greedy.    top_k: 0 or -1 is off.    seed: -1 is the same as unset.
    top_p: 1 is off; 0 draws the most likely token.
    max_tokens: of the answer; unset is the rest of the context for chat, 16 otherwise.
    stop: up to 16 strings; the text ends before the first of them.    stop_token_ids: end the answer like an EOS.
    presence_penalty, frequency_penalty: of the answer's tokens.    repetition_penalty: of the prompt's too.
    logit_bias: added to these tokens' logits; an id may be its decimal string.    allowed_token_ids: draw no others.
    bad_words: texts that the answer will not hold, at a word's start or within.    min_tokens: before it may end.
    logprobs, prompt_logprobs: how many of the most likely tokens to name with each token of the answer, of the prompt.
    thinking_token_budget: of a chat with a model that thinks: thoughts end after so many tokens, if not before;
    -1 is the same as unset.
    json_schema, regex, choice, grammar, structural_tag: what the answer must be, one of them at most: JSON of a schema
    (a dict, its JSON, a pydantic model or a type that msgspec knows), a text that a pattern matches whole, one of these
    texts, a text of a grammar (Lark, or llama.cpp's EBNF), free text with JSON between tags.
    strict_schema: what of the schema cannot be enforced is refused, not left out with a warning.
    form_field: the name under which a client has sent one of these five, for refusals; Python has no use for it.
    close_within_max_tokens: such an answer is led to its end as max_tokens nears; without effect on others.
    detokenize: False leaves the text empty, for callers that want ids alone; Python only, and not with stop.
    Nothing is checked here: validate_sampling is the one validator, whoever built the params.
    """

    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    min_tokens: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    thinking_token_budget: int | None = None
    json_schema: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: Any = None
    strict_schema: bool = False
    form_field: str | None = None
    close_within_max_tokens: bool = False


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What an unset field means for one model; the values are OpenAI's unless `from_file` names them.

    max_tokens: an upper bound for requests that set none.    from_file: the fields that generation_config.json set.
    unsupported: "name=value" of what that file asks for and this version cannot do; shown at start.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int | None = None
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    from_file: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()

    @classmethod
    def from_generation_config(cls, raw: dict[str, Any]) -> "GenerationDefaults":
        """Read a generation_config.json. `do_sample: false` is temperature 0. Raises CheckpointError on bad values."""
        found = {ours: raw[theirs] for theirs, ours in _FILE_NAMES.items() if raw.get(theirs) is not None}
        if raw.get("do_sample") is False:
            found["temperature"] = 0.0  # the file's sampling values then mean nothing, as in transformers
        try:
            validate_sampling(SamplingParams(**found), vocab_size=1)
        except InvalidRequest as error:
            raise CheckpointError(f"generation_config.json: {error}") from error
        if found.get("top_k") == -1:
            found["top_k"] = 0
        unsupported = tuple(
            f"{name}={raw[name]}" for name, off in _FILE_UNSUPPORTED.items() if raw.get(name) not in (None, off)
        )
        return cls(**found, from_file=tuple(found), unsupported=unsupported)

    def describe(self) -> str:
        """One line for the start-up log: each value and where it comes from."""
        always = ("temperature", "top_p", "top_k", "min_p", "max_tokens")
        named = (*always, *(name for name in self.from_file if name not in always))
        values = [(name, getattr(self, name)) for name in named]
        parts = [
            f"{name} {value:g}" + (" (generation_config.json)" if name in self.from_file else "")
            for name, value in values
            if value is not None
        ]
        if self.unsupported:
            parts.append(f"not applied: {', '.join(self.unsupported)}")
        return ", ".join(parts)


_FILE_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
    "repetition_penalty": "repetition_penalty",
    "min_new_tokens": "min_tokens",
}
_FILE_UNSUPPORTED: dict[str, Any] = {
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "min_length": 0,
    "bad_words_ids": [],
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
}


class ResolvedSampling(msgspec.Struct, frozen=True, kw_only=True):
    """SamplingParams with nothing left open but lengths. seed is a 64-bit pattern, at least 0; top_k 0 is off."""

    n: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    detokenize: bool
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    allowed_token_ids: tuple[int, ...] | None
    bad_words: tuple[str, ...]
    logprobs: int | None
    prompt_logprobs: int | None
    thinking_token_budget: int | None


def resolve_sampling(params: SamplingParams, defaults: GenerationDefaults, *, random_seed: int) -> ResolvedSampling:
    """Fill what a validated request left unset. `random_seed` (64 bits) is used when it names no seed."""
    temperature = float(_first(params.temperature, defaults.temperature))
    seed = params.seed if params.seed not in (None, -1) else random_seed
    budget = params.thinking_token_budget
    stop = (params.stop,) if isinstance(params.stop, str) else tuple(params.stop or ())
    return ResolvedSampling(
        n=int(params.n),
        temperature=temperature if temperature >= GREEDY_BELOW else 0.0,
        top_p=max(float(_first(params.top_p, defaults.top_p)), LEAST_TOP_P),
        top_k=max(int(_first(params.top_k, defaults.top_k)), 0),
        min_p=float(_first(params.min_p, defaults.min_p)),
        seed=int(seed or 0) % 2**64,
        stop=stop,
        stop_token_ids=frozenset(map(int, params.stop_token_ids or ())),
        ignore_eos=params.ignore_eos,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        detokenize=params.detokenize,
        presence_penalty=float(params.presence_penalty or 0),
        frequency_penalty=float(params.frequency_penalty or 0),
        repetition_penalty=float(_first(params.repetition_penalty, defaults.repetition_penalty)),
        logit_bias=tuple((int(token), float(value)) for token, value in (params.logit_bias or {}).items()),
        allowed_token_ids=None if params.allowed_token_ids is None else tuple(map(int, params.allowed_token_ids)),
        bad_words=tuple(params.bad_words or ()),
        logprobs=None if params.logprobs is None else int(params.logprobs),
        prompt_logprobs=None if params.prompt_logprobs is None else int(params.prompt_logprobs),
        thinking_token_budget=None if budget in (None, -1) else int(budget),
    )


def resolve_max_tokens(
    params: SamplingParams,
    defaults: GenerationDefaults,
    *,
    num_prompt_tokens: int,
    max_model_len: int,
    chat: bool,
    prompt_only: bool = False,
) -> int:
    """How many tokens the answer may have, at least 1. prompt_only: one, which is not wanted and needs no room.

    Raises InvalidRequest (context_length_exceeded) when the prompt leaves no room or max_tokens asks for more than
    there is. A default is cut to the room that is left; a number that the client wrote never is.
    """
    room = max_model_len - num_prompt_tokens
    asked = None if prompt_only else params.max_tokens
    if room + prompt_only < 1 or (asked is not None and asked > room):
        raise _too_long(num_prompt_tokens, asked, max_model_len, "messages" if chat else "prompt")
    if prompt_only:
        return 1
    if asked is not None:
        return int(asked)
    default = defaults.max_tokens or (room if chat else COMPLETION_MAX_TOKENS)
    return min(default, room)


def resolve_min_tokens(
    params: SamplingParams, defaults: GenerationDefaults, *, max_tokens: int, num_prompt_tokens: int, max_model_len: int
) -> int:
    """How many tokens the answer has at least. A default is cut to max_tokens. Raises InvalidRequest."""
    if params.min_tokens is None:
        return min(defaults.min_tokens, max_tokens)
    if params.min_tokens > (room := max_model_len - num_prompt_tokens):
        prompt = "1 token" if num_prompt_tokens == 1 else f"{num_prompt_tokens} tokens"
        law = f"at most {room}, what a prompt of {prompt} leaves of the {max_model_len} (max_model_len)"
        raise invalid("min_tokens", law, params.min_tokens, cure="lower it or shorten the prompt")
    if params.min_tokens > max_tokens:
        law = f"at most max_tokens, {max_tokens} unless it is set"
        raise invalid("min_tokens", law, params.min_tokens, cure="set max_tokens to as many or more")
    return int(params.min_tokens)


def _too_long(num_prompt_tokens: int, asked: int | None, max_model_len: int, prompt: str) -> InvalidRequest:
    """prompt: the field that holds it."""
    wanted = f" and max_tokens asks for {asked}, {num_prompt_tokens + asked} in all" if asked is not None else ""
    fact = f"your prompt has {num_prompt_tokens}{wanted}. Shorten the prompt or ask for fewer tokens"
    param = prompt if num_prompt_tokens >= max_model_len else "max_tokens"
    together = f", prompt and answer together; {fact}"
    return too_long(max_model_len, together, param=param, prompt_tokens=num_prompt_tokens)


def _first(value: float | None, default: float) -> float:
    return default if value is None else value
