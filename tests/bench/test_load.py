"""Loads: fresh prompts, shared beginnings, arrivals, shares of processes."""

import itertools

import msgspec
import pytest

from jaxinfer.bench.load import Load, shares
from jaxinfer.bench.serve import label

LOAD = Load(url="http://x", model="m", requests=20, concurrency=6, input_tokens=40, output_tokens=8, vocab_size=500)


def prompt(load: Load, index: int) -> list[int]:
    body = msgspec.json.decode(load.body(index))
    assert body["max_tokens"] == load.output_tokens and body["ignore_eos"] and body["stream"]
    return body["prompt"]


def test_no_two_prompts_begin_alike_unless_they_are_to():
    other = msgspec.structs.replace(LOAD, input_tokens=60)
    prompts = [prompt(LOAD, index) for index in range(-2, 20)] + [prompt(other, index) for index in range(20)]
    assert {len(one) for one in prompts} == {40, 60}
    assert len({tuple(one[:4]) for one in prompts}) == len(prompts)
    assert max(max(one) for one in prompts) < 500
    assert prompt(LOAD, 3) == prompt(LOAD, 3)


def test_fields_take_turns_over_the_requests():
    load = msgspec.structs.replace(LOAD, fields=({"stop": ["a"]}, {"temperature": 0.7, "top_k": 5}))
    bodies = [msgspec.json.decode(load.body(index)) for index in (-2, -1, 0, 1, 2)]
    assert [body["temperature"] for body in bodies] == [0, 0.7, 0, 0.7, 0]
    assert [body.get("top_k") for body in bodies] == [None, 5, None, 5, None]
    assert [body.get("stop") for body in bodies] == [["a"], None, ["a"], None, ["a"]]
    assert "stop" not in msgspec.json.decode(LOAD.body(0))
    assert prompt(load, 0) == prompt(LOAD, 0)


def test_shared_beginnings_are_shared_and_the_rest_is_not():
    load = msgspec.structs.replace(LOAD, shared_tokens=30, prefixes=2)
    prompts = [prompt(load, index) for index in range(-2, 10)]
    assert len({tuple(one[:30]) for one in prompts}) == 2
    assert len({tuple(one[30:]) for one in prompts}) == len(prompts)
    assert prompts[0][:30] == prompts[2][:30]


@pytest.mark.parametrize(("processes", "requests", "concurrency"), [(4, 20, 6), (4, 20, 1), (3, 2, 8), (4, 9, 0)])
def test_shares_hold_every_request_once_and_the_concurrency(processes, requests, concurrency):
    load = msgspec.structs.replace(LOAD, requests=requests, concurrency=concurrency)
    parts = shares(load, processes)
    assert sorted(itertools.chain(*(part.indices for part in parts))) == list(range(requests))
    assert sum(part.at_once for part in parts) == min(concurrency or requests, requests)
    assert all(part.indices and part.at_once for part in parts)
    assert max(part.at_once for part in parts) - min(part.at_once for part in parts) <= 1


def test_arrivals_keep_their_rate_and_begin_at_once():
    starts = msgspec.structs.replace(LOAD, requests=2000, rate=50.0).starts_s()
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert starts[-1] == pytest.approx(40, rel=0.15)
    assert LOAD.starts_s() == [0.0] * 20


def test_a_row_is_named_as_tables_of_servers_name_theirs():
    assert label(LOAD) == "6:40:8:20"
    assert label(msgspec.structs.replace(LOAD, concurrency=0, rate=4.0)) == "@4:40:8:20"
    assert label(msgspec.structs.replace(LOAD, shared_tokens=30)) == "6:30+10:8:20"
