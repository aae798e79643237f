"""The memory plan: from the settings, the model and the free bytes to Limits, before anything is allocated."""

import collections
import contextlib
import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from jaxinfer.cache.spec import ITEMSIZE, CacheLayout, layout_of
from jaxinfer.checkpoint.memory import available_device_bytes
from jaxinfer.config import EngineConfig, ExtendBucket, Limits, counted
from jaxinfer.config import size_words as _size
from jaxinfer.errors import ConfigError, DeviceError
from jaxinfer.models.config import ModelConfig
from jaxinfer.models.parameters import num_bytes, quantized_matrices
from jaxinfer.models.registry import Family
from jaxinfer.runtime.backends import MEDIUM_ROWS, XLA_ONLY, Backend, Backends, Described, choose_backends
from jaxinfer.runtime.buckets import (
    Decode,
    decode_buckets,
    decode_contexts,
    decode_sizes,
    draw_sizes,
    extend_buckets,
)
from jaxinfer.runtime.cures import SLACK, DoesNotFit, Unlawful, changes_that_fit, lowered, smaller_weights
from jaxinfer.runtime.moving import staged_bytes
from jaxinfer.runtime.plan import Sampler
from jaxinfer.runtime.temporaries import step_bytes, widened_bytes
from jaxinfer_kernels.linear.quantized import Quantized

GIB = 2**30
_CPU_SHARE, _CPU_MOST = 1 / 4, 4 * GIB  # of the free memory for pages that nobody asked for: others use it too
_HOST_BYTES, _CPU_HOST_SHARE = 2 * GIB, 1 / 8  # for pages that the pool has no room for; at most of a CPU's free memory
_GPU_RESERVE = GIB // 2  # CUDA graphs, the collective and library workspaces inside JAX's pool


@dataclasses.dataclass(frozen=True)
class Defaults:
    """What is chosen where the user set nothing."""

    max_num_seqs: int
    max_num_batched_tokens: int
    page_size: int


# A device takes the first of these whose temporaries need at most _STEP_SHARE of what the weights leave.
# A CPU step of 256 prompt tokens is as efficient as a longer one and keeps running streams waiting half as long.
CPU = tuple(Defaults(tokens // 16, tokens, page_size=16) for tokens in (256, 128, 64, 32, 16))
# A card that the model nearly fills keeps its memory for pages. A larger step computes prompts no faster there
# (decision 0017).
GPU = tuple(Defaults(min(256, tokens // 16), tokens, page_size=64) for tokens in (8192, 4096, 2048, 1024, 512))
_STEP_SHARE = {"cpu": 1 - _CPU_SHARE, "gpu": 1 / 4}


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a model takes of a device beside pages, and the steps for which it does.

    free, weights, temporaries, states, reserve: bytes.    host: of the pages in host memory that were asked for, where
    that is the memory of the device too.
    """

    free: int
    weights: int
    temporaries: int
    states: int
    reserve: int
    host: int
    layout: CacheLayout
    max_num_seqs: int
    max_num_batched_tokens: int
    num_host_pages: int
    by_context: bool
    decode_buckets: tuple[int, ...]
    extend_buckets: tuple[ExtendBucket, ...]
    needed_tokens: int  # of one sequence: what max_model_len asks for, else without which nothing runs

    @property
    def left(self) -> int:
        """Bytes for pages at most; below zero where the rest does not fit."""
        return self.free - self.weights - self.temporaries - self.states - self.reserve - self.host

    @property
    def needed_pages(self) -> int:
        """Bytes of the pages that one sequence needs."""
        return self.layout.num_pages(self.needed_tokens) * self.layout.page_bytes

    def rows(self) -> tuple[tuple[str, str], ...]:
        """(what, how much), for people: together what must be free."""
        return (
            ("weights", _size(self.weights)),
            ("pages", f"{_size(self.needed_pages)} at least: {counted(self.needed_tokens, 'token')} of one sequence"),
            *([("states", _size(self.states))] if self.states else []),
            ("temporaries", f"{_size(self.temporaries)}, estimated"),
            *_reserve_rows(self.reserve),
            *([("host pages", f"{_size(self.host)}, as kv_offloading_bytes asks for")] if self.host else []),
        )


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """Where the bytes go.

    temporaries: estimated, what the largest step and the full sampler need beside the pages.
    held: how weights are, in words.    reserve: bytes, as Needs has them.
    """

    limits: Limits
    weights: int
    layout: CacheLayout
    temporaries: int
    free: int
    backends: Backends = XLA_ONLY
    held: str = ""
    reserve: int = 0

    @property
    def pages(self) -> int:
        return self.limits.num_pages * self.layout.page_bytes

    @property
    def states(self) -> int:
        """Of recurrent layers."""
        return self.layout.state_bytes(self.limits.max_num_seqs)

    @property
    def host_pages(self) -> int:
        return self.limits.num_host_pages * self.layout.page_bytes

    def rows(self) -> tuple[tuple[str, str], ...]:
        """(what, how much), for people."""
        limits = self.limits
        pages = f"{counted(limits.num_pages - 1, 'page')} of {limits.page_size}, {limits.cache_tokens:,} tokens"
        decode = decode_sizes(limits.decode_buckets, limits.decode_contexts)
        steps = f"decode {_listed(decode)}; extend {_listed(limits.extend_buckets)}"
        sequences = counted(limits.max_num_seqs, "sequence")
        states = f"{_size(self.states)}: {sequences}, {counted(self.layout.num_snapshots, 'snapshot')}"
        executables = f"{steps}; draw {_listed(draw_sizes(limits.max_num_seqs, Sampler.PLAIN))}"
        return (
            ("weights", f"{_size(self.weights)}{self.held}"),
            ("pages", f"{_size(self.pages)}: {pages}"),
            *([("states", states)] if self.states else []),
            ("host pages", f"up to {_size(self.host_pages)}: {counted(limits.num_host_pages, 'page')} of sessions"),
            ("temporaries", f"{_size(self.temporaries)}, estimated"),
            *_reserve_rows(self.reserve),
            ("free before", _size(self.free)),
            ("max_model_len", f"{limits.max_model_len:,} tokens"),
            ("max_num_seqs", f"{limits.max_num_seqs} together, {limits.max_num_batched_tokens:,} tokens a step"),
            ("compiled steps", executables),
            *self.backends.rows(),
        )


def _reserve_rows(reserve: int) -> list[tuple[str, str]]:
    return [("reserve", f"{_size(reserve)} for CUDA graphs and libraries")] if reserve else []


def plan_memory(
    config: EngineConfig, model: ModelConfig, family: Family, device: jax.Device, backends: Backends
) -> MemoryPlan:
    """The plan for what is free on a device now. Raises ConfigError or DeviceError, naming a value that works."""
    free = available_device_bytes(device)  # of a GPU what is left of JAX's pool, which `select_device` sized
    try:
        return plan_for(config, model, family, platform=device.platform, free=free, backends=backends)
    except DoesNotFit as error:  # whose parts only `jaxinfer plan` asks for; other processes know the classes of errors
        raise DeviceError(str(error)) from error


def backends_for(config: EngineConfig, model: ModelConfig, device: Described) -> Backends:
    """What runs each op on a device, which need not be here. Raises ConfigError where the setting cannot be had."""
    dtype, page_size = config.dtype_for(model.dtype), page_size_for(config, device.platform)
    return choose_backends(config.attention_backend, model, dtype, page_size, device)


def page_size_for(config: EngineConfig, platform: str) -> int:
    """Tokens of a page."""
    return config.page_size or _choices(platform)[0].page_size


def _choices(platform: str) -> tuple[Defaults, ...]:
    return CPU if platform == "cpu" else GPU


def plan_for(
    config: EngineConfig,
    model: ModelConfig,
    family: Family,
    *,
    platform: str,
    free: int,
    backends: Backends = XLA_ONLY,
) -> MemoryPlan:
    """The plan for `free` bytes on a platform ("cpu" or "gpu"); nothing here needs the device itself.

    Raises DeviceError with the settings as the first cure that take the memory, if any do, and ConfigError with a value
    that fits too, if one does.
    """
    of_whole = free / config.gpu_memory_utilization if platform == "gpu" else free

    def fits(changed: EngineConfig, slack: int) -> bool:
        share = changed.gpu_memory_utilization if platform == "gpu" else 1
        free = int(of_whole * share) - slack
        return has_plan(changed, model, family, platform=platform, free=free, backends=backends)

    try:
        return _plan(config, model, family, platform=platform, free=free, backends=backends)
    except Unlawful as error:
        lawful = dataclasses.replace(config, **{error.setting: error.lawful})
        fact, changes = str(error).partition("; ")[0], "" if fits(lawful, SLACK) else changes_that_fit(config, fits)
        if changes:
            raise ConfigError(f"{fact}; {changes}") from error
        try:
            plan_for(lawful, model, family, platform=platform, free=free, backends=backends)
        except DoesNotFit as other:
            raise other.with_cures(fact=f"{fact}; and with {error.lawful} {other.fact}") from error
        except ConfigError as other:
            raise ConfigError(f"{fact}; and with {error.lawful} {other}") from error
        raise ConfigError(str(error)) from error
    except DoesNotFit as error:
        if error.changes:
            raise
        if changes := changes_that_fit(config, fits):
            raise error.with_cures(changes=changes) from error
        fits_smaller = partial(has_plan, family=family, platform=platform, free=free - SLACK)
        smaller = smaller_weights(config, model, platform, backends, fits_smaller)
        raise error.with_cures(smaller=smaller) from error


def has_plan(
    config: EngineConfig, model: ModelConfig, family: Family, *, platform: str, free: int, backends: Backends
) -> bool:
    """Whether the model fits; plan_for says why it does not."""
    with contextlib.suppress(ConfigError, DeviceError):
        return bool(_plan(config, model, family, platform=platform, free=free, backends=backends))
    return False


def needs_for(
    config: EngineConfig,
    model: ModelConfig,
    family: Family,
    *,
    platform: str,
    free: int,
    backends: Backends = XLA_ONLY,
) -> Needs:
    """What must fit in `free` bytes beside the pages. Raises ConfigError for settings at odds with each other."""
    dtype = config.dtype_for(model.dtype)
    itemsize, specs = ITEMSIZE[dtype], family.specs(model)
    weights = num_bytes(specs, dtype)
    coarse = platform == "cpu"
    by_context = not coarse and backends.decode_attention is Backend.XLA
    reserve = 0 if coarse else _GPU_RESERVE
    widened = widened_bytes(specs) if backends.decode_linear is not Backend.CPU else 0
    host = (config.kv_offloading_bytes or 0) if coarse and config.enable_prefix_caching else 0
    left = free - weights - reserve - host - (widened if coarse else 0)
    defaults = _fitting(config, model, platform, left, by_context=by_context)
    seqs = config.max_num_seqs or defaults.max_num_seqs
    _check_model_len(config, model)
    batched = _batched_tokens(config, model, defaults, seqs)
    decode = decode_buckets(seqs, coarse=coarse, by_context=by_context)
    extend = extend_buckets(batched, seqs, coarse=coarse)
    contexts = decode_contexts(config.max_model_len or model.max_position) if by_context else ()
    temporaries = step_bytes(model, itemsize, extend[-1], decode_sizes(decode, contexts), seqs) + widened
    layout = layout_of(model.caches(dtype), config.page_size or defaults.page_size)
    host_pages = _host_bytes(config, platform, free) // layout.page_bytes
    if host_pages and platform != "cpu":
        temporaries += staged_bytes(layout.page_bytes) + layout.row_bytes  # and a snapshot
    return Needs(
        free=free,
        weights=weights,
        temporaries=temporaries,
        states=layout.state_bytes(seqs),
        reserve=reserve,
        host=host,
        layout=layout,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        num_host_pages=host_pages,
        by_context=by_context,
        decode_buckets=decode,
        extend_buckets=extend,
        needed_tokens=config.max_model_len or min(model.max_position, layout.page_size),
    )


def _plan(
    config: EngineConfig, model: ModelConfig, family: Family, *, platform: str, free: int, backends: Backends
) -> MemoryPlan:
    needs = needs_for(config, model, family, platform=platform, free=free, backends=backends)
    layout, seqs = needs.layout, needs.max_num_seqs
    room = _room_for_pages(config, platform, needs)
    pages = config.num_pages or _page_count(config, model, room // layout.page_bytes, layout, seqs, platform)
    _check_pages(config, platform, needs, pages, room)
    host_pages = needs.num_host_pages
    if platform == "cpu" and config.kv_offloading_bytes is None:
        host_pages = min(host_pages, max(0, needs.left // layout.page_bytes - pages))
    longest = config.max_model_len or min(model.max_position, layout.num_tokens(pages))
    limits = Limits(
        max_model_len=longest,
        max_num_seqs=seqs,
        max_num_batched_tokens=needs.max_num_batched_tokens,
        page_size=layout.page_size,
        num_pages=pages,
        vocab_size=model.vocab_size,
        decode_buckets=needs.decode_buckets,
        extend_buckets=needs.extend_buckets,
        decode_contexts=decode_contexts(longest) if needs.by_context else (),
        num_host_pages=host_pages,
        page_tables=len(layout.windows),
        **config.kept_in_limits(),
    )
    held = held_words(model, family.specs(model), config.dtype_for(model.dtype), platform, backends)
    return MemoryPlan(limits, needs.weights, layout, needs.temporaries, free, backends, held, needs.reserve)


def _host_bytes(config: EngineConfig, platform: str, free: int) -> int:
    """For pages in host memory, taken as they are needed. A GPU has none unasked: it has not run there yet."""
    if not config.enable_prefix_caching:
        return 0
    if config.kv_offloading_bytes is not None:
        return config.kv_offloading_bytes
    return min(_HOST_BYTES, int(free * _CPU_HOST_SHARE)) if platform == "cpu" else 0


def held_words(model: ModelConfig, specs: Any, dtype: str, platform: str, backends: Backends) -> str:
    """What follows the size of quantized weights: which are how, and what XLA does to them where it multiplies."""
    matrices = quantized_matrices(specs)
    if not matrices:
        return ""
    kinds = collections.Counter(
        str(model.published) if isinstance(one, Quantized) else str(one.format) for one in matrices
    )
    words = ", ".join(f"{count} {'matrix' if count == 1 else 'matrices'} in {kind}" for kind, count in kinds.items())
    are_rounded = model.published is not None and not all(isinstance(one, Quantized) for one in matrices)
    if are_rounded:
        words += f", rounded again from {model.published}, which our kernels for CPUs do not read"
    if model.saved_in:
        why = "they do not read either" if are_rounded else "our kernels for CPUs do not read"
        words += f", computed in {dtype} and not {model.saved_in}, which {why} (dtype sets it)"
    if backends.decode_linear is Backend.CPU:
        return f": {words}"
    if backends.decode_linear is Backend.MOSAIC:
        return f": {words}, which steps of more than {MEDIUM_ROWS} rows widen to {dtype} for each product, slowly"
    if backends.gpu is not None:
        of_fp8 = "our kernels for this card are for fp8, in sizes that they divide"
        why = "our kernels are for bfloat16 and float16" if dtype == "float32" else of_fp8
    elif platform != "cpu":
        why = "no kernels of ours run here"
    elif dtype != "bfloat16":
        why = "our kernels are for bfloat16"
    else:
        why = "there are no kernels of ours (jaxinfer doctor)"
    return f": {words}, which XLA widens to {dtype} for each product, slowly, as {why}"


def _fitting(config: EngineConfig, model: ModelConfig, platform: str, left: int, *, by_context: bool) -> Defaults:
    """The defaults of a device on which so many bytes are left beside the weights."""
    itemsize, coarse = ITEMSIZE[config.dtype_for(model.dtype)], platform == "cpu"
    contexts = decode_contexts(config.max_model_len or model.max_position) if by_context else ()
    for defaults in _choices(platform):
        seqs = config.max_num_seqs or defaults.max_num_seqs
        least = _least_tokens(config, model, seqs)
        batched = config.max_num_batched_tokens or max(defaults.max_num_batched_tokens, least)
        decode = decode_sizes(decode_buckets(seqs, coarse=coarse, by_context=by_context), contexts)
        needed = step_bytes(model, itemsize, ExtendBucket(batched, seqs, seqs), decode, seqs)
        if needed <= left * _STEP_SHARE[platform]:
            return defaults
    return _choices(platform)[-1]


def _check_model_len(config: EngineConfig, model: ModelConfig) -> None:
    if config.max_model_len is not None and config.max_model_len > model.max_position:
        law = f"max_model_len must be at most what the model can address, {model.max_position}"
        cure = f"lower it to {model.max_position}"
        raise Unlawful(f"{law}, got {config.max_model_len}; {cure}", "max_model_len", model.max_position)


def _least_tokens(config: EngineConfig, model: ModelConfig, seqs: int) -> int:
    """Tokens per step; every running sequence needs one, and a prompt that is not chunked needs all of its own."""
    return seqs if config.enable_chunked_prefill else max(seqs, config.max_model_len or model.max_position)


def _batched_tokens(config: EngineConfig, model: ModelConfig, defaults: Defaults, seqs: int) -> int:
    least, given = _least_tokens(config, model, seqs), config.max_num_batched_tokens
    if given is not None and given < least:
        why = f"max_num_seqs ({seqs})" if least == seqs else f"the longest prompt ({least}) without chunked prefill"
        law = f"max_num_batched_tokens must be at least {why}"
        raise Unlawful(f"{law}, got {given}; raise it to {least}", "max_num_batched_tokens", least)
    return given or max(defaults.max_num_batched_tokens, least)


def _room_for_pages(config: EngineConfig, platform: str, needs: Needs) -> int:
    """Bytes; below zero where there are none."""
    if config.kv_cache_memory_bytes is not None:
        if config.kv_cache_memory_bytes > (left := max(0, needs.left + needs.states)):
            given = _size(config.kv_cache_memory_bytes)
            fact = f"{_size(left)} are left beside the weights and the temporaries, got {given}"
            least = needs.needed_pages + needs.states
            cure = f"lower kv_cache_memory_bytes to {lowered(left, least)}" if left >= least else ""
            raise DoesNotFit(f"kv_cache_memory_bytes must fit in memory, {fact}", cure)
        return config.kv_cache_memory_bytes - needs.states
    if platform != "cpu" or config.num_pages is not None:
        return needs.left
    share = min(int((needs.free - needs.weights) * _CPU_SHARE), _CPU_MOST) - needs.states
    return min(needs.left, max(share, needs.needed_pages))


def _size_rounded_up(num_bytes: int) -> str:
    """In words that are not less than the bytes: the least that helps."""
    digit = GIB // 100 if num_bytes >= GIB // 10 else 2**20 // 10
    return _size(num_bytes + digit // 2)


def _page_count(
    config: EngineConfig, model: ModelConfig, fitting: int, layout: CacheLayout, seqs: int, platform: str
) -> int:
    """Page 0 included. On the grid, so that a few bytes more or less free give the same executables."""
    longest = config.max_model_len or model.max_position
    if platform == "cpu":
        fitting = min(fitting, layout.num_pages(longest, seqs))  # more would only be zeroed at every start
    enough = layout.num_pages(longest)
    floored = grid_floor(fitting)
    return enough if floored < enough <= fitting else floored


def grid_floor(pages: int) -> int:
    """The largest number of at most 5 significant bits that is not above `pages`: at most 1/16 is given away."""
    step = 1 << max(0, pages.bit_length() - 5)
    return pages // step * step


def _check_pages(config: EngineConfig, platform: str, needs: Needs, pages: int, room: int) -> None:
    """Refuse a pool that takes more than there is, or that cannot hold one sequence of the asked length."""
    layout = needs.layout
    page_size, of_page = layout.page_size, layout.page_bytes
    have, fitting = layout.num_tokens(pages), max(0, room) // of_page
    asked, needed, need_bytes = config.max_model_len, needs.needed_tokens, needs.needed_pages
    enough = layout.num_pages(needed)
    if config.num_pages is not None and pages > fitting:
        least = max(2, enough)
        raise DoesNotFit(
            f"num_pages must fit in memory, but {pages:,} of {counted(page_size, 'token')} take "
            f"{_size(pages * of_page)}, there is room for {_size(max(0, room))}",
            f"lower num_pages to {lowered(fitting, least, of_page)}" if fitting >= least else "",
        )
    if have >= needed:
        return
    law = (
        f"one sequence of {needed:,} tokens, max_model_len," if asked else f"one page of {counted(page_size, 'token')}"
    )
    fact = f"that takes {_size(need_bytes)}, there is room for {_size(max(0, room))}"
    cures = [f"lower max_model_len to {have}"] if have >= 2 else []
    does_fit = lowered(needs.left, 0) >= need_bytes
    if config.num_pages is not None:
        does_fit = does_fit and (config.kv_cache_memory_bytes is None or room >= need_bytes)
        cures = [f"raise it to {enough}"] * does_fit + cures
        raise _too_small(f"num_pages must hold {law} got {pages:,}, which hold {have:,}", cures)
    if config.kv_cache_memory_bytes is not None:
        cures = [f"raise it to {need_bytes + needs.states}"] * does_fit + cures
        raise _too_small(f"kv_cache_memory_bytes must hold {law} but {fact}", cures)
    if cures:
        more = ", or max_num_batched_tokens, as smaller steps leave more room" if platform == "gpu" else ""
        length = lowered(layout.num_tokens(fitting), min(have, page_size), of_page // page_size)
        raise DoesNotFit(f"the pages must hold {law} but {fact}", f"lower max_model_len to {length}{more}")
    missing = need_bytes - needs.left
    to_free = math.ceil(missing / (config.gpu_memory_utilization if platform == "gpu" else 1))
    is_missing = f"{_size_rounded_up(missing)} are missing"
    raise DoesNotFit(
        f"memory must hold the weights, the temporaries and {law} but {is_missing}",
        to_free=f"free {_size_rounded_up(to_free)} of memory",
        missing=is_missing,
    )


def _too_small(fact: str, cures: Sequence[str]) -> ConfigError | DoesNotFit:
    """The error for a setting below what is needed; without a cure of settings it is the memory that is too small."""
    return ConfigError(f"{fact}; {' or '.join(cures)}") if cures else DoesNotFit(fact)


def _listed(sizes: Sequence[int | Decode | ExtendBucket]) -> str:
    return " ".join(map(_named, sizes))


def _named(size: int | Decode | ExtendBucket) -> str:
    match size:
        case ExtendBucket():
            return f"{size.tokens}x{size.rows}"
        case Decode():
            return f"{size.batch}x{size.context}" if size.context else str(size.batch)
        case _:
            return str(size)
