"""An InferencePool and its pods to endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from support.inference_pools import inference_pool, pod_object
from xds_server.applications.discovery.kubernetes.answers import BadAnswerError
from xds_server.applications.discovery.kubernetes.pods import (
    ACTIVE_PORTS,
    endpoints_of,
    read_pod,
    read_pool,
)
from xds_server.applications.discovery.kubernetes.slices import MAX_IDENTITY, TooManyError
from xds_server.applications.discovery.values import MAX_ENDPOINTS, Found
from xds_server.fleet.model.kubernetes import InferencePoolSpec

SPEC = InferencePoolSpec.model_validate(
    {"namespace": "infer", "name": "llm", "labels": {"variant": "v", "device": "gpu"}}
)


def endpoints(
    *pods: dict[str, Any], ports: tuple[int, ...] = (8000,), protocol: str = "http"
) -> tuple[Found, ...]:
    """Return the endpoints of these pods."""
    pool = read_pool(inference_pool("llm", *ports, protocol=protocol))
    assert pool is not None
    read = {each["metadata"]["name"]: read_pod(each, SPEC) for each in pods}
    return endpoints_of(pool, {name: pod for name, pod in read.items() if pod is not None})


def test_a_pod_is_an_endpoint_per_port() -> None:
    """With what its labels say; the zone is the node's, which Kubernetes copies."""
    labels = {"v": "canary", "gpu": "h100", "topology.kubernetes.io/zone": "a"}
    found = endpoints(pod_object("p", "10.1.0.1", labels=labels), ports=(8000, 8001))
    assert found == (
        Found("p-8000", "10.1.0.1:8000", None, "canary", "a", "h100"),
        Found("p-8001", "10.1.0.1:8001", None, "canary", "a", "h100"),
    )


@pytest.mark.parametrize("annotation", ACTIVE_PORTS)
def test_a_pod_may_use_some_of_the_ports(annotation: str) -> None:
    """As llm-d's annotation says; ports that the pool has not are no endpoints."""
    pod = pod_object("p", "10.1.0.1", annotations={annotation: "8001, 9999, x"})
    assert [each.identity for each in endpoints(pod, ports=(8000, 8001))] == ["p-8001"]


def test_pods_that_do_not_count() -> None:
    """Without an address yet, and those that have ended."""
    assert endpoints(pod_object("new", None)) == ()
    assert endpoints(pod_object("done", "10.1.0.1", phase="Succeeded")) == ()
    assert endpoints(pod_object("dead", "10.1.0.1", phase="Failed")) == ()


def test_readiness_and_termination() -> None:
    """A pod serves if it is ready; it terminates from its deletion on."""
    (unready,) = endpoints(pod_object("p", "10.1.0.1", ready=False))
    assert (unready.serving, unready.terminating) == (False, False)
    (ending,) = endpoints(pod_object("p", "10.1.0.1", deletionTimestamp="2026-01-01T00:00:00Z"))
    assert (ending.serving, ending.terminating) == (True, True)


def test_families_and_addresses() -> None:
    """The asked family's address of a pod that has both; IPv6 in brackets."""
    pod = pod_object("p", "10.1.0.1")
    pod["status"]["podIPs"] = [{"ip": "fd00::1"}, {"ip": "10.1.0.1"}]
    assert endpoints(pod)[0].http == "10.1.0.1:8000"
    assert endpoints(pod_object("p", "fd00::1"))[0].http == "[fd00::1]:8000"


def test_one_address_is_one_endpoint() -> None:
    """Of two pods on one host's network the one that does not terminate is meant."""
    old = pod_object("a", "10.1.0.1", deletionTimestamp="2026-01-01T00:00:00Z")
    assert [each.identity for each in endpoints(old, pod_object("b", "10.1.0.1"))] == ["b-8000"]


def test_names_and_numbers_are_bounded() -> None:
    """Long names keep their own end; more endpoints than a pool can have are an error."""
    (found,) = endpoints(pod_object("p" * 253, "10.1.0.1"), ports=(65535,))
    assert len(found.identity) <= MAX_IDENTITY
    pods = [pod_object(f"p{n}", f"10.1.{n // 250}.{n % 250}") for n in range(MAX_ENDPOINTS // 8)]
    assert len(endpoints(*pods, ports=tuple(range(1, 9)))) == MAX_ENDPOINTS
    pods.append(pod_object("last", "10.2.0.1"))
    with pytest.raises(TooManyError, match="narrow it"):
        endpoints(*pods, ports=tuple(range(1, 9)))


def test_a_pool_says_who_may_fail() -> None:
    """Closed unless it says otherwise, as its schema has it; gone while it is being deleted."""
    made = inference_pool("llm", 8000, 8001, labels={"b": "2", "a": "1"})
    pool = read_pool(made)
    assert pool is not None
    assert (pool.selector, pool.ports, pool.failure_mode) == ("a=1,b=2", (8000, 8001), "FailClose")
    made["spec"]["endpointPickerRef"]["failureMode"] = "FailOpen"
    assert read_pool(made) == pool._replace(failure_mode="FailOpen")
    del made["spec"]["endpointPickerRef"]
    assert read_pool(made) == pool
    assert read_pool(inference_pool(deletionTimestamp="2026-01-01T00:00:00Z")) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("selector", None),
        ("selector", {"matchLabels": {}}),
        ("selector", "app"),
        ("targetPorts", []),
        ("targetPorts", [{"number": 0}]),
        ("targetPorts", ["8000"]),
        ("appProtocol", "smtp"),
    ],
)
def test_what_is_no_pool_is_an_error(field: str, value: Any) -> None:
    """Nothing is taken on trust: a pool without a selector would match every pod."""
    made = inference_pool()
    made["spec"][field] = value
    with pytest.raises(BadAnswerError):
        read_pool(made)
