"""Settings of a pool that protect its endpoints: slow start, limits, health checks, timeouts."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tidegate_api.pools import MAX_PERCENT, MIN_FACTOR
from xds_server.fleet.model.fields import (
    Duration,
    HttpPath,
    Name,
    Strict,
)


class SlowStartSpec(Strict):
    """The ramp of a new replica (Envoy's formula, applied by Envoy and picker alike)."""

    window: Duration = 30.0
    """Length of the ramp of a new replica; 0 switches it off."""
    aggression: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Shape of the ramp: 1 is linear, above 1 it is steeper at its start."""
    min_weight_percent: Annotated[float, Field(ge=0, le=100)] = 10.0
    """Share of its usual weight with which a replica starts."""


class StandbySpec(Strict):
    """When the standbys of a variant come in by themselves, and go back."""

    below: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Usable share of a variant's other replicas below which standbys come in; 0 = only by
    `tidegate promote`."""
    until: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Usable share that they make up, and of the other replicas at which they go back."""
    hold: Duration = 60.0
    """How long that share must last before they go back."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.below > self.until:
            raise PydanticCustomError("share_order", "`until` must not be less than `below`", {})
        return self


class CircuitBreaker(Strict):
    """Bounds that Envoy keeps per variant, and the picker per endpoint."""

    max_connections: Annotated[int, Field(ge=1, le=2**31)] = 1024
    """Most connections from one Envoy to the replicas of a variant."""
    max_pending: Annotated[int, Field(ge=1, le=2**31)] = 512
    """Most requests of a variant that wait in one Envoy for a connection."""
    max_requests: Annotated[int, Field(ge=1, le=2**31)] = 1024
    """Most requests of a variant in flight from one Envoy."""
    max_connections_per_endpoint: Annotated[int, Field(ge=0, le=2**31)] = 0
    """Most connections from one Envoy to one replica; 0 = no limit. Not changed over RTDS."""
    per_endpoint_in_flight: Annotated[int, Field(ge=0, le=2**31)] = 0
    """Most requests in flight on one replica, kept by the picker; 0 = no limit."""
    retry_budget_percent: Annotated[float, Field(ge=0, le=100)] = 50.0
    """Share of a variant's active requests that may be retries. Requests that wait for their retry
    are not active, so of two dying replicas' requests some exceed even 100."""
    min_retries: Annotated[int, Field(ge=0, le=2**31)] = 512
    """Number of retries that may be active, however small that share is: as many requests as dying
    replicas may have in flight from one Envoy. By default half of `max_requests`."""


class OutlierSpec(Strict):
    """Passive ejection by the pickers. Envoy only counts: clients can cause all that it sees."""

    consecutive_failures: Annotated[int, Field(ge=1, le=1000)] = 3
    """Failures in a row (5xx, resets, refused connections) that eject a replica."""
    interval: Annotated[Duration, Field(gt=0)] = 5.0
    """Time in which older results lose their weight with a picker; how often Envoy counts."""
    base_ejection: Annotated[Duration, Field(gt=0)] = 10.0
    """Length of the first ejection; each further one is longer by this."""
    max_ejection_percent: Annotated[int, Field(ge=0, le=MAX_PERCENT)] = 50
    """Largest share of a variant's replicas that is ejected at once."""
    failure_percent: Annotated[float, Field(ge=0, le=MAX_PERCENT, allow_inf_nan=False)] = 50.0
    """Share of failures for which a picker ejects a replica, unless its peers fail as much;
    0 = off."""
    latency_factor: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 0.0
    """A picker ejects a replica whose first bytes come so many times later than its peers'; 0 =
    off, as caches make honest replicas differ. Otherwise at least 1."""
    frozen_after: Duration = 30.0
    """A picker ejects a replica that has work in flight and made no progress for so long, no byte
    and no changed gauge, while its peers did, if a probe or several whole requests prove it; 0 =
    off."""

    @model_validator(mode="after")
    def _factor(self) -> Self:
        if 0 < self.latency_factor < MIN_FACTOR:
            raise PydanticCustomError(
                "latency_factor", "`latency_factor` must be 0 (off) or at least 1", {}
            )
        return self


class HealthSpec(Strict):
    """Health checks, by Envoy and by the pickers."""

    interval: Annotated[Duration, Field(gt=0)] = 5.0
    """Time between two active checks of a replica."""
    timeout: Annotated[Duration, Field(gt=0)] = 1.0
    """A check without an answer for so long has failed."""
    unhealthy_after: Annotated[int, Field(ge=1, le=100)] = 2
    """Failed checks in a row after which a replica is unhealthy."""
    healthy_after: Annotated[int, Field(ge=1, le=100)] = 1
    """Passed checks in a row after which it is healthy again."""
    path: HttpPath | None = None
    """HTTP path to probe. If omitted: the readiness of the pool's model; for a pool of several
    models, whether the server lives, as a replica need not have all of them."""
    repository: bool = True
    """Pickers ask replicas which models they have (Triton's repository index, else `/v1/models`),
    and send a model's requests where it is READY. Not over TLS."""
    gpu_memory_free_percent: Annotated[float, Field(ge=0, lt=100, allow_inf_nan=False)] = 0.0
    """A replica whose GPUs have less memory free than this gets no new work; 0 = off."""
    share: bool = False
    """Pickers report the sick replicas that they find, and all pickers and Envoys leave them
    alone."""
    quorum: Annotated[int, Field(ge=1, le=100)] = 1
    """With `share`: so many pickers must find the same replica sick."""


class Timeouts(Strict):
    """Bounds on a request."""

    request: Duration = 0.0
    """From the end of the request to the end of the response; 0 = none, as generations are long."""
    idle: Duration = 300.0
    """A stream without a byte in either direction for so long is ended."""
    first_answer: Duration = 120.0
    """From sending a request to a replica to the headers of its answer, which for an answer that is
    not streamed come with its end; then another replica may read it (`routing.retry_read`). 0 = no
    bound. Not for gRPC streams."""
    first_answer_least: Duration = 15.0
    """Least bound to which the picker shortens `first_answer` for an answer that is streamed: five
    times what it expects. 0 = never shortened."""


class Shadow(Strict):
    """Copies of requests, whose answers are discarded."""

    variant: Name
    """Where copies go; in the same pool a variant of weight 0."""
    pool: Name | None = None
    """Pool of that variant; the same if omitted. Its replicas serve this pool's models too."""
    percent: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] = 100.0
    """Share of requests that are copied."""
