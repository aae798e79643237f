"""benchmarks/beside.py: what is asked for, what turns say, and two servers of the demo held against each other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxinfer.bench.http_client import Outcome
from jaxinfer.bench.serve import label
from jaxinfer.errors import ConfigError
from tests.bench.conftest import rows_of

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def beside(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import beside

    return beside


@pytest.fixture
def said(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import beside_report

    return beside_report


@pytest.mark.parametrize("text", ["64:512:256:256", "1:4096+32:1:6"])
def test_a_shape_is_the_load_of_that_name(beside, text):
    assert label(beside.load_of(text, 1000)) == text


@pytest.mark.parametrize(
    "text", ["", "64:512:256", "0:512:256:8", "8:512:256:0", "8:4096+0:1:1", "8:-1:1:1", "a:1:1:1"]
)
def test_another_shape_is_refused(beside, text):
    with pytest.raises(ConfigError, match="a shape must be concurrency:prompt tokens"):
        beside.load_of(text, 1000)


def test_the_shapes_by_default_are_shapes(beside):
    assert [label(beside.load_of(text, 9)) for text in beside.SHAPES.split(",")] == beside.SHAPES.split(",")


def test_a_server_is_a_url_with_the_key_or_a_command_without(beside):
    url, command = "a=https://x:1/v1/", "b=env A=1 vllm serve m --port {port}"
    first, second = beside.servers_of([url, command], ["b=on two cards", "b=twice"], "secret")
    assert (first.name, first.what, first.fact, first.key) == ("a", "https://x:1", "", "secret")
    assert (second.name, second.what, second.key) == ("b", "env A=1 vllm serve m --port {port}", "")
    assert second.fact == "on two cards; twice"


@pytest.mark.parametrize(
    ("texts", "facts", "error"),
    [
        (["http://x"], [], "--server must be NAME=URL or NAME=COMMAND, got 'http://x'"),
        (["a=vllm serve m"], [], "must name its port as {port}, got 'vllm serve m'"),
        (["a=http://x", "a=http://y"], [], "a name of its own, got a, a"),
        (["a=http://x"], ["b=y"], "NAME being one of a, got 'b'"),
    ],
)
def test_another_server_is_refused(beside, texts, facts, error):
    with pytest.raises(ConfigError, match=error):
        beside.servers_of(texts, facts, "")


def test_greedy_is_before_and_after_all_other_variants(beside):
    assert beside.variants_of("seed,greedy,mixed,seed") == ["greedy", "seed", "mixed", "greedy"]
    assert beside.variants_of("greedy") == ["greedy"]
    with pytest.raises(ConfigError, match="a variant must be one of greedy, .*, got 'greed'"):
        beside.variants_of("greed")


def test_a_turn_is_what_its_answered_requests_saw(said):
    good = [Outcome(1.0, [1.1, 1.2, 1.3], 3, cached_tokens=4), Outcome(1.0, [1.3, 1.5], 2, cached_tokens=0)]
    about = said.Measurement(1, "a", "2:8:3:4", "greedy")
    found = said.summary(about, [*good, Outcome(1.0, error="HTTP 400: no"), Outcome(1.0)], output_tokens=3)
    assert found.rate == pytest.approx(5 / 0.5)
    assert found.first_ms == pytest.approx(200)
    assert found.per_token_ms == pytest.approx((100 + 200) / 2)
    assert (found.cached_tokens, found.errors, found.short) == (2, 2, 1)
    assert found.said == "2 of 4 requests: HTTP 400: no"
    nothing = said.summary(about, [Outcome(1.0, error="no connection")] * 2, output_tokens=3)
    assert (nothing.rate, nothing.errors, nothing.said) == (None, 2, "2 of 2 requests: no connection")


def test_rates_are_compared_in_their_round_and_their_turn(said):
    shape, found = "1:1:1:1", []
    for number, (a, b) in enumerate([((100, 80, 110), (50, 40, 60)), ((200, 190, 220), (50, 20, 50))], 1):
        for server, (before, drawn, after) in (("a", a), ("b", b)):
            for variant, rate in (("greedy", before), ("seed", drawn), ("mixed", None), ("greedy", after)):
                why = "" if rate else f"3 of 3 requests: {server} | says\nno"
                found.append(said.Measurement(number, server, shape, variant, rate, said=why))
    rows = rows_of(said.rates(["a", "b"], found, {(shape, "seed"): 7.0}))
    seed = rows[f"{shape}, seed"]
    assert (seed["a tok/s"], seed["a range"]) == (135, "80 to 190")
    assert seed["a of greedy"] == pytest.approx((80 / 105 + 190 / 210) / 2)
    assert (seed["a / b"], seed["a / b range"]) == ((80 / 40 + 190 / 20) / 2, "2.000 to 9.500")
    assert (seed["client / fastest"], seed["refused"]) == (7.0, "")
    assert rows[f"{shape}, greedy"]["a of greedy"] == 1
    refused = rows[f"{shape}, mixed"]
    assert refused["refused"] == r"a: 3 of 3 requests: a \| says no; b: 3 of 3 requests: b \| says no"
    assert {refused["a tok/s"], refused["a of greedy"], refused["a / b"], refused["client / fastest"]} == {None}


def test_a_run_that_ended_early_has_the_rows_that_it_came_to(said):
    found = [said.Measurement(1, "a", "1:1:1:1", variant, 2.0) for variant in ("greedy", "seed")]
    found.append(said.Measurement(1, "b", "1:1:1:1", "greedy", 1.0))
    rows = rows_of(said.rates(["a", "b", "c"], found, None))
    assert [row["a / b"] for row in rows.values()] == [2, None]
    assert [row["c tok/s"] for row in rows.values()] == [None, None]
    assert list(rows_of(said.times(found))) == [f"1:1:1:1, {case}" for case in ("greedy, a", "greedy, b", "seed, a")]


def test_each_server_has_its_times_beside_the_other_s(said):
    found = [
        said.Measurement(number, server, "1:1:1:1", "greedy", 1.0, first_ms=10.0 * number, errors=number)
        for number in (1, 2, 3)
        for server in ("a", "b")
    ]
    rows = rows_of(said.times(found))
    assert list(rows) == ["1:1:1:1, greedy, a", "1:1:1:1, greedy, b"]
    row = rows["1:1:1:1, greedy, a"]
    assert (row["first token ms"], row["ms a token"], row["errors"]) == (20, None, 6)


@pytest.mark.slow
def test_two_servers_are_held_against_each_other(tmp_path):
    """One has a logprobs limit that a variant passes: it says so in that row, and the other one's figures are there."""
    serve = f"{sys.executable} -c 'from jaxinfer.cli import main; main()' serve demo --port {{port}} --device cpu"
    command = [sys.executable, str(BENCHMARKS / "beside.py"), "--server", f"ours={serve}"]
    command += ["--server", f"other={serve} --max-logprobs 3", "--fact", "other=few logprobs", "--vocab-size", "1500"]
    command += ["--shapes", "4:32:16:8,1:128+8:1:2", "--variants", "logprobs-5", "--rounds", "2"]
    command += [
        "--processes",
        "2",
        "--check-client",
        "--logs",
        str(tmp_path / "logs"),
        "--json",
        str(tmp_path / "report.json"),
    ]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths})
    assert done.returncode in (0, 1) and (tmp_path / "report.json").exists(), done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert "version 0." in report["facts"]["other"] and "few logprobs" in report["facts"]["other"]
    assert report["facts"]["client"].startswith("2 processes")
    rates = {row["load, variant"]: row for row in report["tables"]["rates"]}
    assert len(rates) == 2 * 2
    greedy = rates["4:32:16:8, greedy"]
    assert greedy["ours tok/s"] > 0 and greedy["other of greedy"] == 1 and greedy["ours / other"] > 0
    # Other work of this machine slows the client that is checked: its figures and the exit status must agree
    checked = [row["client / fastest"] for row in rates.values()]
    assert greedy["client / fastest"] > 0 and (done.returncode == 0) == all(times >= 2 for times in checked)
    refused = rates["4:32:16:8, logprobs-5"]
    assert refused["ours of greedy"] > 0 and refused["other tok/s"] is None and refused["ours / other"] is None
    assert refused["refused"].startswith("other: 8 of 8 requests: HTTP 400: logprobs must be an integer from 0 to 3")
    times = {row["load, variant, server"]: row for row in report["tables"]["times"]}
    assert times["4:32:16:8, greedy, ours"]["cached_tokens of a prompt"] == 0
    assert times["1:128+8:1:2, greedy, ours"]["cached_tokens of a prompt"] == 128
    measurements = report["tables"]["measurements"]
    assert [one["server"] for one in measurements[:: len(measurements) // 4]] == ["ours", "other"] * 2
    assert (tmp_path / "logs" / "other.log").read_text()
