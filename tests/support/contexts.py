"""Scheduling contexts, as a policy sees them."""

from __future__ import annotations

import random
from typing import Any

from ext_proc.routing.latency.model import FleetLatencyModel, LatencyModel
from ext_proc.routing.state.candidates import Candidate, Replica, SchedulingContext
from ext_proc.routing.state.ledger import Load
from ext_proc.routing.values.pool import Endpoint, EndpointKey
from ext_proc.routing.values.request import Features, Form, Request


def make(count: int, **changes: Any) -> SchedulingContext:
    """Return a context of so many candidates: idle, equal and cold unless changed."""
    candidates = []
    fleet = FleetLatencyModel()
    for number in range(count):
        key, address = EndpointKey(f"r{number}", 1), f"10.0.0.{number}:1"
        endpoint = Endpoint(key, "stable", address, None)
        candidates.append(
            Candidate(endpoint, address, Replica(key, Load()), number, LatencyModel(fleet, 1.0))
        )
    context = SchedulingContext(
        request=Request("llm", "stable", "http", Features(Form.GENERATE)),
        candidates=candidates,
        variant="stable",
        slots=count,
        pending=[0.0] * count,
        work=[0.0] * count,
        strength=[1.0] * count,
        matched=[0] * count,
        blocks=0,
        shared=0,
        load_factor=1.5,
        tokens=None,
        block_tokens=64.0,
        latency_model=fleet,
        now=0.0,
        rng=random.Random(0),
    )
    return context.changed(**changes)
