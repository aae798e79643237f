"""EngineConfig: every setting of the engine, and Limits: the concrete numbers derived from it for one model and device.

Both are frozen and built once. Settings come from a TOML file, JAXINFER_* variables and flags, the later ones winning;
a name that is no setting is an error. Nothing here imports jax.
"""

import dataclasses
import difflib
import json
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from jaxinfer.errors import ConfigError
from jaxinfer.files import read_text

DType = Literal["auto", "bfloat16", "float16", "float32"]
Quantization = Literal["auto", "int8", "int4"]
Device = Literal["auto", "cpu", "cuda"]
LoadFormat = Literal["auto", "safetensors", "dummy"]
Scheduling = Literal["continuous", "static"]
KvLayout = Literal["paged", "contiguous"]
AttentionBackend = Literal["auto", "xla", "mosaic"]
CONTIGUOUS_PAGES_ARE_NOT_SHARED = (
    "enable_prefix_caching must be false with kv_layout contiguous, whose pages belong to one sequence each; set "
    "enable_prefix_caching to false, or set kv_layout to paged"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What the user may set; None means: chosen from the model and the device (see Limits).

    model: a folder, a hub id, or "demo" for the bundled checkpoint.    revision: of the hub id.
    hf_overrides: values that stand in the place of config.json's; None takes a key out.
    quantization: into what the weights of linear layers are rounded as they are loaded; auto leaves them as they are.
    max_model_len: tokens of prompt and answer together.    max_num_seqs: sequences computed together.
    max_num_batched_tokens: tokens per step.    page_size: tokens per KV page.    num_pages: of the KV pool.
    gpu_memory_utilization: share of the device's free memory that weights, pages and temporaries may take together.
    kv_cache_memory_bytes: for the pages alone; overrides the share.    run_ahead: steps in flight beyond the one
    being committed, 0 or 1.    compile_cache_dir: None is the user's cache directory, "" is off.
    max_logprobs: the most likely tokens that a request may ask for at each position.
    max_session_pages: that sessions may keep while others want pages; auto is half of the pool.
    kv_offloading_bytes: of host memory, for sessions' pages whose places were taken; 0 is off; auto is 2 GiB on a CPU,
    of its free memory an eighth at most, and none on a GPU.
    chat_template: a file with another one than the checkpoint's.    default_chat_template_kwargs: values of the
    template's variables where a request names none.    reasoning_parser: how the model marks its thoughts; auto: as its
    template and tokenizer say, and a name demands that they say it.
    tool_call_parser: how the model writes tool calls; auto: as its chat template says.
    scheduling: static starts sequences only when none runs.    kv_layout: contiguous gives each sequence consecutive
    pages for all of max_model_len, and shares none. attention_backend: mosaic is our kernels for Hopper; auto takes
    ours where they run, unless XLA's attention is measured to be faster.    cuda_graphs: launch each step as one graph.
    enable_fast_forward: tokens that a grammar forces take no steps of their own. These five are there to be compared
    with.
    """

    model: str = "demo"
    revision: str | None = None
    tokenizer: str | None = None
    served_model_name: tuple[str, ...] = ()
    hf_overrides: dict[str, Any] | None = None
    dtype: DType = "auto"
    quantization: Quantization = "auto"
    load_format: LoadFormat = "auto"
    device: Device = "auto"
    seed: int = 0
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    page_size: int | None = None
    num_pages: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    scheduling: Scheduling = "continuous"
    kv_layout: KvLayout = "paged"
    attention_backend: AttentionBackend = "auto"
    cuda_graphs: bool = True
    enable_fast_forward: bool = True
    run_ahead: int = 1
    max_num_queued_seqs: int | None = None
    max_session_pages: int | None = None
    kv_offloading_bytes: int | None = None
    max_logprobs: int = 20
    generation_config: Literal["auto", "none"] = "auto"
    tool_call_parser: Literal[
        "auto", "hermes", "qwen3_coder", "minicpm5", "llama3_json", "pythonic", "xlam", "llama_nemotron_json",
        "qwen2_5_coder", "functionary", "deepseek_v3", "functionary_v3_2", "firefunction_v2",
    ] = "auto"  # fmt: skip
    reasoning_parser: Literal["auto", "qwen3", "deepseek_r1"] = "auto"
    chat_template: str | None = None
    default_chat_template_kwargs: dict[str, Any] | None = None
    download_dir: str | None = None
    compile_cache_dir: str | None = None

    def __post_init__(self) -> None:
        faults = [fault for name in SETTINGS if (fault := SETTINGS[name].fault(getattr(self, name), name))]
        if self.kv_layout == "contiguous" and self.enable_prefix_caching:
            faults.append(CONTIGUOUS_PAGES_ARE_NOT_SHARED)
        if faults:
            raise ConfigError("; ".join(faults))

    def dtype_for(self, checkpoint_dtype: str) -> str:
        """Of weights and pages, where the checkpoint has that one."""
        return checkpoint_dtype if self.dtype == "auto" else self.dtype

    def kept_in_limits(self) -> dict[str, Any]:
        """The fields of Limits that are settings as they stand."""
        return {name: value for name in _KEPT_IN_LIMITS if (value := getattr(self, name)) is not None}


_KEPT_IN_LIMITS = (
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "scheduling",
    "kv_layout",
    "enable_fast_forward",
    "run_ahead",
    "max_logprobs",
    "max_num_queued_seqs",
    "max_session_pages",
)


@dataclasses.dataclass(frozen=True, slots=True)
class ExtendBucket:
    """One compiled size of the ragged step: up to `tokens` tokens of `rows` rows with `logits` sampled rows."""

    tokens: int
    rows: int
    logits: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The engine's concrete numbers, fixed before anything is allocated.

    num_pages counts page 0, the null page that padding reads; the pool hands out 1 .. num_pages - 1.
    vocab_size is the width of the logits, which may exceed the tokenizer's.
    num_host_pages: of sessions, that host memory may hold beside the pool.
    page_tables: how many pages the same tokens take (cache.spec).
    decode_contexts: rising lengths of row for which decode steps are compiled besides the one for any length.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    page_size: int
    num_pages: int
    vocab_size: int
    decode_buckets: tuple[int, ...]
    extend_buckets: tuple[ExtendBucket, ...]
    decode_contexts: tuple[int, ...] = ()
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    scheduling: Scheduling = "continuous"
    kv_layout: KvLayout = "paged"
    enable_fast_forward: bool = True
    run_ahead: int = 1
    max_num_queued_seqs: int = 256
    max_session_pages: int | None = None
    num_host_pages: int = 0
    page_tables: int = 1
    max_logprobs: int = 20

    @property
    def most_session_pages(self) -> int:
        """How many pages all sessions together may keep."""
        return self.num_pages // 2 if self.max_session_pages is None else self.max_session_pages

    @property
    def cache_tokens(self) -> int:
        """How many tokens the pages hold, where no window lets go of any."""
        return (self.num_pages - 1) // self.page_tables * self.page_size

    @property
    def max_pages_per_seq(self) -> int:
        """The width of the page table."""
        return -(-self.max_model_len // self.page_size)


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One field of EngineConfig and what it accepts.

    A value of `type` (str, int, float, bool, tuple of texts, dict), one of `choices` if there are any, or None if
    optional. Numbers lie in low .. high; a float must be above low.
    """

    name: str
    type: type
    optional: bool
    choices: tuple[str, ...]
    default: Any
    low: int = 0
    high: int | None = None

    @property
    def law(self) -> str:
        """What a value must be, as an error says it."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.type is float:
            return f"a number above {self.low}, at most {self.high}"
        if self.type is not int:
            return _LAWS[self.type]
        span = f"an integer of at least {self.low}" if self.high is None else f"an integer in {self.low} .. {self.high}"
        return span + (", a power of two" if self.name == "page_size" else "") + (" or auto" if self.optional else "")

    def accepts(self, value: Any) -> bool:
        if value is None:
            return self.optional
        if self.type is float or self.type is int:
            return self._accepts_number(value)
        if not isinstance(value, self.type):
            return False
        if isinstance(value, tuple):
            return all(isinstance(item, str) and item for item in value)
        return value in self.choices if self.choices else value != "" or self.name == "compile_cache_dir"

    def _accepts_number(self, value: Any) -> bool:
        if isinstance(value, bool):
            return False
        if self.type is float:
            return isinstance(value, (int, float)) and self.low < value <= (
                math.inf if self.high is None else self.high
            )
        if not isinstance(value, int):
            return False
        fits = self.low <= value and (self.high is None or value <= self.high)
        return fits and (self.name != "page_size" or value & (value - 1) == 0)

    def fault(self, value: Any, label: str) -> str | None:
        """What is wrong with the value, or None. `label`: where it stands and how its name is spelt there."""
        if self.accepts(value):
            return None
        given = ", ".join(map(repr, value)) if isinstance(value, tuple) else repr(value)
        return f"{label} must be {self.law}, got {given}; {_CURES.get(self.name, 'leave it out for its default')}"

    def parse(self, raw: Any) -> Any:
        """The value of a text or a TOML value; what cannot be read comes back as it is, for `fault` to name."""
        if self.type is tuple and isinstance(raw, (str, list)):
            return tuple(raw.split(",")) if isinstance(raw, str) else tuple(raw)
        if not isinstance(raw, str) or self.type is str:
            return raw
        text = raw.strip()
        if self.optional and text == "auto":
            return None
        if self.type is dict:
            return _parse_json(text, raw)
        if self.type is bool:
            return _BOOLS.get(text.lower(), raw)
        try:
            return parse_int(text) if self.type is int else float(text)
        except (ValueError, OverflowError):  # 1.0e999k
            return raw


def _parse_json(text: str, otherwise: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise


_CURES = {  # of settings whose wrong values are mostly another program's
    "generation_config": "auto reads generation_config.json in the model's folder: put yours there; none reads none",
    "quantization": "not yet: other methods; int8 and int4 round at load; of a checkpoint leave it out",
    "dtype": "leave it out for the checkpoint's; half is float16, float is float32; not yet: fp8",
    "load_format": "leave it out: weights are read from safetensors alone",
    "device": "not yet: other accelerators; the variable CUDA_VISIBLE_DEVICES picks the GPU",
    "attention_backend": "leave it out: attention is chosen for the device",
    **dict.fromkeys(("tool_call_parser", "reasoning_parser"), "leave it out: the model's chat template says it"),
}
_LAWS = {str: "a nonempty text", bool: "true or false", tuple: "texts that are not empty", dict: "a JSON object"}
_SUFFIXES = {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}
_BOOLS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def parse_int(text: str) -> int:
    """Read a whole number: 32k is 32000 and 32K is 32768; m, M, g and G likewise. Raises ValueError."""
    suffix = text[-1:] if text[-1:] in _SUFFIXES else ""
    digits = text.removesuffix(suffix)
    if suffix and "." in digits:
        value = float(digits) * _SUFFIXES[suffix]
        if value != int(value):
            raise ValueError(f"{text} is not a whole number")
        return int(value)
    return int(digits) * _SUFFIXES[suffix]


_BOUNDS: dict[str, tuple[int, int | None]] = {
    "seed": (0, 2**64 - 1),
    "max_model_len": (2, None),
    "max_num_seqs": (1, 4096),
    "max_num_batched_tokens": (1, None),
    "page_size": (1, 4096),
    "num_pages": (2, None),
    "gpu_memory_utilization": (0, 1),
    "kv_cache_memory_bytes": (1, None),
    "run_ahead": (0, 1),
    "max_num_queued_seqs": (0, None),
    "max_session_pages": (0, None),
    "max_logprobs": (1, 100),
}


def _setting(field: "dataclasses.Field[Any]", hint: Any) -> Setting:
    members = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    kind = next(member for member in members if member is not types.NoneType)
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    plain = str if choices else typing.get_origin(kind) or kind
    bounds = _BOUNDS.get(field.name, (0, None))
    return Setting(field.name, plain, types.NoneType in members, choices, field.default, *bounds)


_HINTS = typing.get_type_hints(EngineConfig)
SETTINGS: dict[str, Setting] = {
    field.name: _setting(field, _HINTS[field.name]) for field in dataclasses.fields(EngineConfig)
}


def size_words(num_bytes: int) -> str:
    """Bytes in memory or on disk, as in 15.26 GiB: what a model takes there is the same number in both."""
    if num_bytes >= 2**30 // 10:
        return f"{num_bytes / 2**30:.2f} GiB"
    return f"{num_bytes / 2**20:.1f} MiB" if num_bytes >= 2**20 // 10 else counted(num_bytes, "byte")


def counted(count: int, noun: str) -> str:
    """As in 1 row and 2 rows, 1 batch and 2 batches."""
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith(('s', 'x', 'ch')) else 's'}"


def flag_of(name: str, *, off: bool = False) -> str:
    """The flag of a setting or of a sampling field.    off: of a switch, the flag that turns it off."""
    return f"--{'no-' if off else ''}{name.replace('_', '-')}"


def nearest_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is spelt most like `name`, whatever its case; None where none is.

    A number may be left out, but is no other's misspelling: 4080 is not 4090, Qwen-0.6B may be Qwen3-0.6B.
    cutoff: how alike the two must be, 0 .. 1.
    """
    folded = {other.casefold(): other for other in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=cutoff)
    digits = [re.findall(r"\d+", one) for one in (name, *near)]
    agree = (are_among(*sorted((digits[0], each), key=len)) for each in digits[1:])
    return next((folded[match] for match, may in zip(near, agree, strict=True) if may), None)


def are_among(fewer: list[str], more: list[str]) -> bool:
    """In their order."""
    return all(number in rest for rest in (iter(more),) for number in fewer)


def unknown_name(name: str, known: Collection[str], what: str, cutoff: float = 0.6, otherwise: str = "") -> str:
    """The message for a name that is not one of `known`: with the nearest, by the same cutoff, else all `otherwise`."""
    near = nearest_name(name, known, cutoff)
    cure = f"did you mean {near!r}?" if near else f"known are {', '.join(sorted(known))}{otherwise}"
    return f"unknown {what} {name!r}, {cure}"


@dataclasses.dataclass(frozen=True, slots=True)
class Resolved:
    """An EngineConfig and where each value that is not a default came from: a file, a variable or a flag."""

    config: EngineConfig
    sources: Mapping[str, str]

    def rows(self) -> tuple[tuple[str, str], ...]:
        """(setting, "value (source)") of everything that was set, in the order of EngineConfig."""
        given = [name for name in SETTINGS if name in self.sources]
        return tuple((name, f"{_shown(getattr(self.config, name))} ({self.sources[name]})") for name in given)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, dict):
        return json.dumps(value)
    return "auto" if value is None else str(value)


@dataclasses.dataclass(frozen=True, slots=True)
class _Layer:
    """Values by setting name from one place, and how that place spells a setting's name.

    others: what is a flag and a variable of single verbs, and no setting of the engine.
    """

    values: Mapping[str, Any]
    what: str
    spell: Callable[[str], str]
    file: str = ""
    others: Collection[str] = ()

    def label(self, name: str) -> str:
        return f"{self.file}: {self.spell(name)}" if self.file else self.spell(name)

    def source(self, name: str) -> str:
        return self.file or self.spell(name)

    def unknown(self, name: str) -> str:
        near = name if name in self.others else nearest_name(name, [*SETTINGS, *self.others])
        message = f"unknown {self.what} {self.spell(name)!r}"
        message += f", did you mean {self.spell(near)!r}?" if near else "; docs/reference/settings.md has them all"
        if self.file and near is not None and near in self.others:
            message = f"{name!r} is no key of this file" if near == name else f"{message} No key of this file"
            message += f"; pass {flag_of(near)} or set {_PREFIX}{near.upper()}"
        return f"{self.file}: {message}" if self.file else message


def config_from_sources(
    file: str | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    other_env: Collection[str] = (),
) -> Resolved:
    """The engine's settings: the TOML file, overridden by JAXINFER_* variables, overridden by flags.

    flags: by setting name; None means not given.    other_env: JAXINFER_* variables that belong to somebody else.
    Raises ConfigError naming every unknown name and every bad value, each with the file, variable or flag it came from.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    others = {name.removeprefix(_PREFIX).lower() for name in other_env}
    variables = _read_env(env or {}, other_env)
    layers = [
        _Layer(_read_file(file) if file else {}, "key", str, file or "", others),
        _Layer(variables, "environment variable", lambda name: f"{_PREFIX}{name.upper()}", others=others),
        _Layer(given, "flag", flag_of),
    ]
    return _merge(layers)


def config_from_values(values: Mapping[str, Any]) -> EngineConfig:
    """The engine's settings by name, as LLM takes them. Raises ConfigError naming every unknown name and bad value."""
    return _merge([_Layer(values, "setting", str)]).config


def _merge(layers: list[_Layer]) -> Resolved:
    values, sources, faults = dict[str, Any](), dict[str, str](), list[str]()
    for layer in layers:
        for name, raw in layer.values.items():
            if name not in SETTINGS:
                faults.append(layer.unknown(name))
                continue
            values[name], sources[name] = SETTINGS[name].parse(raw), layer.source(name)
            if fault := SETTINGS[name].fault(values[name], layer.label(name)):
                faults.append(fault)
    if faults:
        raise ConfigError("; ".join(faults))
    try:
        return Resolved(EngineConfig(**values), sources)
    except ConfigError as error:
        error.sources = sources
        raise


def _read_file(file: str) -> dict[str, Any]:
    import tomllib  # here, since most commands read no file and `--help` must be quick

    try:
        return tomllib.loads(read_text(_config_path(file), "--config"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} must be TOML, one `name = value` to a line, got {error}") from error


def _config_path(file: str) -> Path:
    """A file, or one of configs/ by its name alone: "qwen3-8b-h200". Raises ConfigError for a name that is neither."""
    path = Path(file)
    if path.exists() or path.name != file or path.suffix:
        return path
    room = Path(__file__).parent
    folders = room / "configs", room.parent / "configs"  # of a wheel, of a checkout
    presets = {preset.stem: preset for folder in folders for preset in folder.glob("*.toml")}
    if file not in presets:
        raise ConfigError(unknown_name(file, presets, "preset", otherwise="; name one, or a file, with --config"))
    return presets[file]


def _read_env(env: Mapping[str, str], other_env: Collection[str]) -> dict[str, str]:
    return {
        key.removeprefix(_PREFIX).lower(): value
        for key, value in env.items()
        if key.startswith(_PREFIX) and key not in other_env and not _KUBERNETES.fullmatch(key)
    }


_PREFIX = "JAXINFER_"
# what a cluster sets in every pod for a service named jaxinfer; nobody meant these as settings
_KUBERNETES = re.compile(r"JAXINFER_(SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")
