"""Builders of pools and requests for the routing tests."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.request import Features, Form, Request


class Build:
    """Builders of pools, endpoints, requests and routers."""

    @staticmethod
    def endpoint(number: int, **changes: Any) -> Endpoint:
        made = Endpoint(
            key=EndpointKey(f"r{number}", 1),
            variant="stable",
            http=f"10.0.0.{number}:8000",
            grpc=f"10.0.0.{number}:8001",
        )
        return replace(made, **changes)

    @classmethod
    def pool(cls, count: int = 4, **changes: Any) -> Pool:
        made = Pool(
            name="llm",
            models=frozenset({"m"}),
            variants=(Variant("stable", 1),),
            endpoints=tuple(cls.endpoint(number) for number in range(count)),
        )
        return replace(made, **changes)

    @staticmethod
    def request(blocks: tuple[int, ...] = (), **changes: Any) -> Request:
        names = ("pool", "variant", "protocol", "subset", "headers", "batch")
        own = {name: changes.pop(name) for name in names if name in changes}
        features = Features(**{"form": Form.GENERATE, "model": "m", **changes})
        made = Request(pool="llm", variant=None, protocol="http", features=features, blocks=blocks)
        return made.changed(**own)

    @staticmethod
    def router(*pools: Pool, seed: int = 1, **options: Any) -> Router:
        made = Router(random.Random(seed), **options)
        made.set_pools({pool.name: pool for pool in pools}, 0.0)
        return made

    @classmethod
    def canaried(cls, **changes: Any) -> Router:
        """Build a router of a pool whose second replica is a canary with a version and a pin."""
        variants = (
            Variant("stable", 75, "1"),
            Variant("canary", 25, "2", (("x-canary", "yes"),)),
        )
        endpoints = (cls.endpoint(0), cls.endpoint(1, variant="canary"))
        return cls.router(cls.pool(variants=variants, endpoints=endpoints, **changes))


@pytest.fixture(scope="session")
def build() -> Build:
    """Return the builders."""
    return Build()
