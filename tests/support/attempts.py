"""Laws about time on a machine that others use: what holds in one of three attempts holds.

A neighbour seldom spoils three in a row; what is really too slow is too slow in each of them.
"""

from collections.abc import Callable

ATTEMPTS = 3


def assert_below(bound: float, measure: Callable[[], float], law: str) -> None:
    """Measure until it is less than `bound`, three times at most."""
    found: list[float] = []
    while len(found) < ATTEMPTS:
        found.append(measure())
        if found[-1] < bound:
            return
    raise AssertionError(f"{law}: must be less than {bound:g}, measured {', '.join(f'{each:.3g}' for each in found)}")
