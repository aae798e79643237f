"""What is compiled for one model and its limits: the steps of every size, samplers' draws, and helpers."""

import dataclasses
import enum
import functools
import hashlib
import inspect
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
from jax.experimental import serialize_executable

import jaxinfer_kernels
from jaxinfer.config import ExtendBucket, Limits
from jaxinfer.layers import linear
from jaxinfer.layers.store import Store
from jaxinfer.models import dense
from jaxinfer.models.config import DType
from jaxinfer.models.parameters import ParamSpec
from jaxinfer.runtime import step
from jaxinfer.runtime.backends import Backend, Backends, kernels_for
from jaxinfer.runtime.buckets import Decode, decode_sizes, draw_sizes
from jaxinfer.runtime.controls import (
    draw_any,
    draw_full,
    draw_logprobs,
    logprob_width,
    mask_logits,
    set_masks,
    set_slot,
)
from jaxinfer.runtime.host_array import PINNED_HOST
from jaxinfer.runtime.moving import PAGES_MOVED
from jaxinfer.runtime.packing import (
    DRAW_WIDTH,
    DrawColumn,
    MaskColumn,
    PageColumn,
    PieceColumn,
    decode_width,
    extend_layout,
    slot_layout,
)
from jaxinfer.runtime.plan import Sampler
from jaxinfer.runtime.sampler import draw_rows
from jaxinfer.runtime.state import ControlState, DeviceState, MaskState, init_all
from jaxinfer_kernels.launch import ffi, sequence
from jaxinfer_kernels.sampling.sm90_logprobs import MOST

logger = logging.getLogger(__name__)

PAGE_UPDATES = 512  # page table entries that one call of the helper writes
MAX_SCORED = 256  # rows of logits that one call of `score` computes
PIECES, PIECE_TOKENS = 8, 256  # that one call of `pool` adds up, and how long each may be
# From which on products are cuBLAS's: of decode steps and of a prompt's logits, of decode steps whose layers are XLA's,
# and of a prompt's tokens whatever its logits are.
CUBLAS_ROWS, CUBLAS_XLA_ROWS, CUBLAS_TOKENS = 8, 192, 1024
PAGES_ZEROED = 16  # pages that one call of the helper clears
MASKS_WRITTEN, MANY_MASKS_WRITTEN = 8, 64  # rows of the table of masks, likewise
_CHAIN = re.compile(rf'custom_call_target="{sequence.TARGET}".*chain = \\?"([^"\\]*)')  # in an executable's text
LOGITS = "state.logits"  # in Program.reads; the first of them may be what masks have left
_END = b"\0"  # of the chains before a serialized executable


class Helper(enum.StrEnum):
    """Small programs of one size: at admission and recovery, for prompts' logprobs, embeddings and new masks."""

    SET_PAGES = "set_pages"
    ZERO_PAGES = "zero_pages"
    SAVE_PAGES = "save_pages"
    LOAD_PAGES = "load_pages"
    SAVE_SNAPSHOT = "save_snapshot"
    LOAD_SNAPSHOT = "load_snapshot"
    SET_SLOT = "set_slot"
    SET_MASKS = "set_masks"
    SET_MANY_MASKS = "set_many_masks"
    SCORE = "score"
    POOL = "pool"


@dataclasses.dataclass(frozen=True, slots=True)
class Mask:
    """What grammars leave of so many rows of logits, for any sampler, and the most likely token of that."""

    rows: int


@dataclasses.dataclass(frozen=True, slots=True)
class Tops:
    """The logprobs of what was drawn from so many rows of logits, and of the most likely tokens."""

    rows: int


@dataclasses.dataclass(frozen=True, slots=True)
class Draw:
    """A sampler, for so many rows of logits. logprobs: it tells those of what it drew, as Tops does.

    It is a program of its own, since what tells them has fewer of its CTAs together: steps of 64 and 256 rows with
    penalties took 1.04 and 1.05 times as long (H100).
    """

    rows: int
    sampler: Sampler
    logprobs: bool = False


type Options = tuple[tuple[str, str | bool], ...]  # XLA's, by name
type Key = Decode | ExtendBucket | Draw | Mask | Tops | Helper


@dataclasses.dataclass(frozen=True)
class Program:
    """One function at one size. `arguments`, and `made`, what it makes beside what it writes, are pytrees of avals.

    reads: what of the runner's arrays the first arguments are.    writes: which of them are given away, and come back
    as the first results: what a program results in is said and not found out, since to trace all steps takes ten
    seconds and more, at every start.    stays: `made` stays on the device. Else it is written to the host's memory. On
    a device it would lie elsewhere than the step before's, which is still read, and XLA, which keeps other values where
    a result will be, updates all of a CUDA graph that touches them: 0.07 to 0.25 ms of each step, and copying it
    afterwards took longer (journal, 2026-11-22).
    is_chained: its kernels are compiled by launch.ffi, beside XLA.
    """

    key: Key
    function: Callable[..., Any]
    reads: tuple[str, ...]
    arguments: tuple[Any, ...]
    writes: tuple[str, ...] = ()
    made: Any = None
    options: Options = ()
    stays: bool = False
    is_chained: bool = False

    @property
    def donated(self) -> tuple[int, ...]:
        """Indices of arguments."""
        return tuple(map(self.reads.index, self.writes))

    @property
    def result(self) -> Any:
        results = (*(self.arguments[i] for i in self.donated), *([] if self.made is None else [self.made]))
        return results if len(results) > 1 else results[0]

    @property
    def to_host(self) -> bool:
        return self.made is not None and not self.stays

    @property
    def name(self) -> str:
        """As users read it: "decode 8", "decode 8 x 512" (tokens of a row), "extend 256 x 16 x 8" (rows, of logits)."""
        if isinstance(self.key, Helper):
            return str(self.key)
        if isinstance(self.key, ExtendBucket):
            return f"extend {self.key.tokens} x {self.key.rows} x {self.key.logits}"
        if isinstance(self.key, Mask):
            return f"mask {self.key.rows}"
        if isinstance(self.key, Tops):
            return f"logprobs {self.key.rows}"
        if isinstance(self.key, Draw):
            kind = "" if self.key.sampler is Sampler.PLAIN else f" {self.key.sampler.name.lower()}"
            return f"draw {self.key.rows}{kind}{' logprobs' if self.key.logprobs else ''}"
        return f"decode {self.key.batch}" + (f" x {self.key.context}" if self.key.context else "")

    def lower(self, function: Callable[..., Any] | None = None) -> jax.stages.Lowered:
        """Trace and lower: Python's part of compiling, under its lock. function: one that does the same."""
        where = None  # where the arguments are
        if self.to_host:
            device = jax.tree.leaves(self.arguments)[0].sharding
            host = device.with_memory_kind(PINNED_HOST)
            where = (*[device] * len(self.writes), host) if self.writes else host
        jitted = jax.jit(function or self.function, donate_argnums=self.donated, out_shardings=where)
        return jitted.lower(*self.arguments)

    def compile(self, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        """XLA's part."""
        try:
            return lowered.compile(compiler_options=dict(self.options))
        except jax.errors.JaxRuntimeError as error:  # XLA's options come and go with its versions
            if not self.options or "INVALID_ARGUMENT" not in str(error):
                raise
            logger.warning("%s: compiled without %s, since XLA says: %s", self.name, dict(self.options), error)
            return lowered.compile()

    def serialize(self, compiled: jax.stages.Compiled) -> bytes:
        """The executable behind its chains, whose kernels it does not hold compiled.

        Only a chained program's text is looked through: a long prompt's step has much more of it, and it is made under
        Python's lock.
        """
        payload, _, _ = serialize_executable.serialize(compiled)
        chains: list[str] = _CHAIN.findall(compiled.as_text() or "") if self.is_chained else []
        return " ".join(chains).encode() + _END + payload

    def deserialize(self, payload: bytes, device: jax.Device) -> jax.stages.Compiled:
        """The executable that `serialize` made of it, without tracing. Runs whatever the payload holds."""
        if device.platform == "gpu":
            ffi.load_runtime()
        payload = prepare_kernels(payload)
        in_tree = jax.tree.structure((self.arguments, {}))
        out_tree = jax.tree.structure(self.result)
        return serialize_executable.deserialize_and_load(
            payload, in_tree, out_tree, backend=device.client, execution_devices=[device]
        )

    def digest(self, common: str) -> str:
        """A file name that two programs share only if their executables are interchangeable."""
        avals = [f"{leaf.dtype}{leaf.shape}" for leaf in jax.tree.leaves((self.arguments, self.result))]
        facts = [common, self.name, str(self.options), *avals]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def prepare_kernels(payload: bytes) -> bytes:
    """Have the kernels of a serialized program's chains compiled. Returns the rest of it. Raises RuntimeError."""
    chains, _, rest = payload.partition(_END)
    for text in chains.decode().split():
        ffi.prepare(text)
    return rest


def without_arrays(model: step.Model, limits: Limits, dtype: DType, where: jax.sharding.Sharding) -> list[Program]:
    """As `programs`, of arrays that are not there yet, the parameters in `dtype`."""

    def aval(leaf: Any) -> Any:
        if isinstance(leaf, ParamSpec):
            return leaf.arrays(dtype, sharding=where)
        return _aval(leaf, where)

    kept = jax.tree.map(aval, jax.eval_shape(functools.partial(init_all, limits, model.config, dtype)))
    params = jax.tree.map(aval, model.family.specs(model.config))
    return programs(model, limits, params, *kept)


def programs(
    model: step.Model,
    limits: Limits,
    params: step.Params,
    state: DeviceState,
    controls: ControlState,
    masks: MaskState,
) -> list[Program]:
    """Everything a runner runs, in the order of `waves`. From params on: arrays or avals."""
    layers = step.without_layers(model.family, params)
    trees = dict(params=params, without_layers=layers, state=state, controls=controls, masks=masks)
    held = SimpleNamespace(**{name: jax.tree.map(_aval, tree) for name, tree in trees.items()})
    array = functools.partial(_upload, state.next_pos.sharding)

    def make(key: Key, function: Callable[..., Any], reads: tuple[str, ...], *uploads: Any, **rest: Any) -> Program:
        arguments = (*(attrgetter(name)(held) for name in reads), *uploads)
        return Program(key, function, reads, arguments, **{"options": _options(state)} | rest)

    has_state = state.store.states is not None
    result, ours = [], model.backends.decode_linear is Backend.MOSAIC
    for key in (*decode_sizes(limits.decode_buckets, limits.decode_contexts), *limits.extend_buckets):
        if isinstance(key, Decode):
            function, rows = functools.partial(step.decode, model, key.context), key.batch
            upload = array(rows, decode_width(has_state=has_state))
            cublas = rows >= (CUBLAS_ROWS if ours else CUBLAS_XLA_ROWS)
        else:
            function, rows = functools.partial(step.extend, model, key), key.rows
            upload = array(extend_layout(key, limits.page_size, has_state=has_state).size)
            cublas = key.logits >= CUBLAS_ROWS or key.tokens >= CUBLAS_TOKENS
        chained = kernels_for(model.config, model.backends, key).sequence
        reads, options = ("without_layers" if chained else "params", "state"), _options(state, cublas)
        rest = dict(writes=("state",), made=array(rows), options=options, is_chained=chained)
        result.append(make(key, function, reads, upload, **rest))
    table, store = ("state.page_table",), ("state.store",)
    result.append(make(Helper.SET_PAGES, step.set_pages, table, array(PAGE_UPDATES, len(PageColumn)), writes=table))
    result.append(make(Helper.ZERO_PAGES, Store.zero, store, array(PAGES_ZEROED), writes=store))
    moves = [(PAGES_MOVED, Helper.SAVE_PAGES, Store.save, Helper.LOAD_PAGES, Store.load)]
    if has_state:
        moves += [(1, Helper.SAVE_SNAPSHOT, Store.save_snapshots, Helper.LOAD_SNAPSHOT, Store.load_snapshots)]
    for count, save_key, save, load_key, load in moves if limits.num_host_pages else ():
        ids = array(count)
        where = functools.partial(_aval, sharding=ids.sharding)
        saved = jax.tree.map(where, jax.eval_shape(save, held.state.store, ids))
        result.append(make(save_key, save, store, ids, made=saved, stays=True))
        result.append(make(load_key, load, store, saved, ids, writes=store, made=ids, stays=True))
    result += _draw_programs(model.backends, limits, make, array, state)
    result += _full_programs(model, limits, make, array, masks)
    pool = functools.partial(step.pool, min(PIECE_TOKENS, limits.extend_buckets[-1].tokens))
    pieces = array(PIECES, len(PieceColumn))
    pooled = jax.ShapeDtypeStruct((PIECES, state.hidden.shape[1]), jnp.float32, sharding=pieces.sharding)
    result.append(make(Helper.POOL, pool, ("state.hidden",), pieces, made=pooled))
    return sorted(result, key=lambda program: (_wave(program, limits), not _is_of_full_set(program.key)))


def samplers(backend: Backend, platform: str) -> tuple[Sampler, ...]:
    """Those that come, the least able first. A CPU computes one side of a conditional alone, so that the wide one does
    what the two before it would; to compile them as well would take it seconds."""
    if backend is Backend.MOSAIC:
        return (Sampler.ANY,)
    every = (Sampler.PLAIN, Sampler.BOUNDED, Sampler.WIDE, Sampler.FULL)
    return every[2:] if platform == "cpu" else every


type _Make = Callable[..., Program]
type _Array = Callable[..., jax.ShapeDtypeStruct]


def _draw_programs(
    backends: Backends, limits: Limits, make: _Make, array: _Array, state: DeviceState
) -> Iterator[Program]:
    """The samplers at their sizes."""
    last, after = "state.last_token", ("state.next_pos", "state.sampling", LOGITS)
    (device,) = state.last_token.sharding.device_set
    *plainer, full = samplers(backends.sampling, device.platform)
    tops = sorted({0, num_top_drawn(backends.sampling, limits)})
    for top, rows in itertools.product(tops, draw_sizes(limits.max_num_seqs, full)):
        draw, raw = (functools.partial(draw_any, top), (LOGITS,)) if full is Sampler.ANY else (draw_full, ())
        reads, upload = (last, "controls", *after, *raw), array(rows, DRAW_WIDTH)
        drawn = array(rows, 1 + logprob_width(top) if top else 1)
        yield make(Draw(rows, full, top > 0), draw, reads, upload, writes=(last, "controls"), made=drawn)
    for sampler in plainer:
        draw = functools.partial(draw_rows, sampler)
        for rows in draw_sizes(limits.max_num_seqs, sampler):
            upload, drawn = array(rows, len(DrawColumn)), array(rows, 1)
            yield make(Draw(rows, sampler), draw, (last, *after), upload, writes=(last,), made=drawn)


def _full_programs(
    model: step.Model, limits: Limits, make: _Make, array: _Array, masks: MaskState
) -> Iterator[Program]:
    """What goes before and after draws, and what the full sampler needs beside its own."""
    slot, table = array(slot_layout(limits.vocab_size).size), ("masks.table",)
    yield make(Helper.SET_SLOT, set_slot, ("controls",), slot, writes=("controls",))
    for key, count in ((Helper.SET_MASKS, MASKS_WRITTEN), (Helper.SET_MANY_MASKS, MANY_MASKS_WRITTEN)):
        yield make(key, set_masks, table, array(count, 1 + masks.table.shape[1]), writes=table)
    width = logprob_width(num_top(limits))
    tops = functools.partial(draw_logprobs, num_top(limits))
    mask = functools.partial(mask_logits, model.backends.masks)
    left = ("masks.left", "state.last_token")
    on_host = masks.table.sharding.with_memory_kind(PINNED_HOST)
    for rows in draw_sizes(limits.max_num_seqs, Sampler.FULL):
        upload = _upload(on_host, rows, len(MaskColumn))
        yield make(Mask(rows), mask, (*left, LOGITS, *table), upload, writes=left, made=array(rows, 1))
        if not num_top_drawn(model.backends.sampling, limits):
            drawn = array(rows, len(DrawColumn))
            yield make(Tops(rows), tops, ("state.last_token", LOGITS), drawn, made=array(rows, width))
    count = min(MAX_SCORED, limits.extend_buckets[-1].logits)
    score = functools.partial(step.score, model, num_top(limits))
    yield make(Helper.SCORE, score, ("params", "state.hidden"), array(1 + count), made=array(count, width))


def mask_helper(count: int) -> tuple[Helper, int]:
    """What writes so many new masks, and how many at once."""
    if count <= 2 * MASKS_WRITTEN:
        return Helper.SET_MASKS, MASKS_WRITTEN
    return Helper.SET_MANY_MASKS, MANY_MASKS_WRITTEN


def num_top(limits: Limits) -> int:
    """K: how many of the most likely tokens come with each logprob."""
    return min(limits.max_logprobs, limits.vocab_size)


def num_top_drawn(backend: Backend, limits: Limits) -> int:
    """K where samplers tell logprobs themselves; 0 where they do not."""
    top = num_top(limits)
    return top if backend is Backend.MOSAIC and top <= MOST else 0


def waves(listed: Sequence[Program], limits: Limits) -> list[list[Program]]:
    """What is compiled together: the serving set, then what XLA compiles, then chains.

    XLA sets options of LLVM's while it compiles, Mosaic others, and neither goes on while the other does, in any thread
    (LLVMCommandLineOptionsLock of XLA). So chains, of which XLA has little to compile, wait for those of which it has
    much: all at once were ready after 98 s (journal, 2026-11-25).
    """
    return [list(group) for _, group in itertools.groupby(listed, lambda program: _wave(program, limits))]


def _wave(program: Program, limits: Limits) -> int:
    return 0 if is_serving(program.key, limits) else 2 if program.is_chained else 1


def is_serving(key: Key, limits: Limits) -> bool:
    """Whether the key is of the smallest set that can carry any plain plan: the largest steps and the helpers."""
    decode, extend = Decode(limits.decode_buckets[-1]), limits.extend_buckets[-1]
    helpers = Helper.SET_PAGES, Helper.ZERO_PAGES, Helper.SAVE_PAGES, Helper.LOAD_PAGES
    plain = Sampler.PLAIN, Sampler.BOUNDED, Sampler.WIDE, Sampler.ANY
    draws = [Draw(limits.max_num_seqs, one) for one in plain]
    return key in (*helpers, decode, extend, *draws)


def _is_of_full_set(key: Key) -> bool:
    is_full = isinstance(key, Mask | Tops) or (isinstance(key, Draw) and (key.sampler is Sampler.FULL or key.logprobs))
    masks = Helper.SET_MASKS, Helper.SET_MANY_MASKS
    return is_full or key in (Helper.SET_SLOT, *masks, Helper.SCORE, Helper.POOL)


def fingerprint(model: step.Model, device: jax.Device) -> str:
    """Everything beside a program's own shapes that its executable depends on."""
    modes = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable", "jax_default_prng_impl")
    facts = {
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "device": device.device_kind,
        "platform": device.client.platform_version,
        "machine": _machine() if device.platform == "cpu" else "",
        "flags": os.environ.get("XLA_FLAGS", ""),
        "modes": {name: str(jax.config.values[name]) for name in modes},
        "model": repr((model.config, model.backends)),
        "sources": _sources_digest(model),
    }
    return json.dumps(facts, sort_keys=True)


def _aval(leaf: Any, sharding: jax.sharding.Sharding | None = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding or leaf.sharding)


def _upload(sharding: jax.sharding.Sharding, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)


def _options(state: DeviceState, cublas: bool = False) -> Options:
    """What XLA is told of one program. cublas: products are cuBLAS's on a GPU.

    In float32 on a CPU, reductions stay out of the YNN library: there the sum's order depends on the batch size. The
    products it does run give each row the same bits whatever the batch, so a request's tokens are its own.

    What goes to the host or comes from there is part of what makes or takes it: as copies on a stream of their own it
    would hold up the kernels around it by 10 us each (H100).
    To try Triton's products too takes most of the time that compiling a prompt's step takes, and those it chose lost
    (journal, 2026-11-22 and 24). Of one row alone they win: cuBLAS would have the weights in float32.
    """
    (device,) = state.next_pos.sharding.device_set
    if device.platform == "cpu" and state.hidden.dtype == jnp.float32:
        return (("xla_cpu_experimental_ynn_fusion_type", "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"),)
    if device.platform != "gpu":
        return ()
    copies = (("xla_disable_hlo_passes", "host-memory-transfer-asyncifier"),)
    return (*copies, ("xla_gpu_enable_triton_gemm", False)) if cublas else copies


def _machine() -> str:
    """The processor's features: XLA compiles for those of the machine it runs on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return os.uname().machine
    return next((line for line in lines if line.startswith(("flags", "Features"))), os.uname().machine)


def _sources_digest(model: step.Model) -> str:
    """A hash of the code that a step is traced from: kernels, layers, runtime, models, and the family's own module."""
    folders = [Path(inspect.getfile(module)).parent for module in (jaxinfer_kernels, linear, step, dense)]
    files = {path for folder in folders for end in ("py", "cc", "h") for path in folder.rglob(f"*.{end}")}
    files |= {_source_of(function) for function in (model.family.forward, model.family.unembed)}
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _source_of(function: Any) -> Path:
    """The file that a function, a partial of one, or a callable object comes from."""
    while isinstance(function, functools.partial):
        function = function.func
    return Path(inspect.getfile(function if inspect.isroutine(function) else type(function)))
