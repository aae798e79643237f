"""`compare` over scripted servers: who is asked when, what pairs say, where texts part."""

import pytest

from jaxinfer.bench import compare
from jaxinfer.bench.compare import TimedAnswer, Wanted
from jaxinfer.bench.http_client import Outcome, Reply, read_text
from jaxinfer.config import EngineConfig, Resolved
from jaxinfer.errors import ConfigError, EngineError
from jaxinfer.llm.types import Delta
from tests.bench.conftest import rows_of
from tests.bench.test_serve import STREAM, serving
from tests.server.fakes import FakeLLM


def saying(text: str, pause_s: float, asked: list[str]):
    """A script of answers: every prompt's own number, then the text."""

    def answer(prompt_ids, params):
        asked.append(text)
        for number in range(params.max_tokens):
            yield pause_s
            end = number == params.max_tokens - 1
            piece = f"{len(prompt_ids)} " if number == 0 else text
            yield Delta(0, piece, [1], "length" if end else None, prompt_tokens=len(prompt_ids))

    return answer


def test_two_servers_are_asked_in_turns_and_described_in_pairs():
    asked: list[str] = []
    quick, slow = FakeLLM(saying("x", 0.001, asked)), FakeLLM(saying("x", 0.01, asked))
    prompts = [[7] * (length + 1) for length in range(6)]
    with serving(slow) as first, serving(quick) as second:
        wanted = Wanted(prompts, output_tokens=4, at_once=2)
        report = compare.run(Resolved(EngineConfig(), {}), (first, f"{second}/v1/"), "", wanted, lambda line: None)
    sides, pairs, texts = map(rows_of, report.tables)
    assert list(sides) == ["a", "b"]
    assert pairs["whole request ms"]["b / a, median"] < 0.7
    assert pairs["whole request ms"]["b less in"] == "6 of 6"
    assert texts["a and b"] == {"texts": "a and b", "equal": 6, "of": 6}
    assert texts["b and b again"]["equal"] == texts["b and b again"]["of"] == 4
    assert len(asked) == 2 * (1 + 6 + 4)  # woken, asked, asked again


def test_turns_begin_with_each_side_in_turn():
    asked: list[str] = []
    with serving(FakeLLM(saying("a", 0.0, asked))) as first, serving(FakeLLM(saying("b", 0.0, asked))) as second:
        wanted = Wanted([[1], [2], [3]], output_tokens=2, at_once=1)
        report = compare.run(Resolved(EngineConfig(), {}), (first, second), "", wanted, lambda line: None)
    assert asked[:2] + asked[2:8] == ["a", "b"] + ["a", "b", "b", "a", "a", "b"]
    differences = rows_of(report.tables[3])
    assert rows_of(report.tables[2])["a and b"]["equal"] == 0
    assert differences["2"] == {"request": "2", "equal characters": 2, "then a says": "'a'", "then b says": "'b'"}


def test_a_side_that_fails_is_named():
    def broken(prompt_ids, params):
        yield Delta(0, "", [], "error", error="no pages", code="x")

    fine = FakeLLM(saying("a", 0.0, []))
    failed = pytest.raises(EngineError, match=r"b \(http.*\) must answer every request, it said: .*no pages")
    with serving(fine) as first, serving(FakeLLM(broken)) as second, failed:
        compare.run(Resolved(EngineConfig(), {}), (first, second), "", Wanted([[1]], 2, 1), lambda line: None)


def test_a_rate_is_of_the_time_with_something_under_way():
    outcomes = [Outcome(0.0, [1.0], 4), Outcome(0.5, [2.0], 4), Outcome(10.0, [11.0], 4)]
    assert compare.busy_rate(outcomes) == pytest.approx(12 / 3)
    same = [TimedAnswer(one, "x") for one in outcomes]
    assert compare.pairs(same, same)[-1][3:] == (1.0, "1.000, 1.000", "0 of 3")


def test_the_text_of_a_stream_does_not_depend_on_how_it_was_cut():
    cut = Reply(0.0, 200, [(0.0, STREAM[:9]), (1.0, STREAM[9:])])
    assert read_text(cut) == read_text(Reply(0.0, 200, [(0.0, STREAM)])) == "a"


def test_settings_of_a_side_are_those_named():
    config = compare.changed(EngineConfig(model="m"), "run-ahead=0, max_model_len=2K")
    assert (config.model, config.run_ahead, config.max_model_len) == ("m", 0, 2048)
    assert compare.changed(config, "") == config
    with pytest.raises(ConfigError, match="unknown setting 'run_ahed', did you mean 'run_ahead'"):
        compare.changed(config, "run_ahed=0")
    with pytest.raises(ConfigError, match="a side must be a URL or name=value,name=value, got 'fast'"):
        compare.changed(config, "fast")
    with pytest.raises(ConfigError, match="run_ahead must be"):
        compare.changed(config, "run_ahead=5")
