"""Random workloads against the laws: every invariant after every step, every answer equal to its request running alone.

Each seed draws an engine (page size, pool, slots, budget, switches) and then, step by step, new requests, embeddings
among them, shared prefixes, conversations that go on, sessions that keep pages and let them go, aborts, stop strings
found late, token ids that break the numbers or the steps they are in, steps that fail, rows that are not finite,
engines that die. Pools are small enough that preemption is the rule.
"""

import dataclasses
import functools
import random

import numpy as np
import pytest

from jaxinfer.cache import pool, prefix
from jaxinfer.cache.manager import CacheManager, SequenceCache
from jaxinfer.cache.pool import PagePool
from jaxinfer.cache.prefix import PageKey
from jaxinfer.config import Limits
from jaxinfer.engine import budget, scheduler, sequence
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.isolation import Isolation
from jaxinfer.engine.scheduler import Scheduler
from jaxinfer.engine.sequence import Forget, Keep, Request, Sequence, State, Structure
from jaxinfer.engine.validate import validate_request
from jaxinfer.errors import InvalidRequest
from jaxinfer.runtime.plan import Controls, Sampler
from jaxinfer.testing.faults import Fault, Faults
from tests.engine.client import Answer, Client
from tests.engine.device import BAD, CURSED, VOCAB, WEIGHTS, make_limits, value_of

pytestmark = pytest.mark.usefixtures("forward_always")
STEPS_PER_SEED, QUICK_SEEDS = 600, 13  # 7,800 steps, beside those of test_hybrid_law


class Workload:
    """One seed's engine and the requests that come to it."""

    def __init__(self, seed: int, **fixed) -> None:
        self.rng = rng = random.Random(seed)
        size = rng.choice((1, 2, 4, 8))
        slots = rng.randint(1, 10)
        chunked = rng.random() < 0.8
        contiguous = rng.random() < 0.15 and not fixed.get("enable_prefix_caching")
        longest = -(-72 // size)
        changes = {
            "page_size": size,
            "max_model_len": 72,
            "num_pages": longest * (rng.randint(1, 5) if contiguous else 1) + rng.randint(1, 12),
            "max_num_seqs": slots,
            "max_num_batched_tokens": max(slots, rng.choice((6, 12, 40, 100) if chunked else (60, 100))),
            "enable_prefix_caching": rng.random() < 0.85 and not contiguous,
            "enable_chunked_prefill": chunked,
            "scheduling": "static" if rng.random() < 0.15 else "continuous",
            "kv_layout": "contiguous" if contiguous else "paged",
            "run_ahead": 1,
            "max_session_pages": rng.choice((None, 3, 1000)),
            "num_host_pages": rng.choice((0, 5, 1000)),
        }
        cursed = Fault(rng.choice(("run", "wait", "exhausted")), times=None, token=CURSED)
        self.client = self._client(make_limits(**changes | fixed), Faults(cursed))
        self.prefixes = [self._tokens(rng.randint(1, 30)) for _ in range(4)]
        self.past: list[list[int]] = list(self.prefixes)
        self.attention = rng.choice((0.5, 0.05))  # how likely a text state reads what has come, in each step
        self.quiet_until = 0
        self.num_added = 0
        self.num_refused = 0
        self.num_kept = 0

    def _client(self, limits: Limits, faults: Faults) -> Client:
        return Client(limits, faults)

    def run(self, num_steps: int) -> None:
        rng, client = self.rng, self.client
        for step in range(num_steps):
            if len(self.unfinished()) < 14 and rng.random() < 0.5:
                self._add()
            if rng.random() < 0.04 and (running := self.unfinished()):
                client.abort(rng.choice(running).request.id)
            if rng.random() < 0.02:
                self._add_fault()
            if rng.random() < 0.003:
                client.restart()
            if rng.random() < 0.1:
                self._keep_or_forget()
            if rng.random() < 0.3:
                client.grammars.release()
            self._read_texts()
            client.step()
            if step % 100 == 0:
                self.check_published()
        client.finish()
        self.check_published()

    def _add_fault(self) -> None:
        """One that is nobody's fault; two of them in one isolation could fail an innocent request twice alone."""
        kind = self.rng.choice(("run", "wait", "exhausted", "nan", "nan", "poison"))
        if self.client.device.num_steps > self.quiet_until and not self.client.engine.scheduler.isolation.active:
            step = self.client.device.num_steps + self.rng.randint(0, 2)
            self.client.faults.add(Fault(kind, step, row=self.rng.randint(0, 3) if kind == "nan" else 0))
            self.quiet_until = step + 2  # by then it has been read

    def _keep_or_forget(self) -> None:
        """In the name of a session, what an answer has so far, whether its pages are there or not."""
        rng, answers = self.rng, list(self.client.answers.values())
        message: Keep | Forget = Forget(rng.choice("abc"))
        if answers and rng.random() < 0.8:
            answer = rng.choice(answers)
            tokens = (*answer.request.prompt, *answer.tokens)
            message = Keep(rng.choice("abc"), answer.request.salt, tokens if rng.random() < 0.9 else ())
        self.client.engine.inbox.put(message)
        self.num_kept = max(self.num_kept, self.client.engine.scheduler.cache.pool.num_pinned)

    def unfinished(self) -> list[Answer]:
        return [answer for answer in self.client.answers.values() if answer.reason is None]

    def check_published(self) -> None:
        """Each findable page holds what its key says, on the device or on the host."""
        pool, runner = self.client.engine.scheduler.cache.pool, self.client.runner
        for page in pool.offload:
            if page.data.kv is not None:  # else it is still on its way
                self._check_page(page.data.kv, page.key, page.table)
        for page in range(1, pool.num_total + 1):
            if (key := pool.key_of(page)) is not None and not runner.loading:
                self._check_page(runner.kv[page], key, pool._tables[page])
                assert not runner.bad[page].any()

    def _check_page(self, kv: np.ndarray, key: PageKey, table: int) -> None:
        assert kv.tolist() == [value ^ table for value in self._values(key)[-self.client.limits.page_size :]]

    def _values(self, key: PageKey) -> list[int]:
        chain: list[int] = []
        while key.parent is not None:
            chain = memoryview(key.tokens).cast("i").tolist() + chain
            key = key.parent
        values, history = [], 0
        for position, token in enumerate(chain):
            values.append(value_of(token, position, history))
            history = (history + values[-1] * int(WEIGHTS[position])) & ((1 << 64) - 1)
        return values

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(CURSED) for _ in range(count)]

    def _controls(self) -> Controls:
        rng = self.rng
        words = [tuple(self._tokens(rng.choice((2, 2, 3)))) for _ in range(rng.choice((0, 0, 60)))]
        return Controls(
            frequency_penalty=rng.choice((0.0, 1.0)), bad_words=tuple(words), min_tokens=rng.choice((0, 0, 1, 20))
        )

    def _add(self) -> None:
        rng = self.rng
        prompt = list(rng.choice(rng.choice((self.prefixes, self.past))))
        prompt = prompt[: rng.randint(1, len(prompt))] if rng.random() < 0.3 else prompt
        prompt += self._tokens(rng.choice((0, 1, 5, 20)))
        if rng.random() < 0.05:
            prompt.append(rng.choice((BAD, BAD, CURSED)))
        self.num_added += 1
        prompt = prompt or [0]
        if rng.random() < 0.25:
            prompt += self._tokens(rng.choice((0, 30)))
            request = Request(str(self.num_added), tuple(prompt), 1, pooling=rng.choice(("last", "mean")))
        else:
            request = self._generation(prompt)
        self._send(request)

    def _send(self, request: Request) -> None:
        try:
            validate_request(request, self.client.limits)
        except InvalidRequest:
            self.num_refused += 1
            return
        self.client.add(request, text_stop=self.rng.randrange(VOCAB // 4) if request.text_lag else None)
        self.past = [*self.past[-8:], list(request.prompt)]

    def _generation(self, prompt: list[int]) -> Request:
        rng = self.rng
        return Request(
            id=str(self.num_added),
            prompt=tuple(prompt),
            max_tokens=rng.choice((1, 2, 8, 30, 80)),
            n=rng.choice((1, 1, 1, 2, 4)),
            temperature=rng.choice((0.0, 1.0, 2.0)),
            seed=rng.randrange(1 << 64),
            eos_token_ids=frozenset(self._tokens(rng.choice((0, 1, 4))) + [BAD] * (rng.random() < 0.3)),
            stop_token_ids=frozenset(self._tokens(rng.choice((0, 0, 1)))),
            priority=rng.choice((0, 0, 0, -1, 5)),
            salt=rng.choice(("", "", "", "tenant")),
            bulk=rng.random() < 0.7,
            session=rng.random() < 0.4,
            text_lag=rng.random() < 0.25,
            controls=self._controls() if rng.random() < 0.3 else None,
            logprobs=rng.choice((None, None, None, 0, 2)),
            prompt_logprobs=rng.choice((None, None, None, None, 1)),
            structure=self._structure() if rng.random() < 0.3 else None,
        )

    def _structure(self) -> Structure:
        rng = self.rng
        end, first, last = rng.sample(range(CURSED), 3)
        open_id, close_id = rng.choice(((None, None), (None, None), (None, last), (first, last)))
        after = rng.choice((None, None, rng.randrange(CURSED)))
        return Structure(f"{rng.randrange(9)}:{end}", frozenset({end}), open_id, close_id, after=after)

    def _read_texts(self) -> None:
        for answer in self.unfinished():
            if (
                answer.request.text_lag
                and len(answer.tokens) > answer.acknowledged
                and self.rng.random() < self.attention
            ):
                self.client.read_text(answer, self.rng.randint(answer.acknowledged + 1, len(answer.tokens)))
                if answer.tokens:
                    self.past[-1] = list(answer.request.prompt) + answer.tokens


@functools.cache
def quick_workload(seed: int) -> Workload:
    workload = Workload(seed)
    workload.run(STEPS_PER_SEED)
    return workload


@pytest.mark.parametrize("seed", range(QUICK_SEEDS))
def test_any_workload_keeps_the_invariants_and_answers_as_if_each_request_ran_alone(seed):
    assert quick_workload(seed).num_added - quick_workload(seed).num_refused > 30


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1050))
def test_many_more_workloads_keep_the_invariants(seed):
    Workload(seed).run(STEPS_PER_SEED)


@pytest.mark.parametrize("seed", range(3))
def test_the_laws_hold_at_depth_0(seed):
    Workload(seed, run_ahead=0).run(300)


def test_the_workloads_reach_what_they_are_meant_to_reach():
    workloads = list(map(quick_workload, range(QUICK_SEEDS)))
    clients = [workload.client for workload in workloads]
    assert sum(workload.num_kept for workload in workloads) > 20
    counters = [engine for client in clients for engine in client.counters]
    assert sum(c.pages_saved for c in counters) > 100 and sum(c.pages_loaded for c in counters) > 30
    assert sum(c.preemptions for c in counters) > 50 and sum(c.cached_tokens for c in counters) > 500
    for reason in ("stop", "length", "abort", "error"):
        assert sum(c.finished[reason] for c in counters) > 5, reason
    assert any(client.runner.zeroed for client in clients)
    assert sum(c.recoveries for c in counters) > 50
    assert len(counters) > len(clients) + 10, "engines died"
    struck = {fault.kind for client in clients for fault in client.faults.struck}
    assert struck >= {"run", "wait", "exhausted", "nan", "poison"}
    codes = {answer.code for client in clients for answer in client.answers.values()}
    assert codes >= {"non_finite", "step_failed"}
    plans = [plan for client in clients for plan in client.plans]
    assert 100 < sum(plan.sampler is Sampler.FULL for plan in plans) < len(plans)
    assert any(row.bans for plan in plans for row in plan.rows)
    assert sum(plan.is_masked for plan in plans) > 100 and not all(plan.is_masked for plan in plans)
    assert any(answer.prompt_logprobs for client in clients for answer in client.answers.values())
    embedded = [answer for client in clients for answer in client.answers.values() if answer.embedding]
    assert {answer.request.pooling for answer in embedded} == {"last", "mean"}
    assert any(answer.cached_tokens for answer in embedded)
    chunks = [row for plan in plans for row in plan.rows if row.num_pooled]
    assert any(row.num_pooled > 1 and row.start for row in chunks), "a mean over several chunks"
    assert sum(c.forwarded_tokens for c in counters) > 40
    assert any(row.history and row.start >= len(row.history.prompt) for plan in plans for row in plan.rows)
    assert sum(c.embeddings for c in counters) == len(embedded) > 60
    assert {client.limits.scheduling for client in clients} == {"static", "continuous"}
    assert {client.limits.kv_layout for client in clients} == {"paged", "contiguous"}


def short_beside_long(seed: int) -> Client:
    """300 steps in which half of the prompts are short, the others longer than a step."""
    rng = random.Random(seed)
    client = Client(make_limits(max_num_batched_tokens=48, num_pages=rng.choice((50, 257))))
    shared = tuple(rng.randrange(CURSED) for _ in range(5))
    for i in range(300):
        if rng.random() < 0.4 and sum(answer.reason is None for answer in client.answers.values()) < 20:
            own = tuple(rng.randrange(CURSED) for _ in range(rng.choice((1, 3, 90, 110))))
            request = Request(str(i), shared * rng.randint(0, 1) + own, rng.choice((1, 2, 8)))
            client.add(dataclasses.replace(request, priority=rng.choice((0, 0, 0, 1))))
        client.step()
    client.finish()
    return client


def test_the_laws_hold_where_short_prompts_come_beside_long_ones():
    assert sum(short_beside_long(seed).num_overtaken for seed in range(4)) > 60


def test_the_laws_hold_when_every_digest_is_the_same(monkeypatch):
    monkeypatch.setattr(prefix, "page_digest", lambda parent, tokens: bytes(16))
    hits = 0
    for seed in range(4):
        workload = Workload(seed, enable_prefix_caching=True)
        workload.run(300)
        hits += sum(counters.cached_tokens for counters in workload.client.counters)
    assert hits > 0


def _publish_early(patch):
    publish = CacheManager.publish
    patch(CacheManager, "publish", lambda self, s, upto: publish(self, s, s.covered))


def _trust_digests(patch):
    patch(prefix, "page_digest", lambda parent, tokens: bytes(16))
    patch(pool, "same_chain", lambda a, b: True)
    patch(prefix, "same_chain", lambda a, b: True)


def _keep_the_key_of_an_evicted_page(patch):
    patch(PagePool, "_evict", lambda self: self._cached.popitem(last=False)[0])


def _share_a_page_that_is_written(patch):
    patch(SequenceCache, "lookup_keys", lambda self, size: list(_keys(self, size)))


def _keys(s, size):
    key = s.root
    for i in range(len(s.tokens) // size):
        key = prefix.next_key(key, s.tokens[i * size : (i + 1) * size])
        yield key


def _commit_surplus_rows(patch):
    commit = Scheduler.commit

    def commit_all(self, step, result):
        for s in step.sequences:
            s.state = State.RUNNING
        return commit(self, step, result)

    patch(Scheduler, "commit", commit_all)


def _send_fresh_pages_only(patch):
    start = Scheduler._start

    def start_as_if_sent(self, s, *rest):
        count = start(self, s, *rest)
        if len(s.cache.keys) > 0:
            s.cache.num_sent = 1
        return count

    patch(Scheduler, "_start", start_as_if_sent)


def _preempt_with_tokens_in_flight(patch):
    patch(Scheduler, "_must_preempt", lambda self, ready, budget: False)


def _run_one_token_too_far_ahead_of_the_text(patch):
    patch(sequence, "MAX_TEXT_LAG", sequence.MAX_TEXT_LAG + 1)


def _leak_a_page(patch):
    release = PagePool.release
    patch(PagePool, "release", lambda self, page_ids: release(self, page_ids[1:]))


def _keep_the_slot_of_a_preempted_sequence(patch):
    preempt = Scheduler._preempt

    def preempt_and_keep(self, s):
        preempt(self, s)
        self.free_slots.pop()

    patch(Scheduler, "_preempt", preempt_and_keep)


def _keep_half_a_step_for_short_prompts(patch):
    def first_short(self, ready, num_decoding, left):
        share = self.limits.max_num_batched_tokens // 2 - num_decoding
        short = [s for s in self.waiting if len(s.tokens) <= share][:1]
        return {s: len(s.tokens) for s in short}

    patch(budget, "short_prompts", first_short)


def _forget_a_sibling(patch):
    patch(Scheduler, "_admit_siblings", lambda self, first: None)


def _recompute_the_prompt_alone(patch):
    preempt = Scheduler._preempt
    patch(Scheduler, "_preempt", lambda self, s: (preempt(self, s), s.tokens.__delitem__(slice(s.num_prompt, None))))


def _go_on_with_a_lost_state(patch):
    patch(Engine, "_reset", lambda self: None)


def _trust_the_pages_of_a_lost_state(patch):
    recover = Scheduler.recover

    def recover_but_the_pool(self, failed):
        pool = self.cache.pool
        outputs = recover(self, failed)
        self.cache.pool = pool
        return outputs

    patch(Scheduler, "recover", recover_but_the_pool)


def _blame_whoever_comes_first(patch):
    patch(Isolation, "blame", lambda self, suspects: next((s.request.id for s in suspects), None))


def _run_others_beside_the_suspects(patch):
    patch(Scheduler, "_chosen", lambda self: None)


def _ignore_the_flag_of_an_ended_sequence(patch):
    spoil = Scheduler._spoil
    patch(Scheduler, "_spoil", lambda self, s: [] if s.state is State.ENDED else spoil(self, s))


def _free_the_pages_of_a_row_in_flight(patch):
    release = CacheManager.release
    patch(CacheManager, "release", lambda self, s, in_flight=0: release(self, s))


def _resume_from_the_prompt_alone(patch):
    make = scheduler.sequences_of

    def make_without_output(request, outputs, *rest):
        return make(request, tuple(None if output is None else () for output in outputs), *rest)

    patch(scheduler, "sequences_of", make_without_output)


def _resume_what_has_ended(patch):
    make = scheduler.sequences_of

    def make_all(request, outputs, *rest):
        return make(request, tuple(output or () for output in outputs), *rest)

    patch(scheduler, "sequences_of", make_all)


def _scatter_contiguous_pages(patch):
    release = PagePool.release
    patch(PagePool, "release", lambda self, page_ids: release(self, page_ids[::-1]))


def _leave_cached_tokens_out_of_a_mean(patch):
    patch(Sequence, "needs_all_rows", property(lambda self: self.needs_scores))


def _keep_what_was_pooled_before_a_preemption(patch):
    start = Scheduler._start

    def start_and_keep(self, s, *rest):
        pooled = s.pooled
        count = start(self, s, *rest)
        s.pooled = pooled
        return count

    patch(Scheduler, "_start", start_and_keep)


FAULTS = [
    _leave_cached_tokens_out_of_a_mean,
    _keep_what_was_pooled_before_a_preemption,
    _publish_early,
    _trust_digests,
    _keep_the_key_of_an_evicted_page,
    _share_a_page_that_is_written,
    _commit_surplus_rows,
    _send_fresh_pages_only,
    _preempt_with_tokens_in_flight,
    _run_one_token_too_far_ahead_of_the_text,
    _leak_a_page,
    _keep_the_slot_of_a_preempted_sequence,
    _keep_half_a_step_for_short_prompts,
    _forget_a_sibling,
    _recompute_the_prompt_alone,
    _go_on_with_a_lost_state,
    _trust_the_pages_of_a_lost_state,
    _blame_whoever_comes_first,
    _run_others_beside_the_suspects,
    _ignore_the_flag_of_an_ended_sequence,
    _free_the_pages_of_a_row_in_flight,
    _resume_from_the_prompt_alone,
    _resume_what_has_ended,
    _scatter_contiguous_pages,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_the_laws_catch_a_planted_fault(fault, monkeypatch):
    fault(monkeypatch.setattr)
    with pytest.raises((AssertionError, KeyError, ValueError, IndexError)):
        for seed in (4, 7, 6, 0, 1, 2, 3, 5, 8, 9):  # those first that show most faults soonest
            Workload(seed).run(300)
