"""Settings of a pool's routing: policies and their settings, the needs of models."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tidegate_api.pools import MAX_EXPLORE_PERCENT, PolicyName
from xds_server.fleet.model.fields import Label, ModelName, Strict

__all__ = ["GpuWeightsSpec", "LearnedSpec", "ModelNeedsSpec", "PolicyName"]

Share = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


class ModelNeedsSpec(Strict):
    """What one of the pool's models needs of a replica."""

    model: ModelName
    """One of the pool's `match.models`."""
    memory_mib: Annotated[int, Field(ge=0, le=2**31)] = 0
    """GPU memory (MiB) that must be free on a replica that has not loaded it; 0 = not looked at.
    Unknown memory excludes no replica."""
    device: Label = ""
    """The `device` of the replicas that it wants; empty = any."""
    device_required: bool = False
    """Other devices are never used; otherwise only where the wanted ones have too much to do."""


class GpuWeightsSpec(Strict):
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


class LearnedSpec(Strict):
    """When the policy `learned` may act, and how much it tries out."""

    min_decisions: Annotated[int, Field(ge=1000, le=10_000_000)] = 10_000
    """Finished requests between two judgements of what it would have done."""
    explore_percent: Annotated[float, Field(ge=0, le=MAX_EXPLORE_PERCENT)] = 1.0
    """Share of requests on which it tries an alternative. With 0 it can never be judged, so it
    stays in the shadow of `auto`."""
