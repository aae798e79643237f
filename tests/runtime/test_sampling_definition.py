"""The samplers that run everywhere against the definition in float64."""

import jax
import numpy as np
import pytest

from jaxinfer.runtime.sampler import draw
from tests.kernels.sampling.draws import Draws, listed_ways, random_ways, xla_draw


def test_300_random_mixes_are_drawn_as_the_definition_says() -> None:
    draws = Draws(random_ways(300, 512, seed=1), 512)
    assert draws.check(*xla_draw(draws)) > 240  # the others: padding, NaN, what rounding decides


@pytest.mark.parametrize("width", [544])
def test_each_parameter_and_each_control_is_the_definitions(width: int) -> None:
    draws = Draws(listed_ways(width), width)
    draws.check(*xla_draw(draws))


def test_random_mixes_without_controls_are_drawn_as_the_definition_says() -> None:
    draws = Draws([way for way in random_ways(900, 512, seed=2) if not way.flags and not way.padding], 512, seed=3)
    logits, _, _, _, next_pos, sampling, *_ = draws.numpy()
    tokens = np.asarray(jax.jit(draw)(logits, sampling[draws.slots], next_pos[draws.slots]))
    expected = draws.expected()
    np.testing.assert_array_equal(tokens[expected.decided], expected.tokens[expected.decided])
    assert len(tokens) > 200 and expected.decided.mean() > 0.8
