"""Spans of requests: under which trace, with which facts, and nothing of what was said."""

import http.server
import socket
import subprocess
import sys
import threading

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from jaxinfer.llm.types import Delta, Timings
from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from jaxinfer.server.tracing import FLUSH_S, exporting
from tests.server.fakes import FakeLLM
from tests.server.http import CHAT, COMPLETIONS, EMBEDDINGS, USER, ask_app
from tests.support.attempts import Stopwatch

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
CHOICE = Timings(10.0, 10.001, 10.5, 11.5, queue_s=0.1, prefill_s=0.3, num_tokens=11)


def timed(prompt_ids, params):
    yield Delta(0, "said", [1])
    yield Delta(0, "", [2], "stop", timings=CHOICE)


def spans_of(llm: FakeLLM, path: str, settings: ServerSettings | None = None, **request) -> list[ReadableSpan]:
    """Those of one POST, the request's own last."""
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    response = ask_app(create_app(llm, settings, provider.get_tracer("test")), "POST", path, **request)
    spans = list(memory.get_finished_spans())
    assert spans[-1].attributes["http.response.status_code"] == response.status_code
    return spans


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span_below_its_caller_s_with_its_phases_below_it(stream):
    headers = {"traceparent": TRACEPARENT, "x-request-id": "abc"}
    body = {"messages": USER, "stream": stream}
    *phases, span = spans_of(FakeLLM(timed), CHAT, json=body, headers=headers)
    assert (span.name, span.kind, span.status.status_code) == (f"POST {CHAT}", SpanKind.SERVER, StatusCode.UNSET)
    assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == PARENT
    wanted = {
        "http.route": CHAT,
        "gen_ai.request.id": "abc",
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.output_tokens": 2,
        "jaxinfer.time_to_first_token_ms": 500.0,
        "jaxinfer.queue_time_ms": 100.0,
    }
    assert wanted.items() <= span.attributes.items()
    assert [phase.name for phase in phases] == ["prepare", "queue", "prefill", "decode"]
    assert all(phase.parent.span_id == span.context.span_id for phase in phases)
    lengths_s = [(phase.end_time - phase.start_time) / 1e9 for phase in phases]
    assert lengths_s == pytest.approx([0.001, 0.1, 0.399, 1.0], abs=1e-6)
    assert [phase.start_time for phase in phases[1:]] == pytest.approx([p.end_time for p in phases[:-1]], abs=1000)


def test_all_inputs_of_embeddings_are_counted_in_one_span():
    (span,) = spans_of(FakeLLM(), EMBEDDINGS, json={"input": [[5, 6]] * 20})  # three lots of at most eight
    wanted = {"gen_ai.operation.name": "embeddings", "gen_ai.usage.input_tokens": 40, "gen_ai.usage.output_tokens": 0}
    assert wanted.items() <= span.attributes.items()


def test_without_a_caller_s_trace_each_request_begins_one_and_a_broken_header_is_none():
    spans = [spans_of(FakeLLM(), COMPLETIONS, json={"prompt": "x"})[-1]]
    for broken in ("", "00-xyz-1-01", f"00-{'0' * 32}-{PARENT}-01", "a" * 4000):
        spans += spans_of(FakeLLM(), COMPLETIONS, json={"prompt": "x"}, headers={"traceparent": broken})[-1:]
    assert all(span.parent is None for span in spans)
    assert len({span.context.trace_id for span in spans}) == len(spans)


def test_a_caller_that_does_not_sample_is_obeyed():
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    app = create_app(FakeLLM(), tracer=provider.get_tracer("test"))
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    assert ask_app(app, "POST", COMPLETIONS, json={"prompt": "x"}, headers=headers).status_code == 200
    assert memory.get_finished_spans() == ()


def test_refusals_and_failures_are_spans_too_and_no_path_is_a_name():
    keys = ServerSettings(api_keys=(ApiKey("alice", "sk-0123456789"),))
    (refused,) = spans_of(FakeLLM(), COMPLETIONS, keys, json={"prompt": "x"})
    assert refused.attributes["http.response.status_code"] == 401
    (lost,) = spans_of(FakeLLM(), "/some/path", json={})
    assert (lost.name, lost.status.status_code) == ("POST other", StatusCode.UNSET)
    failed = spans_of(FakeLLM(lambda ids, params: [RuntimeError("a bug")]), COMPLETIONS, json={"prompt": "x"})
    assert failed[-1].status.status_code is StatusCode.ERROR


def test_nothing_of_what_was_said_is_in_a_span():
    headers = {"authorization": "Bearer sk-0123456789"}
    settings = ServerSettings(api_keys=(ApiKey("alice", "sk-0123456789"),))
    body = {"messages": [{"role": "user", "content": "secret"}], "user": "secret"}
    shown = "".join(span.to_json() for span in spans_of(FakeLLM(timed), CHAT, settings, json=body, headers=headers))
    assert "gen_ai.usage" in shown
    assert not any(word in shown for word in ("secret", "said", "sk-0123"))


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes what is sent to it."""

    bodies: list[bytes]

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nobody reads it."""


def test_spans_reach_the_collector_when_the_server_ends():
    handler = type("Own", (Collector,), {"bodies": []})
    collector = http.server.HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    try:
        with exporting(f"http://127.0.0.1:{collector.server_port}/v1/traces") as tracer:
            ask_app(create_app(FakeLLM(timed), tracer=tracer), "POST", CHAT, json={"messages": USER})
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()
    sent = b"".join(handler.bodies)
    assert b"jaxinfer" in sent and b"prefill" in sent and f"POST {CHAT}".encode() in sent


@pytest.mark.slow
def test_a_collector_that_is_not_there_does_not_keep_the_server_from_its_end():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        with exporting(f"http://127.0.0.1:{taken.getsockname()[1]}/v1/traces") as tracer:
            ask_app(create_app(FakeLLM(timed), tracer=tracer), "POST", CHAT, json={"messages": USER})
            watch = Stopwatch()
        assert watch.seconds() < FLUSH_S + 1
    for thread in threading.enumerate():  # it goes on trying, and draws from `random` under the tests that follow
        if thread.name in ("jaxinfer-spans", "OtelBatchSpanRecordProcessor"):
            thread.join(60)
            assert not thread.is_alive()


def test_a_server_without_a_collector_imports_none_of_it():
    source = "import sys; from jaxinfer.cli import serve; from jaxinfer.server.app import create_app; create_app(None)"
    check = f"{source}; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    said = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout == "[]\n"
