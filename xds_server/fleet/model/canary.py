"""How a pool's canaries go to 100 % (`tidegate canary`)."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from xds_server.fleet.model.fields import Duration, PrometheusUrl, Strict

TimeKind = Literal["first-token", "per-token", "whole"]
Share = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]


class AlertQuery(Strict):
    """A query of a Prometheus that ends a rollout."""

    url: PrometheusUrl
    """Address of the Prometheus, such as `http://127.0.0.1:9090`."""
    query: Annotated[str, Field(min_length=1, max_length=4096)]
    """PromQL: it fires where it returns a value above 0, such as
    `ALERTS{alertstate="firing", pool="llm"}`."""


class CanarySpec(Strict):
    """The plan of rollouts by `tidegate canary start`, which moves the weights by itself."""

    steps: Annotated[tuple[Share, ...], Field(max_length=20)] = ()
    """Percent of the new sessions, rising to 100, such as `[1, 25, 100]`. Empty = by traffic: below
    5 requests/s 20, 50, 100; below 60 5, 25, 50, 100; else 1, 10, 50, 100."""
    least_time: Annotated[Duration, Field(gt=0)] | None = None
    """How long each step takes at least; by traffic if omitted: 1 h below 5 requests/s, else 10
    min."""
    least_sessions: Annotated[int, Field(ge=1, le=1_000_000)] = 50
    """Sessions of the canary that each step needs at least."""
    failures: Annotated[float, Field(gt=1, le=100, allow_inf_nan=False)] = 1.5
    """How many times as often as stable's the canary's sessions may fail."""
    failures_below: Annotated[float, Field(gt=0, lt=100, allow_inf_nan=False)] = 0.5
    """Percent of failing sessions that is good enough, whatever stable's is."""
    slower: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 10.0
    """By how many percent the canary may be slower."""
    times: Annotated[tuple[TimeKind, ...], Field(max_length=3)] = ("first-token",)
    """Times that are compared: to the first token, for each token after it (needs
    `telemetry.usage`), to the end. Each must be measured, or nothing reaches 100 %."""
    cache: bool = False
    """Compares how many of the predicted tokens were cached; replicas must tell it."""
    budget: Annotated[float, Field(gt=0, le=0.5, allow_inf_nan=False)] = 0.05
    """Probability of a wrong decision, over a whole rollout."""
    undecided: Literal["wait", "pause", "abort"] = "pause"
    """What becomes of a rollout whose last step before 100 % is not decided in time."""
    undecided_after: Annotated[Duration, Field(gt=0)] = 86_400.0
    """Length of that time; at least `least_time`."""
    window: Annotated[Duration, Field(gt=0, le=60)] = 60.0
    """Evidence of so long is judged together. Below 60 s only where steps take seconds."""
    shadow: bool = False
    """Sends the canary copies of all requests for `least_time` before its first step."""
    alerts: Annotated[tuple[AlertQuery, ...], Field(max_length=8)] = ()
    """Queries that end a rollout where they fire. One that gets no answer holds the step."""

    @model_validator(mode="after")
    def _rising(self) -> Self:
        rising = all(one < other for one, other in pairwise(self.steps))
        if self.steps and (not rising or len(self.steps) == 1 or self.steps[-1] != 100.0):  # noqa: PLR2004 - percent
            raise PydanticCustomError(
                "canary_steps", "`steps` must rise and end with 100, such as [5, 50, 100]", {}
            )
        if len(set(self.times)) != len(self.times):
            raise PydanticCustomError("canary_times", "`times` names one twice; remove it", {})
        return self
