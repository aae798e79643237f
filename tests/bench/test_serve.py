"""The load client against servers: what a stream said, what a broken one is called, what the numbers are."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator

import msgspec
import pytest

from jaxinfer.bench import mock_server, serve
from jaxinfer.bench.http_client import Outcome, Reply, read_stream, sentence_of
from jaxinfer.bench.load import Load, shares
from jaxinfer.bench.serve import Goals
from jaxinfer.errors import ConfigError, EngineError
from jaxinfer.llm.types import Delta
from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.bench.conftest import rows_of
from tests.server.fakes import FakeLLM
from tests.server.http import live


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


STREAM = (
    event(choices=[{"text": "a", "finish_reason": None}])
    + b": ping\n\n"
    + event(choices=[{"text": "", "finish_reason": "length"}])
    + event(
        choices=[], usage={"completion_tokens": 3, "prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
    )
    + b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_a_stream_says_the_same_however_it_was_cut(size):
    cuts = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    outcome = read_stream(Reply(0.0, 200, [(float(number), data) for number, data in enumerate(cuts, 1)]))
    assert (outcome.tokens, outcome.prompt_tokens, outcome.cached_tokens) == (3, 9, 4)
    assert (outcome.finish_reason, outcome.error) == ("length", "")
    first = STREAM.index(b"\n\n") // size + 1  # the read that held the end of the first event's line
    assert outcome.times_s[0] == first
    assert len(outcome.times_s) == 2


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (STREAM[:-20], "the stream ended without [DONE]"),
        (event(error={"message": "no pages"}) + b"data: [DONE]\n\n", '{"message":"no pages"}'),
        (b"data: {nonsense}\n\n", "a frame is no event of a completion"),
    ],
)
def test_a_broken_stream_is_an_error_with_its_reason(body, error):
    assert read_stream(Reply(0.0, 200, [(1.0, body)])).error.startswith(error)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"error": {"message": "no such \\"id\\"", "code": 1}}', 'no such "id"'),
        (b'{"detail": "Not Found"}', '{"detail": "Not Found"}'),
        (b"502\xff", "502\ufffd"),
        (b"<h1>502</h1>", "a page of HTML, which no OpenAI-compatible server sends"),
        (b"x" * 300, "x" * 200),
    ],
)
def test_a_refusal_is_the_server_s_sentence_or_else_its_body(body, sentence):
    assert sentence_of(body) == sentence


@pytest.mark.parametrize("count", [None, 0, 20])
def test_a_mock_server_s_token_has_the_logprobs_that_were_asked_for(count):
    chunk = mock_server.token(count)
    size, frame = chunk.split(b"\r\n", 1)
    assert int(size, 16) == len(frame) - 2
    (choice,) = json.loads(frame.removeprefix(b"data: "))["choices"]
    assert (choice["logprobs"] and len(choice["logprobs"]["top_logprobs"][0])) == count


def test_a_server_without_usage_is_counted_by_pieces():
    pieces = event(choices=[{"text": "a"}]) * 5 + b"data: [DONE]\n\n"
    assert read_stream(Reply(0.0, 200, [(1.0, pieces)])).tokens == 5


def test_goals_are_met_by_the_first_token_and_the_pace():
    outcome = Outcome(sent_s=1.0, times_s=[1.1, 1.2, 1.3], tokens=5)  # 100 ms, then 50 ms a token
    assert Goals().are_met(outcome)
    assert Goals(ttft_ms=101, itl_ms=51).are_met(outcome)
    assert not Goals(ttft_ms=99).are_met(outcome)
    assert not Goals(itl_ms=49).are_met(outcome)


def load_for(url: str, **fields: object) -> Load:
    whole = {"requests": 6, "concurrency": 3, "input_tokens": 5, "output_tokens": 4, "vocab_size": 200, "seed": 1}
    return Load(**{"url": url, "model": "", **whole, **fields})


@contextlib.contextmanager
def serving(llm: FakeLLM) -> Iterator[str]:
    with live(create_app(llm)) as port:
        yield f"http://127.0.0.1:{port}"


def four_tokens(prompt_ids, params):
    for number in range(params.max_tokens):
        yield 0.002
        yield Delta(0, "x", [1], "length" if number == params.max_tokens - 1 else None, prompt_tokens=len(prompt_ids))


def test_a_server_is_loaded_and_described():
    llm = FakeLLM(four_tokens)
    with serving(llm) as url:
        load = load_for(url, interrupt_tokens=7, interrupt_after_s=0.0)
        report = serve.run(load, processes=2, warm_up=1, goals=Goals(ttft_ms=5000), check_client=True)
    tables = {table.title: table for table in report.tables}
    assert list(tables) == ["rates", "times", "interruption", "client check"]
    row = rows_of(tables["rates"])["3:5:4:6"]
    assert (row["errors"], row["of another length"]) == (0, 0)
    assert row["output tok/s"] * row["seconds"] == pytest.approx(24)
    assert row["goodput requests/s"] == row["requests/s"]
    times = rows_of(tables["times"])
    assert 2 <= times["first token"]["p50"] <= times["whole request"]["p50"]
    assert times["token gap"]["mean"] == pytest.approx(times["time per token"]["mean"], rel=0.2)
    assert rows_of(tables["interruption"])["3:5:4:6"]["prompt tokens"] == 7
    assert rows_of(tables["client check"])["3:5:4:6"]["times"] > 1
    assert ("model", llm.info.served_names[0]) in report.facts


@pytest.mark.parametrize(
    ("name", "told"),
    [("mock_server", b""), ("client", msgspec.json.encode(shares(load_for("http://127.0.0.1:9"), 1)[0]) + b"\n")],
)
def test_a_process_of_the_benchmark_ends_with_its_parent_and_not_by_ctrl_c(name, told, capfd):
    """It closes the pipe however it ends, also by a signal."""
    with serve.program(name) as process:
        process.stdin.write(told)
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.stdin.close()
        assert process.wait(10) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"input_tokens": 10**5},
            "--input-tokens and --output-tokens must be {} together at most, .*, got 100,000 and 4",
        ),
        ({"input_tokens": 10**5, "vocab_size": 0}, "--input-tokens and --output-tokens must be {} together at most"),
        ({"interrupt_tokens": 10**5}, "--interrupt-tokens must be below {}, the context of .*, got 100,000; lower"),
    ],
)
def test_a_request_that_the_context_has_no_room_for_is_refused_before_the_clock(fields, told):
    llm = FakeLLM(four_tokens)
    with serving(llm) as url, pytest.raises(ConfigError, match=told.format(f"{llm.info.max_model_len:,}")):
        serve.run(load_for(url, model=llm.info.served_names[0], **fields), 2, 0, Goals(), False)
    assert llm.calls == []


def test_refused_requests_are_counted_with_what_the_server_said():
    refused = pytest.raises(EngineError, match="none of 6 requests was, the first failed with: HTTP 400: .*token")
    with serving(FakeLLM(four_tokens)) as url, refused:
        serve.run(load_for(url, vocab_size=10**6, seed=5), 2, 0, Goals(), False)


def test_the_server_s_vocabulary_is_used_where_none_is_given():
    llm = FakeLLM(four_tokens)
    with serving(llm) as url:
        report = serve.run(load_for(url, vocab_size=0), 2, 0, Goals(), False)
    assert ("prompts", f"ids below {llm.info.vocab_size}, as the server says") in report.facts
    assert report.tables[0].as_dicts()[0]["errors"] == 0


def test_a_model_that_the_server_does_not_list_is_told_before_anything_is_asked():
    llm = FakeLLM(four_tokens)
    fault = r"--model must be a name that http://\S+ serves \(tiny, org/tiny-1B\), got 'nope'"
    with serving(llm) as url, pytest.raises(EngineError, match=fault):
        serve.run(load_for(url, model="nope", vocab_size=0), 2, 0, Goals(), False)
    assert not llm.calls


def test_a_server_that_asks_for_a_key_is_told_with_the_flag():
    app = create_app(FakeLLM(four_tokens), ServerSettings(api_keys=(ApiKey("a", "sk-0123456789"),)))
    refused = pytest.raises(EngineError, match="give its key: --api-key-env names the variable that holds it")
    with live(app) as port, refused:
        serve.run(load_for(f"http://127.0.0.1:{port}", vocab_size=0), 2, 0, Goals(), False)


def test_a_refusal_of_token_ids_names_the_flag():
    refused = pytest.raises(EngineError, match=r"; lower --vocab-size \(now 1000000\)")
    with serving(FakeLLM(four_tokens)) as url, refused:
        serve.run(load_for(url, vocab_size=10**6, seed=5), 1, 0, Goals(), False)


@pytest.mark.parametrize(
    ("fields", "vocabulary"),
    [
        ({"meta": {"n_vocab": 151936, "n_params": 5}}, 151936),  # jaxinfer, llama-server
        ({"max_model_len": 4096}, None),  # vLLM
        ({"meta": None}, None),
        ({"meta": "x"}, None),
        ({"meta": {"n_vocab": 0}}, None),
    ],
)
def test_a_card_tells_the_vocabulary_in_the_words_of_its_server(fields, vocabulary):
    assert msgspec.convert({"id": "m"} | fields, serve.Card).told_vocab == vocabulary


def test_some_errors_are_a_table_beside_the_figures():
    def sometimes(prompt_ids, params):
        if prompt_ids[0] % 2:
            yield Delta(0, "", [], "error", error="no pages", code="x")
            return
        yield from four_tokens(prompt_ids, params)

    with serving(FakeLLM(sometimes)) as url:
        report = serve.run(load_for(url, requests=16), 2, 0, Goals(), False)
    failed = rows_of(report.tables[-1])
    rates = next(iter(rows_of(report.tables[0]).values()))
    assert report.tables[-1].title == "errors"
    assert 0 < rates["errors"] == sum(row["requests"] for row in failed.values()) < 16
    assert any("no pages" in error for error in failed)


def test_a_server_that_is_not_there_is_one_error():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    for load in (load_for(url), msgspec.structs.replace(load_for(url), model="m", vocab_size=9)):
        with pytest.raises(
            EngineError, match=f"no server answers at {url}: .*; start one with `jaxinfer serve`"
        ) as told:
            serve.run(load, 2, 0, Goals(), False)
        assert "--model" not in str(told.value) and "--vocab-size" not in str(told.value)


def test_a_connection_that_closes_early_is_an_error_of_its_request():
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: server.accept()[0].close(), daemon=True)
        thread.start()
        load = load_for(f"http://127.0.0.1:{server.getsockname()[1]}")
        reply = asyncio.run(serve.ask(load.target, "GET", "/v1/models"))
        thread.join()
    assert "ended early" in reply.error
