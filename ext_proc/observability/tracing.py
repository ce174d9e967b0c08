"""Spans of decisions, for requests whose caller traces them (OpenTelemetry, W3C trace context).

Rules:

1. A decision has a span if, and only if, the request or the proxy's call carries a ``traceparent``
   whose sampled flag is set: the caller or the proxy decides, and a request without tracing costs
   one lookup. That of the call comes first: the proxy's span is then the parent. ``tracestate`` is
   kept.
2. The span's id is forwarded with the request in ``traceparent``, so that a replica's span becomes
   its child. The mutation is part of the reply with the pick.
3. Ended spans wait in a bounded queue that a separate thread empties. Spans that do not fit are
   dropped; a slow, faulty or missing collector costs requests nothing.

Source: W3C Trace Context, https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ext_proc.exchange import Refuse
from ext_proc.observability.otlp import JsonExporter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

    from ext_proc.exchange import Pick

TRACEPARENT: Final = "traceparent"
MAX_QUEUE: Final = 2048
"""Maximum ended spans that wait for the collector."""
MAX_BATCH: Final = 512
EVERY_MS: Final = 1000
EXPORT_S: Final = 5
"""Maximum seconds of one step of an export."""
CLOSE_S: Final = 2.0
_FLAGS_AT: Final = 53
_LENGTH: Final = 55
_SAMPLED: Final = frozenset("13579bdf")


class Tracing:
    """Creates spans.

    Args:
        processor: Receives ended spans.
        picker: This picker's id.
        give_up: Aborts exports that wait for a collector.
    """

    def __init__(
        self, processor: SpanProcessor, picker: str, give_up: Callable[[], object] = lambda: None
    ) -> None:
        self._give_up = give_up
        resource = Resource.create(
            {"service.name": "tidegate-picker", "service.instance.id": picker}
        )
        self._provider = TracerProvider(
            sampler=ParentBased(ALWAYS_OFF), resource=resource, shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("ext_proc")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, collector: str, picker: str) -> Tracing:
        """Send spans to an OTLP collector, HTTP at ``host:port``, without TLS."""
        exporter = JsonExporter(collector, EXPORT_S)
        queue = BatchSpanProcessor(
            exporter,
            max_queue_size=MAX_QUEUE,
            max_export_batch_size=MAX_BATCH,
            schedule_delay_millis=EVERY_MS,
        )
        return cls(queue, picker, exporter.shutdown)

    def begin(self, headers: Mapping[str, str]) -> Span | None:
        """Begin the span of a request's decision, ``None`` if its caller does not trace it."""
        parent = headers.get(TRACEPARENT)
        if parent is None or len(parent) < _LENGTH or parent[_FLAGS_AT + 1] not in _SAMPLED:
            return None
        context = self._propagator.extract(headers)
        span = self._tracer.start_span("tidegate.pick", context, kind=SpanKind.SERVER)
        return span if span.is_recording() else None

    def picked(self, span: Span, pick: Pick) -> None:
        """Describe a pick, and forward the span's id with the request."""
        decision = pick.decision
        span.set_attributes(
            {
                "tidegate.pool": decision.pool,
                "tidegate.variant": decision.variant,
                "tidegate.reason": decision.reason,
                "tidegate.endpoint": decision.addresses[0],
                "tidegate.matched_blocks": decision.matched_blocks,
                "tidegate.prompt_blocks": pick.prompt_blocks,
            }
        )
        if pick.ticket is not None:
            span.set_attribute("tidegate.ticket", pick.ticket)
        ours = span.get_span_context()
        value = f"00-{ours.trace_id:032x}-{ours.span_id:016x}-{ours.trace_flags:02x}"
        pick.headers = (*pick.headers, (TRACEPARENT, value))

    def decided(
        self, span: Span, answer: Pick | Refuse | None, passed: str | None, waited_s: float | None
    ) -> None:
        """End a span.

        Args:
            span: The span.
            answer: The pick or the refusal, if there is one.
            passed: Reason for leaving the request to the proxy, if it was left.
            waited_s: Seconds that the decision waited for the body, if it did.
        """
        if isinstance(answer, Refuse):
            span.set_attribute("tidegate.refused", answer.reason)
        elif answer is not None:
            self.picked(span, answer)
        elif passed is not None:
            span.set_attribute("tidegate.passed", passed)
        if waited_s is not None:
            span.set_attribute("tidegate.waited_s", waited_s)
        span.end()

    def close(self) -> None:
        """Send pending spans, for at most ``CLOSE_S``."""
        timer = threading.Timer(CLOSE_S, self._give_up)
        timer.start()
        self._provider.shutdown()
        timer.cancel()
