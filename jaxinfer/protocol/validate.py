"""The one validator of HTTP, Python, CLI and batch rows. No NaN, no bool taken for 1, no silent clamp.

Every refusal is an InvalidRequest that says what must hold, what was given and what to do, with `param` set.
"""

import dataclasses
import functools
import numbers
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import msgspec.inspect
import numpy as np

from jaxinfer.errors import InvalidRequest, TooLong

if TYPE_CHECKING:
    from jaxinfer.protocol.sampling import SamplingParams

MAX_N = 16
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 300
MAX_LOGPROBS = 20  # unless the server says otherwise
MAX_BAD_WORDS = 32  # each may be spelt in two ways
MAX_BAD_WORD_CHARS = 256
MAX_SALT_CHARS = 128
_PIECE_IDS = 2**14  # of a list of ids, looked at together: a tenth of a millisecond
SALT_CHAR = r"[^@/\\\u0000]"  # as JSON Schema writes it too
type Bias = Annotated[float, msgspec.Meta(ge=-100, le=100)]
DROP, DROP_ONE, DROP_SOME = "leave it out for its default", "leave that one out", "leave some out"
CACHE_SALT = re.compile(f"{SALT_CHAR}{{1,{MAX_SALT_CHARS}}}")


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """The numbers a field may hold: `low` to `high`, both included."""

    low: float
    high: float
    law: str
    integer: bool = False

    def allows(self, value: Any) -> bool:
        # comparisons, not isfinite: they are False for NaN and exact for integers too large for a float
        kind = numbers.Integral if self.integer else numbers.Real
        is_own = type(value) is int or (type(value) is float and not self.integer)  # the others take ten times as long
        is_kind = is_own or (isinstance(value, kind) and not isinstance(value, bool))
        return bool(is_kind and self.low <= value <= self.high)


NUMBERS = {
    "n": Range(1, MAX_N, f"an integer from 1 to {MAX_N}", integer=True),
    "temperature": Range(0, 2, "a number from 0 (greedy) to 2"),
    "top_p": Range(0, 1, "a number from 0 (the likeliest token alone) to 1 (off)"),
    "top_k": Range(-1, 2**31 - 1, "an integer of at least 1, or 0 or -1 for off", integer=True),
    "min_p": Range(0, 1, "a number from 0 (off) to 1"),
    "seed": Range(-(2**63), 2**64 - 1, "an integer from -2^63 to 2^64 - 1", integer=True),
    "max_tokens": Range(1, 2**63 - 1, "an integer of at least 1 and below 2^63", integer=True),
    "presence_penalty": Range(-2, 2, "a number from -2 to 2"),
    "frequency_penalty": Range(-2, 2, "a number from -2 to 2"),
    # a logit divided by less, or multiplied by more, could leave the range of a float32
    "repetition_penalty": Range(1e-6, 1e6, "a number from 1e-6 to 1e6, 1 being off"),
    "thinking_token_budget": Range(-1, 2**31 - 1, "an integer of at least 0, or -1 for off", integer=True),
    "min_tokens": Range(0, 2**63 - 1, "an integer of at least 0 and below 2^63", integer=True),
}
FLAGS = (
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "detokenize",
    "strict_schema",
    "close_within_max_tokens",
)


def validate_sampling(
    params: "SamplingParams",
    *,
    vocab_size: int,
    max_logprobs: int = MAX_LOGPROBS,
    cure: str = "",
) -> None:
    """Raise InvalidRequest unless every field can be carried out as written.

    vocab_size: the logits' width.    max_logprobs: the server's limit for logprobs and prompt_logprobs.
    cure: what to do about a number out of its range, if not what a client of the API does.
    """
    for name in params.__struct_fields__:
        check_unicode(getattr(params, name), name)
    for name, allowed in NUMBERS.items():
        value = getattr(params, name)
        if value is not None and not allowed.allows(value):
            raise invalid(name, allowed.law, value, cure=cure or DROP)
    for name in FLAGS:
        if not isinstance(getattr(params, name), bool):
            raise invalid(name, "true or false", getattr(params, name), cure=DROP)
    if params.form_field is not None and not isinstance(params.form_field, str):
        raise invalid("form_field", "the name of a field", params.form_field, cure=DROP)
    _check_stop(params.stop)
    if params.stop and not params.detokenize:
        law = "left out without detokenize, since there is no text to find it in"
        raise invalid("stop", law, params.stop, cure="leave one of the two out")
    _check_id_list(params.stop_token_ids, vocab_size, "stop_token_ids", MAX_STOP_TOKEN_IDS)
    _check_id_list(params.allowed_token_ids, vocab_size, "allowed_token_ids", vocab_size)
    if params.allowed_token_ids is not None and not len(params.allowed_token_ids):
        raise invalid("allowed_token_ids", "a list of at least one token id", [], cure="leave it out to allow all")
    _check_strings(params.bad_words, "bad_words", MAX_BAD_WORDS, MAX_BAD_WORD_CHARS)
    _check_logit_bias(params.logit_bias, vocab_size)
    for name in ("logprobs", "prompt_logprobs"):
        if (value := getattr(params, name)) is None:
            continue
        allowed = Range(0, max_logprobs, f"an integer from 0 to {max_logprobs} (max_logprobs)", integer=True)
        if not allowed.allows(value):
            raise invalid(name, allowed.law, value, cure="leave it out for none")
    if params.thinking_token_budget not in (None, -1) and params.logprobs is not None:
        law = "left out with logprobs, since a token that nobody drew has none"
        raise invalid("thinking_token_budget", law, params.thinking_token_budget, cure="leave one of the two out")
    if params.min_tokens and params.max_tokens is not None and params.min_tokens > params.max_tokens:
        law = f"at most max_tokens, {params.max_tokens}"
        raise invalid("min_tokens", law, params.min_tokens, cure="lower it or raise max_tokens")


def validate_prompt_ids(ids: Any, *, vocab_size: int, param: str = "prompt") -> list[int]:
    """Return `ids`, as a list, if they are a non-empty list of token ids below `vocab_size`, the logits' width."""
    check_prompt_ids(ids, vocab_size=vocab_size, param=param)
    return ids if isinstance(ids, list) else list(ids)


_OF_THE_MODEL = "take the ids of this model's tokenizer, and of a text leave out what spells this one"


def check_prompt_ids(ids: Any, *, vocab_size: int, param: str = "prompt") -> None:
    """Raise InvalidRequest unless `validate_prompt_ids` would return them; they may be u32[n] too."""
    if not isinstance(ids, list | tuple) and not (isinstance(ids, array) and ids.typecode == "I"):
        raise invalid(param, "a list of token ids", ids, cure="send it as in [1, 2]")
    if not ids:
        message = f"{param} must hold at least one token, got none; send one"
        raise InvalidRequest(message, param=param, code="invalid_value")
    _check_ids(ids, vocab_size, param)


def _check_stop(stop: Any) -> None:
    if isinstance(stop, str):
        stop = [stop]
    elif stop is not None and not isinstance(stop, list | tuple):
        law = f"a string or a list of at most {MAX_STOP_STRINGS} strings"
        raise invalid("stop", law, stop, cure='send it as in ["text"]')
    _check_strings(stop, "stop", MAX_STOP_STRINGS, MAX_STOP_CHARS)


def _check_strings(strings: Any, param: str, most: int, most_chars: int) -> None:
    if strings is None:
        return
    _check_list(strings, param, f"a list of at most {most} strings", most, '["text"]')
    for string in strings:
        if not isinstance(string, str) or not 1 <= len(string) <= most_chars or not is_unicode(string):
            raise invalid(param, f"made of strings of 1 to {most_chars} characters", string, cure=DROP_ONE)


def _check_list(values: Any, param: str, law: str, most: int, example: str) -> None:
    if not isinstance(values, list | tuple):
        raise invalid(param, law, values, cure=f"send it as in {example}")
    if len(values) > most:
        raise invalid(param, law, Verbatim(f"{len(values)} of them"), cure=DROP_SOME)


def _check_id_list(ids: Any, vocab_size: int, param: str, most: int) -> None:
    if ids is None:
        return
    _check_list(ids, param, f"a list of at most {most} token ids", most, "[1, 2]")
    _check_ids(ids, vocab_size, param)


def _check_logit_bias(bias: Any, vocab_size: int) -> None:
    if bias is None:
        return
    law = f"an object of at most {MAX_LOGIT_BIAS} token ids and their biases"
    if not isinstance(bias, dict):
        raise invalid("logit_bias", law, bias, cure='send it as in {"42": -100}')
    if len(bias) > MAX_LOGIT_BIAS:
        raise invalid("logit_bias", law, Verbatim(f"{len(bias)} of them"), cure=DROP_SOME)
    if _is_bias(bias, vocab_size):
        return
    ids, biases = Range(0, vocab_size - 1, "", integer=True), Range(-100, 100, "")
    for key, value in bias.items():  # to name the culprit, at ten times the price
        # JSON has no other keys than strings; one spelling of each number, or "7" and "07" would contradict
        is_number = isinstance(key, str) and key.isascii() and key.isdigit() and (key[0] != "0" or key == "0")
        number = int(key) if is_number and len(key) <= 19 else key
        if isinstance(number, str) or not ids.allows(number):
            raise invalid("logit_bias", f"made of token ids from 0 to {vocab_size - 1}", key, cure=DROP_ONE)
        if not biases.allows(value):
            given = Verbatim(f"{show(value)} for token {key}")
            raise invalid("logit_bias", "made of biases from -100 to 100", given, cure=DROP_ONE)
    if len({int(key) for key in bias}) != len(bias):
        raise invalid("logit_bias", "an object that names each token id once", bias, cure="leave one of the two out")


def _is_bias(bias: dict[Any, Any], vocab_size: int) -> bool:
    """Whether each key is the one spelling of an id, each id is there once, and all values are Python's own numbers."""
    try:
        ids = list(map(int, bias))
        msgspec.convert(list(bias.values()), list[Bias])
    except (ValueError, TypeError, OverflowError, msgspec.ValidationError):
        return False
    spelt = list(map(str, ids)) == list(map(str, bias))
    return spelt and len(set(ids)) == len(ids) and (not ids or (min(ids) >= 0 and max(ids) < vocab_size))


def _check_ids(ids: Sequence[Any], vocab_size: int, param: str) -> None:
    for start in range(0, len(ids), _PIECE_IDS):
        piece = ids[start : start + _PIECE_IDS]
        if _are_ids(piece, vocab_size):
            continue  # at C speed; the loop below only names the culprit, and would take 0.2 s for a long list
        allowed = Range(0, vocab_size - 1, f"made of token ids from 0 to {vocab_size - 1}", integer=True)
        for position, token_id in enumerate(piece, start):
            if not allowed.allows(token_id):
                given = Verbatim(f"{show(token_id)} at position {position}")
                raise invalid(param, allowed.law, given, cure=_OF_THE_MODEL)


def _are_ids(ids: Sequence[Any], vocab_size: int) -> bool:
    """Whether all are Python's own integers from 0 to vocab_size - 1; numpy's are ids as well, and none of these."""
    if isinstance(ids, array):
        return bool(np.frombuffer(ids, np.uintc).max() < vocab_size)
    try:
        msgspec.convert(ids, _ids_below(vocab_size))
    except msgspec.ValidationError:
        return False
    return True


@functools.cache
def _ids_below(vocab_size: int) -> Any:
    return list[Annotated[int, msgspec.Meta(ge=0, lt=vocab_size)]]


def invalid(param: str, law: str, given: Any, *, cure: str = "") -> InvalidRequest:
    """`param must be <law>, got <given>; <cure>`."""
    message = f"{param} must be {law}, got {show(given)}" + (f"; {cure}" if cure else "")
    return InvalidRequest(message, param=param, code="invalid_value")


def unsupported(what: str, *, cure: str = "leave it out", param: str | None = None) -> InvalidRequest:
    """A field that we know and cannot carry out: refused by name, never ignored. param: `what`, unless given."""
    message = f"{what} is not supported by this version of jaxinfer; {cure}"
    return InvalidRequest(message, param=param or what, code="unsupported_parameter")


def too_long(most_tokens: int, fact: str, *, param: str, prompt_tokens: int, is_least: bool = False) -> TooLong:
    """A request beyond the context, in the words that clients search for before they shorten and try again: the first
    ones (litellm, agents) and the code (langchain with openai 3, whose errors show the message alone). Clients of
    Anthropic's API search for others, which anthropic_message.py makes of the numbers.
    """
    message = f"This model's maximum context length is {most_tokens} tokens{fact} (context_length_exceeded)"
    return TooLong(message, param=param, prompt_tokens=prompt_tokens, most_tokens=most_tokens, is_least=is_least)


@dataclasses.dataclass(frozen=True, slots=True)
class Verbatim:
    """Text to stand in an error message as it is, where `show` would quote a value."""

    text: str


def show(value: Any) -> str:
    """A value as the client wrote it, short enough for an error message, without control characters."""
    if isinstance(value, Verbatim):
        return value.text
    if isinstance(value, str | list | tuple | dict) and len(value) > 60:
        return f"a {_JSON_NAMES[type(value)]} of length {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"  # str() of a huge integer is slow, then an error
    text = _JSON_WORDS.get(str(value)) if value is None or isinstance(value, bool) else ascii(value)
    return text if text is not None and len(text) <= 120 else f"{(text or '')[:120]}..."


_JSON_WORDS = {"None": "null", "True": "true", "False": "false"}
_JSON_NAMES: dict[type, str] = {str: "string", list: "list", tuple: "list", dict: "object"}


def is_same(value: Any, neutral: Any) -> bool:
    """Equality in which true is not 1 and a list is a tuple's equal."""
    if isinstance(value, bool) or isinstance(neutral, bool):
        return value is neutral
    return bool((list(value) if isinstance(value, tuple) else value) == neutral)


def is_unicode(text: str) -> bool:
    """Whether the text has no lone surrogate, which no UTF-8 answer could carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_unicode(value: Any, name: str) -> None:
    """Raise InvalidRequest for a lone surrogate in a text or in those of a list. What is JSON has check_json."""
    texts = value if isinstance(value, list | tuple) else (value,)
    if not any(issubclass(kind, str) for kind in set(map(type, texts))):
        return  # a vocabulary's ids are passed over at C speed
    for text in texts:
        if isinstance(text, str) and not text.isascii() and not is_unicode(text):
            raise invalid(name, "valid Unicode", Verbatim("half of a surrogate pair"), cure="send both halves")


_GOT = re.compile(r"must be (.*), got .*", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_CHOICE = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>\w+)|\[[^\]]*\]")  # of a path
_TYPES = re.compile(r"`(\w+(?: \| \w+)*)`")
_WORDS = {"str": "a string", "int": "an integer", "float": "a number", "bool": "true or false", "null": "null"}
_WORDS |= {"array": "an array", "object": "an object"}


def _in_words(types: re.Match[str]) -> str:
    """The types that msgspec lists; a field's name stays as it is."""
    names = types[1].split(" | ")
    return " or ".join(_WORDS[name] for name in names) if _WORDS.keys() >= set(names) else types[0]


def _words_at(wire_type: type[Any], path: str) -> list[Any]:
    """The words of which a value must be one. path: of that value, as msgspec writes it."""
    kinds = [*_kinds_of(msgspec.inspect.type_info(wire_type))]
    for step in _STEP.finditer(path):
        kinds = [one for kind in kinds for inner in _inner(kind, step["name"]) for one in _kinds_of(inner)]
    return [word for kind in kinds if isinstance(kind, msgspec.inspect.LiteralType) for word in kind.values]


def _kinds_of(kind: msgspec.inspect.Type) -> Sequence[msgspec.inspect.Type]:
    """Those of a union, or itself."""
    return kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)


def _inner(kind: msgspec.inspect.Type, name: str | None) -> Iterator[msgspec.inspect.Type]:
    """The types of what it holds. name: of a field; None: of a list's or a dict's items."""
    match kind:
        case msgspec.inspect.StructType(fields=fields) | msgspec.inspect.TypedDictType(fields=fields):
            yield from (field.type for field in fields if field.name == name)
        case msgspec.inspect.ListType(item_type=inner) | msgspec.inspect.DictType(value_type=inner):
            yield inner


def convert(value: Any, wire_type: type[Any], *, at: str = "") -> Any:
    """msgspec.convert, its errors turned into ours: `param` is the path that msgspec names, below `at`.

    Its words are those of Python's types, which no client's language has: JSON's stand in their place.
    """
    try:
        return msgspec.convert(value, wire_type)
    except msgspec.ValidationError as error:
        fault, _, path = str(error).partition(" - at `$")
        param = (at + path.rstrip("`")).lstrip(".") or at or None
        if missing := _MISSING.fullmatch(fault):
            param = f"{param}.{missing[1]}" if param else missing[1]
            message = f"{param} must be given; send it"
            raise InvalidRequest(message, param=param, code="missing_required_parameter") from error
        law = _TYPES.sub(_in_words, fault.replace("Expected", "must be", 1))
        law = _GOT.sub(r"\g<0>; send \1", law)
        if choice := _CHOICE.fullmatch(law):
            words = ", ".join(map(str, _words_at(wire_type, path)))
            law = f"must be one of {words}, got {choice[1]}; take one of them"
        raise InvalidRequest(f"{param or 'the body'} {law}", param=param, code="invalid_type") from error
