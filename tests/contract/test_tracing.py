"""Spans of decisions, by OpenTelemetry's own SDK; the parent's flags decide."""

from __future__ import annotations

import threading

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ext_proc.observability import otlp
from ext_proc.observability import tracing as module
from ext_proc.observability.tracing import TRACEPARENT, Tracing
from support.peer import Peer
from support.streams import CHAT_PATH, PROMPT, Messages, llm, router

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def spans():
    """Where spans end up."""
    return InMemorySpanExporter()


@pytest.fixture
def tracing(spans):
    """Tracing without a queue."""
    made = Tracing(SimpleSpanProcessor(spans), "picker-1")
    yield made
    made.close()


async def decide(tracing, headers):
    """Have one request decided; return the headers that go on with it."""
    async with Peer(router(llm()), tracing=tracing) as peer:
        call, answers = await peer.talk(Messages().head(headers=headers).body(PROMPT))
        await peer.finish(call)
    return answers[-1].headers


async def test_a_sampled_request_has_a_span_that_goes_on_with_it(tracing, spans):
    """The caller's span is the parent, ours becomes the replica's; the state is kept."""
    sent = await decide(tracing, {TRACEPARENT: PARENT, "tracestate": "vendor=x"})
    (span,) = spans.get_finished_spans()
    assert (span.name, f"{span.context.trace_id:032x}") == ("tidegate.pick", TRACE)
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert span.context.trace_state.to_header() == "vendor=x"
    assert sent[TRACEPARENT] == f"00-{TRACE}-{span.context.span_id:016x}-01"
    said = dict(span.attributes)
    assert (said["tidegate.pool"], said["tidegate.variant"]) == ("llm", "stable")
    assert said["tidegate.reason"] == "least"
    assert said["tidegate.endpoint"] in sent["x-gateway-destination-endpoint"]
    assert said["tidegate.prompt_blocks"] == 4
    assert said["tidegate.waited_s"] >= 0
    assert span.resource.attributes["service.instance.id"] == "picker-1"


@pytest.mark.parametrize("transport", ["grpc", "nghttp2"])
@pytest.mark.parametrize("own", [{}, {TRACEPARENT: "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}])
async def test_the_trace_of_the_call_comes_first(tracing, spans, monkeypatch, transport, own):
    """A proxy that traces sends its span with the call; the request names at most its caller's."""
    monkeypatch.setattr(Peer, "transport", transport)
    async with Peer(router(llm()), tracing=tracing) as peer:
        call = peer.open(**{TRACEPARENT: PARENT})
        call, _ = await peer.talk(Messages().head(headers=own).body(PROMPT), call)
        await peer.finish(call)
    (span,) = spans.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {TRACEPARENT: PARENT[:-1] + "0"},
        {TRACEPARENT: "garbage"},
        {TRACEPARENT: f"00-{'0' * 32}-b7ad6b7169203331-01"},
        {TRACEPARENT: "x" * 55},
        {TRACEPARENT: ""},
    ],
)
async def test_who_does_not_trace_is_not_traced(tracing, spans, headers):
    """No header, no flag, or one that is none: no span, and the header is left as it is."""
    sent = await decide(tracing, headers)
    assert TRACEPARENT not in sent
    assert spans.get_finished_spans() == ()


async def test_a_refusal_is_a_span_too(tracing, spans):
    """It says why."""
    pool = llm(paths=frozenset({CHAT_PATH}), default_for_paths=frozenset({CHAT_PATH}))
    async with Peer(router(pool), tracing=tracing) as peer:
        head = Messages(route="unnamed/x").head(CHAT_PATH, headers={TRACEPARENT: PARENT})
        call, _ = await peer.talk(head.body({"model": "absent"}))
        await peer.finish(call)
    (span,) = spans.get_finished_spans()
    assert span.attributes["tidegate.refused"] == "unknown-model"


async def test_an_exporter_that_fails_harms_no_request(spans):
    """Whatever a collector does, the pick is made."""

    class Broken(SpanExporter):
        def export(self, _):
            return SpanExportResult.FAILURE

        def shutdown(self):
            pass

    tracing = Tracing(SimpleSpanProcessor(Broken()), "p")
    sent = await decide(tracing, {TRACEPARENT: PARENT})
    assert sent["x-gateway-destination-endpoint"]
    tracing.close()
    assert spans.get_finished_spans() == ()


async def test_what_is_sent_is_otlp(tracing, spans):
    """Identifiers in hexadecimal, 64-bit numbers as text, kinds as OTLP counts them."""
    await decide(tracing, {TRACEPARENT: PARENT, "tracestate": "vendor=x"})
    (resource,) = otlp.body(spans.get_finished_spans())["resourceSpans"]
    said = {each["key"]: each["value"] for each in resource["resource"]["attributes"]}
    assert said["service.name"] == {"stringValue": "tidegate-picker"}
    (scope,) = resource["scopeSpans"]
    (span,) = scope["spans"]
    assert (span["name"], span["kind"], span["traceId"]) == ("tidegate.pick", 2, TRACE)
    assert (span["parentSpanId"], span["traceState"]) == ("b7ad6b7169203331", "vendor=x")
    assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
    told = {each["key"]: each["value"] for each in span["attributes"]}
    assert told["tidegate.prompt_blocks"] == {"intValue": "4"}
    assert "doubleValue" in told["tidegate.waited_s"]


def test_a_collector_that_is_not_there_costs_the_end_little(monkeypatch):
    """Spans wait in a bounded queue, and closing gives up what is not taken."""
    monkeypatch.setattr(module, "CLOSE_S", 0.1)
    before = {*threading.enumerate()}
    tracing = Tracing.to("127.0.0.1:1", "p")
    (sender,) = {*threading.enumerate()} - before
    for _ in range(module.MAX_QUEUE + 10):
        span = tracing.begin({TRACEPARENT: PARENT})
        assert span is not None
        tracing.decided(span, None, "no-pools", None)
    tracing.close()
    assert not sender.is_alive()
