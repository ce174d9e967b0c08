"""How a pool's choice is narrowed and weighed: policies, their settings, the needs of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from xds_server.fleet.fields import Label, ModelName, Strict
from xds_server.fleet.problem import Location, Problem, repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xds_server.fleet.model import Pool

MAX_NEEDS = 256
PolicyName = Literal[
    "auto",
    "prefix-affinity",
    "learned",
    "least-in-flight",
    "least-request",
    "weighted-least-pending",
    "least-response-time",
    "peak-ewma",
    "p2c",
    "p2c-work",
    "p2c-drain",
    "p2c-latency",
    "prequal",
    "gpu-composite",
    "token-bucket",
    "consistent-hash",
    "consistent-hash-bounded",
    "session-sticky",
    "co-batch",
    "round-robin",
    "weighted-round-robin",
    "random",
    "weighted-random",
]
"""The picker's policies (``ext_proc.routing.policies``)."""

Share = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


class ModelNeeds(Strict):
    """What one of the pool's models needs of a replica."""

    model: ModelName
    memory_mib: Annotated[int, Field(ge=0, le=2**31)] = 0
    """GPU memory (MiB) that must be free on a replica that has not loaded it; 0 = not looked at.
    Unknown memory keeps nobody out."""
    device: Label = ""
    """The `device` of the replicas that it wants; empty = any."""
    device_required: bool = False
    """Other devices are never used; otherwise only where the wanted ones have too much to do."""


class GpuWeights(Strict):
    """Weights of the policy `gpu-composite`; only their ratios count."""

    queue: Share = 0.4
    """Of the requests that are pending on a replica."""
    gpu: Share = 0.3
    """Of the time in which its GPUs are busy."""
    kv: Share = 0.2
    """Of its KV cache in use."""
    latency: Share = 0.1
    """Of how long its requests take."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.queue + self.gpu + self.kv + self.latency == 0:
            raise PydanticCustomError(
                "weights", "all weights are 0; give at least one of queue, gpu, kv, latency", {}
            )
        return self


class Learned(Strict):
    """When the policy `learned` may act, and how much it tries out."""

    min_decisions: Annotated[int, Field(ge=1000, le=10_000_000)] = 10_000
    """Finished requests between two judgements of what it would have done."""
    explore_percent: Annotated[float, Field(ge=0, le=2)] = 1.0
    """Share of requests on which it tries an alternative. With 0 it can never be judged, so it
    stays in the shadow of `auto`."""


def constraints(at: Location, pool: Pool) -> Iterator[Problem]:
    """Yield what does not hold between a pool's constraints and its replicas."""
    needs = pool.model_needs
    yield from repeated([each.model for each in needs], (*at, "model_needs"), "model", "model")
    devices = {endpoint.device for endpoint in pool.endpoints}
    for position, each in enumerate(needs):
        here = (*at, "model_needs", position)
        if each.model not in pool.match.models:
            yield Problem(
                (*here, "model"),
                f"pool '{pool.name}' does not serve '{each.model}'; "
                "write one of its match.models or remove the entry",
            )
        if each.device_required and not each.device:
            yield Problem(
                (*here, "device_required"),
                f"which device '{each.model}' requires is not said; give `device`",
            )
        elif each.device_required and pool.endpoints and each.device not in devices:
            yield Problem(
                (*here, "device"),
                f"'{each.model}' requires the device '{each.device}', but no replica of pool "
                f"'{pool.name}' has it; give one `device: {each.device}`",
            )
    endpoints = pool.endpoints
    declared = any(endpoint.adapters for endpoint in endpoints)
    if pool.routing.adapters == "require" and endpoints and not declared:
        yield Problem(
            (*at, "routing", "adapters"),
            f"no replica of pool '{pool.name}' declares `adapters`, so each request for one would "
            "be refused; declare them or write `prefer`",
        )
    if pool.routing.prefer_zone and endpoints and not any(each.zone for each in endpoints):
        yield Problem(
            (*at, "routing", "prefer_zone"),
            f"no replica of pool '{pool.name}' has a `zone`; give them zones or remove this",
        )
