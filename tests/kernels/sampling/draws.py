"""Rows to draw tokens for, in the arrays that samplers take: one way of sampling to each, and what could go wrong."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.runtime.controls import draw_full
from jaxinfer.runtime.state import ControlState
from jaxinfer_kernels.sampling import reference
from jaxinfer_kernels.sampling.columns import (
    ANY,
    IN_PROMPT,
    MOST_COUNTED,
    NO_ID,
    ControlColumn,
    ControlFlag,
    DrawColumn,
    DrawnColumn,
    SamplingColumn,
)

MAX_BIAS, MAX_BANNED = 30, 6
LAST = 7  # token of each sequence
POSITION = 40  # of the token drawn, about


@dataclasses.dataclass(frozen=True)
class Way:
    """How one row is drawn.

    penalties: presence, frequency, repetition.    bias: (token, value).    ends: tokens that may not come yet; `late`
    if they may.    banned: after every token, after LAST and after another one, in turns.    logprobs: are asked for.
    kind: of logits, a name of `logits_of`.    padding: the row's slot is 0.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 1
    sample_index: int = 0
    penalties: tuple[float, float, float] | None = None
    bias: tuple[tuple[int, float], ...] = ()
    allowed: tuple[int, ...] | None = None
    ends: tuple[int, ...] = ()
    late: bool = False
    banned: tuple[int, ...] = ()
    logprobs: bool = False
    kind: str = "normal"
    padding: bool = False

    @property
    def flags(self) -> ControlFlag:
        used = {
            ControlFlag.PENALTIES: self.penalties is not None,
            ControlFlag.BIAS: bool(self.bias),
            ControlFlag.ALLOWED: self.allowed is not None,
            ControlFlag.MIN_TOKENS: bool(self.ends),
            ControlFlag.BANNED: bool(self.banned),
        }
        return ControlFlag(sum(flag for flag, is_used in used.items() if is_used))


def logits_of(kind: str, width: int, rng: np.random.Generator) -> np.ndarray:
    """f32[width]."""
    x = (rng.normal(size=width) * 3).astype(np.float32)
    some = rng.permutation(width)[: width // 3]
    match kind:
        case "ties":  # every value many times
            return np.round(x)
        case "equal":
            return np.full(width, -1.5, np.float32)
        case "flat":
            return x / 300
        case "peak":
            x[rng.integers(width)] = 40
        case "last":
            x[[width - 1, width - 2]] = 30
        case "infinite":
            x[some] = -np.inf
        case "one":  # that is finite
            x[np.arange(width) != some[0]] = -np.inf
        case "nan":
            x[some[:3]] = np.nan
        case "all nan":
            x[:] = np.nan
        case "nothing":
            x[:] = -np.inf
        case "overflow":
            x[some[:2]] = np.inf
        case _:
            assert kind == "normal", kind
    return x


KINDS = ("normal", "ties", "equal", "flat", "peak", "last", "infinite", "one")
BROKEN = ("nan", "all nan", "nothing", "overflow")  # any token that exists will do


@dataclasses.dataclass
class Draws:
    """The arguments of the samplers for `ways`, each in a slot of its own, in no order."""

    ways: Sequence[Way]
    width: int
    seed: int = 0

    def __post_init__(self) -> None:
        rng, rows, width = np.random.default_rng(self.seed), len(self.ways), self.width
        slots = rows + 3
        self.logits = np.stack([logits_of(way.kind, width, rng) for way in self.ways])
        self.raw = self.logits.copy()
        for row in self.raw[1::2]:  # as where masks left less: of other logits, with ties
            row[:] = np.round(rng.normal(size=width) * 30) / 8
        self.counts = np.where(rng.random((slots, width)) < 0.1, rng.integers(0, 5, (slots, width)), 0)
        self.counts += np.where(rng.random((slots, width)) < 0.1, IN_PROMPT, 0)
        self.counts[rng.random((slots, width)) < 0.05] |= MOST_COUNTED
        self.counts = self.counts.astype(np.uint16)
        self.next_pos = (POSITION + np.arange(slots)).astype(np.int32)
        self.last_token = rng.integers(0, width, slots).astype(np.int32)
        self.sampling = np.zeros((slots, len(SamplingColumn)), np.int32)
        self.columns = np.zeros((slots, len(ControlColumn)), np.int32)
        self.bias = np.full((slots, 2, MAX_BIAS), NO_ID, np.int32)
        self.bits = rng.integers(0, 2**32, (slots, 2, width // 32), dtype=np.uint32)
        self.upload = np.full((rows, len(DrawColumn) + 2 * MAX_BANNED), NO_ID, np.int32)
        for i, (way, slot) in enumerate(zip(self.ways, 1 + rng.permutation(slots - 1), strict=False)):
            self._write(i, way, 0 if way.padding else int(slot))

    def _write(self, i: int, way: Way, slot: int) -> None:
        self.upload[i, DrawColumn.SLOT] = slot
        banned, after = self.upload[i, len(DrawColumn) :].reshape(2, -1)
        banned[: len(way.banned)], after[:] = way.banned, np.resize([ANY, LAST, LAST + 1], len(after))
        if slot == 0:
            return
        seed = [way.seed >> 32, way.seed & 0xFFFFFFFF]
        flags = way.flags | (ControlFlag.LOGPROBS if way.logprobs else 0)
        numbers = np.array([way.top_k, *seed, way.sample_index, flags], np.uint32)
        floats = np.array([way.temperature, way.top_p, way.min_p], np.float32)
        self.sampling[slot] = np.concatenate([floats.view(np.int32), numbers.view(np.int32)])
        self.columns[slot, :3] = np.array(way.penalties or (9, 9, 9), np.float32).view(np.int32)
        self.columns[slot, ControlColumn.LAST] = LAST
        self.columns[slot, ControlColumn.MIN_LENGTH] = self.next_pos[slot] + (0 if way.late else 1)
        bias = sorted(way.bias)
        self.bias[slot, 0, : len(bias)] = [token for token, _ in bias]
        values = np.array([value for _, value in bias], np.float32)
        self.bias[slot, 1, : len(bias)] = values.view(np.int32)
        for which, ids in enumerate((way.allowed, way.ends)):
            marks = np.zeros(self.width, bool)
            marks[list(ids or ())] = True
            self.bits[slot, which] = np.packbits(marks, bitorder="little").view(np.uint32)
        x = self.logits[i]
        largest = np.flatnonzero(x == x.max())  # none if it is NaN
        self.last_token[slot] = largest[0] if len(largest) else self.width - 1
        if way.kind == "one":
            self.counts[slot, self.last_token[slot]] |= MOST_COUNTED

    @property
    def slots(self) -> np.ndarray:
        """i32[rows], 0 for padding."""
        slots: np.ndarray = self.upload[:, DrawColumn.SLOT]
        return slots

    def numpy(self) -> tuple[np.ndarray, ...]:
        """What reference.draw takes."""
        rest = self.next_pos, self.sampling, self.bias, self.bits, self.upload
        return self.logits, self.last_token, self.columns, self.counts, *rest

    def jax(self) -> tuple[jax.Array, ...]:
        """What sm90_draw.draw takes."""
        logits, *rest = self.numpy()
        return tuple(jnp.asarray(each) for each in (logits, self.raw, *rest))

    def expected(self) -> reference.Drawn:
        return reference.draw(*self.numpy())

    def check(self, drawn: np.ndarray, last_token: np.ndarray, columns: np.ndarray, counts: np.ndarray) -> int:
        """That these are the reference's where it is decided, and what may be elsewhere; how many are decided."""
        expected, slots, tokens = self.expected(), self.slots, drawn[:, DrawnColumn.TOKEN]
        if drawn.shape[1] > 1:
            self._check_logprobs(drawn)
        real = slots > 0
        wrong = np.flatnonzero(expected.decided & (tokens != expected.tokens))
        assert not len(wrong), [(self.ways[i], int(tokens[i]), int(expected.tokens[i])) for i in wrong[:3]]
        assert ((tokens[real] >= 0) & (tokens[real] < self.width)).all()
        kept_last = self.last_token.copy()
        kept_last[slots[real]] = tokens[real]
        np.testing.assert_array_equal(last_token, kept_last)
        np.testing.assert_array_equal(counts, self._counted(tokens))
        controlled = np.array([bool(way.flags) and not way.padding for way in self.ways])
        np.testing.assert_array_equal(columns[slots[controlled], ControlColumn.LAST], tokens[controlled])
        rest = slice(ControlColumn.LAST)
        np.testing.assert_array_equal(columns[:, rest], self.columns[:, rest])
        return int(expected.decided.sum())

    def _check_logprobs(self, drawn: np.ndarray) -> None:
        top = (drawn.shape[1] - len(DrawnColumn)) // 2
        told = [i for i, way in enumerate(self.ways) if way.logprobs and not way.padding]
        for i in (i for i in told if np.isfinite(self.raw[i].max())):  # or no logprob is defined
            (rank, ids), values = reference.logprobs(self.raw[i], int(drawn[i, DrawnColumn.TOKEN]), top)
            assert drawn[i, DrawnColumn.RANK] == rank, self.ways[i]
            found_ids, found_values = drawn[i, len(DrawnColumn) :].reshape(2, top)
            np.testing.assert_array_equal(found_ids, ids, str(self.ways[i]))
            found = np.append(drawn[i, DrawnColumn.LOGPROB], found_values).astype(np.int32).view(np.float32)
            np.testing.assert_allclose(found, values, rtol=2e-6, atol=4e-6, err_msg=str(self.ways[i]))

    def _counted(self, tokens: np.ndarray) -> np.ndarray:
        counts = self.counts.copy()
        for way, slot, token in zip(self.ways, self.slots, tokens, strict=True):
            if slot and way.penalties is not None and counts[slot, token] & MOST_COUNTED < MOST_COUNTED:
                counts[slot, token] += 1
        return counts


def listed_ways(width: int) -> list[Way]:
    """Each parameter and each control alone and with others, and each case that could go wrong."""
    end = width - 1
    parameters: list[dict[str, Any]] = [
        dict(),
        *(dict(top_k=k) for k in (1, 5, 17, 100, end, width, 3 * width)),
        *(dict(top_p=p) for p in (1e-6, 0.5, 0.95, 1 - 2**-24)),
        *(dict(min_p=p) for p in (0.02, 1.0)),
        dict(top_k=30, top_p=0.8, min_p=0.01),
    ]
    controls: list[dict[str, Any]] = [
        dict(penalties=(1.5, 0.0, 1.0)),
        dict(penalties=(0.0, -0.7, 1.0)),
        dict(penalties=(0.0, 0.0, 1.8)),
        dict(bias=((3, 30.0), (end, 31.0), (0, -100.0), (3, 2.0))),
        dict(allowed=(0, 31, 32, end)),
        dict(ends=(1, end), kind="last"),
        dict(ends=(1, end), kind="last", late=True),
        dict(banned=(end - 1, 7), kind="last"),
        dict(
            penalties=(0.3, 0.2, 1.2), bias=((9, 5.0),), allowed=tuple(range(5, end)), ends=(10, 11), banned=(end - 1,)
        ),
    ]
    sampled: dict[str, Any] = dict(temperature=0.9, top_k=30, top_p=0.95)
    bounds: list[dict[str, Any]] = [dict(), dict(top_k=9), dict(top_p=0.6)]
    found = [
        *(Way(0.8, logprobs=True, **more) for more in parameters),
        *(Way(1e-30, **more) for more in parameters),
        *(Way(**more) for more in controls),
        *(Way(**more, **sampled) for more in controls),
        *(Way(0.8, kind=kind, logprobs=True, **more) for kind in KINDS for more in bounds),
        *(Way(kind="one", penalties=(1.0, 1.0, 1.1), temperature=temperature) for temperature in (0.0, 1.0)),
        Way(),
        Way(1.0, padding=True),
        Way(kind="nothing"),
        Way(kind="equal", allowed=()),
        *(Way(logprobs=True) for _ in range(2)),
        Way(0.8, logprobs=True, padding=True),
    ]
    return [dataclasses.replace(way, seed=2**40 * i + i) for i, way in enumerate(found)]


def random_way(rng: np.random.Generator, width: int) -> Way:
    """Everything at once, each with some probability."""

    def some(count: int) -> tuple[int, ...]:
        return tuple(rng.choice(width, count, replace=False).tolist())

    def maybe[T](probability: float, value: T, otherwise: T) -> T:
        return value if rng.random() < probability else otherwise

    penalties = float(rng.uniform(-2, 2)), float(rng.choice([0, 0.3, -0.2])), float(rng.choice([1, 1.3, 0.8]))
    bias = tuple((token, float(rng.uniform(-8, 8))) for token in some(int(rng.integers(1, MAX_BIAS + 1))))
    return Way(
        temperature=float(rng.choice([0, 0.3, 0.7, 1, 1, 1.7, 1e-30])),
        top_k=maybe(0.5, int(rng.choice([1, 2, 5, 20, 40, 64, 100, 500, width, 2 * width])), 0),
        top_p=maybe(0.5, float(rng.choice([1e-6, 0.1, 0.5, 0.8, 0.95, 0.999, 0.9999999])), 1.0),
        min_p=maybe(0.3, float(rng.choice([1e-4, 0.05, 0.3, 1])), 0.0),
        seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
        sample_index=int(rng.integers(0, 4)),
        logprobs=bool(rng.random() < 0.4),
        penalties=maybe(0.3, penalties, None),
        bias=maybe(0.3, bias, ()),
        allowed=maybe(0.2, some(int(rng.choice([1, 10, width // 2]))), None),
        ends=maybe(0.2, some(5), ()),
        late=bool(rng.random() < 0.3),
        banned=maybe(0.2, some(int(rng.integers(1, MAX_BANNED + 1))), ()),
        kind=maybe(0.05, str(rng.choice(BROKEN)), str(rng.choice(KINDS))),
        padding=bool(rng.random() < 0.03),
    )


def random_ways(count: int, width: int, seed: int) -> list[Way]:
    rng = np.random.default_rng(seed)
    return [random_way(rng, width) for _ in range(count)]


def xla_draw(draws: Draws) -> list[np.ndarray]:
    """What was drawn, last_token, columns and counts of the sampler that runs everywhere."""
    logits, last_token, columns, counts, next_pos, sampling, bias, bits, upload = map(jnp.asarray, draws.numpy())
    controls = ControlState(columns=columns, bias=bias, bits=bits, counts=counts)
    last_token, controls, tokens = jax.jit(draw_full)(last_token, controls, next_pos, sampling, logits, upload)
    return [np.asarray(each) for each in (tokens, last_token, controls.columns, controls.counts)]
