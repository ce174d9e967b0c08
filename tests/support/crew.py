"""Routers for tests of workers: one pool of equal replicas, requests with or without sequences."""

from __future__ import annotations

import random
from typing import Any

from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.request import Features, Form, Request

POOL = "llm"


def key(number: int) -> EndpointKey:
    """Return the key of a replica."""
    return EndpointKey(f"r{number}", 1)


def pool(replicas: int = 3, **more: Any) -> Pool:
    """Return a pool of equal replicas."""
    endpoints = tuple(
        Endpoint(key(number), "stable", f"10.0.0.{number}:8000", None) for number in range(replicas)
    )
    return Pool(POOL, variants=(Variant("stable", 1),), endpoints=endpoints, **more)


def router(replicas: int = 3, seed: int = 0, *, more: dict[str, Any] | None = None, **options: Any):
    """Return a router with the pool."""
    made = Router(random.Random(seed), **options)
    made.set_pools({POOL: pool(replicas, **(more or {}))}, 0.0)
    return made


def request(blocks: tuple[int, ...] = (), **features: Any) -> Request:
    """Return a request whose prompt has the length of its blocks."""
    prompt = b"x" * 256 * len(blocks) if blocks else None
    return Request(
        POOL, None, "http", Features(Form.GENERATE, model="m", prompt=prompt, **features), blocks
    )


def decide(made: Router, now: float, blocks: tuple[int, ...] = (), **features: Any) -> Decision:
    """Return the router's decision; a refusal fails the test."""
    decision = made.decide(request(blocks, **features), now, now)
    assert isinstance(decision, Decision), decision
    return decision


def loads(made: Router) -> dict[str, tuple[int, float]]:
    """Return requests and work in flight by replica, from all workers."""
    return {k.id: (load.in_flight, load.work) for k, load in made.ledger.loads()}
