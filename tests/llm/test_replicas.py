"""Several engines behind one door: nothing given to them is lost, whichever of them end; known prompts go home."""

import asyncio
import os
import random
import signal
import threading
import time
from array import array
from functools import partial

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.engine.sequence import Abort, Acknowledge, Add, Forget, Keep, Output, Request
from jaxinfer.errors import ConfigError, DeviceError, EngineError, InvalidRequest, Overloaded
from jaxinfer.llm import replicas
from jaxinfer.llm.admission import check_room
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import MODULE
from jaxinfer.llm.events import Event, ignore
from jaxinfer.llm.process import EngineProcess
from jaxinfer.llm.replicas import AHEAD_TOKENS, MAX_FAILURES, Replicas
from jaxinfer.llm.transport import Handshake
from jaxinfer.llm.types import Stats
from jaxinfer.protocol.sampling import SamplingParams
from tests.engine.device import make_limits
from tests.llm.conftest import Served

LIMITS = make_limits(page_size=4, num_pages=65)
DEMO = EngineConfig(model="demo")


class Engine:
    """A transport that notes what it is given."""

    restartable = True
    limits = LIMITS
    is_failing = False

    def __init__(self, made, on_event):
        made.append(self)
        self.made = made
        self.tell, self.given, self.is_closed, self.heard = on_event, [], False, time.monotonic()

    def start(self, on_outputs, on_failure, *, whole=False, replica=0):
        self.put, self.fail, self.replica = on_outputs, on_failure, replica
        return Handshake(None, self.limits, "")

    def post(self, message):
        self.given.append(message)

    def stats(self):
        return Stats(steps=1, running=2, pages_total=10, is_failing=self.is_failing)

    def heard_s(self):
        return self.heard

    def close(self):
        self.is_closed = True

    @property
    def requests(self):
        return [message.request.id for message in self.given if isinstance(message, Add)]


def slow_from(number):
    """An engine whose starts, from this one on, wait for an event; the starts so far, and the event."""
    starts, goes = [], threading.Event()

    class Slow(Engine):
        def start(self, *given, **rest):
            starts.append(self)
            if len(starts) > number:
                goes.wait(10)
            return super().start(*given, **rest)

    return Slow, starts, goes


class Door:
    """Replicas over such engines. What is to be added again is, unless `holds`."""

    def __init__(self, count, engine=Engine, on_event=ignore):
        self.made, self.handed, self.failures = [], [], []
        self.replicas = Replicas(DEMO, on_event, lambda config, tell: engine(self.made, tell), count)
        self.handshake = self.replicas.start(ignore, self.resume, self.failures.append)

    def resume(self, lost, unplaced):
        self.handed.append((lost, unplaced))
        for request_id in [*lost, *unplaced]:
            self.add(request_id)

    def add(self, request_id, prompt=(1, 2, 3), **rest):
        self.replicas.post(Add(Request(request_id, array("I", prompt), rest.pop("max_tokens", 8), **rest)))

    def home(self, request_id):
        return max(i for i, engine in enumerate(self.made) if request_id in engine.requests)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(replicas, "PAUSE_S", 0.0)


@pytest.mark.parametrize("seed", range(100))
def test_whatever_ends_every_open_request_is_in_one_engine_that_runs(seed):
    rng = random.Random(seed)
    door = Door(rng.randint(1, 4))
    alive, open_requests = list(door.made), {}
    for i in range(60):
        match rng.choice(["add", "add", "end", "kill", "output"]):
            case "add":
                door.add(f"r{i}", [rng.randrange(3)] * rng.randint(1, 20))
                open_requests[f"r{i}"] = True
            case "end" if open_requests:
                made = rng.choice(list(open_requests))
                door.replicas.ended(made)
                del open_requests[made]
            case "output":
                rng.choice(alive).put([Output("x", 0, [1])])
            case "kill":
                victim = rng.choice(alive)
                victim.put([Output("x", 0, [1])])
                victim.fail(EngineError("it ended"))
                alive[alive.index(victim)] = door.made[-1]
        at = {one.index: one.num_requests for one in door.replicas.each()}
        assert sum(at.values()) == len(open_requests)
        for made in open_requests:
            door.replicas.post(Abort(made))
            assert [made in [m.request_id for m in engine.given if isinstance(m, Abort)] for engine in alive].count(
                True
            ) == 1
        for engine in alive:
            engine.given = [message for message in engine.given if isinstance(message, Add)]
    assert door.failures == [] and all(engine.is_closed is False for engine in alive)


@pytest.mark.parametrize("count", [1, 3])
def test_what_comes_while_engines_end_and_start_is_in_one_that_runs(count):
    class Yields(Engine):
        def start(self, *given, **rest):
            time.sleep(0.0005)
            return super().start(*given, **rest)

        def stats(self):
            time.sleep(0.0005)
            return super().stats()

    door, ended = Door(count, Yields), threading.Event()

    def end_one_after_another():
        rng = random.Random(0)
        while not ended.is_set():
            victim = rng.choice(door.replicas.transports)
            victim.put([Output("x", 0, [1])])
            victim.fail(EngineError("it ended"))

    ending = threading.Thread(target=end_one_after_another)
    ending.start()
    for i in range(300):
        door.add(f"r{i}")
        time.sleep(0.0002)
    ended.set()
    ending.join()
    running = [set(engine.requests) for engine in door.replicas.transports]
    assert set.union(*running) >= {f"r{i}" for i in range(300)}
    assert sum(one.num_requests for one in door.replicas.each()) == 300 and door.failures == []


def test_what_knows_a_prompt_gets_what_begins_like_it():
    door = Door(3)
    prompts = [[i] * 40 for i in range(6)]
    for i, prompt in enumerate(prompts):
        door.add(f"first{i}", prompt)
    assert sorted(len(engine.requests) for engine in door.made) == [2, 2, 2]
    for i, prompt in enumerate(prompts):
        door.add(f"second{i}", [*prompt, 7, 8, 9, 10])
        assert door.home(f"second{i}") == door.home(f"first{i}")
        door.add(f"other salt{i}", prompt, salt="s")
    assert max(len(engine.requests) for engine in door.made) <= 8


def test_a_known_prompt_goes_elsewhere_where_its_home_has_much_more_to_do():
    door = Door(2)
    door.add("a", [1] * 48, max_tokens=1000)
    home, count = door.home("a"), 0
    while door.home("a" if not count else f"b{count}") == home:
        count += 1
        door.add(f"b{count}", [1] * 40, max_tokens=1000)
    assert AHEAD_TOKENS // 1000 <= count <= AHEAD_TOKENS // 1000 + 2
    door.add("c", [1] * 48, session=True)
    assert door.home("c") == home, "a session's pages are kept there"


def test_a_replica_whose_steps_fail_gets_nothing_new_while_another_is_well():
    door = Door(2)
    door.made[0].is_failing = True
    for i in range(20):
        door.add(f"r{i}", [i] * 9, session=i % 2 == 0)
        if door.home(f"r{i}") == 0:
            door.replicas.ended(f"r{i}")
    assert len(door.made[1].requests) == 20
    door.made[1].is_failing = True
    door.add("last")
    assert "last" in door.made[0].requests, "the least loaded of those that fail"


def test_messages_of_a_session_go_where_its_pages_are():
    door = Door(2)
    for name, salt in (("s1", "a"), ("s2", "b")):
        door.add(name, [1] * 40, salt=salt, session=True)
        door.replicas.post(Keep(name, salt, tuple([1] * 40)))
    homes = [door.made[door.home(name)] for name in ("s1", "s2")]
    assert homes[0] is not homes[1]
    assert [[m.session for m in engine.given if isinstance(m, Keep)] for engine in homes] == [["s1"], ["s2"]]
    door.replicas.post(Forget("s1"))
    door.replicas.post(Forget("never kept"))
    assert homes[0].given[-1] == Forget("s1") and not any(isinstance(m, Forget) for m in homes[1].given)


def test_what_texts_have_seen_is_told_to_the_engine_of_each():
    door = Door(2)
    for i in range(4):
        door.add(f"r{i}", [i] * 9)
    door.replicas.post(Acknowledge([(f"r{i}", 0, i) for i in range(4)]))
    seen = [message.seen for engine in door.made for message in engine.given if isinstance(message, Acknowledge)]
    assert len(seen) == 2 and sorted(sum(seen, [])) == [(f"r{i}", 0, i) for i in range(4)]
    assert all({name for name, _, _ in part} <= set(e.requests) for part, e in zip(seen, door.made, strict=True))


def test_one_that_ends_again_and_again_is_given_up_and_the_others_go_on(caplog):
    door = Door(2)
    door.add("r")
    for _ in range(MAX_FAILURES):
        assert door.failures == []
        next(engine for engine in reversed(door.made) if engine.replica == 1).fail(EngineError("it ended"))
    assert (door.replicas.num_usable, door.failures) == (1, []) and "replica 1 has failed for good" in caplog.text
    door.add("s")
    assert [one.num_requests for one in door.replicas.each()] == [2, 0]
    for _ in range(MAX_FAILURES):
        next(engine for engine in reversed(door.made) if engine.replica == 0).fail(EngineError("so did it"))
    assert [str(error) for error in door.failures] == ["so did it"]


def test_an_engine_that_ends_as_soon_as_it_has_started_takes_no_request():
    """Its end is heard of before its start has returned."""

    class EndsEarly(Engine):
        def start(self, *given, **rest):
            handshake = super().start(*given, **rest)
            if self.made.index(self) == 1:
                ending = threading.Thread(target=self.fail, args=(EngineError("at once"),))
                ending.start()
                ending.join()
            return handshake

    door = Door(1, EndsEarly)
    door.add("r")
    door.made[0].fail(EngineError("it ended"))
    door.add("s")
    assert len(door.made) == 3 and door.made[1].requests == []
    assert sorted(door.made[2].requests) == ["r", "s"]


def test_the_others_are_ready_without_one_that_is_given_up():
    told = []
    door = Door(2, on_event=lambda event: told.append(event.kind))
    door.made[0].tell(Event("ready"))
    assert told == ["wait"]
    for _ in range(MAX_FAILURES):
        next(engine for engine in reversed(door.made) if engine.replica == 1).fail(EngineError("it ended"))
    assert told == ["wait", "ready"]


def test_lost_requests_are_handed_back_as_far_as_slots_hold_their_choices():
    door = Door(2)
    slots, held = LIMITS.max_num_seqs, []
    door.replicas._resume = lambda lost, unplaced: held.extend(lost)  # which adds them later
    for i in range(slots):
        door.add(f"full{i}", [i] * 9)
        door.add(f"ill{i}", [i + 50] * 9)
    full, ill = sorted(door.made, key=lambda engine: "full0" not in engine.requests)
    for replica in door.replicas._replicas:
        replica.num_choices = len(replica.requests)
    with door.replicas._lock:
        one = next(replica for replica in door.replicas._replicas if replica.transport is ill)
        one.is_running = False
        door.replicas._lost = dict.fromkeys(one.requests, 1)
    door.replicas._hand_back()
    ended = full.requests[:3]
    for i, request_id in enumerate(ended, 1):
        door.replicas.ended(request_id)
        assert len(held) == i


def test_a_trace_is_begun_and_ended_in_all_that_run_though_one_fails():
    class Traces(Engine):
        def profile(self, folder):
            asked.append((self.replica, folder))
            if self.replica == 0:
                raise EngineError("no trace")

    asked = []
    door = Door(2, Traces)
    with pytest.raises(EngineError, match="no trace"):
        door.replicas.profile("f")
    assert asked == [(0, "f/0"), (1, "f/1")]


def test_what_comes_while_none_runs_waits_for_the_first():
    slow, starts, goes = slow_from(1)
    door = Door(1, slow)
    door.add("lost")
    ending = threading.Thread(target=door.made[0].fail, args=(EngineError("it ended"),))
    ending.start()
    while len(starts) < 2:
        time.sleep(0.001)
    door.made[-1].heard = time.monotonic() - 7
    door.add("unplaced")
    assert door.replicas.stalled_s() < 1, "it had no work before this"
    door.add("gone")
    door.replicas.ended("gone")
    goes.set()
    ending.join()
    assert door.handed == [(["lost"], ["unplaced"])] and door.made[1].requests == ["lost", "unplaced"]
    door.replicas.close()
    assert door.made[1].is_closed


def test_what_finds_no_free_slot_waits_for_the_engine_that_starts_again():
    slow, starts, goes = slow_from(2)
    door = Door(2, slow)
    slots = LIMITS.max_num_seqs
    for i in range(2 * slots):
        door.add(f"r{i}", [i] * 9)
    full, ill = door.made
    lost = list(ill.requests)
    assert len(lost) == len(full.requests) == slots
    ending = threading.Thread(target=ill.fail, args=(EngineError("it ended"),))
    ending.start()
    while len(starts) < 3:
        time.sleep(0.001)
    assert door.handed == []
    door.replicas.ended(full.requests[0])
    assert door.handed == [([lost[0]], [])] and full.requests[-1] == lost[0]
    door.replicas.ended(lost[1])
    goes.set()
    ending.join()
    assert door.made[-1].requests == lost[2:]


def test_a_replica_with_work_that_is_not_heard_of_has_stalled_whatever_the_others_do():
    door = Door(2)
    door.made[1].heard -= 20
    assert door.replicas.stalled_s() < 1
    door.add("a")
    door.add("b")
    for replica in door.replicas._replicas:
        replica.busy_since_s -= 10
    assert door.replicas.stalled_s() > 9
    door.replicas.ended("b")
    door.replicas.ended("a")
    assert door.replicas.stalled_s() < 1


def test_counters_are_those_of_all_and_of_their_engines_before():
    door = Door(3)
    door.made[1].fail(EngineError("it ended"))
    stats = door.replicas.stats()
    assert (stats.steps, stats.restarts, stats.running, stats.pages_total) == (4, 1, 6, 30)
    door.made[0].is_failing = True
    assert not door.replicas.stats().is_failing, "two do not"


def test_replicas_that_are_not_alike_are_refused_and_closed():
    made = []

    class Other(Engine):
        @property
        def limits(self):
            return make_limits(page_size=4, max_num_seqs=4 + self.replica)

    door = Replicas(DEMO, ignore, lambda config, tell: Other(made, tell), 2)
    with pytest.raises(ConfigError, match="same max_num_seqs, they have 4 and 5; set it .--max-num-seqs"):
        door.start(ignore, ignore, ignore)
    assert [engine.is_closed for engine in made] == [True, True]


def test_one_that_cannot_start_ends_the_others_and_says_why():
    made = []

    class Ill(Engine):
        def start(self, *given, replica=0, **rest):
            if replica == 1:
                raise DeviceError("no GPU")
            return super().start(*given, replica=replica, **rest)

    with pytest.raises(DeviceError, match="no GPU"):
        Replicas(DEMO, ignore, lambda config, tell: Ill(made, tell), 3).start(ignore, ignore, ignore)
    assert [engine.is_closed for engine in made] == [True] * 3


def test_a_transport_that_cannot_be_made_is_why_the_start_fails():
    def broken(config, on_event):
        raise OSError("no socket")

    async def start():
        llm = AsyncLLM(DEMO, new_transport=broken)
        with pytest.raises(OSError, match="no socket"):
            await llm.start()
        await llm.close()
        return llm.status

    assert asyncio.run(start()) == "failed"


def test_progress_is_told_once_and_that_they_serve_when_all_do():
    told = []
    door = Door(2, on_event=lambda event: told.append((event.kind, event.done)))
    for engine in door.made:
        for event in (Event("load", done=1), Event("serving"), Event("ready")):
            engine.tell(event)
    assert told == [("load", 1), ("wait", 1), ("serving", 0), ("ready", 0)]


def test_there_is_room_in_all_of_them_but_a_request_is_in_one():
    limits = make_limits(max_num_seqs=2, max_num_queued_seqs=3)
    check_room(limits, 4, 5, 2)
    with pytest.raises(Overloaded, match="at most 6 sequences may wait .* room for 4"):
        check_room(limits, 6, 5, 2)
    with pytest.raises(InvalidRequest, match="at most 5 choices"):
        check_room(limits, 0, 6, 2)


def test_a_replica_that_is_killed_costs_no_stream_a_token():
    process = partial(EngineProcess, child=(MODULE, "0.005"))
    served = Served(AsyncLLM(DEMO, new_transport=process, num_replicas=2))
    params = SamplingParams(max_tokens=300, ignore_eos=True, temperature=1, seed=1)

    async def run(llm):
        streams = [await llm.generate([5, 6, i], params, request_id="r") for i in range(16)]
        firsts = [await anext(stream) for stream in streams]
        requests = [one.num_requests for one in llm.replicas.each()]
        os.kill(llm.replicas.transports[0].pid, signal.SIGKILL)
        return requests, [
            [first, *[delta async for delta in stream]] for first, stream in zip(firsts, streams, strict=True)
        ]

    requests, answers = served.run(run)
    assert min(requests) > 0
    assert [sum(len(delta.token_ids) for delta in answer) for answer in answers] == [300] * 16
    assert {answer[-1].finish_reason for answer in answers} == {"length"}
    served.close()
