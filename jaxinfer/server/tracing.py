"""OpenTelemetry: a span for each POST and below it its phases, sent to the operator's collector.

Imported only where one is named, since it needs the extra `otel`. What was asked and answered is in no span.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace import Tracer as Tracer  # for those who hold one
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxinfer.llm.generation import Generation
from jaxinfer.llm.timings import metrics_of, spoke_first
from jaxinfer.llm.types import Timings
from jaxinfer.server.http_counts import HttpCounts
from jaxinfer.version import __version__

FLUSH_S = 3.0


@contextlib.contextmanager
def exporting(endpoint: str) -> Iterator[Tracer]:
    """A tracer whose spans go to `endpoint` by OTLP over HTTP, in batches from a thread.

    What the collector does not take is lost, at the end what it does not take in FLUSH_S.
    """
    provider = TracerProvider(
        resource=Resource.create({"service.name": "jaxinfer", "service.version": __version__}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    try:
        yield provider.get_tracer("jaxinfer", __version__)
    finally:
        flushing = threading.Thread(target=provider.shutdown, name="jaxinfer-spans", daemon=True)
        flushing.start()  # it tries for long where there is no collector, and may not keep the server from its end
        flushing.join(FLUSH_S)


class Tracing:
    """A span for each POST, below that of its `traceparent` header if it has one. Plain ASGI, as in context.py."""

    def __init__(self, app: ASGIApp, tracer: Tracer, http: HttpCounts) -> None:
        self.app = app
        self._tracer = tracer
        self._http = http
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        state, route = scope["state"], self._http.handler(scope["path"])
        clock_ns = time.time_ns() - time.monotonic_ns()  # spans are told in time of day
        sent = {str(name, "latin-1"): str(value, "latin-1") for name, value in scope["headers"]}
        span = self._tracer.start_span(
            f"POST {route}",
            self._propagator.extract(sent),
            SpanKind.SERVER,
            {"http.request.method": "POST", "http.route": route, "gen_ai.request.id": state["request_id"]},
            start_time=clock_ns + _ns(state["begun_s"]),
        )

        status = 500  # what an exception that comes through here is answered with

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_noting_status)
        finally:
            span.set_attribute("http.response.status_code", status)
            if status >= 500:
                span.set_status(StatusCode.ERROR)
            generation: Generation | None = state.get("generation")
            if generation is not None:
                self._describe(span, generation, clock_ns)
            span.end()

    def _describe(self, span: Span, generation: Generation, clock_ns: int) -> None:
        usage = generation.usage
        kind = "chat" if generation.job.chat else "embeddings" if generation.job.pooling else "text_completion"
        span.set_attribute("gen_ai.operation.name", kind)
        span.set_attribute("gen_ai.usage.input_tokens", usage.prompt_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", usage.completion_tokens)
        for name, value in metrics_of(generation.timings).items():
            if value is not None:
                span.set_attribute(f"jaxinfer.{name}", value)
        for name, begun_s, ended_s in _phases(generation.timings):
            child = self._tracer.start_span(name, set_span_in_context(span), start_time=clock_ns + _ns(begun_s))
            child.end(clock_ns + _ns(ended_s))


def _phases(choices: Sequence[Timings]) -> Iterator[tuple[str, float, float]]:
    """(name, beginning, end) of each phase of the choice that spoke first."""
    first = spoke_first(choices)
    if first is not None:
        admitted_s = first.accepted_s + first.queue_s
        yield "prepare", first.arrived_s, first.accepted_s
        yield "queue", first.accepted_s, admitted_s
        yield "prefill", admitted_s, first.first_s
        yield "decode", first.first_s, first.last_s


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
