"""Laws about time on a machine that others use: what holds in one of three attempts holds, a stopwatch that stands
while processes wait for a processor, and seconds of a processor as those of one that is as fast as ours was.

A neighbour seldom spoils three in a row; what is really too slow is too slow in each of them.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path

ATTEMPTS = 3
PRESSURE = Path("/proc/pressure/cpu")
MOST_SLOWED = 4
"""How many times longer than on a quiet machine anything may take on a busy one."""
PACE_STEPS = 100_000
PACE_S = 0.008
"""Processor seconds in which the machine that the laws were made for takes so many steps of a loop."""


class Stopwatch:
    """Seconds since it was made, less those in which any process of this machine was ready to run and had no processor.

    At least a quarter of all seconds count, so that a hang is seen however busy the machine is. Where Linux does not
    count the pressure, all of them do.
    """

    def __init__(self) -> None:
        self._began_s, self._pressure_s = time.monotonic(), _pressure_s()

    def seconds(self) -> float:
        whole_s, waited_s = time.monotonic() - self._began_s, _pressure_s() - self._pressure_s
        return max(whole_s - waited_s, whole_s / MOST_SLOWED)


def _pressure_s() -> float:
    """Seconds since the machine began in which some process waited for a processor."""
    try:
        counted = PRESSURE.read_text()
    except OSError:  # this Linux does not count, or not for us
        return 0.0
    found = re.search(r"^some .*total=(\d+)", counted)
    assert found is not None, counted
    return int(found[1]) / 1e6


def processor_s(call: Callable[[], object], clock: Callable[[], float] = time.thread_time) -> float:
    """Seconds of the processor that a call takes, fewer than counted on a machine slower than the laws were made for.

    How fast the machine is, is measured before and after the call: another on the same core takes half of it.
    What the call does in other threads counts by `time.process_time`, as does all else that they do.
    """
    before = slowness()
    began_s = clock()
    call()
    took_s = clock() - began_s
    return took_s / ((before + slowness()) / 2)


def slowness() -> float:
    """How many times longer Python takes than on the machine that the laws were made for; 1 where it takes less."""
    began_s = time.thread_time()
    found = 0
    for step in range(PACE_STEPS):
        found += step * step % 7
    return min(max(1.0, (time.thread_time() - began_s) / PACE_S), MOST_SLOWED)


def assert_below(bound: float, measure: Callable[[], float], law: str) -> None:
    """Measure until it is less than `bound`, three times at most."""
    found: list[float] = []
    while len(found) < ATTEMPTS:
        found.append(measure())
        if found[-1] < bound:
            return
    raise AssertionError(f"{law}: must be less than {bound:g}, measured {', '.join(f'{each:.3g}' for each in found)}")
