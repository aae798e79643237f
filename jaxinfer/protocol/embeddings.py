"""POST /v1/embeddings and /score: the requests, and what becomes of an embedding as the engine gives it.

The engine's is the hidden state of the last token after the final norm, or the mean of all tokens' (pooling), as
little-endian float32. Cut to `dimensions` first, then brought to length 1 (normalize).
"""

import base64
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from jaxinfer.protocol.completions import read_prompts
from jaxinfer.protocol.fields import CommonWire, Refusal, check_common, read_wire, required
from jaxinfer.protocol.forms import Usage
from jaxinfer.protocol.responses import encode_json
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.protocol.truncation import check_truncation
from jaxinfer.protocol.validate import Range, Verbatim, invalid, too_long

Pooling = Literal["last", "mean"]
POOLINGS: tuple[Pooling, ...] = ("last", "mean")
MAX_INPUTS = 2048  # as OpenAI has it
NO_ANSWER = SamplingParams(max_tokens=0)  # an embedding leaves no room for one

EMBEDDING_REFUSED = {
    "messages": Refusal(cure="send the text of /apply-template as input"),
    "embed_dtype": Refusal(("float32",)),
    "endianness": Refusal(("little", "native")),
    "use_activation": Refusal((True,), cure="send normalize"),
    "task": Refusal(("embed",)),
    "request_id": Refusal(cure="send it as the header x-request-id"),
    "rid": Refusal(cure="send it as the header x-request-id"),
    "session_id": Refusal(),
    "prompt_embeds": Refusal(),
    "lora_path": Refusal(),
}
SCORE_REFUSED = {
    **{name: EMBEDDING_REFUSED[name] for name in ("use_activation", "request_id", "rid", "session_id", "lora_path")},
    "queries": Refusal(cure="send text_1"),
    "documents": Refusal(cure="send text_2"),
    "instruction": Refusal(cure="write it into the texts"),
}


class PooledWire(CommonWire, frozen=True, kw_only=True):
    """The fields that both routes share."""

    pooling: Pooling = "last"
    add_special_tokens: bool = True


class EmbeddingWire(PooledWire, frozen=True, kw_only=True):
    """The fields of an embedding request."""

    input: Any = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    normalize: bool = True


class ScoreWire(PooledWire, frozen=True, kw_only=True):
    """The fields of a score request."""

    text_1: Any = None
    text_2: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """An embedding request that can be carried out, as far as can be told without its tokens."""

    wire: EmbeddingWire
    inputs: list[str | Sequence[int]]
    unknown: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A score request. Each of `first` belongs to one of `second`, or its only one to all."""

    wire: ScoreWire
    first: list[str | Sequence[int]]
    second: list[str | Sequence[int]]
    unknown: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    """What an answer of both routes begins with. created: seconds since 1970."""

    id: str
    created: int
    model: str


def read_embedding(body: dict[str, Any], *, vocab_size: int, hidden_size: int) -> EmbeddingRequest:
    """Read an embedding request's JSON object. hidden_size: numbers of an embedding. Raises InvalidRequest."""
    raw = required(body, "input")
    wire, unknown = read_wire(body, EmbeddingWire, refused=EMBEDDING_REFUSED)
    check_common(wire)
    check_truncation(wire)
    check_dimensions(wire.dimensions, hidden_size)
    return EmbeddingRequest(wire, read_prompts(raw, vocab_size=vocab_size, param="input", most=MAX_INPUTS), unknown)


def read_score(body: dict[str, Any], *, vocab_size: int) -> ScoreRequest:
    """Read a score request's JSON object. Raises InvalidRequest."""
    raw_first, raw_second = required(body, "text_1"), required(body, "text_2")
    wire, unknown = read_wire(body, ScoreWire, refused=SCORE_REFUSED)
    check_common(wire)
    check_truncation(wire)
    first = read_prompts(raw_first, vocab_size=vocab_size, param="text_1", most=MAX_INPUTS // 2)
    second = read_prompts(raw_second, vocab_size=vocab_size, param="text_2", most=MAX_INPUTS // 2)
    check_pairs(len(first), len(second), param="text_1")
    return ScoreRequest(wire, first, second, unknown)


def check_dimensions(dimensions: int | None, hidden_size: int) -> None:
    """Raise InvalidRequest unless an embedding has so many numbers."""
    allowed = Range(1, hidden_size, f"an integer from 1 to {hidden_size}, the model's hidden size", integer=True)
    if dimensions is not None and not allowed.allows(dimensions):
        raise invalid("dimensions", allowed.law, dimensions, cure="leave it out for all")


def check_pairs(num_first: int, num_second: int, *, param: str) -> None:
    """Raise InvalidRequest unless one side has one text for all of the other's, or one for each."""
    if num_first not in (1, num_second):
        law = f"one text, or one for each of the {num_second} it is compared with"
        raise invalid(param, law, Verbatim(f"{num_first} of them"), cure="send as many, or one")


def check_input_length(num_tokens: int, max_model_len: int, *, param: str) -> None:
    """Raise InvalidRequest for an input beyond the context, which it may fill."""
    if num_tokens > max_model_len:
        fact = f"; this input has {num_tokens}. Shorten it"
        raise too_long(max_model_len, fact, param=param, prompt_tokens=num_tokens)


def shaped(raw: bytes, *, normalize: bool, dimensions: int | None = None) -> np.ndarray:
    """f32[dimensions]: an engine's embedding as it was asked for; all zeros stay so."""
    vector = np.frombuffer(raw, "<f4")[:dimensions]
    if not normalize:
        return vector
    length = np.linalg.norm(vector.astype(np.float64))
    return (vector / (length or 1.0)).astype("<f4")


def similarity(one: bytes, other: bytes) -> float:
    """The cosine of the angle between two of an engine's embeddings; 0 where one is all zeros."""
    a, b = (np.frombuffer(raw, "<f4").astype(np.float64) for raw in (one, other))
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return float(np.clip(a @ b / lengths, -1, 1)) if lengths else 0.0


def paired[T](first: list[T], second: list[T]) -> Iterable[tuple[T, T]]:
    """Each of `second` with its own of `first`, or with its only one."""
    return zip(first * len(second) if len(first) == 1 else first, second, strict=True)


def embedding_item(index: int, raw: bytes, wire: EmbeddingWire) -> bytes:
    """One item of the answer's data, as JSON. base64: of little-endian float32."""
    vector = shaped(raw, normalize=wire.normalize, dimensions=wire.dimensions)
    told = vector.tolist() if wire.encoding_format == "float" else base64.b64encode(vector.tobytes()).decode()
    return encode_json({"object": "embedding", "index": index, "embedding": told})


def score_item(index: int, score: float) -> bytes:
    """One item of the answer's data, as JSON."""
    return encode_json({"object": "score", "index": index, "score": score})


def list_body(head: Head, items: list[bytes], usage: Usage) -> bytes:
    """The whole answer of both routes."""
    start = encode_json({**dataclasses.asdict(head), "object": "list", "usage": usage.as_dict()})[:-1]
    return b"".join((start, b',"data":[', b",".join(items), b"]}"))
