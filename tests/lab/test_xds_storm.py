"""Continuous changes of the fleet fail no request."""

from __future__ import annotations

import copy
import os
import random
from typing import Any

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2

from support.in_process_stack import Flow, InProcessStack
from tidegate_api.names import PICKER_FILTER
from xds_server.protocol.gate import patience
from xds_server.snapshots import build

pytestmark = pytest.mark.timeout(170)

CHANGES = int(os.environ.get("TIDEGATE_STORM_CHANGES", "25"))
"""Number of changes in each of the four storms; 300 take about 30 s on two cores."""

REQUIRED_RATE = float(os.environ.get("TIDEGATE_STORM_RATE", "0"))
"""Required rate of responses per second; 0 by default, because the machine may be busy."""

RATE = max(100.0, 1.25 * REQUIRED_RATE)
"""Intended rate; the actual one depends on the machine's load."""

BENT_OUTLIER_S = 66.5
BENT_HEADER = "bent"
BENT_PICKER_S = 7.5


class Operator:
    """Makes seeded random changes that keep the fleet valid."""

    def __init__(self, stack: InProcessStack, seed: int) -> None:
        self._stack = stack
        self._rng = random.Random(seed)
        self._names = 0
        self.fleet = stack.first_fleet()

    def next(self) -> dict[str, Any]:
        """Return a fleet that differs from the one in force."""
        while True:
            fleet = copy.deepcopy(self.fleet)
            step = self._rng.choice(
                [
                    self._weights,
                    self._drain,
                    self._add,
                    self._remove,
                    self._rename,
                    self._breaker,
                    self._ramp,
                    self._compare,
                    self._replace,
                ]
            )
            step(fleet["pools"][0])
            if fleet != self.fleet:
                return fleet

    def bend(self, fleet: dict[str, Any]) -> dict[str, Any]:
        """Return the fleet with a resource that Envoy rejects."""
        bent = copy.deepcopy(fleet)
        pool = bent["pools"][0]
        kind = self._rng.choice(["CDS", "RDS", "ECDS"])
        if kind == "CDS":
            pool["outlier"] = {"interval": BENT_OUTLIER_S}
        elif kind == "RDS":
            pool["variants"][1]["match"] = {"headers": {"x-test": BENT_HEADER}}
        else:
            bent["pickers"]["timeout"] = BENT_PICKER_S
        return bent

    def _weights(self, pool: dict[str, Any]) -> None:
        pool["variants"][1]["weight"] = self._rng.choice([0, 1, 10, 50, 100])

    def _drain(self, pool: dict[str, Any]) -> None:
        one = self._rng.choice(pool["endpoints"])
        others = [e for e in pool["endpoints"] if e["variant"] == one["variant"] and e is not one]
        if one.get("draining"):
            del one["draining"]
        elif any(not e.get("draining") for e in others):
            one["draining"] = True

    def _add(self, pool: dict[str, Any]) -> None:
        taken = {e["id"] for e in pool["endpoints"]}
        free = [n for n in range(len(self._stack.upstreams)) if f"u{n}" not in taken]
        if free:
            variant = self._rng.choice(pool["variants"])["name"]
            pool["endpoints"].append(self._stack.endpoint(self._rng.choice(free), variant))

    def _remove(self, pool: dict[str, Any]) -> None:
        one = self._rng.choice(pool["endpoints"])
        if any(
            e["variant"] == one["variant"] and not e.get("draining")
            for e in pool["endpoints"]
            if e is not one
        ):
            pool["endpoints"].remove(one)

    def _rename(self, pool: dict[str, Any]) -> None:
        self._names += 1
        old, new = pool["variants"][1]["name"], f"c{self._names}"
        pool["variants"][1]["name"] = new
        for endpoint in pool["endpoints"]:
            if endpoint["variant"] == old:
                endpoint["variant"] = new

    def _breaker(self, pool: dict[str, Any]) -> None:
        pool["circuit_breaker"] = {"max_requests": self._rng.randint(200, 2000)}

    def _ramp(self, pool: dict[str, Any]) -> None:
        window = self._rng.choice(["0s", "5s", "30s"])
        pool["slow_start"] = {"window": window, "aggression": self._rng.choice([0.5, 1.0, 2.0])}

    def _compare(self, pool: dict[str, Any]) -> None:
        variant = pool["variants"][1]
        if variant.pop("match", None) is None:
            variant["match"] = {"headers": {"x-test": "b"}}

    def _replace(self, pool: dict[str, Any]) -> None:
        self._add(pool)
        self._remove(pool)


def bend_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build marked clusters, routes and filter settings so that Envoy rejects them."""
    cluster, routes = build.variant_cluster, build.route_configuration
    extensions = build.extensions

    def bent_cluster(pool, variant, ref):
        built = cluster(pool, variant, ref)
        if pool.outlier.interval != BENT_OUTLIER_S:
            return built
        message = cluster_pb2.Cluster.FromString(built)
        message.connect_timeout.SetInParent()
        message.connect_timeout.seconds = message.connect_timeout.nanos = 0
        return message.SerializeToString(deterministic=True)

    def bent_routes(fleet, *others):
        built = routes(fleet, *others)
        headers = [v.match.headers for pool in fleet.pools for v in pool.variants]
        if {"x-test": BENT_HEADER} not in headers:
            return built
        message = route_pb2.RouteConfiguration.FromString(built)
        message.virtual_hosts.add(name="again", domains=["*"])
        return message.SerializeToString(deterministic=True)

    def bent_extensions(fleet, retiring=None):
        built = dict(extensions(fleet, retiring))
        if fleet.pickers.timeout == BENT_PICKER_S:
            message = extension_pb2.TypedExtensionConfig.FromString(built[PICKER_FILTER])
            settings = ext_proc_pb2.ExternalProcessor()
            message.typed_config.Unpack(settings)
            settings.message_timeout.seconds = 2 * 3600  # Envoy takes at most an hour
            message.typed_config.value = settings.SerializeToString(deterministic=True)
            built[PICKER_FILTER] = message.SerializeToString(deterministic=True)
        return built

    monkeypatch.setattr(build, "extensions", bent_extensions)
    monkeypatch.setattr(build, "variant_cluster", bent_cluster)
    monkeypatch.setattr(build, "route_configuration", bent_routes)


@pytest.mark.parametrize("rejected_share", [0.0, 0.1])
@pytest.mark.parametrize("protocol", ["delta", "sotw"])
async def test_no_request_fails_in_a_storm_of_changes(protocol, rejected_share, monkeypatch):
    """Each change is in force when its call returns, even if Envoy rejects one in ten."""
    bend_resources(monkeypatch)
    monkeypatch.setattr(patience, "LEAST_S", 30.0)  # no client is late on a busy machine
    async with InProcessStack(protocol) as stack, Flow(stack.listener, RATE) as flow:
        operator, rng = Operator(stack, seed=20), random.Random(21)
        refused = 0
        for _ in range(CHANGES):
            wanted = operator.next()
            if rng.random() < rejected_share:
                change = await stack.apply(operator.bend(wanted))
                assert change.outcome.state == "abandoned", change
                assert {p.client for p in change.outcome.problems} == {"envoy-1"}
                refused += 1
            change = await stack.apply(wanted)
            operator.fleet = wanted
            assert (change.outcome.state, change.outcome.acked) == ("done", 2), change
            assert not flow.wrong, change
        assert refused >= CHANGES * rejected_share / 2
        await flow.reaches(10 * CHANGES)
        assert flow.per_second >= REQUIRED_RATE
        await stack.serving()
    assert not flow.wrong
