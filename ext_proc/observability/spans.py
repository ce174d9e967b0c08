"""Makes the exporter of spans, whose packages are an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.settings import MissingExtraError

if TYPE_CHECKING:
    from ext_proc.observability.tracing import Tracing


def tracing_to(collector: str, picker: str) -> Tracing:
    """Create the exporter of spans.

    Raises:
        MissingExtraError: OpenTelemetry is not installed.
    """
    try:
        from ext_proc.observability.tracing import Tracing  # noqa: PLC0415 - an extra, and slow to load
    except ImportError as error:
        raise MissingExtraError(
            f"--otlp needs OpenTelemetry: pip install 'tidegate[otel]' ({error})"
        ) from error
    return Tracing.to(collector, picker)
