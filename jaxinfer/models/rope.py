"""Rotary position embedding: read from config.json in both styles of transformers, turned into angles, applied.

Sources: RoFormer (Su et al., arXiv:2104.09864); linear scaling (Chen et al., arXiv:2306.15595); YaRN (Peng et al.,
arXiv:2309.00071, section 3); Llama 3.1's scaling as Meta published it with the model. Halves are rotated, not pairs.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.models.config import CHECK, HFConfig, Rope

KINDS = ("default", "linear", "llama3", "yarn")
DEFAULT_THETA = 10_000.0  # of transformers, for a config.json that names none


def rope_from_hf(config: HFConfig, max_position: int) -> Rope:
    """Read rope_theta and rope_scaling (transformers 4) or rope_parameters (5); faults go to `config`."""
    old, new = config.section("rope_scaling"), config.section("rope_parameters")
    if old and new and config.value("rope_scaling") != config.value("rope_parameters"):
        config.refuse("rope_scaling", "must agree with rope_parameters", "delete the wrong one")
    if old and new:
        old.value("rope_theta")  # the same object twice: one reading is enough
    section = new or old
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


def frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Radians per position of each pair of a head's dimensions, f32[head_dim / 2]; computed in f64, rounded once."""
    plain = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.kind == "linear":
        plain = plain / rope.factor
    elif rope.kind == "llama3":
        plain = _blend(plain, rope.factor, _llama3_kept(rope, plain))
    elif rope.kind == "yarn":
        plain = _blend(plain, rope.factor, _yarn_kept(rope, head_dim))
    return plain.astype(np.float32)


def _blend(plain: np.ndarray, factor: float, kept: np.ndarray) -> np.ndarray:
    """Where `kept` is 1 the frequency stays, where it is 0 it is divided by `factor`."""
    return plain * (kept + (1.0 - kept) / factor)


def _llama3_kept(rope: Rope, plain: np.ndarray) -> np.ndarray:
    turns = rope.original_max_position * plain / (2 * math.pi)  # full turns within the original context
    return np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0)


def _yarn_kept(rope: Rope, head_dim: int) -> np.ndarray:
    def dimension(turns: float) -> float:
        """The (fractional) pair that makes `turns` full turns within the original context."""
        ratio = rope.original_max_position / (turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(rope.theta))

    first, last = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)  # head_dim - 1, not head_dim / 2 - 1: as published
    width = last - first if last != first else 0.001
    return 1.0 - np.clip((np.arange(head_dim // 2) - first) / width, 0.0, 1.0)


def rotation(rope: Rope, head_dim: int, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """cos and sin, f32[T, 1, head_dim / 2], of positions i32[T]."""
    angle = positions[:, None, None].astype(jnp.float32) * frequencies(rope, head_dim)  # f32: bf16 rounds 257 to 256
    return jnp.cos(angle) * rope.attention_factor, jnp.sin(angle) * rope.attention_factor


def rotate(x: jax.Array, cos_sin: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotate x [T, heads, H] by its positions' angles; computed in f32, returned in x.dtype."""
    cos, sin = cos_sin
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def max_position(rope: Rope, stated: int) -> int:
    """Tokens the model can address: YaRN stretches the original context by its factor whatever config.json states."""
    return max(stated, round(rope.original_max_position * rope.factor)) if rope.kind == "yarn" else stated
