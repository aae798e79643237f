"""A pytest plugin for `make soak-laws`: random seeds for tests that take one, a hundred times as many examples.

A failing seed is in the test's name; put it into the test to see it again.
"""

import random

import hypothesis
import pytest

SEEDS_PER_TEST = 100

hypothesis.settings.register_profile("soak", max_examples=10_000, deadline=None)


def with_random_seeds(mark: pytest.Mark) -> pytest.Mark:
    """The same parametrization, with other values if its one parameter is called seed."""
    if mark.name != "parametrize" or mark.args[0] != "seed":
        return mark
    seeds = [random.SystemRandom().getrandbits(32) for _ in range(SEEDS_PER_TEST)]
    return pytest.Mark("parametrize", ("seed", seeds), dict(mark.kwargs), _ispytest=True)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.definition.own_markers[:] = [with_random_seeds(mark) for mark in metafunc.definition.own_markers]
