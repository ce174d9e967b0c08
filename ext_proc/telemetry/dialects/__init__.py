"""A replica's Prometheus page to readings. Pure; unknown stays ``None``.

``triton`` reads what every Triton reports, ``trtllm`` what the TensorRT-LLM backend adds, and an
engine's own words win over Triton's, which see a request as gone once the engine has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ext_proc.telemetry.dialects import triton, trtllm
from ext_proc.telemetry.dialects.page import BadPage, ModelVersion, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.types import Reading

__all__ = ["BadPage", "ModelVersion", "PageReadings", "read_all", "read_page"]


@dataclass(frozen=True, slots=True)
class PageReadings:
    """All that one page says to a router."""

    readings: tuple[Reading, ...]
    """One per model and version, sorted by both."""
    successes: Mapping[ModelVersion, float]
    """Counter of finished requests; it falls only where the model or the server was restarted."""


def read_all(text: str, at: float) -> PageReadings:
    """Read a page that was fetched at ``at`` (seconds on the monotonic clock).

    Raises:
        BadPage: It is empty, or no page of metrics.
    """
    families = parse(text, triton.FAMILIES | trtllm.FAMILIES)
    found = trtllm.refine(triton.read(families, at), families, at)
    return PageReadings(
        readings=tuple(found[key] for key in sorted(found)),
        successes=triton.successes(families),
    )


def read_page(text: str, at: float) -> tuple[Reading, ...]:
    """Return the readings of a page that was fetched at ``at``.

    Raises:
        BadPage: It is empty, or no page of metrics.
    """
    return read_all(text, at).readings
