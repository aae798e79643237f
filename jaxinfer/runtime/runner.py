"""DeviceRunner: the device behind plan.Runner. It packs a plan, dispatches one executable and hands back a Pending."""

import contextlib
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import jax
import numpy as np

from jaxinfer.cache.spec import PagedKV
from jaxinfer.checkpoint.memory import available_device_bytes
from jaxinfer.config import ExtendBucket, Limits
from jaxinfer.models.config import ModelConfig
from jaxinfer.models.parameters import dtype_of
from jaxinfer.models.registry import Family
from jaxinfer.runtime import buckets, packing, programs, step
from jaxinfer.runtime.backends import XLA_ONLY, Backends, Launches, kernels_for
from jaxinfer.runtime.buckets import Decode
from jaxinfer.runtime.cache import ExecutableCache
from jaxinfer.runtime.exports import DeviceExports
from jaxinfer.runtime.host_array import HostArray
from jaxinfer.runtime.lowering import Facts, Lowerers
from jaxinfer.runtime.mask_table import Masks, MaskTable
from jaxinfer.runtime.moving import PAGES_MOVED, Mover
from jaxinfer.runtime.packing import extend_layout
from jaxinfer.runtime.pending import PendingStep, Pooled, Scored
from jaxinfer.runtime.plan import DeviceFacts, Plan, Sampler
from jaxinfer.runtime.pool import keep_small_arrays_apart
from jaxinfer.runtime.programs import (
    LOGITS,
    PAGE_UPDATES,
    PAGES_ZEROED,
    PIECE_TOKENS,
    PIECES,
    Draw,
    Helper,
    Key,
    Mask,
    Program,
    Tops,
)
from jaxinfer.runtime.state import init_all
from jaxinfer.runtime.trace import trace
from jaxinfer.runtime.warmup import (
    Built,
    CompileCounter,
    OnProgress,
    OnRun,
    build,
    build_all,
    num_chained,
    num_lowerers,
)
from jaxinfer_kernels.launch import ffi

UNDRAWN_S = 0.01  # between two looks at whether a step has been drawn from
MAX_READ_AGAIN = 2**27  # bytes that a layer of a step by token may read of pages that other tokens have read too


class DeviceRunner:
    """Owns the device state; every call is dispatched at once and runs in the order of the calls.

    Invariant: only `_dispatch` touches the state, under the lock, and nothing runs on padding between a step and what
    reads its logits, so warm-up may go on in another thread while steps run. Without `warm_up` each program is compiled
    when it is first needed.
    """

    def __init__(
        self,
        config: ModelConfig,
        family: Family,
        params: step.Params,
        limits: Limits,
        device: jax.Device,
        backends: Backends = XLA_ONLY,
    ) -> None:
        self.limits = limits
        self._model = step.Model(config, family, backends)
        self._placed = contextlib.ExitStack()
        if backends.launches is Launches.SEQUENCE:
            ffi.register()
            self._placed.enter_context(step.layers_placed(family, params))
        self._params, self._without_layers = params, step.without_layers(family, params)
        self._device, dtype = device, dtype_of(family.specs(config), params)
        where = jax.sharding.SingleDeviceSharding(device)
        self._init = jax.jit(functools.partial(init_all, limits, config, dtype), out_shardings=where)
        self._state, self._controls, self._masks = self._init()
        self._has_state = self._state.store.states is not None
        self.mask_table = MaskTable(limits.vocab_size, limits.max_num_seqs)
        self._fences = keep_small_arrays_apart(device) if device.platform == "gpu" else []
        self._lock = threading.Lock()
        self._uploaded: dict[type, tuple[bytes, jax.Array | None]] = {}  # the last of each kind, if it may come again
        self._turn = threading.Condition()  # a step with its draw, or one run on padding
        self._undrawn: Callable[[], PendingStep | None] = lambda: None  # the newest step, if it waits for its masks
        self._mask_uploads: dict[int, HostArray] = {}  # by their rows
        self._movers = self._new_movers() if limits.num_host_pages else {}
        self.exports: DeviceExports | None = None
        if self._movers:
            snapshots = self._movers.get(Helper.SAVE_SNAPSHOT)
            self.exports = DeviceExports(config, params, self._movers[Helper.SAVE_PAGES], snapshots)
        listed = programs.programs(self._model, limits, params, self._state, self._controls, self._masks)
        self._programs: dict[Key, Program] = {program.key: program for program in listed}
        self._executables: dict[Key, jax.stages.Compiled] = {}
        self._decode_sizes = buckets.decode_sizes(limits.decode_buckets, limits.decode_contexts)
        self._decode_ready = self._decode_sizes
        self._extend_ready = limits.extend_buckets
        smaller = limits.extend_buckets[:-1]  # the largest has to carry any plan
        self._by_token = {size for size in smaller if kernels_for(config, backends, size).reads_by_token}
        of_token = [spec.bytes_per_token for spec in config.caches(dtype.name) if isinstance(spec, PagedKV)]
        self._max_read_again = MAX_READ_AGAIN // max(of_token)  # tokens
        self._samplers = programs.samplers(backends.sampling, device.platform)
        self._draws_tell_logprobs = programs.num_top_drawn(backends.sampling, limits) > 0
        self._read_draws()
        self._cache: ExecutableCache | None = None
        self._common = ""  # what all keys of the cache share
        self._counter = CompileCounter(self)
        ops = backends.by_op() | {"weights": config.held_in(dtype.name)}
        self._facts = DeviceFacts(self._arrays_bytes(), ops, backends.timings)

    # What the engine calls, as plan.Runner says

    def run(self, plan: Plan) -> PendingStep:
        with self._turn:
            return self._run(plan)

    def _run(self, plan: Plan) -> PendingStep:
        self._undrawn = lambda: None  # its logits are overwritten
        for row in plan.rows:
            if row.sampling is not None and row.sampling.controls is not None:
                self._dispatch(Helper.SET_SLOT, packing.pack_slot(row, self.limits.vocab_size))
        is_decode = plan.is_decode and all([row.sample for row in plan.rows])
        masked = plan.is_masked
        tokens = self._decode(plan, masked=masked) if is_decode else self._extend(plan, masked=masked)
        scored, pooled = (None, ([], [])) if is_decode else (self._score(plan), self._pool(plan))
        pending = PendingStep(tokens, len(plan.rows), scored, pooled)
        if masked:
            pending.on_masks = functools.partial(self._draw_masked, plan, weakref.proxy(pending))
            self._undrawn = weakref.ref(pending)
        else:
            self._draw(plan, pending)
        return pending

    def _draw_masked(self, plan: Plan, pending: PendingStep, masks: Masks) -> None:
        with self._turn:
            key, size = programs.mask_helper(len(masks.news))
            for first in range(0, len(masks.news), size):
                self._dispatch(key, packing.pack_new_masks(masks, first, size))
            rows = buckets.pick_size(self._mask_sizes, sum([row.sample for row in plan.rows]))
            self._draw(plan, pending, self._mask(rows, functools.partial(packing.pack_masks, plan, masks)))
            self._undrawn = lambda: None
            self._turn.notify_all()

    def _mask(self, rows: int, write: Callable[[np.ndarray], object]) -> jax.Array:
        """Draw the largest of what masks leave. write: puts what they are into i32[rows, len(MaskColumn)]."""
        if rows not in self._mask_uploads:
            self._mask_uploads[rows] = HostArray((rows, len(packing.MaskColumn)), self._device)
        upload = self._mask_uploads[rows]
        write(upload.lend())
        drawn: jax.Array = self._dispatch(Mask(rows), upload.array)
        upload.read_for(drawn)
        return drawn

    def _decode(self, plan: Plan, *, masked: bool) -> jax.Array:
        if any([len(row.new_pages) > 1 for row in plan.rows]):
            self._write_pages(packing.page_updates(plan.rows))
        longest = max([row.start for row in plan.rows]) + 1
        size = buckets.pick_decode(self._decode_ready, len(plan.rows), longest)
        upload = self._again(Decode, packing.pack_decode(plan, size.batch, masked=masked, has_state=self._has_state))
        tokens: jax.Array = self._dispatch(size, upload)
        return tokens

    def _again(self, kind: type, upload: np.ndarray) -> np.ndarray | jax.Array:
        """An upload, or the array that is on the device already.

        Most steps of few rows bring what the one before brought: nobody came or left, nobody needed a page. To upload
        it takes 150 to 200 us of the host's time (H200).
        """
        content, (before, found) = upload.tobytes(), self._uploaded.get(kind, (b"", None))
        if content != before:
            self._uploaded[kind] = content, None
            return upload
        if found is None:  # only now: an array that is used once goes up faster with the call
            found = jax.device_put(upload, self._state.next_pos.sharding)
            self._uploaded[kind] = content, found
        return found

    def _extend(self, plan: Plan, *, masked: bool) -> jax.Array:
        need = ExtendBucket(plan.num_tokens, len(plan.rows), sum(row.sample for row in plan.rows))
        ready = self._extend_ready
        if sum([(row.count - 1) * (row.start + row.count) for row in plan.rows]) > self._max_read_again:
            ready = tuple(size for size in ready if size not in self._by_token)
        bucket = buckets.pick_extend(ready, need)
        layout = extend_layout(bucket, self.limits.page_size, has_state=self._has_state)
        updates = packing.page_updates(plan.rows)
        if len(updates) > layout.shapes["pages"][0]:
            self._write_pages(updates)
            updates = updates[:0]
        tokens: jax.Array = self._dispatch(bucket, packing.pack_extend(plan, layout, updates, masked=masked))
        return tokens

    def _draw(self, plan: Plan, pending: PendingStep, drawn: jax.Array | None = None) -> None:
        """Let a sampler look at the logits that a step has kept, if some row's token is not their largest, and take
        the logprobs of what was drawn. drawn: the largest of what masks have left."""
        wanted, wants_logprobs = plan.sampler, plan.wants_logprobs
        if drawn is None and wanted is Sampler.LARGEST and not wants_logprobs:
            return
        tops, num_rows = None, sum([row.sample for row in plan.rows])
        tells = wants_logprobs and self._draws_tell_logprobs
        wanted = Sampler.ANY if tells else wanted
        if wanted is not Sampler.LARGEST:
            sampler = next(one for one in self._draw_sizes if one >= wanted)
            rows = buckets.pick_size(self._top_sizes if tells else self._draw_sizes[sampler], num_rows)
            upload = self._again(Draw, packing.pack_draw(plan, rows, full=sampler >= Sampler.FULL))
            tops = drawn = self._dispatch(Draw(rows, sampler, tells), upload, masked=plan.is_masked)
        if wants_logprobs and not tells:
            rows = buckets.pick_size(self._top_sizes, num_rows)
            tops = self._dispatch(Tops(rows), self._again(Tops, packing.pack_draw(plan, rows, full=False)))
        logits_rows = np.maximum(np.cumsum([row.sample for row in plan.rows]) - 1, 0)
        pending.take(logits_rows, drawn, tops if wants_logprobs else None)

    def _score(self, plan: Plan) -> dict[int, Scored]:
        """Logprobs of the rows' targets, in blocks of `score`'s size."""
        scored: dict[int, Scored] = {}
        if not any([row.targets for row in plan.rows]):
            return scored
        size, start = self._programs[Helper.SCORE].arguments[-1].shape[0] - 1, 0
        for index, row in enumerate(plan.rows):
            for first in range(0, len(row.targets), size):
                upload = np.zeros(1 + size, np.int32)
                block = row.targets[first : first + size]
                upload[0], upload[1 : 1 + len(block)] = start + first, block
                found = self._dispatch(Helper.SCORE, upload)
                scored.setdefault(index, (len(row.targets), []))[1].append(found)
            start += row.count
        return scored

    def _pool(self, plan: Plan) -> Pooled:
        """Sums of the hidden states of the rows that pool."""
        if not any([row.num_pooled for row in plan.rows]):
            return [], []
        pieces, owners = packing.pieces(plan, PIECE_TOKENS)
        return owners, [self._dispatch(Helper.POOL, chunk) for chunk in packing.chunks(pieces, PIECES)]

    def zero_pages(self, page_ids: Sequence[int]) -> None:
        for chunk in packing.chunks(np.asarray(page_ids, np.int32), PAGES_ZEROED):
            self._dispatch(Helper.ZERO_PAGES, chunk)

    def save_pages(self, page_ids: Sequence[int]) -> list[Any]:
        return self._movers[Helper.SAVE_PAGES].save(page_ids)

    def load_pages(self, page_ids: Sequence[int], contents: Sequence[Any]) -> None:
        self._movers[Helper.LOAD_PAGES].load(page_ids, contents)

    def _new_movers(self) -> dict[Helper, Mover]:
        """By the programs that each runs."""
        store = self._state.store
        kinds = [(Helper.SAVE_PAGES, Helper.LOAD_PAGES, store.pages, PAGES_MOVED)]
        if store.states is not None:
            kinds.append((Helper.SAVE_SNAPSHOT, Helper.LOAD_SNAPSHOT, store.states.snapshots, 1))
        me = weakref.proxy(self)  # or the runner, and its arrays, would live until the collector comes

        def run(key: Helper) -> Callable[..., Any]:
            return lambda *given: me._dispatch(key, *given)

        movers = [(save, load, Mover(run(save), run(load), *rest)) for save, load, *rest in kinds]
        return {key: mover for save, load, mover in movers for key in (save, load)}

    def reset(self) -> None:
        for mover in self._movers.values():
            mover.clear()
        self._uploaded.clear()
        self._undrawn = lambda: None
        self._mask_uploads.clear()
        self.mask_table.clear()
        with self._lock:
            _delete(self._state, self._controls, self._masks)
            self._state, self._controls, self._masks = self._init()

    def warm_up(
        self, on_progress: OnProgress, cache: ExecutableCache | None = None, on_run: OnRun = lambda *_: None
    ) -> None:
        """Compile everything and run it on padding, as often as CUDA graphs need; nothing is compiled afterwards.

        on_progress(name, done, total, seconds, cached): after each program.    on_run(name, done, total): of the runs
        after that. May run in a thread of its own once `is_serving`; until then plans must wait.
        """
        self._decode_ready, self._extend_ready = (), ()
        self._cache, self._common = cache, programs.fingerprint(self._model, self._device)
        todo = list(self._programs.values())
        waves = programs.waves(todo, self.limits)
        facts = Facts.of(self._model, self.limits, self._params, self._device)
        lowerers = Lowerers(num_lowerers(self._device), facts)
        most_chained = num_chained(self._device, self._params)
        every = build_all(waves, self._device, cache, self._common, lowerers, most_chained)
        with contextlib.closing(every):  # by this thread, also if a start is given up: its threads cannot
            for done, built in enumerate(every, start=1):
                self._keep(built)
                self._run_on_padding(built.program)
                self._decode_ready = tuple(size for size in self._decode_sizes if size in self._executables)
                self._extend_ready = tuple(b for b in self.limits.extend_buckets if b in self._executables)
                self._read_draws()
                on_progress(built.program.name, done, len(todo), built.seconds, built.cached)
        again = todo if self._device.platform == "gpu" else []
        for done, program in enumerate(again):
            on_run(program.name, done, len(again))
            self._make_graph(program)
        if not again:
            on_run("what is compiled, on padding", 0, 0)
        with self._lock:  # or a step in another thread may take the array meanwhile
            self._state.next_pos.block_until_ready()
        if again:
            on_run("", len(again), len(again))
        analyses = [executable.memory_analysis() for executable in self._executables.values()]
        most = max((analysis.temp_size_in_bytes for analysis in analyses if analysis), default=0)
        memory_bytes = self._facts.memory_bytes | {"temporaries": most}  # beside a program's arguments
        self._facts = dataclasses.replace(self._facts, memory_bytes=memory_bytes)
        self._counter.start()

    def _keep(self, built: Built) -> None:
        facts, key = self._facts, built.program.key
        self._executables[key] = built.executable
        self._facts = dataclasses.replace(
            facts,
            compiled=facts.compiled + (not built.cached),
            loaded=facts.loaded + built.cached,
            compile_s=facts.compile_s + built.seconds,
        )

    def _read_draws(self) -> None:
        """Note the sizes of samplers, of masks and of logprobs that are there."""
        sizes = {one: buckets.draw_sizes(self.limits.max_num_seqs, one) for one in self._samplers}
        self._draw_sizes = {one: self._ready([Draw(rows, one) for rows in sizes[one]]) for one in sizes}
        full = buckets.draw_sizes(self.limits.max_num_seqs, Sampler.FULL)
        self._mask_sizes = self._ready([Mask(rows) for rows in full])
        tell = [Draw(rows, Sampler.ANY, True) for rows in sizes.get(Sampler.ANY, ())]
        self._top_sizes = self._ready(tell if self._draws_tell_logprobs else [Tops(rows) for rows in full])

    def _ready(self, keys: Sequence[Draw] | Sequence[Mask] | Sequence[Tops]) -> tuple[int, ...]:
        """The rows of those that are there. keys: rising; only the last can carry any plan, so all until it is."""
        if keys[-1] not in self._executables:
            return tuple(key.rows for key in keys)
        return tuple(key.rows for key in keys if key in self._executables)

    def _run_on_padding(self, program: Program) -> None:
        """The first run loads the code; of what moves pages, by way of the host's memory too.

        Steps leave logits where a plan's would be: not before that plan has been drawn from.
        """
        with self._turn:
            while self._undrawn() is not None:
                self._turn.wait(UNDRAWN_S)
            self._on_padding(program)

    def _on_padding(self, program: Program) -> None:
        upload = np.zeros(program.arguments[-1].shape, np.int32)
        match program.key:
            case Helper.SAVE_PAGES | Helper.SAVE_SNAPSHOT:
                jax.block_until_ready(self._movers[program.key].to_host(self._dispatch(program.key, upload)))
            case Helper.LOAD_PAGES | Helper.LOAD_SNAPSHOT:
                mover = self._movers[program.key]
                self._dispatch(program.key, upload, mover.to_device([mover.blank()]))
            case Decode() | Draw() | Tops():
                self._dispatch(program.key, self._again(type(program.key), upload))
            case Mask(rows):
                self._mask(rows, lambda masks: masks.fill(0))
            case _:
                self._dispatch(program.key, upload)

    def _make_graph(self, program: Program) -> None:
        """Run a program as often as XLA needs to make its CUDA graph, when all are loaded.

        Whenever XLA loads a program it drops the graphs of all others. The next run then launches kernel by kernel, and
        the one after it makes the graph: 5 to 9 ms of host time each (H200, 28 layers), in the middle of an answer.
        A decode step's second run is one with its upload on the device already, whose first time takes JAX 4 ms.
        """
        for _ in range(2):
            self._run_on_padding(program)

    @property
    def is_serving(self) -> bool:
        """Whether any plain plan can be carried without compiling, if not in the best size yet.

        What draws with controls or masks comes next, and logprobs; a plan that needs them before has them compiled
        within its step.
        """
        return all(key in self._executables for key in self._programs if programs.is_serving(key, self.limits))

    @property
    def num_programs(self) -> int:
        """All that `warm_up` compiles."""
        return len(self._programs)

    @property
    def num_serving(self) -> int:
        """Those of them that `is_serving` needs, which are compiled first."""
        return sum(programs.is_serving(key, self.limits) for key in self._programs)

    @property
    def compiles_after_ready(self) -> int:
        """Compilations for this runner since warm_up returned; each is a fault."""
        return self._counter.count

    def facts(self) -> DeviceFacts:
        """Safe from any thread. What memory is free is told of GPUs alone."""
        if self._device.platform != "gpu" or not self._device.memory_stats():
            return self._facts
        free = {"free": available_device_bytes(self._device)}
        return dataclasses.replace(self._facts, memory_bytes=self._facts.memory_bytes | free)

    def _arrays_bytes(self) -> dict[str, int]:
        """By kind; they stay as large while the runner lives."""
        pages_bytes = _nbytes(self._state.store.pages)
        rest = _nbytes((self._state, self._controls, self._masks)) - pages_bytes
        return {"weights": _nbytes(self._params), "pages": pages_bytes, "state": rest}

    profile = staticmethod(trace)

    def close(self) -> None:
        """Free what is on the device, for the next model of a process that holds on to this one: weights too, and what
        lies between others in the pool. The runner cannot be used afterwards."""
        self._counter.close()
        self._undrawn = lambda: None
        self._uploaded.clear()
        for held in (self._executables, self._fences, self._mask_uploads):
            held.clear()
        with self._lock:
            self._placed.close()  # first: the next model's anchor may lie where this one's does
            # Deleted, not only let go: a call that has just ended may still hold what it was given.
            _delete(self._state, self._controls, self._masks, self._params)
            self._params = self._without_layers = ()
            self._movers, self.exports = {}, None

    def _dispatch(self, key: Key, upload: np.ndarray | jax.Array, *contents: Any, masked: bool = False) -> Any:
        """Run one program on the state. Returns the array that it made, or one that it changed.

        contents: to be loaded.    masked: to draw from what masks have left.
        """
        executable, program = self._executables.get(key) or self._build(key), self._programs[key]
        with self._lock:
            given = [_reader(name)(self) for name in program.reads]
            if masked:
                given[program.reads.index(LOGITS)] = self._masks.left
            results = executable(*given, *contents, upload)
            if len(program.writes) + (program.made is not None) == 1:
                results = (results,)
            for name, new in zip(program.writes, results, strict=False):  # what it made comes after those
                root, _, part = f"_{name}".partition(".")
                setattr(self, root, getattr(self, root).replace(**{part: new}) if part else new)
            return results[-1]

    def _build(self, key: Key) -> jax.stages.Compiled:
        """A program that is needed before warm-up came to it, or without one."""
        self._keep(build(self._programs[key], self._device, self._cache, self._common))
        return self._executables[key]

    def _write_pages(self, updates: np.ndarray) -> None:
        for chunk in packing.chunks(updates, PAGE_UPDATES):
            self._dispatch(Helper.SET_PAGES, chunk)


def _delete(*trees: Any) -> None:
    for leaf in jax.tree.leaves(trees):
        if not leaf.is_deleted():
            leaf.delete()


@functools.cache
def _reader(name: str) -> Callable[[DeviceRunner], Any]:
    """Of what a program reads, by the name that it has for it. Made once: each step asks."""
    return attrgetter(f"_{name}")


def _nbytes(arrays: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))
