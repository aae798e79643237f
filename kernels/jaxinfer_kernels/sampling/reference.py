"""The definition of sampling (jaxinfer.runtime.sampler, jaxinfer.runtime.controls), one row at a time in float64.

Only the uniform numbers behind the noise are float32, because these bits are part of the definition. A row is decided
unless rounding to float32 can change its token: two candidates, or a candidate and the end of top-k or min-p, are
within TOLERANCE of each other, or the mass nearer than a candidate is within TOLERANCE of top_p.
"""

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from jaxinfer_kernels.sampling.columns import (
    ANY,
    MOST_COUNTED,
    SAMPLING,
    ControlColumn,
    ControlFlag,
    DrawColumn,
    SamplingColumn,
)

type Floats = NDArray[np.float64]
type Flags = NDArray[np.bool_]

TOLERANCE = 1e-6  # of values near 1; of larger ones, as a part of them: float32 has 6e-8 a rounding
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


@dataclasses.dataclass(frozen=True)
class Drawn:
    """tokens i64[R]; decided bool[R]."""

    tokens: NDArray[np.int64]
    decided: Flags


@dataclasses.dataclass(frozen=True)
class SlotSampling:
    """One slot's row of the sampling columns i32[len(SamplingColumn)]."""

    columns: NDArray[np.int32]

    def integer(self, column: SamplingColumn) -> int:
        return int(self.columns[column])

    def number(self, column: SamplingColumn) -> float:
        return float(self.columns.view(np.float32)[column])

    @property
    def flags(self) -> ControlFlag:
        """Of its controls."""
        return ControlFlag(self.integer(SamplingColumn.FLAGS)) & ~ControlFlag.LOGPROBS


def draw(
    logits: np.ndarray,
    last_token: np.ndarray,
    columns: np.ndarray,
    counts: np.ndarray,
    next_pos: np.ndarray,
    sampling: np.ndarray,
    bias: np.ndarray,
    bits: np.ndarray,
    upload: np.ndarray,
) -> Drawn:
    """The arguments of sm90_draw.draw but for raw logits, as numpy has them; rows of slot 0 are undecided."""
    tokens, decided = np.zeros(len(upload), np.int64), np.zeros(len(upload), bool)
    for i, (slot, *bans) in enumerate(upload[:, DrawColumn.SLOT :].tolist()):
        if slot == 0:
            tokens[i] = last_token[0]
            continue
        row, position = SlotSampling(sampling[slot]), int(next_pos[slot])
        pairs = zip(bans[: len(bans) // 2], bans[len(bans) // 2 :], strict=True)
        banned = [token for token, after in pairs if after in (ANY, columns[slot, ControlColumn.LAST])]
        state = columns[slot], bias[slot], bits[slot], counts[slot]
        changed = controlled(logits[i].astype(np.float64), row.flags, position, *state, banned)
        tokens[i], decided[i] = token_of(changed, row, position)
    return Drawn(tokens, decided)


def controlled(
    logits: Floats,
    flags: ControlFlag,
    position: int,
    columns: np.ndarray,
    bias: np.ndarray,
    bits: np.ndarray,
    counts: np.ndarray,
    banned: list[int],
) -> Floats:
    """f64[V] after bias, what is forbidden, and penalties."""
    out, width = logits.copy(), len(logits)
    if flags & ControlFlag.BIAS:
        for token, value in zip(bias[0].tolist(), bias[1].view(np.float32).tolist(), strict=True):
            if token < width:
                out[token] += value
    allowed, ends = (np.unpackbits(words.view(np.uint8), bitorder="little")[:width].astype(bool) for words in bits)
    if flags & ControlFlag.ALLOWED:
        out[~allowed] = -np.inf
    if flags & ControlFlag.MIN_TOKENS and position < columns[ControlColumn.MIN_LENGTH]:
        out[ends] = -np.inf
    if flags & ControlFlag.BANNED:
        out[[token for token in banned if token < width]] = -np.inf
    if flags & ControlFlag.PENALTIES:
        numbers = columns.view(np.float32).astype(np.float64)
        used, repetition = (counts & MOST_COUNTED).astype(np.float64), numbers[ControlColumn.REPETITION]
        repeated = np.where(out > 0, out / repetition, out * repetition)
        penalty = numbers[ControlColumn.FREQUENCY] * used + numbers[ControlColumn.PRESENCE] * (used > 0)
        out = np.where(counts > 0, repeated, out) - penalty
    return out


def token_of(logits: Floats, row: SlotSampling, position: int) -> tuple[int, bool]:
    """The token drawn from logits f64[V], and whether it is decided."""
    largest, temperature = logits.max(), row.number(SamplingColumn.TEMPERATURE)
    if np.isnan(logits).any():
        return 0, False
    if temperature <= 0:
        return _first_of_largest(logits, np.abs(logits))
    if np.isinf(largest):  # nothing may be drawn, or no difference from the largest is a number
        return 0, False
    scaled = (logits - largest) / temperature
    # As large as what was rounded: a logit was, if a control changed it, and the distance is.
    size = np.maximum(np.abs(scaled), np.abs(logits) / temperature if row.flags else 0)
    values = scaled + gumbel_noise(row, position, len(logits))
    loose, exact, firm = kept(scaled, size, row)
    token, is_ahead = _first_of_largest(np.where(loose, values, -np.inf), size)
    return int(np.where(exact, values, -np.inf).argmax()), is_ahead and bool(firm[token])


def logprobs(raw: np.ndarray, token: int, top: int) -> tuple[tuple[int, NDArray[np.int64]], Floats]:
    """Of raw logits f32[V]: the token's rank and the ids of the `top` most likely, and the logprobs f64[1 + top] of
    them all. Where fewer are finite, ids are 0 and logprobs minus infinity."""
    logits = raw.astype(np.float64)
    order = np.argsort(-logits, kind="stable")[:top]
    is_there = np.isfinite(logits[order])
    ids = np.where(is_there, order, 0)
    total = logits.max() + np.log(np.exp(logits - logits.max()).sum())
    values = np.append(logits[token], np.where(is_there, logits[order], -np.inf)) - total
    return (1 + int((logits > logits[token]).sum()), ids), values


def probabilities(logits: Floats, row: SlotSampling) -> Floats:
    """f64[V]: of each token to be drawn, with a temperature above 0."""
    scaled = (logits - logits.max()) / row.number(SamplingColumn.TEMPERATURE)
    weights = np.where(kept(scaled, np.abs(scaled), row)[1], np.exp(scaled), 0)
    found: Floats = weights / weights.sum()
    return found


def _first_of_largest(values: Floats, size: Floats) -> tuple[int, bool]:
    """Where it is, and whether every other value that is not equal is well below."""
    token = int(values.argmax())
    others = np.isfinite(values) & (values != values[token])
    gaps = values[token] - values[others]
    return token, bool((gaps > tolerance(np.maximum(size[others], size[token]))).all())


def tolerance(size: Floats) -> Floats:
    """How far apart values have to be, that came from numbers of such sizes; noise is below 17."""
    return TOLERANCE * np.maximum(np.where(np.isfinite(size), size, 0), 4)


def kept(scaled: Floats, size: Floats, row: SlotSampling) -> tuple[Flags, Flags, Flags]:
    """bool[V] three times: what rounding may leave of scaled logits, what top-k, top-p and min-p leave, and what
    rounding does not take away."""
    near = tolerance(size)
    of_k, top_p = _kept_by_k(scaled, near, row.integer(SamplingColumn.TOP_K)), row.number(SamplingColumn.TOP_P)
    of_p = [_kept_by_p(scaled, near, left, top_p) for left in of_k]
    with np.errstate(divide="ignore"):
        end = np.log(row.number(SamplingColumn.MIN_P))
    # 1 leaves what equals the largest: the end is then exact
    slack = near if end < 0 else np.zeros_like(near)
    loose = functools.reduce(np.logical_or, [each[0] for each in of_p]) & (scaled >= end - slack)
    firm = functools.reduce(np.logical_and, [each[2] for each in of_p]) & (scaled >= end + slack)
    return loose, of_p[1][1] & (scaled >= end), firm


def _kept_by_k(scaled: Floats, near: Floats, top_k: int) -> tuple[Flags, Flags, Flags]:
    """The k largest and what equals the k-th."""
    everything = np.ones(len(scaled), bool)
    if top_k <= 0 or top_k >= len(scaled):
        return everything, everything, everything
    last = np.partition(scaled, -top_k)[-top_k]
    exact = scaled >= last
    doubtful = (np.abs(scaled - last) <= near) & (scaled != last) if np.isfinite(last) else ~everything
    if not doubtful.any():
        return exact, exact, exact
    return exact | doubtful, exact, exact & ~doubtful & (scaled != last)


def _kept_by_p(scaled: Floats, near: Floats, left: Flags, top_p: float) -> tuple[Flags, Flags, Flags]:
    """Of what is left, that than which less than top_p of the mass is nearer to the largest."""
    if top_p >= 1 or not left.any():  # rounding may take all of a firm top-k
        return left, left, left
    weights = np.where(left, np.exp(scaled), 0)
    order = np.argsort(-scaled, kind="stable")
    falling, before = -scaled[order], np.concatenate([[0], np.cumsum(weights[order])]) / weights.sum()
    nearer = before[np.searchsorted(falling, -scaled, side="left")]
    least = before[np.searchsorted(falling, -scaled - near, side="left")]
    equal = before[np.searchsorted(falling, -scaled, side="right")] - nearer
    most = before[np.searchsorted(falling, -scaled + near, side="right")] - equal
    certain = scaled == 0  # nothing is nearer than the largest
    loose = left & (least < top_p + TOLERANCE)
    return loose, left & (nearer < top_p), left & (certain | (most < top_p - TOLERANCE))


def gumbel_noise(row: SlotSampling, position: int, width: int) -> Floats:
    """f64[width] of the uniform float32 numbers that jax.random.gumbel starts from."""
    words = row.columns.view(np.uint32)
    key = words[SamplingColumn.SEED_HIGH], words[SamplingColumn.SEED_LOW]
    for data in (words[SamplingColumn.SAMPLE_INDEX], np.uint32(position), np.uint32(SAMPLING)):
        key = threefry2x32(key, np.zeros(1, np.uint32), np.full(1, data, np.uint32))
    first, second = threefry2x32(key, np.zeros(width, np.uint32), np.arange(width, dtype=np.uint32))
    mantissa = ((first ^ second) >> np.uint32(9)) | np.uint32(0x3F800000)
    uniform = np.maximum(mantissa.view(np.float32) - np.float32(1), np.finfo(np.float32).tiny).astype(np.float64)
    noise: Floats = -np.log(-np.log(uniform))
    return noise


def threefry2x32(
    key: tuple[np.ndarray, np.ndarray], first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Two words u32 for two words, in 20 rounds (Salmon et al., 2011)."""
    keys = [np.atleast_1d(word) for word in key]
    keys.append(keys[0] ^ keys[1] ^ np.uint32(0x1BD11BDA))
    first, second = first + keys[0], second + keys[1]
    for i in range(5):
        for rotation in ROTATIONS[i % 2]:
            first = first + second
            second = first ^ (second << np.uint32(rotation) | second >> np.uint32(32 - rotation))
        first, second = first + keys[(i + 1) % 3], second + keys[(i + 2) % 3] + np.uint32(i + 1)
    return first, second
