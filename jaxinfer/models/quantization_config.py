"""quantization_config of config.json: how a checkpoint that is quantized already stores its matrices.

Sources: transformers' FineGrainedFP8Config (quant_method fp8), AutoFP8, and compressed-tensors 0.9 to 0.12, whose older
name for the section is compression_config. What is not read is refused by its name, with what to take instead.
"""

import re
from collections.abc import Callable
from typing import Any

from jaxinfer.models.config import CHECK, HFConfig, is_off, shown
from jaxinfer.models.published import Published, Scheme, Sharing

KEYS = ("quantization_config", "compression_config")
ELSE = "take a checkpoint in FP8 (blocks of 128 x 128, or a scale per row or tensor), or the original in bfloat16"
_OTHERS = {
    "bitsandbytes": f"bitsandbytes is not supported; {ELSE}",
    "gguf": f"GGUF is not supported; {ELSE}",
}
_MAX_PATTERN, _MAX_REPEATS = 200, 4  # a stranger's pattern must not take long: each repeat is a loop over a name
_CLASSES = ("Linear",)
_SHARINGS: tuple[Sharing, ...] = ("block", "channel", "tensor")


def published_from_hf(config: HFConfig) -> Published | None:
    """How the checkpoint is quantized; None where it is not, or where that is refused."""
    for key in KEYS:
        if not _quantizes(config.value(key)):
            continue
        section = config.section(key)
        if section is None:
            return None
        method = section.value("quant_method")
        read = _READERS.get(method) if isinstance(method, str) else None
        if read is None:
            names = ", ".join(_READERS)
            section.refuse("quant_method", f"must be one of {names}", _OTHERS.get(str(method), ELSE))
            return None
        return read(section)
    return None


def quantization_words(raw: Any) -> str | None:
    """How a config.json says that its checkpoint is quantized, for people; None where it is not."""
    if not any(_quantizes(raw.get(key)) for key in KEYS):
        return None
    config = HFConfig(raw)
    published = published_from_hf(config)
    if published is not None and not config.faults:
        return str(published)
    section = next(raw[key] for key in KEYS if _quantizes(raw.get(key)))
    return str(section.get("quant_method", "quantized")) if isinstance(section, dict) else "quantized"


def _quantizes(section: Any) -> bool:
    """Whether a section says that weights are quantized: not where all of it, or each of its switches, is off."""
    if not isinstance(section, dict):
        return not is_off(section)
    if section.get("quant_method") == "none" or all(map(is_off, section.values())):
        return False
    switches = [section[key] for key in ("load_in_4bit", "load_in_8bit") if key in section]
    return section.get("quant_method") not in (None, "bitsandbytes") or not switches or not all(map(is_off, switches))


def _fp8(section: HFConfig) -> Published | None:
    """FineGrainedFP8, and AutoFP8 without blocks. Activations stay in 16 bits here, whatever scheme is named."""
    section.must_be("fmt", ("e4m3", "float8_e4m3fn"), f"fp8 of e5m2 is not supported; {ELSE}")
    section.must_be("activation_scheme", ("dynamic", "static"), CHECK)
    section.must_be("is_checkpoint_fp8_serialized", (True,), "the weights must be stored in fp8")
    section.must_be("scale_fmt", ("ue8m0", "float"), CHECK)
    section.value("kv_cache_scheme")
    block = section.value("weight_block_size")
    if block not in (None, [128, 128]):
        section.refuse("weight_block_size", "must be [128, 128]", ELSE)
    excluded = (*_names(section, "modules_to_not_convert"), *_names(section, "ignored_layers"))
    section.finish(frozenset(["dequantize"]))
    scheme = Scheme("tensor") if block is None else Scheme("block", "weight_scale_inv")
    return Published(((_CLASSES, scheme),), excluded)


def _compressed(section: HFConfig) -> Published | None:
    """compressed-tensors: groups of modules, each with the arguments of its weights."""
    section.must_be("quantization_status", ("compressed", "frozen"), CHECK)
    for key, what in (("sparsity_config", "sparse weights (2:4)"), ("transform_config", "rotated weights")):
        given = section.value(key)
        if not is_off(given) and not (isinstance(given, dict) and given.get("format") == "dense"):
            section.refuse(key, "must be absent", f"{what} are not supported; {ELSE}")
    section.value("kv_cache_scheme")
    whole = section.value("format")
    groups = section.section("config_groups")
    if groups is None:
        section.refuse("config_groups", "must name the groups of modules", CHECK)
        return None
    found = []
    for name in groups.names():
        group = groups.section(name)
        if group is not None and (read := _group(group, whole)):
            found.append(read)
    excluded = _names(section, "ignore")
    section.finish(frozenset(["global_compression_ratio", "version"]))
    return Published(tuple(found), excluded, head=True)


def _group(group: HFConfig, whole: Any) -> tuple[tuple[str, ...], Scheme] | None:
    """A group's modules, and how their weights are stored.    whole: the format of all groups that name none."""
    targets = _names(group, "targets")
    for key in ("input_activations", "output_activations"):
        group.value(key)
    own = group.value("format")
    form = whole if own is None else own
    weights = group.section("weights")
    if weights is None:
        group.refuse("weights", "must say how weights are quantized", CHECK)
        return None
    group.finish()
    kind, bits = weights.value("type"), weights.value("num_bits")
    if (form, kind, bits) != ("float-quantized", "float", 8):
        fact = f"format {shown(form)} of {shown(bits)} bits and type {shown(kind)}"
        law = "must be those of float-quantized, 8 bits of type float"
        group.refuse("weights", f"{law}, they are {fact}", ELSE)
        return None
    weights.must_be("symmetric", (True,), f"weights with zero points are not supported in fp8; {ELSE}")
    weights.must_be("dynamic", (False,), CHECK)
    strategy = weights.value("strategy")
    if strategy not in _SHARINGS:
        weights.refuse("strategy", f"must be one of {', '.join(_SHARINGS)}", ELSE)
        return None
    weights.must_be("block_structure", ([128, 128], "128x128") if strategy == "block" else (), ELSE)
    weights.value("group_size")
    weights.finish(frozenset(["actorder", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"]))
    return targets, Scheme(strategy)


def _names(section: HFConfig, key: str) -> tuple[str, ...]:
    """A list of names and patterns of modules."""
    given = section.value(key)
    names = [] if given is None else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        section.refuse(key, "must be a list of names", CHECK)
        return ()
    for name in names:
        if name.startswith("re:") and (fault := _fault(name[3:])):
            section.refuse(key, f"has the pattern {shown(name)}, {fault}", CHECK)
    return tuple(names)


def _fault(pattern: str) -> str | None:
    """Why a pattern is not tried."""
    if len(pattern) > _MAX_PATTERN:
        return f"which must have at most {_MAX_PATTERN} characters"
    if len(re.findall(r"[*+{]", pattern)) > _MAX_REPEATS or re.search(r"\)\??[*+{]|\\\d", pattern):
        return f"which must repeat at most {_MAX_REPEATS} times, and no group"
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"which is none: {error}"
    return None


_READERS: dict[str, Callable[[HFConfig], Published | None]] = {"fp8": _fp8, "compressed-tensors": _compressed}
