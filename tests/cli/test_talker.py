"""`chat` and `run` over a server that runs: found by itself or named, its answers, refusals and ends."""

import contextlib
import io
import itertools
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.cli import session
from jaxinfer.cli.servers import serves
from jaxinfer.cli.session import Speed
from jaxinfer.cli.snippets import Server
from jaxinfer.cli.talker import Remote, read_answer
from jaxinfer.errors import EngineError, InvalidRequest
from jaxinfer.llm.types import Delta, Timings
from jaxinfer.protocol.sampling import SamplingParams
from jaxinfer.server.app import create_app
from jaxinfer.server.presence import Presence
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.fakes import FakeLLM
from tests.server.http import live

KEY = ApiKey("a", "sk-never-shown-0123456789")


@pytest.fixture
def served() -> Iterator[tuple[FakeLLM, str]]:
    llm = FakeLLM()
    with live(create_app(llm)) as port:
        yield llm, f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def announced(presence: Presence, folder: Path) -> Iterator[None]:
    """What a server says of itself on its socket, while the block runs."""
    folder.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "1.sock"))
        listener.listen()

        def say() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(msgspec.json.encode(presence))

        thread = threading.Thread(target=say, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def found(served, model, short_tmp, monkeypatch) -> Iterator[tuple[FakeLLM, str]]:
    """A server of this user's that `ps` shows."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_tmp))
    with announced(Presence(1, served[1], "tiny", 1.0, "ready", source="org/tiny-1B"), short_tmp / "jaxinfer"):
        yield served


def test_a_folder_here_is_meant_before_a_server_s_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server = Presence(1, "http://127.0.0.1:1", "tiny", 1.0, "ready", source="/elsewhere/tiny")
    assert serves(server, "tiny") and serves(server, "/elsewhere/tiny")
    (tmp_path / "tiny").mkdir()
    assert not serves(server, "tiny")
    assert serves(Presence(1, server.url, "tiny", 1.0, "ready", source=str(tmp_path / "tiny")), "tiny")
    (tmp_path / "demo").mkdir()
    assert serves(Presence(1, server.url, "demo", 1.0, "ready", source="demo"), "demo")


def test_a_named_server_answers_and_nothing_is_loaded(cli, model, served):
    llm, url = served
    outcome = cli("run", "hi", "--url", url, "--temperature", "0.5", "--top-k", "3", "--stop", "x", "--seed", "4")
    assert (outcome.code, outcome.out, model.made) == (0, "Hello\n", []), outcome.err
    assert llm.calls[0].prompt == "user:hi\nassistant:"
    params = llm.calls[0].params
    assert (params.temperature, params.top_k, params.stop, params.seed) == (0.5, 3, ["x"], 4)


def test_a_chat_over_a_server_keeps_its_turns_and_shows_refusals(cli, model, served):
    llm, url = served
    outcome = cli("chat", "--url", url, "--no-think", stdin=f"hi\n{'x' * 600}\nagain\n")
    assert (outcome.code, outcome.out) == (0, "Hello\nHello\n")
    assert "error: This model's maximum context length is 512" in outcome.err
    assert "(18 prompt tokens, 9 cached; 5 tokens, first after " in outcome.err
    assert llm.calls[-1].prompt == "user:hi\nassistant:Hello\nuser:again\nassistant:"
    assert llm.rendered[0]["kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize("name", ["tiny", "org/tiny-1B"])
@pytest.mark.parametrize("verb", ["run", "chat"])
def test_a_server_that_runs_with_the_model_is_used_and_said(cli, model, found, verb, name):
    llm, url = found
    outcome = cli(verb, name, stdin="hi")
    assert (outcome.code, outcome.out, model.made) == (0, "Hello\n", []), outcome.err
    assert f"using the server at {url} (tiny, pid {os.getpid()}); --own-engine loads" in outcome.err
    assert llm.calls


@pytest.mark.parametrize("name", ["tiny:latest", "second", "second:latest", "qwen3:8b", "old"])
@pytest.mark.parametrize("verb", ["run", "chat"])
def test_a_server_is_found_by_each_of_its_names_with_and_without_the_tag_of_ollama(
    cli, model, served, short_tmp, monkeypatch, verb, name
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_tmp))
    names = ("tiny", "second", "qwen3:8b", "old:latest")
    with announced(Presence(1, served[1], "tiny", 1.0, "ready", names=names), short_tmp / "jaxinfer"):
        outcome = cli(verb, name, stdin="hi")
    assert (outcome.code, outcome.out, model.made) == (0, "Hello\n", []), outcome.err


@pytest.mark.parametrize("name", ["tiny:latest", "org/tiny-1B:latest"])
def test_a_server_that_is_named_is_asked_for_a_name_with_the_tag_of_ollama(cli, model, served, name):
    outcome = cli("run", name, "hi", "--url", served[1])
    assert (outcome.code, outcome.out) == (0, "Hello\n"), outcome.err
    refused = cli("run", "qwen3:8b", "hi", "--url", served[1])
    assert "must be one that" in refused.last_line and "got 'qwen3:8b'" in refused.last_line, "it may be Ollama itself"


@pytest.mark.parametrize("words", ["run demo:latest hi", "run -m demo:latest hi", "chat demo:latest"])
def test_the_demo_is_meant_with_the_tag_of_ollama(cli, model, words):
    outcome = cli(*words.split(), stdin="hi" if "chat" in words else None)
    assert (outcome.code, [config.model for config in model.configs]) == (0, ["demo"]), outcome.err
    assert cli("show", "demo:latest").out == cli("show", "demo").out
    assert "'demo' is the bundled demo" in cli("pull", "demo:latest").last_line
    assert cli("plan", "demo:latest", "--for", "h100").out == cli("plan", "demo", "--for", "h100").out


@pytest.mark.parametrize(("prompt", "of_prompt"), [("What", ", 'What' is the prompt"), ("What is 7 plus 5?", "")])
def test_a_word_that_is_taken_as_the_prompt_is_said_beside_a_server_and_without(
    cli, model, served, short_tmp, monkeypatch, prompt, of_prompt
):
    said = f" (no MODEL was named{of_prompt})"
    assert f"no useful assistant{said}\n" in cli("run", prompt).err
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_tmp))
    with announced(Presence(1, served[1], "demo", 1.0, "ready", source="demo"), short_tmp / "jaxinfer"):
        assert f"{said}; --own-engine loads the model here\n" in cli("run", prompt).err
        assert "no MODEL" not in cli("run", "demo", prompt).err


@pytest.mark.parametrize("variable", ["JAXINFER_COMPILE_CACHE_DIR", "JAXINFER_DOWNLOAD_DIR", "JAXINFER_SEED"])
def test_a_setting_that_changes_no_answer_keeps_the_server_in_use(cli, model, found, monkeypatch, variable):
    monkeypatch.setenv(variable, "7")
    assert "using the server at" in cli("run", "org/tiny-1B", "hi").err
    assert not model.made


@pytest.mark.parametrize(
    "arguments", [["org/tiny-1B", "--own-engine"], ["org/other"], ["org/tiny-1B", "--dtype", "auto"]]
)
def test_another_model_other_settings_or_a_flag_load_one_here(cli, model, found, arguments):
    outcome = cli("run", *arguments, stdin="hi")
    assert (outcome.code, len(model.made), found[0].calls) == (0, 1, [])
    assert "using the server" not in outcome.err
    assert ("loading the model here: the server at" in outcome.err) == ("--dtype" in arguments)


def test_a_server_with_keys_is_asked_with_the_one_of_the_variable(cli, model, monkeypatch):
    monkeypatch.setenv("MINE", KEY.secret)
    with live(create_app(FakeLLM(), ServerSettings(api_keys=(KEY,)))) as port:
        url = f"http://127.0.0.1:{port}"
        assert cli("run", "hi", "--url", url).code == 2
        outcome = cli("run", "hi", "--url", url, "--api-key-env", "MINE")
    assert outcome.out == "Hello\n"
    assert KEY.secret not in outcome.err


def test_a_server_that_is_not_there_is_one_line(cli, model):
    outcome = cli("run", "hi", "--url", "http://127.0.0.1:9")
    assert (outcome.code, len(outcome.err.splitlines()), model.made) == (5, 1, [])
    assert "no server answers at http://127.0.0.1:9: " in outcome.err and "jaxinfer serve" in outcome.err
    assert "--model" not in outcome.err


def test_an_answer_that_failed_on_a_server_is_an_error(cli, model):
    def script(ids, params):
        return [Delta(0, "Hel", [1]), Delta(0, "", [], "error", error="NaN in the logits")]

    with live(create_app(FakeLLM(script))) as port:
        outcome = cli("run", "hi", "--url", f"http://127.0.0.1:{port}")
    assert outcome.code == 5
    assert outcome.last_line.startswith("error: the server ended the answer")


def test_a_body_that_is_too_large_is_told_as_the_server_tells_it(cli, model, served):
    """The server answers and closes before it has read the body, so that the rest cannot be sent."""
    outcome = cli("run", "a" * 20_000_000, "--url", served[1])
    assert (outcome.code, model.made) == (2, [])
    assert outcome.last_line.startswith("error: the body must have at most 16777216 bytes, got 20000")


def test_what_a_server_says_of_its_settings_stays_as_it_says_it(cli, model, monkeypatch):
    monkeypatch.setenv("JAXINFER_MAX_MODEL_LEN", "4096")  # of this side

    def script(ids, params):
        raise InvalidRequest("the context has 64 tokens (max_model_len)")

    with live(create_app(FakeLLM(script))) as port:
        outcome = cli("run", "hi", "--url", f"http://127.0.0.1:{port}")
    assert outcome.last_line == "error: the context has 64 tokens (max_model_len)"


def lines(*events: object) -> Iterator[bytes]:
    yield b": comment\n"
    for event in events:
        yield b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\r\n"
        yield b"\n"


def delta(reason: str | None = None, **fields: str) -> dict[str, object]:
    return {"choices": [{"delta": fields, "finish_reason": reason}]}


def test_thoughts_are_shown_and_no_part_of_the_answer():
    out = io.StringIO()
    said = read_answer(lines(delta(reasoning="hm"), delta(content="12"), delta("stop"), b"[DONE]"), out, Speed())
    assert out.getvalue() == "<think>hm</think>\n12\n"
    assert (said.text, said.reason) == ("12", "stop")


@pytest.mark.parametrize(
    "events", [[], [delta(content="a")], [{"error": {"message": "lost"}}], [delta(content="a"), b"[DONE]"]]
)
def test_a_stream_that_breaks_off_is_an_error(events):
    with pytest.raises(EngineError, match="the server ended the answer"):
        read_answer(lines(*events), io.StringIO(), Speed())


USAGE = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 31}}


@pytest.fixture
def clock(monkeypatch):
    """The seconds that perf_counter tells, which a test changes."""
    now_s = [100.0]
    monkeypatch.setattr(session.time, "perf_counter", lambda: now_s[0])
    return now_s


def told_of(clock, moments_s, *last: object) -> str:
    """What is told of an answer whose pieces are read at these moments, counted from the request."""

    def pieces() -> Iterator[bytes]:
        for moment_s in moments_s:
            clock[0] = 100.0 + moment_s
            yield from lines(delta(content="a"))
        yield from lines(delta("stop"), *last, b"[DONE]")

    return str(read_answer(pieces(), io.StringIO(), Speed()).speed)


def test_pieces_that_are_read_in_one_lump_tell_no_rate(clock):
    lump = [0.5 + 1e-5 * piece for piece in range(31)]
    assert told_of(clock, lump, USAGE) == "1 prompt token; 31 tokens, first after 0.50 s"


def test_pieces_that_come_one_by_one_tell_their_rate(clock):
    apart = [0.1 + 0.01 * piece for piece in range(31)]
    assert told_of(clock, apart, USAGE) == "1 prompt token; 31 tokens, first after 0.10 s, 100.0 tok/s"


def test_a_server_s_own_time_counts_before_the_moments_of_reading(clock):
    lump = [0.5 + 1e-5 * piece for piece in range(31)]
    metrics = USAGE | {"metrics": {"generation_time_ms": 50.0}}
    assert told_of(clock, lump, metrics) == "1 prompt token; 31 tokens, first after 0.50 s, 600.0 tok/s"
    assert told_of(clock, lump, USAGE | {"metrics": None}) == told_of(clock, lump, USAGE)


@given(st.floats(0.001, 10.0), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30))
def test_a_rate_is_at_most_twice_that_of_the_whole_answer(first_s, gaps_s):
    with pytest.MonkeyPatch.context() as patch:
        now_s = [100.0]
        patch.setattr(session.time, "perf_counter", lambda: now_s[0])
        moments_s = list(itertools.accumulate(gaps_s, initial=first_s))
        rate = told_of(now_s, moments_s).partition(" s, ")[2].removesuffix(" tok/s")
    assert float(rate or 0) <= 2 * len(moments_s) / moments_s[-1] + 0.1


@pytest.mark.parametrize("is_jaxinfer", [True, False])
def test_only_a_server_of_ours_is_asked_for_its_time(monkeypatch, is_jaxinfer):
    sent = []
    monkeypatch.setattr("http.client.HTTPConnection.connect", lambda self: None)
    monkeypatch.setattr("http.client.HTTPConnection.request", lambda self, *call: sent.append(json.loads(call[2])))
    answer = SimpleNamespace(status=500, read=lambda: b"")
    monkeypatch.setattr("http.client.HTTPConnection.getresponse", lambda self: answer)
    with pytest.raises(EngineError):
        Remote(Server("http://127.0.0.1:9", "tiny", is_jaxinfer=is_jaxinfer)).complete(
            "hi", SamplingParams(), io.StringIO()
        )
    assert ("include_metrics" in sent[0]) == is_jaxinfer


def test_the_rate_of_a_server_of_ours_is_its_own(cli, model):
    timings = Timings(1.0, 1.0, first_s=2.0, last_s=2.5, num_tokens=6)

    def script(ids, params):
        return [Delta(0, "Hel", [1]), Delta(0, "lo", [2] * 5, "stop", timings=timings)]

    with live(create_app(FakeLLM(script))) as port:
        outcome = cli("run", "hi", "--stats", "--url", f"http://127.0.0.1:{port}")
    assert outcome.err.endswith(", 10.0 tok/s)\n")
