"""Exports spans to an OpenTelemetry collector: OTLP over HTTP, in its JSON form.

OpenTelemetry's own exporters need the package ``opentelemetry-proto``. ``xds-protos`` contains an
older copy of the same modules, and the copy installed last wins; JSON needs neither.

Source: https://opentelemetry.io/docs/specs/otlp/#otlphttp (identifiers in hexadecimal, integers of
64 bits as text, enumerations as numbers).
"""

from __future__ import annotations

import contextlib
import http.client
from typing import TYPE_CHECKING, Any, Final

import orjson
import structlog
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

PATH: Final = "/v1/traces"
MAX_ANSWER_BYTES: Final = 65_536

_log = structlog.stdlib.get_logger("ext_proc.observability.otlp")


class JsonExporter(SpanExporter):
    """Posts batches of spans; called by the SDK's own thread.

    Args:
        collector: ``host:port``.
        timeout_s: Maximum seconds of one step of an export.
    """

    def __init__(self, collector: str, timeout_s: float) -> None:
        self._collector = collector
        self._timeout_s = timeout_s
        self._closed = False
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; log once when the collector starts to fail, and once when it recovers."""
        trouble = (
            "the exporter is closed" if self._closed else self._post(orjson.dumps(body(spans)))
        )
        if trouble is None:
            if self._failing:
                _log.info("spans_taken_again", collector=self._collector)
            self._failing = False
            return SpanExportResult.SUCCESS
        if not self._failing and not self._closed:
            _log.warning("spans_not_taken", collector=self._collector, reason=trouble)
        self._failing = True
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Stop sending."""
        self._closed = True

    def _post(self, data: bytes) -> str | None:
        """Send a request; return the error, ``None`` on success."""
        connection = http.client.HTTPConnection(self._collector, timeout=self._timeout_s)
        with contextlib.closing(connection):
            try:
                connection.request("POST", PATH, data, {"content-type": "application/json"})
                answer = connection.getresponse()
                answer.read(MAX_ANSWER_BYTES)
            except (OSError, http.client.HTTPException) as error:
                return str(error) or type(error).__name__
            with contextlib.closing(answer):
                return None if answer.status == http.HTTPStatus.OK else f"HTTP {answer.status}"


def body(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """Return an ``ExportTraceServiceRequest`` of spans that share one resource and scope."""
    if not spans:
        return {"resourceSpans": []}
    first = spans[0]
    scope = first.instrumentation_scope
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(first.resource.attributes)},
                "scopeSpans": [
                    {
                        "scope": {"name": "" if scope is None else scope.name},
                        "spans": [_span(each) for each in spans],
                    }
                ],
            }
        ]
    }


def _span(span: ReadableSpan) -> dict[str, Any]:
    own, parent = span.get_span_context(), span.parent
    shown = {
        "name": span.name,
        "kind": span.kind.value + 1,  # OTLP's first kind is "unspecified"
        "startTimeUnixNano": str(span.start_time or 0),
        "endTimeUnixNano": str(span.end_time or 0),
        "attributes": _attributes(span.attributes or {}),
    }
    if own is not None:
        shown |= {"traceId": f"{own.trace_id:032x}", "spanId": f"{own.span_id:016x}"}
        shown |= {"traceState": own.trace_state.to_header(), "flags": int(own.trace_flags)}
    if parent is not None:
        shown["parentSpanId"] = f"{parent.span_id:016x}"
    return shown


def _attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    return {"arrayValue": {"values": [_value(each) for each in value]}}
