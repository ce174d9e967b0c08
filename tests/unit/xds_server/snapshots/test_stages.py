"""Stages: at every moment of a change, each client can use what other clients may name."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
from envoy.config.core.v3 import health_check_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.route.v3 import route_pb2
from google.protobuf import any_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from support.drawn_fleets import fleets
from support.fleets import endpoint, fleet, pool
from support.tries import tries
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE, POOL_TYPE, ROUTE_CONFIG_NAME, ROUTE_TYPE
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.view import View
from xds_server.protocol.snapshot import Snapshot
from xds_server.resources.routes.weights import layer_of
from xds_server.snapshots.build import weights_held
from xds_server.snapshots.stages import Acknowledged, newly_draining, plan, widened


def body(snapshot: Snapshot, type_url: str, name: str) -> bytes:
    """Return one resource's message bytes."""
    return any_pb2.Any.FromString(snapshot.resources(type_url)[name].any).value


def names(snapshot: Snapshot, type_url: str) -> set[str]:
    """Return the names of a type's resources."""
    return set(snapshot.resources(type_url))


class Envoy(NamedTuple):
    """The clusters and routes of an Envoy with this snapshot."""

    clusters: set[str]
    hosts: dict[str, set[int]]
    routed: set[str]
    pickable: set[tuple[str, str]]


def envoy(snapshot: Snapshot) -> Envoy:
    """Read a snapshot as an Envoy would use it."""
    routes = route_pb2.RouteConfiguration.FromString(body(snapshot, ROUTE_TYPE, ROUTE_CONFIG_NAME))
    routed: set[str] = set()
    pickable = set()
    for route in routes.virtual_hosts[0].routes:
        if route.HasField("route"):
            routed.update(c.name for c in route.route.weighted_clusters.clusters)
            routed.update({route.route.cluster} - {""})
        if route.name.startswith("picked/"):
            pool_name, variant, _ = route.name.removeprefix("picked/").split("/")
            pickable.add((pool_name, variant))
    hosts = {}
    for name in names(snapshot, ENDPOINT_TYPE):
        message = endpoint_pb2.ClusterLoadAssignment.FromString(body(snapshot, ENDPOINT_TYPE, name))
        hosts[name] = {
            host.endpoint.address.socket_address.port_value
            for locality in message.endpoints
            for host in locality.lb_endpoints
        }
    return Envoy(names(snapshot, CLUSTER_TYPE), hosts, routed, pickable)


def pools(snapshot: Snapshot) -> list[pool_pb2.Pool]:
    """Read a snapshot as a picker would use it."""
    return [
        pool_pb2.Pool.FromString(body(snapshot, POOL_TYPE, name))
        for name in names(snapshot, POOL_TYPE)
    ]


def assert_can_use(proxy: Envoy, picker: list[pool_pb2.Pool]) -> None:
    """Check the invariants between any Envoy and any picker at one moment."""
    assert proxy.routed <= proxy.clusters
    assert set(proxy.hosts) == proxy.clusters
    for known in picker:
        draws = {v.name for v in known.variants if v.weight or v.headers}
        for variant in draws if known.models or known.paths else ():
            assert (known.name, variant) in proxy.pickable
        for one in known.endpoints:
            for protocol, address in (("http", one.http_address), ("grpc", one.grpc_address)):
                if address:
                    cluster = f"{known.name}/{one.variant}/{protocol}"
                    assert int(address.rpartition(":")[2]) in proxy.hosts[cluster]


@settings(max_examples=tries(10))
@given(old=fleets(), new=fleets())
def test_no_moment_of_a_change_breaks_a_request(old: Fleet, new: Fleet) -> None:
    """Between any two stages every Envoy knows all that a picker may name."""
    first = plan(None, View(old))
    proxy = [envoy(stage.snapshot) for stage in first if stage.audience == "envoy"][-1]
    picker = [pools(stage.snapshot) for stage in first if stage.audience == "picker"][-1]
    for stage in plan(View(old), View(new)):
        if stage.audience == "envoy":
            after = envoy(stage.snapshot)
            assert_can_use(after, picker)
            proxy = after
        else:
            # While this stage runs some pickers have the old and some the new snapshot.
            later = pools(stage.snapshot)
            assert_can_use(proxy, picker)
            assert_can_use(proxy, later)
            picker = later


@settings(max_examples=tries(10))
@given(old=fleets(), new=fleets(), sick=st.sets(st.integers(1, 4)), well=st.sets(st.integers(1, 4)))
def test_a_change_ends_where_a_fresh_start_would(
    old: Fleet, new: Fleet, sick: set[int], well: set[int]
) -> None:
    """The last stages are exactly the resources of the new fleet."""

    def published(fleet: Fleet, numbers: set[int]) -> dict[str, dict[str, tuple[str, ...]]]:
        return {pool.name: {f"r{n}": ("ejected",) for n in numbers} for pool in fleet.pools}

    before, after = View(old, sick=published(old, well)), View(new, sick=published(new, sick))
    fresh = {stage.audience: stage.snapshot for stage in plan(None, after)}
    changed = {stage.audience: stage.snapshot for stage in plan(before, after)}
    assert changed == fresh


@settings(max_examples=tries(10))
@given(old=fleets())
def test_no_change_is_no_message(old: Fleet) -> None:
    """Publishing the same fleet again leaves every stage equal to what is in force."""
    force = {stage.audience: stage.snapshot for stage in plan(None, View(old))}
    assert all(force[stage.audience] == stage.snapshot for stage in plan(View(old), View(old)))


class Drawing(NamedTuple):
    """The routes of one moment and the weights of another."""

    keys: set[tuple[str, ...]]
    weights: dict[str, int]


def drawing(snapshot: Snapshot) -> Drawing:
    """Read the weighted draws of a snapshot's routes, and its weights."""
    routes = route_pb2.RouteConfiguration.FromString(body(snapshot, ROUTE_TYPE, ROUTE_CONFIG_NAME))
    splits = (route.route.weighted_clusters for route in routes.virtual_hosts[0].routes)
    keys = {
        tuple(f"{split.runtime_key_prefix}.{one.name}" for one in split.clusters)
        for split in splits
        if split.clusters
    }
    held = weights_held(snapshot).values()
    return Drawing(keys, {key: value for layer in held for key, value in layer.items()})


def reached(old: Fleet, new: Fleet, label: str, force: Snapshot) -> Acknowledged:
    """Return the state of a change from ``old`` to ``new`` that is superseded in a stage."""
    view = View(widened(old, new))
    if label in {"add", "use"}:
        return Acknowledged(view, old, old, old, force)
    if label == "switch":
        return Acknowledged(view, new, old, old, force)
    return Acknowledged(view, new, new, view.fleet, force)


@settings(max_examples=tries(8))
@given(old=fleets(), new=fleets(), last=fleets(), stop=st.sampled_from(["add", "switch", "remove"]))
def test_no_moment_of_a_change_draws_among_nothing(
    old: Fleet, new: Fleet, last: Fleet, stop: str
) -> None:
    """Weights and routes arrive one after the other, and a change may be superseded."""
    (force, *_) = [s.snapshot for s in plan(None, View(old)) if s.audience == "envoy"]
    walked = [force]
    for stage in plan(View(old), View(new)):
        if stage.audience == "envoy":
            walked.append(stage.snapshot)
            if stage.label == stop:
                break
    have = reached(old, new, stop, walked[-1])
    walked += [s.snapshot for s in plan(have, View(last)) if s.audience == "envoy"]
    for before, after in pairwise(map(drawing, walked)):
        for keys, weights in (
            (before.keys, before.weights),
            (before.keys, after.weights),  # weights first
            (after.keys, before.weights),  # routes first
            (after.keys, after.weights),
        ):
            assert all(sum(weights[key] for key in each) >= 1 for each in keys)


def test_a_weight_is_one_layer() -> None:
    """A change of weights, also from 0, is one message with one of the layers."""

    def split(stable: int, canary: int) -> View:
        weights = {"stable": stable, "canary": canary}
        variants = [{"name": name, "weight": weight} for name, weight in weights.items()]
        return View(fleet(pool(default=True, variants=variants)))

    old, new = split(100, 0), split(90, 10)
    (held, *_) = [s.snapshot for s in plan(None, old) if s.audience == "envoy"]
    changed = set()
    for stage in plan(old, new):
        if stage.audience == "envoy":
            for url in stage.snapshot.type_urls:
                now, was = stage.snapshot.resources(url), held.resources(url)
                changed |= {
                    (stage.label, name) for name in {*now, *was} if now.get(name) != was.get(name)
                }
            held = stage.snapshot
    assert changed == {("add", layer_of("llm"))}


def test_a_drain_is_sent_to_pickers_before_envoys() -> None:
    """Envoy's endpoints are marked only in the last stage, which waits for their requests."""
    old, new = (
        fleet(),
        fleet(
            pool(
                default=True,
                endpoints=[endpoint(1, draining=True), endpoint(2), endpoint(3, variant="canary")],
            )
        ),
    )
    stages = {stage.label: stage for stage in plan(View(old), View(new))}
    before = {stage.audience: stage.snapshot for stage in plan(None, View(old))}["envoy"]
    assert stages["switch"].snapshot == before
    (told,) = pools(stages["stop"].snapshot)
    assert [one.draining for one in told.endpoints] == [True, False, False]
    assert stages["remove"].wait_for_drained == {"r1"}


def test_a_drain_is_not_taken_back_while_its_change_is_under_way() -> None:
    """Pickers have heard of it before the first stage, which an Envoy may hold up."""
    drained = pool(
        default=True,
        endpoints=[endpoint(1, draining=True), endpoint(2), endpoint(3, variant="canary")],
    )
    stages = {stage.label: stage for stage in plan(View(fleet()), View(fleet(drained)))}
    told = pool_pb2.Pool.FromString(body(stages["use"].snapshot, POOL_TYPE, "llm"))
    assert {one.id: one.draining for one in told.endpoints} == {
        "r1": True,
        "r2": False,
        "r3": False,
    }


def test_only_new_drains_are_waited_for() -> None:
    """A replica that drained already does not delay later changes."""
    drained = fleet(pool(endpoints=[endpoint(1, draining=True), endpoint(2)]))
    both = fleet(pool(endpoints=[endpoint(1, draining=True), endpoint(2, draining=True)]))
    assert newly_draining(drained, both) == {"r2"}


def test_a_replica_that_moves_is_two_hosts_for_a_while() -> None:
    """The same id at another address: Envoy has both until no picker names the old one."""
    moved = {**endpoint(1), "http": "127.0.0.1:9999"}
    old = fleet(pool(endpoints=[endpoint(1)]))
    new = fleet(pool(endpoints=[moved]))
    (wide,) = widened(old, new).pools
    assert sorted(one.http or "" for one in wide.endpoints) == ["127.0.0.1:8010", "127.0.0.1:9999"]
    (known,) = pools(plan(View(old), View(new))[1].snapshot)
    assert [one.http_address for one in known.endpoints] == ["127.0.0.1:8010"]


def test_a_replica_that_changes_its_variant_is_in_both_for_a_while() -> None:
    """A renamed variant has replicas for pickers before any Envoy routes to it."""
    variants = [{"name": "stable"}, {"name": "new"}]
    old = fleet(pool(endpoints=[endpoint(1), endpoint(2)]))
    new = fleet(pool(variants=variants, endpoints=[endpoint(1), endpoint(2, variant="new")]))
    (known,) = pools(plan(View(old), View(new))[1].snapshot)
    sides = [(one.id, one.variant) for one in known.endpoints]
    assert sides == [("r2", "new"), ("r1", "stable"), ("r2", "stable")]


def test_a_variant_is_withdrawn_after_a_pause() -> None:
    """The pause covers Envoys' workers and requests that pickers still hold."""
    old = fleet(pool())
    new = fleet(pool(variants=[{"name": "stable"}], endpoints=[endpoint(1)]))
    grace = {stage.label: stage.grace_s for stage in plan(View(old), View(new))}
    assert grace == {"add": 0, "use": 0, "switch": 0, "stop": 0.05, "remove": pytest.approx(0.25)}
    assert not any(stage.grace_s for stage in plan(View(new), View(old)))


def test_sick_replicas_are_published_by_one_push_each() -> None:
    """Envoys get an unhealthy host, pickers the conditions; nothing else is sent."""
    well = View(fleet())
    sick = View(fleet(), sick={"llm": {"r2": ("ejected", "frozen")}})
    before = {stage.audience: stage.snapshot for stage in plan(None, well)}
    changed: dict[str, set[str]] = {"envoy": set(), "picker": set()}
    for stage in plan(well, sick):
        old = before[stage.audience]
        for type_url in stage.snapshot.type_urls:
            if stage.snapshot.resources(type_url) != old.resources(type_url):
                changed[stage.audience].add(type_url)
        before[stage.audience] = stage.snapshot
    assert changed == {"envoy": {ENDPOINT_TYPE}, "picker": {POOL_TYPE}}
    made = pool_pb2.Pool.FromString(body(before["picker"], POOL_TYPE, "llm"))
    assert {e.id: list(e.told) for e in made.endpoints if e.told} == {"r2": ["ejected", "frozen"]}
    data = body(before["envoy"], ENDPOINT_TYPE, "llm/stable/http")
    hosts = endpoint_pb2.ClusterLoadAssignment.FromString(data).endpoints[0].lb_endpoints
    health = {h.endpoint.address.socket_address.port_value: h.health_status for h in hosts}
    assert health == {8010: health_check_pb2.HEALTHY, 8020: health_check_pb2.UNHEALTHY}


def test_a_draining_replica_is_draining_also_when_it_is_sick() -> None:
    """The operator's drain takes precedence over the pickers' findings."""
    one = pool(endpoints=[endpoint(1, draining=True), endpoint(2)])
    snapshots = plan(None, View(fleet(one), sick={"llm": {"r1": ("ejected",)}}))
    data = body(snapshots[0].snapshot, ENDPOINT_TYPE, "llm/stable/http")
    host = endpoint_pb2.ClusterLoadAssignment.FromString(data).endpoints[0].lb_endpoints[0]
    assert host.health_status == health_check_pb2.DRAINING
