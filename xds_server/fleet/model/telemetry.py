"""Telemetry settings: sources of replica metrics beyond the built-in dialects."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tidegate_api.pools import MAX_CUSTOM, MAX_ENGINES, CustomReading
from xds_server.fleet.model.fields import (
    METRIC_NAME,
    Label,
    MetricsUrl,
    ModelName,
    Strict,
    TcpAddress,
    split_host_port,
)

_PORTS = 65_536


class CustomMetricSpec(Strict):
    """A series of the replicas' metrics pages that no built-in dialect contains."""

    reading: CustomReading
    """What it says. Counts of several series add up, shares are averaged."""
    metric: Annotated[str, Field(pattern=METRIC_NAME, max_length=256)]
    """Its name."""
    labels: Annotated[dict[Label, Label], Field(max_length=16)] = Field(default={})
    """Labels that it must have; it may have others."""
    scale: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] = 1.0
    """The value is multiplied by this, e.g. 0.01 for percent."""


class PoolTelemetry(Strict):
    """Telemetry of the pool's replicas."""

    custom: Annotated[tuple[CustomMetricSpec, ...], Field(max_length=MAX_CUSTOM)] = ()
    """Declared series; they win over what the known dialects find."""
    orca: bool = False
    """Ask replicas for load reports (ORCA) in the headers of their answers: one more message
    between Envoy and picker for each request."""
    usage: bool = False
    """Read token counts from streamed answers that tell them (`stream_options.include_usage`), for
    metrics by model. Envoy parses each event of such answers as JSON."""


class KvEventsSpec(Strict):
    """Addresses at which a replica's vLLM engines publish the content of their KV caches."""

    address: TcpAddress
    """Of the first engine (vLLM's `endpoint`); the next ones publish on the next ports."""
    replay: TcpAddress | None = None
    """Where missed events are asked for (vLLM's `replay_endpoint`), in the same way. Without it,
    what is missed costs all that was known of the engine's cache."""
    engines: Annotated[int, Field(ge=1, le=MAX_ENGINES)] = 1
    """How many data-parallel engines the replica has."""
    topic: Annotated[str, Field(max_length=256)] = ""
    """Prefix of the topics to read; all if omitted."""
    model: ModelName | None = None
    """The model whose caches they are, as requests name it; the pool's first if omitted."""

    @model_validator(mode="after")
    def _ports(self) -> Self:
        host, port = split_host_port(self.address.removeprefix("tcp://"))
        mine = range(port, port + self.engines)
        theirs = range(0)
        if self.replay is not None:
            replay_host, replay = split_host_port(self.replay.removeprefix("tcp://"))
            theirs = range(replay, replay + self.engines)
            if replay_host == host and (replay in mine or port in theirs):
                raise PydanticCustomError(
                    "kv_ports_overlap",
                    "`address` and `replay` take {engines} ports each and share some; write "
                    "ports that are further apart, as for vLLM's own settings",
                    {"engines": self.engines},
                )
        if max(mine.stop, theirs.stop) > _PORTS:
            raise PydanticCustomError(
                "kv_ports_end",
                "{engines} engines take ports above 65535; write a lower one",
                {"engines": self.engines},
            )
        return self


class EndpointTelemetry(Strict):
    """Further sources of one replica's metrics."""

    gpu_metrics: MetricsUrl | None = None
    """Page of NVIDIA's DCGM exporter on its host."""
    gpus: Annotated[tuple[Label, ...], Field(max_length=64)] = ()
    """Its GPUs on that page, by index or UUID; all if omitted."""
    kv_events: KvEventsSpec | None = None
    """Where its vLLM engines publish KV events: the prefix index then knows its cache exactly."""
