"""ModelConfig: the constants of a model, and HFConfig: a strict reader of Hugging Face's config.json.

Every key of a config.json is used, harmless by its name or its value, or refused by name; all faults are reported at
once.
Nothing here imports jax.
"""

import abc
import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from jaxinfer.cache.spec import CacheSpec
from jaxinfer.config import counted
from jaxinfer.errors import CheckpointError
from jaxinfer.layers.spec import Attention, Layer
from jaxinfer.models.overrides import OF_THE_USER, OverriddenConfig
from jaxinfer.models.published import Published

DType = Literal["bfloat16", "float16", "float32"]
Quantization = Literal["int8", "int4"]
# What each dense model here is made of, and the words that may stand beside its name; with others it is an addition,
# as sandwich_norm, rope_yarn and gated_attention are
_PARTS = (
    (
        {"rope", "rotary"},
        {"layer", "layers"}
        | {"pos", "position", "positions", "positional", "pe", "encoding", "embedding", "embeddings", "emb", "embed"},
    ),
    ({"swiglu", "glu", "gated", "gate", "silu", "swish"}, {"mlp", "ffn", "activation", "act", "linear", "unit"}),
    ({"causal"}, {"mask", "masking", "attention", "attn", "lm"}),
    (
        {"norm", "norms", "layernorm", "rmsnorm", "prenorm", "ln"},
        {"rms", "layer", "layers", "pre", "input", "attention", "attn", "mlp", "ffn", "final"},
    ),
    ({"attention", "attn"}, {"self", "multi", "head", "layer", "layers", "block", "blocks"}),
    ({"mlp", "ffn"}, {"layer", "layers", "block", "blocks"}),
    ({"residual"}, {"connection", "connections", "stream"}),
)
_FACTORS = frozenset(["scale", "scaling", "multiplier", "ratio", "factor"])
# Beside a factor of these, 1 changes nothing; of scores and of the depth it would be another than the usual one
_OF_FACTORS = frozenset(
    ["emb", "embed", "embedding", "embeddings", "input", "output", "logit", "logits", "lm", "head", "residual"]
    + ["rope", "rotary", "ntk", "cla", "share", "mup", "width"]
)
# what a list of the kinds of layers calls those of a dense model
USUAL_LAYERS = ("attention", "full_attention", "global", "dense")
_SWITCH = frozenset(["use", "has", "with", "apply", "enable"])
_DENIALS = frozenset(["no", "without", "disable", "disabled"])
_RANKS = frozenset(["tp", "ep", "pp", "dp", "cp", "sp", "parallel", "parallelism"])
_OF_RANKS = frozenset(
    ["tensor", "expert", "pipeline", "data", "context", "sequence", "model", "size", "degree", "world", "num", "ranks"]
)
# fmt: off
# How a framework computes what others compute too; "parallel" and "cache" are also words of other architectures
_WAYS = frozenset([
    "flash", "flashattention", "fa", "sdpa", "sdp", "xformers", "efficient", "fused", "fuse", "fusion", "eager",
    "kernel", "kernels", "triton", "apex", "liger", "deepspeed", "compile", "offload", "checkpointing",
])
_CACHES = frozenset(["cache", "kv"])
_TRAINING = frozenset(["dropout", "pdrop", "droppath", "layerdrop", "initializer", "init", "loss", "smoothing"])
# What may be computed so, and how that is said; qk, bias and linear would say what is computed
_OF_WAYS = frozenset([
    "attn", "attention", "self", "scaled", "dot", "product", "softmax", "rope", "rotary", "embedding", "emb", "mlp",
    "ffn", "swiglu", "glu", "norm", "norms", "rms", "rmsnorm", "layernorm", "layer", "ln", "residual", "add", "cross",
    "entropy", "loss", "ce", "adam", "optimizer", "gradient", "memory", "mem", "use", "using", "is", "enable",
    "enabled", "disable", "disabled", "with", "auto", "autoset", "default", "torch", "implementation", "impl",
    "backend", "version", "v", "op", "ops", "jit", "cuda", "cpu",
])
_OF_TRAINING = frozenset([
    "attn", "attention", "attentions", "hidden", "resid", "residual", "embd", "emb", "embed", "embedding",
    "classifier", "mlp", "ffn", "activation", "layer", "path", "label", "z", "aux", "weight", "std", "range", "rate",
    "ratio", "prob", "p", "coef", "coefficient", "factor", "method", "type", "fn", "function", "cutoff",
])
# fmt: on
_ALIKE, _ALIKE_WORDS = 0.8, 0.6  # of 1, from which on a name, or a word of it, may be a misspelling of another
CHECK = "check that config.json is the model's own"
MAX_FAULTS = 20  # of one kind in one message
DTYPES: tuple[DType, ...] = ("bfloat16", "float16", "float32")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(abc.ABC):
    """What all models have; hashable, so that jit can take it as a static argument. A family adds its own fields.

    max_position: tokens the model can address. dtype: what the checkpoint's weights were saved in; where saved_in says
    that, what the model is computed in unasked.
    published: how a checkpoint that is quantized already stores its matrices; None: it is not.
    quantization: what the weights of linear layers are rounded to; None leaves them as they are.
    bos_token_id, eos_token_ids: as config.json says; generation_config.json may say more.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    max_position: int
    tie_embeddings: bool
    dtype: DType
    saved_in: DType | None = None
    published: Published | None = None
    quantization: Quantization | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    @abc.abstractmethod
    def layers(self) -> tuple[Layer, ...]:
        """The model's layers in order; sizes and what can run are sums and maxima over them."""

    @property
    def num_params(self) -> int:
        """Numbers in the checkpoint; a tied matrix counts once."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return sum(layer.num_params(self.hidden_size) for layer in self.layers) + embeddings + self.hidden_size

    @property
    def attentions(self) -> set[Attention]:
        """The kinds of attention of its layers."""
        return {layer.mixer for layer in self.layers if isinstance(layer.mixer, Attention)}

    @property
    def is_quantized(self) -> bool:
        """Whether some of its weights have fewer bits than its dtype."""
        return self.quantization is not None or self.published is not None

    def held_in(self, dtype: str) -> str:
        """What the weights of linear layers are in, in a model that is loaded in `dtype`."""
        return self.quantization or (dtype if self.published is None else str(self.published))

    def caches(self, dtype: str) -> tuple[CacheSpec, ...]:
        """What each layer remembers, where keys and values are kept in `dtype`."""
        return tuple(layer.mixer.cache(dtype) for layer in self.layers)


class HFConfig:
    """A config.json being read.

    Invariant: a key is read through a method here or it is refused by `finish`. Faults are collected; a reader that
    finds one returns a harmless stand-in, so that reading goes on and all faults come out together. JSON's null counts
    as "not given", as in transformers.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        prefix: str = "",
        faults: list[str] | None = None,
        overridden: frozenset[str] = frozenset(),
    ) -> None:
        """overridden: keys whose values are the user's; those of an OverriddenConfig are known."""
        self._raw = raw
        self._overridden = raw.overridden if isinstance(raw, OverriddenConfig) else overridden
        self._prefix = prefix
        self._read: set[str] = set()
        self._may_be_off: set[str] = set()  # keys that were read, whose feature a model without the key lacks too
        self.faults: list[str] = [] if faults is None else faults

    @property
    def num_layers(self) -> int | None:
        return num_layers_of(self._raw)

    def given(self, key: str) -> Any:
        """The key's value as JSON gave it, None when missing or null."""
        self._read.add(key)
        return self._raw.get(key)

    def value(self, key: str) -> Any:
        """The key's value, or what a list says of each layer; None when missing or null."""
        return of_each_layer(self.given(key), self.num_layers)

    def has(self, key: str) -> bool:
        return self._raw.get(key) is not None

    def names(self) -> tuple[str, ...]:
        """All keys, of a section that has names for keys."""
        return tuple(self._raw)

    def is_off(self, key: str) -> bool:
        """Whether the key's feature, which a model without the key lacks, is switched off."""
        self._may_be_off.add(key)
        value = self.value(key)
        return is_off(value) or is_one_rank(key, value)

    def refuse(self, key: str, law: str, cure: str) -> None:
        """Record a fault of `key`: what must hold, what was given, what to do."""
        is_own = key not in self._overridden
        name, cure = (key, cure) if is_own else (f"{key}{OF_THE_USER}", "give another value, or leave it out")
        self.faults.append(f"{self._prefix}{name} {law}, got {shown(self._raw.get(key))}; {cure}")

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = 2**24) -> int:
        """An integer in low .. high; required when there is no default."""
        value = self.value(key)
        if value is None and default is not None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.refuse(key, f"must be an integer in {low} .. {high}", CHECK)
        return low

    def number(
        self, key: str, default: float | None = None, *, high: float = 1e12, zero_allowed: bool = False
    ) -> float:
        """A finite number above 0 (or 0 where that is allowed), at most `high`; required when there is no default."""
        value = self.value(key)
        if value is None and default is not None:
            return default
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and (0 < value <= high or (value == 0 and zero_allowed)):
            return float(value)
        self.refuse(key, f"must be a number {'from' if zero_allowed else 'above'} 0, at most {high:g}", CHECK)
        return 1.0

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.value(key)
        self._may_be_off |= set() if default else {key}
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, "must be true or false", CHECK)
            return default
        return value

    def section(self, key: str) -> "HFConfig | None":
        """A nested object, read with the same strictness; None when missing, null or empty."""
        value = self.value(key)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            self.refuse(key, "must be an object", CHECK)
            return None
        overridden = frozenset(value) if key in self._overridden else frozenset()
        return HFConfig(value, f"{self._prefix}{key}.", self.faults, overridden)

    def must_be(self, key: str, allowed: tuple[Any, ...], why: str) -> None:
        """Refuse the key unless it is missing, null or one of `allowed`, as `is_same` compares."""
        value = self.value(key)
        self._may_be_off |= {key} if any(map(is_off, allowed)) else set()
        if value is not None and not any(is_same(value, other) for other in allowed):
            self.refuse(key, f"must be {' or '.join(shown(other) for other in allowed) or 'absent'}", why)

    def finish(self, harmless: frozenset[str] = frozenset()) -> None:
        """Record a fault for every key that was neither read nor is harmless.

        A feature that nobody here knows and that is switched off is harmless, unless it is a part of each model here,
        or its name may be a misspelling of a key that must not be off. So is a factor of 1, and a number of devices.
        """
        known = self._read | harmless
        for key, given in self._raw.items():
            value = of_each_layer(given, self.num_layers)
            if (
                key in known
                or value is None
                or (value is not given and value in USUAL_LAYERS)
                or says_how(key, value)
                or is_one_rank(key, value)
                or is_neutral(key, value)
            ):
                continue
            denies = isinstance(value, bool) and bool(_words(key) & _DENIALS)  # no_bias is off where it is true
            off = denies or is_off(value)
            if off and bool(value) is denies and _names_a_part(key):
                law = "must not be off, since the model served here has it"
                self.refuse(key, law, "delete it if it does not change what the model computes")
                continue
            if off and not isinstance(value, bool) and value == 0 and _words(key) & _FACTORS:
                law = "must not be 0, since a factor of 0 leaves nothing"
                self.refuse(key, law, "delete it if it does not change what the model computes")
                continue
            near = _misspelt(key, self._read - self._may_be_off) if off else _nearest(key, known)
            if off and not near:
                continue
            hint = f"did you mean {near!r}? If not, delete" if near else "delete"
            self.refuse(
                key, "is not a key this architecture knows", f"{hint} it if it does not change what the model computes"
            )


def clipped(faults: list[str]) -> list[str]:
    """Lines of a message: the first of one kind, and how many more there are."""
    more = [f"and {len(faults) - MAX_FAULTS} more like these"] if len(faults) > MAX_FAULTS else []
    return faults[:MAX_FAULTS] + more


def is_same(value: Any, other: Any) -> bool:
    """Whether two of JSON's values are, with their types: 1 is neither true nor 1.0, within lists too."""
    return repr(value) == repr(other)


def says_how(key: str, value: Any) -> bool:
    """Whether a key says by which kernels a framework computes, or how it trains, and not what a model computes."""
    words = _words(key)
    if words & _TRAINING and words <= _TRAINING | _OF_TRAINING:
        return True
    said = words
    if isinstance(value, str):
        said = words | _words(value)
    elif not (isinstance(value, bool) or ("version" in words and isinstance(value, int))):
        return False
    is_of_cache = isinstance(value, bool) and bool(words & _CACHES)
    return (bool(said & _WAYS) or is_of_cache) and said <= _WAYS | _OF_WAYS | (_CACHES if is_of_cache else set())


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z]+", name.lower())) - {""}


def is_off(value: Any) -> bool:
    """Whether a feature's value says that the model does not have it."""
    return value is None or value in (False, 0, "", [], {})


def _nearest(key: str, known: Iterable[str]) -> str | None:
    """Of which of these a key may be a misspelling; that both begin with `use` makes them no more alike, and a `no`
    makes one the opposite of the other.
    """
    denials = _words(key) & _DENIALS
    alike = [name for name in sorted(known) if _words(name) & _DENIALS == denials]
    near = difflib.get_close_matches(key, alike, n=8, cutoff=_ALIKE)
    bare = _without_switch(key)
    return next(
        (name for name in near if difflib.get_close_matches(bare, [_without_switch(name)], cutoff=_ALIKE)), None
    )


def _misspelt(key: str, known: Iterable[str]) -> str | None:
    """Which of these a key misspells word by word: with a word more it is another key, and may be off."""
    parts = key.split("_")
    for name in difflib.get_close_matches(key, sorted(known), n=8, cutoff=_ALIKE):
        others = name.split("_")
        if key.replace("_", "") == name.replace("_", "") or (
            len(parts) == len(others) and all(map(_are_alike, parts, others))
        ):
            return name
    return None


def _are_alike(word: str, other: str) -> bool:
    """One of two letters is no misspelling of another."""
    return word == other or (
        min(len(word), len(other)) > 2 and difflib.SequenceMatcher(None, word, other).ratio() >= _ALIKE_WORDS
    )


def _without_switch(key: str) -> str:
    first, _, rest = key.partition("_")
    return rest if rest and first in _SWITCH else key


def num_layers_of(raw: Mapping[str, Any]) -> int | None:
    """How many layers a config.json says that its model has; None where it does not say so."""
    given = raw.get("num_hidden_layers")
    return given if type(given) is int else None


def of_each_layer(value: Any, num_layers: int | None) -> Any:
    """What a list says of each layer where it has one for each and says the same of all; else the value itself.

    A list of one may be the number of a layer.
    """
    if not isinstance(value, list) or len(value) != num_layers or num_layers < 2:
        return value
    return value[0] if all(is_same(item, value[0]) for item in value) else value


def is_one_rank(key: str, value: Any) -> bool:
    """Whether a key says over how many devices something was spread, and it was one."""
    words = _words(key)
    return type(value) is int and value == 1 and bool(words & _RANKS) and words <= _RANKS | _OF_RANKS


def is_neutral(key: str, value: Any) -> bool:
    """Whether a number says that nothing is changed: a factor of 1, a window of -1, each layer with full attention."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    words = _words(key)
    if value == -1:
        return "window" in words
    is_factor = bool(words & _FACTORS) and words <= _FACTORS | _OF_FACTORS
    return value == 1 and (is_factor or words in ({"full", "attention", "interval"}, {"full", "attn", "interval"}))


def _names_a_part(key: str) -> bool:
    """Whether a key speaks of a part of each dense model, and of nothing more."""
    words = _words(key) - _SWITCH - _DENIALS
    return any(words & names and words <= names | beside for names, beside in _PARTS)


def first_architecture(raw: Mapping[str, Any]) -> str | None:
    """The first name in `architectures`, which counts where there are more; None where they are no names, or none."""
    names = raw.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return None
    return str(names[0])


def is_headless(raw: Mapping[str, Any]) -> bool:
    """Whether a model was saved without the matrix that makes logits, as embedders are."""
    name = first_architecture(raw)
    return name is not None and name.endswith("Model")


def raise_faults(architecture: str, faults: list[str]) -> None:
    """Raise one CheckpointError that lists all faults, if there are any."""
    if not faults:
        return
    lines = "".join(f"\n  - {fault}" for fault in faults)
    num_of_user = sum(OF_THE_USER in fault for fault in faults)
    where = "config.json with hf_overrides" if num_of_user else "config.json"
    message = f"{where} of {architecture} has {counted(len(faults), 'setting')} that cannot be served:{lines}"
    if num_of_user < len(faults):
        message += """\nto serve it with other values: --hf-overrides '{"KEY": VALUE}', null for a key to leave out"""
    raise CheckpointError(message)


def token_ids(config: HFConfig, key: str, vocab_size: int | None = None) -> tuple[int, ...]:
    """A token id, a list of them, or nothing, as a tuple without repetitions; below vocab_size where that is known."""
    value = config.value(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    cure = "check that the file is the model's own"
    high = 2**31 if vocab_size is None else vocab_size
    if not all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31 for item in ids):
        config.refuse(key, "must be a token id or a list of token ids", cure)
    elif any(item >= high for item in ids):
        config.refuse(key, f"must be below the vocabulary's size ({high})", cure)
    else:
        return tuple(dict.fromkeys(ids))
    return ()


def checkpoint_dtype(config: HFConfig) -> DType:
    """`dtype` (transformers 5) or `torch_dtype` (transformers 4); float32 when neither is given, as there."""
    new, old = config.value("dtype"), config.value("torch_dtype")
    key, value = ("torch_dtype", old) if new is None else ("dtype", new)
    if new is not None and old is not None and new != old:
        config.refuse("dtype", f"must agree with torch_dtype ({shown(old)})", "delete the wrong one")
    for dtype in DTYPES:
        if value in (dtype, f"torch.{dtype}"):
            return dtype
    if value is not None:
        config.refuse(key, f"must be one of {', '.join(DTYPES)}", "convert the checkpoint")
    return "float32"


def shown(value: Any) -> str:
    """A value as a message shows it: JSON's spelling of the simple ones, long ones shortened."""
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
