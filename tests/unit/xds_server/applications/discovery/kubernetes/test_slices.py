"""EndpointSlices to an observation."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.endpoint_slices import SPEC, endpoint_slice, pod
from xds_server.applications.discovery.kubernetes import slices as under_test
from xds_server.applications.discovery.kubernetes.answers import BadAnswerError
from xds_server.applications.discovery.kubernetes.slices import (
    MAX_IDENTITY,
    Sighting,
    TooManyError,
    name_of,
    observe,
    reduce,
)
from xds_server.applications.discovery.values import Found
from xds_server.fleet.model.kubernetes import KubernetesPorts, KubernetesSpec


def look(*found: dict[str, Any], spec: KubernetesSpec = SPEC) -> Sighting:
    """Return what these slices say."""
    kept = {name_of(each): reduced for each in found if (reduced := reduce(each, spec))}
    return observe(kept, spec)


def endpoints(*found: dict[str, Any], spec: KubernetesSpec = SPEC) -> tuple[Found, ...]:
    """Return the endpoints of these slices, where nothing is wrong with them."""
    sighting = look(*found, spec=spec)
    assert sighting.observation is not None
    assert sighting.fault == ""
    return sighting.observation.endpoints


def spec_with(**fields: Any) -> KubernetesSpec:
    """Return other settings."""
    return KubernetesSpec.model_validate({**SPEC.model_dump(), **fields})


def test_a_pod_is_an_endpoint() -> None:
    """Its name, its two ports, its node's zone, and what its Service's labels say."""
    labels = {"tidegate.dev/variant": "canary", "tidegate.dev/device": "a100"}
    found = endpoint_slice("s", pod("triton-0", "10.1.0.1", zone="a"), labels=labels)
    assert endpoints(found) == (
        Found("triton-0", "10.1.0.1:8000", "10.1.0.1:8001", "canary", "a", "a100"),
    )


def test_a_pool_of_one_protocol_has_one_address() -> None:
    """Engines without gRPC have no port of it."""
    (found,) = endpoints(
        endpoint_slice("s", pod("a", "10.1.0.1"), ports={"http": 80}),
        spec=spec_with(ports={"http": "http", "grpc": None}),
    )
    assert (found.http, found.grpc) == ("10.1.0.1:80", None)


def test_ports_come_from_several_services() -> None:
    """One Service for HTTP and one for gRPC, with the same pods, are one replica each."""
    (found,) = endpoints(
        endpoint_slice("of-http", pod("a", "10.1.0.1"), ports={"http": 8000}),
        endpoint_slice("of-grpc", pod("a", "10.1.0.1"), ports={"grpc": 8001}),
    )
    assert (found.http, found.grpc) == ("10.1.0.1:8000", "10.1.0.1:8001")


def test_a_pod_in_several_slices_is_one_endpoint() -> None:
    """While the controller moves it, it is in both; it serves if one says so."""
    (found,) = endpoints(
        endpoint_slice("old", pod("a", "10.1.0.1", serving=False)),
        endpoint_slice("new", pod("a", "10.1.0.1")),
    )
    assert found.serving


def test_termination_is_never_taken_back() -> None:
    """A slice that does not know of it yet is older."""
    (found,) = endpoints(
        endpoint_slice("old", pod("a", "10.1.0.1")),
        endpoint_slice("new", pod("a", "10.1.0.1", ready=False, terminating=True)),
    )
    assert found.terminating
    assert found.serving


def test_a_successor_of_the_same_name_is_meant() -> None:
    """A StatefulSet's new pod has the old one's name, not its address."""
    (found,) = endpoints(
        endpoint_slice("s", pod("a-0", "10.1.0.1", uid="old", terminating=True)),
        endpoint_slice("t", pod("a-0", "10.1.0.9", uid="new", serving=False)),
    )
    assert (found.http, found.serving, found.terminating) == ("10.1.0.9:8000", False, False)


def test_an_address_belongs_to_one_pod() -> None:
    """A new pod may get the address of one that has not left its slice yet."""
    (found,) = endpoints(
        endpoint_slice(
            "s", pod("a", "10.1.0.1", terminating=True), pod("b", "10.1.0.1", serving=False)
        )
    )
    assert found.identity == "b"


@pytest.mark.parametrize(("family", "host"), [("ipv4", "10.1.0.1"), ("ipv6", "[fd00::1]")])
def test_a_pod_with_both_families_is_one_endpoint(family: str, host: str) -> None:
    """Two addresses of one engine would take twice its load."""
    (found,) = endpoints(
        endpoint_slice("four", pod("a", "10.1.0.1")),
        endpoint_slice("six", pod("a", "fd00::1"), family="IPv6"),
        spec=spec_with(family=family),
    )
    assert found.http == f"{host}:8000"


def test_the_other_family_is_used_where_there_is_no_choice() -> None:
    """An IPv6 cluster needs no setting."""
    (found,) = endpoints(endpoint_slice("six", pod("a", "FD00::0001"), family="IPv6"))
    assert found.grpc == "[fd00::1]:8001"


def test_names_are_no_addresses() -> None:
    """Slices of names exist by hand only, and Envoy needs addresses."""
    assert endpoints(endpoint_slice("s", pod(None, "a.example"), family="FQDN")) == ()


def test_without_a_pod_the_address_is_the_identity() -> None:
    """Hand-made slices list what is outside of the cluster."""
    (found,) = endpoints(endpoint_slice("s", pod(None, "192.0.2.1")))
    assert found.identity == "192.0.2.1:8001"


@pytest.mark.parametrize("name", ["two words", "a/b", "-a", "A", "n" * 254, "a\nb", ""])
def test_a_pod_s_name_is_one(name: str) -> None:
    """Hand-made slices may refer to anything: the address is the identity then."""
    (found,) = endpoints(endpoint_slice("s", pod(name, "192.0.2.1")))
    assert found.identity == "192.0.2.1:8001"


@pytest.mark.parametrize("zone", ["z" * 129, "a\x00b", ""])
def test_a_zone_that_is_none_is_unknown(zone: str) -> None:
    """It is a label of metrics."""
    (found,) = endpoints(endpoint_slice("s", pod("a", "192.0.2.1", zone=zone)))
    assert found.zone is None
    assert endpoints(endpoint_slice("s", pod("a", "192.0.2.1", zone="z" * 128)))[0].zone


@pytest.mark.parametrize(
    ("conditions", "serving"),
    [
        ({"ready": False, "serving": True}, True),
        ({"ready": True, "serving": False}, False),
        ({"ready": False, "serving": None}, False),
        ({"ready": None, "serving": None}, True),
    ],
)
def test_serving_counts(conditions: dict[str, bool | None], serving: bool) -> None:
    """``ready`` is also true for Services that publish all pods; unknown means ready."""
    (found,) = endpoints(endpoint_slice("s", pod("a", "10.1.0.1", **conditions)))
    assert found.serving is serving


def test_a_zone_of_the_service_stands_in() -> None:
    """Nodes without a zone leave the endpoint's empty; a node's own is exact."""
    (first, second) = endpoints(
        endpoint_slice(
            "s", pod("a", "10.1.0.1"), pod("b", "10.1.0.2", zone="z1"), labels={"zone": "z9"}
        ),
        spec=spec_with(labels={"zone": "zone"}),
    )
    assert (first.zone, second.zone) == ("z9", "z1")


@pytest.mark.parametrize(
    ("ports", "missing", "has"),
    [
        ({"web": 80, "metrics": 2}, "'http' or 'grpc'", "'metrics', 'web'"),
        ({}, "'http' or 'grpc'", "none"),
    ],
)
def test_ports_of_other_names_take_nothing_away(
    ports: dict[str, int], missing: str, has: str
) -> None:
    """A renamed port is a mistake; emptying the pool would make it an outage."""
    sighting = look(endpoint_slice("s", pod("a", "10.1.0.1"), ports=ports))
    assert sighting.observation is None
    assert sighting.fault == (
        f"a in the namespace 'infer' has no port named {missing}; its Services have: {has}. Set "
        "`ports`, null for one that replicas do not have"
    )


def test_one_pod_without_a_port_is_told_beside_the_others() -> None:
    """The others are in force."""
    slices = (
        endpoint_slice("s", pod("a", "10.1.0.1")),
        endpoint_slice("t", pod("b", "10.1.0.2"), ports={"http": 8000}),
    )
    spec = SPEC.model_copy(update={"ports": KubernetesPorts()})
    kept = {name_of(each): reduce(each, spec) for each in slices}
    sighting = observe(kept, spec)
    assert sighting.observation is not None
    assert [found.identity for found in sighting.observation.endpoints] == ["a"]
    assert sighting.fault.startswith("b in the namespace 'infer' has no port named 'grpc'")
    assert [found.grpc for found in look(*slices).observation.endpoints] == ["10.1.0.1:8001", None]


def test_an_empty_service_is_an_observation() -> None:
    """That nothing is there is an answer; what to do with it is the admission's."""
    assert endpoints() == ()
    assert endpoints(endpoint_slice("s", ports={})) == ()


def test_other_protocols_are_no_ports() -> None:
    """A UDP port of the same name is another's."""
    found = endpoint_slice("s", pod("a", "10.1.0.1"))
    found["ports"].append({"name": "http", "port": 53, "protocol": "UDP"})
    assert endpoints(found)[0].http == "10.1.0.1:8000"


def test_long_names_stay_apart() -> None:
    """Pods' names have up to 253 characters, endpoints' ids 127."""
    names = [f"{'n' * 200}-{number}" for number in range(2)]
    found = endpoints(endpoint_slice("s", pod(names[0], "10.1.0.1"), pod(names[1], "10.1.0.2")))
    assert len({each.identity for each in found}) == 2
    assert {len(each.identity) for each in found} == {MAX_IDENTITY}


def test_endpoints_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound they are reported, above it the selector is refused."""
    monkeypatch.setattr(under_test, "MAX_ENDPOINTS", 2)
    two = [pod("a", "10.1.0.1"), pod("b", "10.1.0.2")]
    assert len(endpoints(endpoint_slice("s", *two))) == 2
    with pytest.raises(TooManyError, match=r"3 endpoints.*narrow it"):
        endpoints(endpoint_slice("s", *two, pod("c", "10.1.0.3")))


def test_a_slice_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API's own bound is held, whichever server answers."""
    monkeypatch.setattr(under_test, "MAX_IN_SLICE", 1)
    found = endpoint_slice("s", pod("a", "10.1.0.1"), pod("b", "10.1.0.2"))
    assert [each.identity for each in endpoints(found)] == ["a"]


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    place=st.sampled_from(["metadata", "addressType", "endpoints", "ports", "one", "port"]),
    value=HOSTILE,
)
def test_any_other_json_is_left_out_or_refused(place: str, value: Any) -> None:
    """No answer raises anything else than the error of a bad answer."""
    found = endpoint_slice("s", pod("a", "10.1.0.1"))
    if place == "one":
        found["endpoints"].append(value)
    elif place == "port":
        found["ports"].append(value)
    else:
        found[place] = value
    with contextlib.suppress(BadAnswerError):
        look(found)


@given(key=st.sampled_from(["addresses", "conditions", "targetRef", "zone"]), value=HOSTILE)
def test_any_other_endpoint_is_left_out_or_read(key: str, value: Any) -> None:
    """The endpoint beside it is not touched."""
    other = {**pod("b", "10.1.0.2"), key: value}
    found = endpoints(endpoint_slice("s", pod("a", "10.1.0.1"), other))
    assert "a" in {each.identity for each in found}


PODS = st.lists(
    st.tuples(
        st.sampled_from("abc"),  # its slice
        st.sampled_from(["p", "q", "r"]),  # its name
        st.integers(1, 3),  # its uid
        st.integers(1, 4),  # its address
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)


@given(PODS, st.randoms(use_true_random=False))
def test_names_and_addresses_are_unique(pods: list[tuple[Any, ...]], chance: Any) -> None:
    """Whatever several slices say, in whatever order: one endpoint per name and per address."""

    def seen(ordered: list[tuple[Any, ...]]) -> tuple[Found, ...]:
        made: dict[str, list[dict[str, Any]]] = {}
        for where, name, uid, address, serving, terminating in ordered:
            made.setdefault(where, []).append(
                pod(
                    name,
                    f"10.1.0.{address}",
                    uid=str(uid),
                    serving=serving,
                    terminating=terminating,
                )
            )
        return endpoints(*(endpoint_slice(where, *each) for where, each in made.items()))

    found = seen(pods)
    assert len({each.identity for each in found}) == len(found)
    assert len({each.http for each in found}) == len(found)
    other = list(pods)
    chance.shuffle(other)
    assert seen(other) == found
