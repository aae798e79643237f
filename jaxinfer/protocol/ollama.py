"""Ollama's API: the requests of /api/chat, /api/generate, /api/embed and /api/embeddings, translated into ours."""

import dataclasses
import re
from typing import Any

import msgspec

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.carried import speaking_of
from jaxinfer.protocol.chat import ChatRequest, num_logprobs, read_chat
from jaxinfer.protocol.closed_schema import close_objects
from jaxinfer.protocol.completions import CompletionRequest, read_completion
from jaxinfer.protocol.embeddings import EmbeddingRequest, read_embedding
from jaxinfer.protocol.fields import Refusal, check_refused, read_wire, required
from jaxinfer.protocol.messages import PYTHON, read_messages
from jaxinfer.protocol.null_keywords import without_nulls
from jaxinfer.protocol.truncation import TO_FIT
from jaxinfer.protocol.validate import invalid

NAMES = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "reasoning_effort": "think",
    "response_format.json_schema.schema": "format",
    "response_format": "format",
    **{
        name: f"options.{name}"
        for name in ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "stop")
    },
}
# options that have a field of ours
SAMPLING = {
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    **{name.removeprefix("options."): ours for ours, name in NAMES.items() if name == f"options.{ours}"},
}
# what we do not have; every other option is one of Ollama's runner, or one that today's Ollama does not read either
# (typical_p, tfs_z), and is named as ignored
OPTIONS_REFUSED = {
    "mirostat": Refusal((0,)),
    "vocab_only": Refusal((False,)),
}
_NO_TIME = re.compile(r"0+(\.0+)?(ns|us|ms|s|m|h)?")
NO_IMAGES = Refusal(([],), cure="this server reads text alone; leave them out")
CHAT_REFUSED = {  # nothing is cut off or forgotten here, unless a request for embeddings asks for it
    "truncate": Refusal((False,), cure="a prompt that does not fit is refused here; leave it out"),
    "shift": Refusal((False,), cure="an answer ends where the context ends; leave it out"),
}
GENERATE_REFUSED = CHAT_REFUSED | {
    "images": NO_IMAGES,
    "suffix": Refusal(("",), cure="no model here fills in the middle; leave it out"),
    "template": Refusal(("",), cure="the model's own template is used; send raw true to write the whole prompt"),
    "context": Refusal(([],), cure="send the conversation to /api/chat"),
}
DIALECT = dataclasses.replace(PYTHON, ignored=PYTHON.ignored | {"images", "tool_name"})


class OllamaWire(msgspec.Struct, frozen=True, kw_only=True):
    """What all routes share. model: with or without `:latest`.    keep_alive is ignored: the model stays loaded."""

    model: str | None = None
    options: dict[str, Any] = {}


class GeneratingWire(OllamaWire, frozen=True, kw_only=True):
    """format: "json", or a JSON schema.    think: whether to, or how hard.    logprobs, top_logprobs: as in chat."""

    stream: bool = True
    format: Any = None
    think: Any = None
    logprobs: bool = False
    top_logprobs: Any = None


class OllamaChatWire(GeneratingWire, frozen=True, kw_only=True):
    """A conversation; without messages the model is to be loaded, as it is."""

    messages: Any = None
    tools: Any = None


class GenerateWire(GeneratingWire, frozen=True, kw_only=True):
    """A prompt; without one the model is to be loaded, as it is. raw: the prompt is all that the model reads."""

    prompt: str = ""
    system: str = ""
    raw: bool = False


class OllamaEmbedWire(OllamaWire, frozen=True, kw_only=True):
    """truncate: cut what is too long, instead of refusing it."""

    input: Any = None
    truncate: bool = False
    dimensions: int | None = None


class OldEmbedWire(OllamaWire, frozen=True, kw_only=True):
    """Of the older route, which takes one text."""

    prompt: Any = None


class ShowWire(msgspec.Struct, frozen=True, kw_only=True):
    """Of a request for what a model is. name: the older name of `model`."""

    model: str | None = None
    name: str | None = None


class ShowIgnored(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of that request that change nothing. verbose: asks for the list of tensors; no answer has it."""

    verbose: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Generating:
    """A request of chat or generate. request: in our words; None where the model is only to be loaded, or
    with `unloads` to be unloaded."""

    wire: GeneratingWire
    request: ChatRequest | CompletionRequest | None
    unknown: tuple[str, ...]
    unloads: bool = False


def read_ollama_chat(body: dict[str, Any], *, max_model_len: int) -> Generating:
    """Read the JSON object of a request to /api/chat. Raises InvalidRequest."""
    wire, unknown = _read(body, OllamaChatWire, CHAT_REFUSED)
    own, unread = _generating(wire, max_model_len)
    unknown += unread
    if wire.messages in (None, []):
        return Generating(wire, None, unknown, _unloads(body))
    messages, unread = read_messages(_plain(wire.messages), DIALECT)
    with speaking_of(NAMES):
        chat = read_chat(own | {"tools": wire.tools, "messages": messages}, messages=messages)
    return _chat(wire, chat, unknown + unread)


def read_generate(body: dict[str, Any], *, max_model_len: int, vocab_size: int) -> Generating:
    """Read the JSON object of a request to /api/generate. Raises InvalidRequest."""
    wire, unknown = _read(body, GenerateWire, GENERATE_REFUSED)
    own, unread = _generating(wire, max_model_len)
    unknown += unread
    if not wire.prompt:
        return Generating(wire, None, unknown, _unloads(body))
    if wire.raw:
        return _raw(wire, own, unknown, max_model_len, vocab_size)
    system = [{"role": "system", "content": wire.system}] if wire.system else []
    messages = [*system, {"role": "user", "content": wire.prompt}]
    with speaking_of(NAMES):
        return _chat(wire, read_chat(own | {"messages": messages}, messages=messages), unknown)


def read_ollama_embedding(
    body: dict[str, Any], *, max_model_len: int, vocab_size: int, hidden_size: int
) -> EmbeddingRequest:
    """Read the JSON object of a request to /api/embed. Raises InvalidRequest."""
    wire, unknown = _read(body, OllamaEmbedWire, {})
    asked: dict[str, Any] = {"input": required(body, "input"), "dimensions": wire.dimensions}
    if wire.truncate:
        asked |= {"truncate_prompt_tokens": TO_FIT, "truncation_side": "right"}
    found = read_embedding(asked, vocab_size=vocab_size, hidden_size=hidden_size)
    return dataclasses.replace(found, unknown=unknown + _unread_options(wire, max_model_len, frozenset()))


def read_old_embedding(
    body: dict[str, Any], *, max_model_len: int, vocab_size: int, hidden_size: int
) -> EmbeddingRequest:
    """Read the JSON object of a request to /api/embeddings, whose vector keeps its length. Raises InvalidRequest."""
    wire, unknown = _read(body, OldEmbedWire, {})
    text = required(body, "prompt")
    if not isinstance(text, str):
        raise invalid("prompt", "a string", text, cure="send one text, or several to /api/embed")
    with speaking_of({"input": "prompt"}):
        asked = {"input": text, "normalize": False}
        found = read_embedding(asked, vocab_size=vocab_size, hidden_size=hidden_size)
    return dataclasses.replace(found, unknown=unknown + _unread_options(wire, max_model_len, frozenset()))


def read_show(body: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The model that is meant, and the names of fields nobody reads. Raises InvalidRequest."""
    wire, unknown = read_wire(body, ShowWire, refused={}, ignored=ShowIgnored)
    if not (name := wire.model or wire.name):
        raise InvalidRequest("model is required", param="model")  # Ollama's words
    return name, unknown


def _read[Wire: OllamaWire](
    body: dict[str, Any], wire: type[Wire], refused: dict[str, Refusal]
) -> tuple[Wire, tuple[str, ...]]:
    return read_wire(body, wire, refused=refused, ignored=None)


def _generating(wire: GeneratingWire, max_model_len: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Options, format and thinking in chat's words, and the names of the options that nobody reads."""
    own = {SAMPLING[name]: value for name, value in wire.options.items() if name in SAMPLING and value is not None}
    if own.get("max_tokens") in (0, -1, -2):  # until the answer ends, or the context
        del own["max_tokens"]
    elif type(number := own.get("max_tokens")) is int and number < 0:
        raise invalid("options.num_predict", "a number of tokens, or -1 for no limit", number, cure="leave it out")
    if wire.format not in (None, ""):
        own["response_format"] = _format(wire.format)
    if wire.think is not None:
        own["reasoning_effort"] = _effort(wire.think)
    own |= {"stream": wire.stream, "logprobs": wire.logprobs, "top_logprobs": wire.top_logprobs}
    return own, _unread_options(wire, max_model_len, frozenset(SAMPLING))


def _unread_options(wire: OllamaWire, max_model_len: int, read: frozenset[str]) -> tuple[str, ...]:
    given = {name: value for name, value in wire.options.items() if value is not None}
    for name in sorted(given.keys() & OPTIONS_REFUSED.keys()):
        check_refused(f"options.{name}", given[name], OPTIONS_REFUSED[name])
    length = given.get("num_ctx")
    if length is not None and (type(length) is not int or not 1 <= length <= max_model_len):
        law = f"an integer from 1 to {max_model_len} (max_model_len)"
        is_long = type(length) is int and length > max_model_len
        cure = "lower it, or raise the server's --max-model-len" if is_long else f"leave it out for {max_model_len}"
        raise invalid("options.num_ctx", law, length, cure=cure)
    known = read | OPTIONS_REFUSED.keys() | {"num_ctx"}
    return tuple(f"options.{name}" for name in given if name not in known)


def _format(given: Any) -> dict[str, Any]:
    if given == "json":
        return {"type": "json_object"}
    if not isinstance(given, dict):
        raise invalid("format", "json or a JSON schema, which is an object", given, cure="leave it out for plain text")
    schema = without_nulls(given)
    close_objects(schema)
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def _unloads(body: dict[str, Any]) -> bool:
    """Whether keep_alive is no time at all: a number of seconds, or a duration as Go writes it."""
    keep = body.get("keep_alive")
    return (type(keep) in (int, float) and keep == 0) or (isinstance(keep, str) and bool(_NO_TIME.fullmatch(keep)))


def _effort(think: Any) -> str:
    if isinstance(think, bool):
        return "high" if think else "none"
    if think not in ("low", "medium", "high", "max"):
        raise invalid("think", "true, false, low, medium, high or max", think, cure="leave it out for the model's own")
    return str(think)


def _plain(raw: Any) -> Any:
    """The messages as other APIs write them; a tool's result names the tool, and no content is an empty one: the
    `ollama` package leaves empty fields out. Raises InvalidRequest."""
    if not isinstance(raw, list):
        return raw
    found = []
    for position, message in enumerate(raw):
        if isinstance(message, dict):
            if message.get("images") is not None:
                check_refused(f"messages[{position}].images", message["images"], NO_IMAGES)
            if message.get("content") is None:
                message = message | {"content": ""}
            if message.get("tool_name") is not None:
                message = {"name": message["tool_name"]} | message
        found.append(message)
    return found


def _chat(wire: GeneratingWire, chat: ChatRequest, unknown: tuple[str, ...]) -> Generating:
    return Generating(wire, dataclasses.replace(chat, unknown=unknown, max_tokens_is_ceiling=True), unknown)


def _raw(
    wire: GenerateWire, own: dict[str, Any], unknown: tuple[str, ...], max_model_len: int, vocab_size: int
) -> Generating:
    """The prompt as it stands, whose answer may go on until the context ends."""
    for name, value in (("system", wire.system), ("think", wire.think)):
        if value:
            law = "left out with raw, where the prompt is all that the model reads"
            raise invalid(name, law, value, cure="leave it out, or raw")
    own.pop("reasoning_effort", None)
    own["logprobs"] = num_logprobs(wire.logprobs, own.pop("top_logprobs"))
    asked = {"max_tokens": max_model_len} | own | {"prompt": wire.prompt}
    with speaking_of(NAMES):
        text = read_completion(asked, vocab_size=vocab_size)
    return Generating(wire, dataclasses.replace(text, unknown=unknown, max_tokens_is_ceiling=True), unknown)
