"""The state that a server comes back to when nobody asks it, which every check of the acceptance list ends in.

Seen from outside, so that any server can be looked at: its metrics, what Linux says of its processes, and an answer.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tests.server.http import COMPLETIONS
from tests.support.attempts import Stopwatch
from tests.support.processes import family, footprint

WITHIN_S = 2.0  # of the last answer
CANARY = {"prompt": "7 plus 5 is", "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 0}
IDLE = {
    "requests running": 0.0,
    "requests waiting": 0.0,
    "requests being answered": 0.0,
    "pages owned": 0.0,
    "pages missing": 0.0,
}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a server is asked, and its process. headers: what each request needs, its key say."""

    base: str
    pid: int
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def client(self) -> httpx2.Client:
        """One that must be closed before the server can be at rest. It loads no certificates, which takes longer than
        all else here.
        """
        return httpx2.Client(base_url=self.base, headers=self.headers, timeout=60, verify=False)


@dataclasses.dataclass(frozen=True)
class State:
    """busy: what must be 0.    counted: what must not change.    processes: files and threads of each, by its id."""

    busy: dict[str, float]
    counted: dict[str, float]
    processes: dict[int, tuple[int, int]]


def _metrics(page: str) -> dict[str, float]:
    """By name and state, of the metrics that have at most that label beside the model's name."""
    found = {}
    for metric in text_string_to_metric_families(page):
        for sample in metric.samples:
            if sample.labels.keys() <= {"model_name", "state"}:
                found[f"{sample.name} {sample.labels.get('state', '')}".rstrip()] = sample.value
    return found


def look(place: Place) -> State:
    with place.client() as client:
        found = _metrics(client.get("/metrics").raise_for_status().text)
        answered = client.get("/load").raise_for_status().json()["server_load"]
    pages = {state: found[f"jaxinfer:kv_pages {state}"] for state in ("free", "cached", "owned")}
    busy = [found["jaxinfer:requests running"], found["jaxinfer:requests waiting"], answered, pages["owned"]]
    busy.append(found["jaxinfer:kv_pages_total"] - sum(pages.values()))
    names = ("compilations_after_ready", "engine_restarts")
    counted = {name: found[f"jaxinfer:{name}_total"] for name in names}
    processes = {}
    for pid in family(place.pid):
        with contextlib.suppress(OSError):  # it has just ended
            held = footprint(pid)
            processes[pid] = held.files, held.threads
    return State(dict(zip(IDLE, busy, strict=True)), counted, processes)


def canary(place: Place) -> list[str]:
    """The tokens of a greedy answer. What logprobs say may differ in its last bit once the prompt is cached."""
    with place.client() as client:
        answer = client.post(COMPLETIONS, json=CANARY).raise_for_status().json()
    tokens: list[str] = answer["choices"][0]["logprobs"]["tokens"]
    assert len(tokens) == CANARY["max_tokens"]
    return tokens


def unrest(before: State, now: State, *, engine_may_restart: bool = False, trial_may: bool = False) -> list[str]:
    """What is not as it was, in words."""
    wrong = [f"{name}: {value:g}" for name, value in now.busy.items() if value != IDLE[name]]
    known, there = before.processes.keys(), now.processes.keys()
    if not engine_may_restart:
        wrong += [f"{n}: {v:g}, was {before.counted[n]:g}" for n, v in now.counted.items() if v != before.counted[n]]
    if engine_may_restart or trial_may:
        wrong += [f"{len(there)} processes, there were {len(known)}"] * (len(there) != len(known))
    else:
        wrong += [f"process {pid} is new or gone" for pid in known ^ there]
    for pid in known & there:
        # Fewer is rest too: a pool's worker ends when it was idle for long. One that is missed fails the canary.
        for what, was, count in zip(("files", "threads"), before.processes[pid], now.processes[pid], strict=True):
            wrong += [f"{what} of process {pid}: {count}, were {was}"] * (count - was > 2)
    return wrong


@contextlib.contextmanager
def ends_at_rest(place: Place, *, engine_may_restart: bool = False, trial_may: bool = False) -> Iterator[None]:
    """Whatever happens in here, the server is soon as it was before and says what it said.

    engine_may_restart: a new engine process in the old one's place is what was to happen.    trial_may: of the process
    that tries grammars the same.
    """
    said, before = canary(place), look(place)
    yield
    watch = Stopwatch()
    while wrong := unrest(before, look(place), engine_may_restart=engine_may_restart, trial_may=trial_may):
        assert watch.seconds() < WITHIN_S, f"it is not at rest: {'; '.join(wrong)}"
        time.sleep(0.05)
    assert canary(place) == said
