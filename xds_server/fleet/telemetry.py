"""Where pickers learn what replicas do, beyond the dialects that they know by themselves."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from xds_server.fleet.fields import METRIC_NAME, Label, MetricsUrl, Strict

MAX_CUSTOM = 32


class CustomMetric(Strict):
    """A series of the replicas' metrics pages that no dialect knows."""

    reading: Literal[
        "queued",
        "running",
        "reused_blocks",
        "kv_used",
        "gpu_used",
        "gpu_memory_used",
        "kv_block_tokens",
        "kv_blocks",
    ]
    """What it says. Counts of several series add up, shares are averaged."""
    metric: Annotated[str, Field(pattern=METRIC_NAME, max_length=256)]
    """Its name."""
    labels: Annotated[dict[Label, Label], Field(max_length=16)] = Field(default={})
    """Labels that it must have; it may have others."""
    scale: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] = 1.0
    """The value is multiplied by this, e.g. 0.01 for percent."""


class PoolTelemetry(Strict):
    """How the pool's replicas tell their numbers."""

    custom: Annotated[tuple[CustomMetric, ...], Field(max_length=MAX_CUSTOM)] = ()
    """Declared series; they win over what the known dialects find."""
    orca: bool = False
    """Ask replicas for load reports (ORCA) in the headers of their answers: one more message
    between Envoy and picker for each request."""


class EndpointTelemetry(Strict):
    """Further sources of one replica's numbers."""

    gpu_metrics: MetricsUrl | None = None
    """Page of NVIDIA's DCGM exporter on its host."""
    gpus: Annotated[tuple[Label, ...], Field(max_length=64)] = ()
    """Its GPUs on that page, by index or UUID; all if omitted."""
