"""The memory plan: from the settings, the model and the free bytes to Limits, before anything is allocated."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import jax

from jaxinfer.cache.spec import ITEMSIZE, CacheLayout, layout_of
from jaxinfer.checkpoint.memory import available_device_bytes
from jaxinfer.config import EngineConfig, ExtendBucket, Limits, counted
from jaxinfer.config import size_words as _size
from jaxinfer.errors import ConfigError, DeviceError
from jaxinfer.models.config import ModelConfig
from jaxinfer.models.parameters import num_bytes
from jaxinfer.models.registry import Family
from jaxinfer.runtime.backends import XLA_ONLY, Backend, Backends, Described, choose_backends, widens
from jaxinfer.runtime.buckets import (
    Decode,
    decode_buckets,
    decode_contexts,
    decode_sizes,
    draw_sizes,
    extend_buckets,
)
from jaxinfer.runtime.cures import (
    SLACK,
    DoesNotFit,
    Unlawful,
    change_words,
    changes_that_fit,
    lowered,
    missing_words,
    rounded_up,
    smaller_weights,
    with_beside,
)
from jaxinfer.runtime.defaults import (
    CPU_SHARE,
    STEP_SHARE,
    Defaults,
    batched_tokens,
    choices_for,
    longest_sequence,
    num_seqs,
    page_size_for,
)
from jaxinfer.runtime.held_words import held_words
from jaxinfer.runtime.moving import staged_bytes
from jaxinfer.runtime.plan import Sampler
from jaxinfer.runtime.temporaries import step_bytes, widened_bytes

GIB = 2**30
_CPU_MOST = 4 * GIB  # for pages that nobody asked for, as is CPU_SHARE of the free memory: others use it too
_HOST_BYTES, _CPU_HOST_SHARE = 2 * GIB, 1 / 8  # for pages that the pool has no room for; at most of a CPU's free memory
_GPU_RESERVE = GIB // 2  # CUDA graphs, the collective and library workspaces inside JAX's pool


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
    longest: int  # tokens of a sequence at most
    needed_tokens: int  # of one sequence: what max_model_len asks for, else without which nothing runs
    is_lean: bool  # whether the temporaries leave enough for pages

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

    Raises DeviceError with the settings as the first cure that take the memory, if any do, and ConfigError for settings
    at odds with each other, with changes that fit too. What is told to do has been tried.
    """
    of_whole = free / config.gpu_memory_utilization if platform == "gpu" else free

    def fits(changed: EngineConfig, slack: int) -> bool:
        share = changed.gpu_memory_utilization if platform == "gpu" else 1
        free = int((of_whole - slack) * share)
        return has_plan(changed, model, family, platform=platform, free=free, backends=backends)

    try:
        return _plan(config, model, family, platform=platform, free=free, backends=backends)
    except Unlawful as error:
        if changes := changes_that_fit(config, error.values, fits):
            raise Unlawful(error.fact, error.values, changes) from error
        plan_lawful = partial(plan_for, model=model, family=family, platform=platform, free=free, backends=backends)
        raise _refusal_beside(error, config, plan_lawful) from error
    except DoesNotFit as error:
        share = config.gpu_memory_utilization if platform == "gpu" else 1
        to_free = rounded_up(math.ceil(rounded_up(error.missing_bytes) / share))
        to_free = to_free if fits(config, -to_free) else 0
        changes = changes_that_fit(config, error.values, fits)
        fits_smaller = partial(has_plan, family=family, platform=platform, free=free - SLACK)
        smaller = "" if changes else smaller_weights(config, model, platform, backends, fits_smaller)
        raise error.with_cures(changes=changes, smaller=smaller, to_free=to_free) from error


def _refusal_beside(
    error: Unlawful, config: EngineConfig, plan: Callable[[EngineConfig], MemoryPlan]
) -> Unlawful | DoesNotFit:
    """What to raise where no change alone makes a setting fit: with the lawful value its next fault and its cures."""
    setting, lawful = next(iter(error.values.items()))
    beside = change_words(config, setting, lawful)
    try:
        plan(dataclasses.replace(config, **{setting: lawful}))
    except DoesNotFit as other:
        return other.with_cures(fact=f"{error.fact}; and with {lawful} {other.fact}", beside=beside)
    except Unlawful as other:
        changes = [with_beside(beside, change) for change in other.changes]
        return Unlawful(f"{error.fact}; and with {lawful} {other.fact}", error.values, changes)
    return error


def has_plan(
    config: EngineConfig, model: ModelConfig, family: Family, *, platform: str, free: int, backends: Backends
) -> bool:
    """Whether the model fits; plan_for says why it does not."""
    with contextlib.suppress(ConfigError, DeviceError):
        needs = needs_for(config, model, family, platform=platform, free=free, backends=backends)
        return bool(_limits(config, model, platform, needs))
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
    """What must fit in `free` bytes beside the pages, with the first defaults with which it does, else the last: what
    nobody asked for makes room for what somebody did. Raises ConfigError for settings at odds with each other.
    """
    needs = partial(_needs_with, config, model, family, platform, free, backends)
    all_choices = choices_for(config, platform)
    for choices in all_choices:
        for defaults in choices:
            with contextlib.suppress(ConfigError, DeviceError):
                found = needs(defaults)
                _settled_pages(config, platform, found)
                if found.is_lean or defaults is choices[-1]:
                    return found
    return needs(all_choices[-1][-1])


def _needs_with(
    config: EngineConfig,
    model: ModelConfig,
    family: Family,
    platform: str,
    free: int,
    backends: Backends,
    defaults: Defaults,
) -> Needs:
    dtype = config.dtype_for(model.dtype)
    itemsize = ITEMSIZE[dtype]
    weights, widest = _weight_bytes(family, model, dtype)
    coarse = platform == "cpu"
    by_context = not coarse and backends.decode_attention is Backend.XLA
    reserve = 0 if coarse else _GPU_RESERVE
    widened = widest if widens(backends) else 0
    host = (config.kv_offloading_bytes or 0) if coarse and config.enable_prefix_caching else 0
    left = free - weights - reserve - host - (widened if coarse else 0)
    longest, seqs = longest_sequence(config, model, defaults), num_seqs(config, defaults)
    batched = batched_tokens(config, defaults, longest, seqs)
    decode = decode_buckets(seqs, coarse=coarse, by_context=by_context)
    extend = extend_buckets(batched, seqs, coarse=coarse)
    contexts = decode_contexts(config.max_model_len or model.max_position) if by_context else ()
    of_steps = step_bytes(model, itemsize, extend[-1], decode_sizes(decode, contexts), seqs)
    temporaries = of_steps + widened
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
        longest=longest,
        needed_tokens=config.max_model_len or min(longest, layout.page_size),
        is_lean=of_steps <= left * STEP_SHARE[platform],
    )


@lru_cache(maxsize=16)  # cures and `plan` ask for some models with hundreds of settings, and each takes 10-20 ms
def _weight_bytes(family: Family, model: ModelConfig, dtype: str) -> tuple[int, int]:
    """Of all weights, and of the widest quantized matrix as XLA needs it."""
    specs = family.specs(model)
    return num_bytes(specs, dtype), widened_bytes(specs)


def _plan(
    config: EngineConfig, model: ModelConfig, family: Family, *, platform: str, free: int, backends: Backends
) -> MemoryPlan:
    needs = needs_for(config, model, family, platform=platform, free=free, backends=backends)
    limits = _limits(config, model, platform, needs)
    held = held_words(model, family.specs(model), config.dtype_for(model.dtype), platform, backends)
    return MemoryPlan(limits, needs.weights, needs.layout, needs.temporaries, free, backends, held, needs.reserve)


def _limits(config: EngineConfig, model: ModelConfig, platform: str, needs: Needs) -> Limits:
    """Raises ConfigError or DeviceError where the pages do not fit, or hold too little."""
    layout, seqs = needs.layout, needs.max_num_seqs
    pages = _settled_pages(config, platform, needs)
    host_pages = needs.num_host_pages
    if platform == "cpu" and config.kv_offloading_bytes is None:
        host_pages = min(host_pages, max(0, needs.left // layout.page_bytes - pages))
    longest = config.max_model_len or min(needs.longest, layout.num_tokens(pages))
    return Limits(
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


def _host_bytes(config: EngineConfig, platform: str, free: int) -> int:
    """For pages in host memory, taken as they are needed. A GPU has none unasked: it has not run there yet."""
    if not config.enable_prefix_caching:
        return 0
    if config.kv_offloading_bytes is not None:
        return config.kv_offloading_bytes
    return min(_HOST_BYTES, int(free * _CPU_HOST_SHARE)) if platform == "cpu" else 0


def _settled_pages(config: EngineConfig, platform: str, needs: Needs) -> int:
    """How many pages there are. Raises ConfigError or DeviceError where they do not fit, or hold too little."""
    room = _room_for_pages(config, platform, needs)
    pages = config.num_pages or _page_count(needs, room // needs.layout.page_bytes, platform)
    _check_pages(config, needs, pages, room)
    return pages


def _room_for_pages(config: EngineConfig, platform: str, needs: Needs) -> int:
    """Bytes; below zero where there are none."""
    if config.kv_cache_memory_bytes is not None:
        asked, least, left = config.kv_cache_memory_bytes, needs.needed_pages + needs.states, needs.left + needs.states
        if asked > left and asked >= least:  # less than the least is too little in any memory
            fact = f"{_size(max(0, left))} are left beside the weights and the temporaries, got {_size(asked)}"
            values = {"kv_cache_memory_bytes": lowered(left, least)} if left >= least else {}
            raise DoesNotFit(f"kv_cache_memory_bytes must fit in memory, {fact}", values, asked - left)
        return config.kv_cache_memory_bytes - needs.states
    if platform != "cpu" or config.num_pages is not None:
        return needs.left
    share = min(int((needs.free - needs.weights) * CPU_SHARE), _CPU_MOST) - needs.states
    return min(needs.left, max(share, needs.needed_pages))


def _page_count(needs: Needs, fitting: int, platform: str) -> int:
    """Page 0 included. On the grid, so that a few bytes more or less free give the same executables."""
    layout = needs.layout
    if platform == "cpu":  # which zeroes them at each start: no more than can be used
        fitting = min(fitting, layout.num_pages(needs.longest, needs.max_num_seqs))
    enough = layout.num_pages(needs.longest)
    floored = grid_floor(fitting)
    return enough if floored < enough <= fitting else floored


def grid_floor(pages: int) -> int:
    """The largest number of at most 5 significant bits that is not above `pages`: at most 1/16 is given away."""
    step = 1 << max(0, pages.bit_length() - 5)
    return pages // step * step


def _check_pages(config: EngineConfig, needs: Needs, pages: int, room: int) -> None:
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
            {"num_pages": lowered(fitting, least, of_page)} if fitting >= least else {},
            pages * of_page - needs.left,
        )
    if have >= needed:
        return
    law = (
        f"one sequence of {needed:,} tokens, max_model_len," if asked else f"one page of {counted(page_size, 'token')}"
    )
    fact = f"that takes {_size(need_bytes)}, there is room for {_size(max(0, room))}"
    shorter = {"max_model_len": have} if have >= 2 else {}
    if config.num_pages is not None:
        fact = f"num_pages must hold {law} got {pages:,}, which hold {have:,}"
        raise Unlawful(fact, {"num_pages": enough, **shorter})
    if config.kv_cache_memory_bytes is not None:
        values = {"kv_cache_memory_bytes": need_bytes + needs.states, **shorter}
        raise Unlawful(f"kv_cache_memory_bytes must hold {law} but {fact}", values)
    missing = need_bytes - needs.left
    if shorter:
        length = lowered(layout.num_tokens(fitting), min(have, page_size), of_page // page_size)
        raise DoesNotFit(f"the pages must hold {law} but {fact}", {"max_model_len": length}, missing)
    fact = f"memory must hold the weights, the temporaries and {law} but"
    raise DoesNotFit(f"{fact} {missing_words(missing)}", {}, missing)


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
