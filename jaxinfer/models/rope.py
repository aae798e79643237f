"""Rotary positions as config.json describes them, in both styles of transformers. The mathematics: layers/rope.py."""

import math
from typing import Any

from jaxinfer.layers.spec import Rope
from jaxinfer.models.config import CHECK, HFConfig

KINDS = ("default", "linear", "llama3", "yarn")
_ANYWHERE = {"rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}  # at the top too
DEFAULT_THETA = 10_000.0  # of transformers, for a config.json that names none


def rope_from_hf(config: HFConfig, max_position: int) -> Rope:
    """Read rope_theta and rope_scaling (transformers 4) or rope_parameters (5); faults go to `config`."""
    old, new = config.section("rope_scaling"), config.section("rope_parameters")
    section = _joined(config, old, new) if old and new else new or old
    theta = _agreed(config, section, "rope_theta", DEFAULT_THETA)
    if _agreed(config, section, "partial_rotary_factor", 1.0) != 1.0:
        where = section if section and section.has("partial_rotary_factor") else config
        where.refuse("partial_rotary_factor", "must be 1", "models that rotate a part of each head are not supported")
    original = _original_max_position(config, section) or max_position
    if section is None:
        return Rope(theta=theta)
    kind = _kind(section)
    if kind is None:
        return Rope(theta=theta)  # refused by name; its other keys would only add noise
    rope = _READERS[kind](section, theta, original, max_position)
    section.finish()
    return rope


def _joined(config: HFConfig, old: HFConfig, new: HFConfig) -> HFConfig:
    """Both as one, of which the newer counts where they contradict each other, and that is refused."""
    said_before, said = ({key: one.value(key) for key in one.names() if one.has(key)} for one in (old, new))
    if _compared(said_before, said) != _compared(said, said_before):
        config.refuse("rope_scaling", "must agree with rope_parameters", "delete the wrong one")
        return new
    return HFConfig(said_before | said, "rope_parameters.", config.faults)


def _compared(said: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What the other must say too: its kind under one name, and what may stand elsewhere only if both have it."""
    kind = said.get("rope_type", said.get("type", "default"))
    skipped = {"type", *(_ANYWHERE - other.keys())}
    return {key: value for key, value in said.items() if key not in skipped} | {"rope_type": kind}


def _kind(section: HFConfig) -> str | None:
    new, old = section.value("rope_type"), section.value("type")
    key, kind = ("type", old) if new is None else ("rope_type", new)
    if new is not None and old is not None and new != old:
        section.refuse("rope_type", f"must agree with type ({old!r})", "delete the wrong one")
        return None
    kind = "default" if kind is None else kind
    if kind in KINDS:
        return kind
    section.refuse(key, f"must be one of {', '.join(KINDS)}", "this way of scaling positions is not supported")
    return None


def _agreed(config: HFConfig, section: HFConfig | None, key: str, default: float) -> float:
    """A number that may stand at the top, in the rope section, or in both if they agree."""
    outer = config.number(key, default)
    if section is None or not section.has(key):
        return outer
    inner = section.number(key, default)
    if config.has(key) and inner != outer:
        config.refuse(key, f"must agree with the one in the rope section ({inner:g})", "delete the wrong one")
    return inner


def _original_max_position(config: HFConfig, section: HFConfig | None) -> int:
    """0 when it stands nowhere; some checkpoints state it beside the rope section instead of in it."""
    key = "original_max_position_embeddings"
    outer = config.integer(key, 0)
    if section is not None and outer and section.has(key) and section.value(key) != outer:
        config.refuse(key, f"must agree with the one in the rope section ({section.value(key)!r})", "delete one")
    return outer


def _read_default(section: HFConfig, theta: float, original: int, max_position: int) -> Rope:
    if section.value("factor") not in (None, 1):
        section.refuse("factor", "must be 1 or absent where rope_type is default", CHECK)
    return Rope(theta=theta)


def _read_linear(section: HFConfig, theta: float, original: int, max_position: int) -> Rope:
    return Rope(kind="linear", theta=theta, factor=section.number("factor"))


def _read_llama3(section: HFConfig, theta: float, original: int, max_position: int) -> Rope:
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if high <= low:
        section.refuse("high_freq_factor", f"must be above low_freq_factor ({low:g})", CHECK)
    return Rope(
        kind="llama3",
        theta=theta,
        factor=section.number("factor"),
        original_max_position=section.integer("original_max_position_embeddings", original),
        low_freq_factor=low,
        high_freq_factor=high if high > low else low + 1.0,
    )


def _read_yarn(section: HFConfig, theta: float, original: int, max_position: int) -> Rope:
    original = section.integer("original_max_position_embeddings", original)
    factor = section.number("factor", max_position / original)
    if theta == 1.0:
        section.refuse("rope_theta", "must not be 1 for yarn", CHECK)
        theta = DEFAULT_THETA
    return Rope(
        kind="yarn",
        theta=theta,
        factor=factor,
        original_max_position=original,
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        truncate=section.flag("truncate", True),
        attention_factor=_yarn_attention_factor(section, factor),
    )


_READERS = {"default": _read_default, "linear": _read_linear, "llama3": _read_llama3, "yarn": _read_yarn}


def _yarn_attention_factor(section: HFConfig, factor: float) -> float:
    """What cos and sin are multiplied by: `attention_factor` as given, else computed and multiplied by `attn_factor`.

    transformers does not read `attn_factor`. DeepSeek-R1-0528-Qwen3-8B sets it to cancel the computed value.
    """
    extra = section.number("attn_factor", 1.0)
    mscale = section.number("mscale", 0.0, zero_allowed=True)
    mscale_all_dim = section.number("mscale_all_dim", 0.0, zero_allowed=True)
    if section.has("attention_factor"):
        if section.has("attn_factor"):
            section.refuse("attn_factor", "must not stand beside attention_factor", "keep one of them")
        return section.number("attention_factor")
    if mscale and mscale_all_dim:
        return extra * _mscale(factor, mscale) / _mscale(factor, mscale_all_dim)
    return extra * _mscale(factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def max_position(rope: Rope, stated: int) -> int:
    """Tokens the model can address: YaRN stretches the original context by its factor whatever config.json states."""
    return max(stated, round(rope.original_max_position * rope.factor)) if rope.kind == "yarn" else stated
