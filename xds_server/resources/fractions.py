"""Conversion of percentages to Envoy's ``FractionalPercent``."""

from __future__ import annotations

from envoy.type.v3 import percent_pb2

_PER_PERCENT = 10_000


def fraction(percent: float) -> percent_pb2.FractionalPercent:
    """Return a percentage (0 to 100) with a resolution of one in a million."""
    return percent_pb2.FractionalPercent(
        numerator=round(percent * _PER_PERCENT),
        denominator=percent_pb2.FractionalPercent.MILLION,
    )
