"""The kernel that draws tokens: interpreted against its definition in float64 and XLA's sampler, lowered, on a GPU."""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer_kernels.sampling import reference
from jaxinfer_kernels.sampling.cases import INTERPRETED, ROWS, VOCABULARIES
from jaxinfer_kernels.sampling.columns import ControlColumn, DrawColumn, DrawnColumn, SamplingColumn
from jaxinfer_kernels.sampling.sm90_draw import draw
from jaxinfer_kernels.sampling.sm90_logprobs import MOST
from jaxinfer_kernels.sampling.sm90_row import splits_of, supported
from tests.kernels.sampling.draws import BROKEN, MAX_BANNED, MAX_BIAS, Draws, Way, listed_ways, random_ways, xla_draw

INTERPRET = plgpu.InterpretGPUParams()
WIDTHS = sorted({vocabulary.width for vocabulary in VOCABULARIES})
SMALLEST = INTERPRETED[0]
TOP = 20  # of the most likely tokens
NUM_MIXES = 64  # of each vocabulary and number of rows, on a GPU
SPLIT = [(width, splits) for width in INTERPRETED for splits in (1, 2) if splits > 1 or width % SMALLEST == 0]
LOWERED = [  # 2 s each: rows are the kernel's grid, so the fewest and the most; quick are those of fewest and most CTAs
    (width, rows)
    if (width, rows) in ((32_000, 1), (262_144, 256))
    else pytest.param(width, rows, marks=pytest.mark.slow)
    for width in WIDTHS
    for rows in (min(ROWS), max(ROWS))
]
EDGES = (  # of top-p: near its ends, and of what others leave
    Way(1.0, top_p=0.1),
    Way(1.0, top_p=0.95),
    Way(1.3, top_p=0.999),
    Way(0.7, top_p=0.8, top_k=20),
    Way(1.0, top_p=0.9, min_p=0.05),
)


def run(draws: Draws, **settings: object) -> list[np.ndarray]:
    """What was drawn, last_token, columns and counts."""
    return [np.asarray(each) for each in jax.block_until_ready(draw(*draws.jax(), **dict(top=TOP) | settings))]


def check(draws: Draws, **settings: object) -> None:
    found = run(draws, **settings)
    decided = draws.check(*found)
    clear = sum(not way.padding and way.kind not in BROKEN for way in draws.ways)
    assert decided >= 0.9 * clear  # or too little would be held


def test_two_ctas_of_a_row_that_overlap_draw_as_the_definition_says():
    check(Draws(random_ways(12, INTERPRETED[1], seed=5), INTERPRETED[1]), splits=2, interpret=INTERPRET)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "splits"), SPLIT)
def test_random_mixes_are_drawn_as_the_definition_and_xla_draw_them(width, splits):
    draws = Draws(random_ways(90 // len(SPLIT), width, seed=splits), width, seed=width)
    found = run(draws, splits=splits, interpret=INTERPRET)
    draws.check(*found)
    same = np.array([not way.padding and way.kind not in BROKEN for way in draws.ways])
    np.testing.assert_array_equal(found[0][same, DrawnColumn.TOKEN], xla_draw(draws)[0][same, 0])


@pytest.mark.slow
@pytest.mark.parametrize(("width", "splits"), [(SMALLEST, 1), (INTERPRETED[1], 2)])
def test_rows_race_with_nothing(width, splits):
    ways = [
        Way(0.9, top_k=5, top_p=0.5, min_p=0.01, penalties=(1.0, 0.5, 1.2), bias=((3, 1.0),), ends=(5,), banned=(7,)),
        Way(0.9),
    ]
    check(Draws(ways, width), splits=splits, interpret=plgpu.InterpretGPUParams(detect_races=True))


def with_broken(ways: list[Way]) -> list[Way]:
    """Rows without a number to draw by, in each way, between these."""
    bounds: list[dict[str, Any]] = [dict(top_k=5), dict(top_p=0.9), dict(top_k=5, top_p=0.9), dict(min_p=0.1)]
    ways_of_kind = [Way(), Way(1.0), *(Way(1.0, **more) for more in bounds)]
    broken = [dataclasses.replace(way, kind=kind) for kind in BROKEN for way in ways_of_kind]
    return [*ways[:2], *broken, *ways[2:]]


def test_draws_each_parameter_and_each_control_as_the_definition_says_beside_rows_without_a_number_to_draw_by():
    """One program draws all: to compile it takes longer than to interpret so many rows."""
    bounds: dict[str, Any] = dict(top_k=5, top_p=0.9)
    ways = [Way(1.0, seed=2, **bounds), Way(), Way(1.0, seed=3), Way(1.0, allowed=(), **bounds)]
    check(Draws(with_broken([*ways, *listed_ways(SMALLEST)]), SMALLEST, seed=1), splits=1, interpret=INTERPRET)


@pytest.mark.slow
def test_rows_without_a_number_to_draw_by_end_on_two_ctas():
    check(Draws(with_broken([Way(1.0, top_p=0.9), Way(1.0)]), INTERPRETED[2]), splits=2, interpret=INTERPRET)


def check_statistics(way: Way, width: int, rows: int, calls: int, **settings: object) -> None:
    """rows * calls draws from one row of logits, by chi-square."""
    draws, found = Draws([Way(**vars(way) | dict(seed=i)) for i in range(rows)], width), np.zeros(width, np.int64)
    draws.logits[:], draws.last_token[draws.slots] = draws.logits[0], draws.logits[0].argmax()
    for _ in range(calls):
        found += np.bincount(run(draws, top=0, **settings)[0][:, DrawnColumn.TOKEN], minlength=width)
        draws.next_pos += len(draws.next_pos)
    row = reference.SlotSampling(draws.sampling[draws.slots[0]])
    expected = reference.probabilities(draws.logits[0].astype(np.float64), row) * rows * calls
    assert not found[expected == 0].any()
    likely = expected >= 5
    observed, wanted = (np.append(each[likely], each[~likely].sum()) for each in (found, expected))
    distance, cells = np.sum((observed - wanted) ** 2 / np.maximum(wanted, 1e-9)), int(likely.sum())
    assert distance < cells + 5 * (2 * max(cells, 1)) ** 0.5 + 5  # five standard deviations of chi-square


@pytest.mark.slow
@pytest.mark.parametrize("way", EDGES, ids=str)
def test_draws_at_the_edges_of_top_p_have_the_definitions_probabilities(way):
    check_statistics(way, SMALLEST, rows=50, calls=4, splits=1, interpret=INTERPRET)


def test_says_what_it_can_run():
    assert all(supported(width) for width in WIDTHS)
    assert all(splits_of(width) > 1 for width in WIDTHS)
    assert [splits_of(width) for width in INTERPRETED] == [1, 2, 2, 1]  # one CTA holds whole tiles only
    assert not supported(SMALLEST - 32)
    assert not supported(SMALLEST + 1)
    draws = Draws([Way()] * 2, SMALLEST)
    logits, *rest = draws.jax()
    for given, top in ((logits[:1], 0), (logits[:, :-32], 0), (logits[:, :-1], 0), (logits, MOST + 1)):
        with pytest.raises(ValueError, match="drawing needs logits .*, got .*, 2 rows and .* logprobs; leave them to"):
            draw(given, *rest, top=top)


@pytest.mark.parametrize(("width", "rows"), LOWERED)
def test_lowers_for_hopper_and_updates_in_place(width, rows):
    """Logits go into the kernel whole: no slice of them is copied."""
    slots, integer = max(ROWS) + 1, functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    logits = jax.ShapeDtypeStruct((max(ROWS), width), jnp.float32)
    counts, bits = (
        jax.ShapeDtypeStruct((slots, width), jnp.uint16),
        jax.ShapeDtypeStruct((slots, 2, width // 32), jnp.uint32),
    )
    sampling, columns = integer((slots, len(SamplingColumn))), integer((slots, len(ControlColumn)))
    rest = integer((slots, 2, MAX_BIAS)), bits, integer((rows, len(DrawColumn) + 2 * MAX_BANNED))
    function = jax.jit(functools.partial(draw, top=TOP), donate_argnums=(2, 3, 4))
    traced = function.trace(logits, logits, integer((slots,)), columns, counts, integer((slots,)), sampling, *rest)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 1
    assert text.count("tf.aliasing_output") + text.count("jax.buffer_donor") == 3
    assert not re.findall("stablehlo.(?:slice|dynamic_slice|gather|dynamic_update_slice|scatter)", text)


def test_noise_is_jaxs():
    draws = Draws([Way(1.0, seed=2**63 + 9, sample_index=3)], SMALLEST)
    row = reference.SlotSampling(draws.sampling[draws.slots[0]])
    key = jax.random.wrap_key_data(jnp.asarray([2**31, 9], jnp.uint32), impl="threefry2x32")
    for data in (3, 77, 0):  # sample index, position, purpose
        key = jax.random.fold_in(key, data)
    noise = jax.random.gumbel(key, (SMALLEST,), jnp.float32)
    np.testing.assert_allclose(reference.gumbel_noise(row, 77, SMALLEST), noise, rtol=1e-6, atol=1e-6)  # of logarithms


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
def test_is_its_definition_on_a_gpu(width, rows):
    ways = [*listed_ways(width), *with_broken([]), *random_ways(NUM_MIXES, width, seed=rows)]
    if rows < max(ROWS):  # the reference takes a second for some ten rows of 262,144
        ways = ways[-NUM_MIXES // 4 :]
    for first in range(0, len(ways), rows):
        draws = Draws(ways[first : first + rows], width, seed=first)
        draws.check(*run(draws))


@pytest.mark.gpu
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("way", EDGES, ids=str)
def test_100_000_draws_at_the_edges_of_top_p_have_the_definitions_probabilities_on_a_gpu(way, width):
    check_statistics(way, width, rows=200, calls=500)
