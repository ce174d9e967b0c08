"""An InferencePool and its pods to an observation. Pure.

Rules:

1. Each port of a pod is an endpoint of its own, called by the pod's name and the port: engines
   with data parallelism have a rank per port. An annotation of the pod may list the ports in use.
2. A pod serves if its condition ``Ready`` is true, and terminates once it is being deleted. One
   that has ended, or has no address yet, does not count.
3. An address is one endpoint's: of two pods with one address (on the host's network, replaced) the
   one that does not terminate is meant.

Sources: ``api/v1/inferencepool_types.go`` of the Gateway API Inference Extension; annotations as
``pkg/epp/datastore`` of llm-d's router reads them.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from xds_server.applications.discovery.kubernetes.answers import BadAnswerError, ResourceKind
from xds_server.applications.discovery.kubernetes.slices import (
    MAX_IDENTITY,
    TooManyError,
    bounded,
    one_per_address,
)
from xds_server.applications.discovery.values import MAX_ENDPOINTS, Found
from xds_server.fleet.model.fields import join_host_port

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate_api.names import Protocol
    from xds_server.fleet.model.kubernetes import InferencePoolSpec

POOLS: Final = ResourceKind(
    "inference.networking.k8s.io",
    "v1",
    "InferencePool",
    "inferencepools",
    "install the resources of the Gateway API Inference Extension, version 1.0 or later",
)
PODS: Final = ResourceKind("", "v1", "Pod", "pods", "it is no API server of Kubernetes")
OBJECTIVES: Final = ResourceKind(
    "inference.networking.x-k8s.io",
    "v1alpha2",
    "InferenceObjective",
    "inferenceobjectives",
    "install the resources of the Gateway API Inference Extension, or leave out `objectives`",
)
MAX_PORTS: Final = 8
"""Most ports of an InferencePool, as its schema has it."""
ACTIVE_PORTS: Final = ("inference.networking.k8s.io/active-ports", "llm-d.ai/active-ports")
"""Annotations of a pod that list the ports in use, the one that counts first."""

_MAX_PORT: Final = 65_535
_PORT_CHARS: Final = 6
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_PROTOCOLS: Final[Mapping[object, Protocol]] = {"http": "http", "kubernetes.io/h2c": "grpc"}

FailureMode = Literal["FailOpen", "FailClose"]


class InferencePool(NamedTuple):
    """What is needed of an InferencePool."""

    selector: str
    """Label selector of its pods."""
    ports: tuple[int, ...]
    protocol: Protocol
    failure_mode: FailureMode
    """What its gateway is to do where no picker answers."""


class Pod(NamedTuple):
    """What is needed of a pod."""

    address: str
    ports: frozenset[int] | None
    """The ports that are in use; ``None`` = all of the pool's."""
    variant: str | None
    zone: str | None
    device: str | None
    serving: bool
    terminating: bool


def read_pool(found: Mapping[str, Any]) -> InferencePool | None:
    """Return what is needed of an InferencePool; ``None`` for one that is being deleted.

    Raises:
        BadAnswerError: It is none.
    """
    spec = _mapping(found, "spec")
    labels = _mapping(_mapping(spec, "selector"), "matchLabels")
    ports = [_port(each) for each in _list(spec.get("targetPorts"))[:MAX_PORTS]]
    protocol = _PROTOCOLS.get(spec.get("appProtocol") or "http")
    if not labels or not ports or protocol is None:
        raise BadAnswerError("an InferencePool without a selector, ports or a known appProtocol")
    if _mapping(found, "metadata").get("deletionTimestamp"):
        return None
    mode = _mapping(spec, "endpointPickerRef").get("failureMode")
    return InferencePool(
        ",".join(f"{key}={labels[key]}" for key in sorted(labels)),
        tuple(dict.fromkeys(ports)),
        protocol,
        "FailOpen" if mode == "FailOpen" else "FailClose",
    )


def read_pod(found: Mapping[str, Any], spec: InferencePoolSpec) -> Pod | None:
    """Return what is needed of a pod; ``None`` for one without an address, or that has ended.

    Raises:
        BadAnswerError: It is none.
    """
    metadata, status = _mapping(found, "metadata"), _mapping(found, "status")
    address = _address(status, 4 if spec.family == "ipv4" else 6)
    if address is None or status.get("phase") in _ENDED:
        return None
    labels, annotations = _mapping(metadata, "labels"), _mapping(metadata, "annotations")
    told = next((annotations[key] for key in ACTIVE_PORTS if key in annotations), None)
    ready = any(
        isinstance(each, dict) and each.get("type") == "Ready" and each.get("status") == "True"
        for each in _list(status.get("conditions"))
    )
    return Pod(
        address,
        None if told is None else _active(told),
        _label(labels, spec.labels.variant),
        _label(labels, spec.labels.zone),
        _label(labels, spec.labels.device),
        ready,
        bool(metadata.get("deletionTimestamp")),
    )


def read_objective(found: Mapping[str, Any], pool: str) -> int | None:
    """Return the priority of an InferenceObjective of a pool; ``None`` for one of another pool.

    Raises:
        BadAnswerError: It is none.
    """
    spec = _mapping(found, "spec")
    priority = spec.get("priority")
    if priority is None:
        priority = 0
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise BadAnswerError("an InferenceObjective whose priority is no integer")
    return priority if _mapping(spec, "poolRef").get("name") == pool else None


def low_of(objectives: Mapping[str, int]) -> tuple[str, ...]:
    """Return the names of the objectives whose requests may be shed: those below 0, sorted."""
    return tuple(sorted(name for name, priority in objectives.items() if priority < 0))


def endpoints_of(pool: InferencePool, pods: Mapping[str, Pod]) -> tuple[Found, ...]:
    """Return the endpoints of a pool; equal pods give equal endpoints.

    Raises:
        TooManyError: There are more than ``MAX_ENDPOINTS``.
    """
    found = []
    for name in sorted(pods):
        pod = pods[name]
        for port in pool.ports:
            if pod.ports is not None and port not in pod.ports:
                continue
            address = join_host_port(pod.address, port)
            found.append(
                Found(
                    identity=f"{bounded(name, MAX_IDENTITY - _PORT_CHARS)}-{port}",
                    http=address if pool.protocol == "http" else None,
                    grpc=address if pool.protocol == "grpc" else None,
                    variant=pod.variant,
                    zone=pod.zone,
                    device=pod.device,
                    serving=pod.serving,
                    terminating=pod.terminating,
                )
            )
    if len(found) > MAX_ENDPOINTS:
        raise TooManyError(
            f"the selector {pool.selector!r} matches {len(found)} endpoints; the most are "
            f"{MAX_ENDPOINTS}: narrow it"
        )
    return tuple(sorted(one_per_address(found), key=lambda one: one.identity))


def _mapping(found: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return what an object has of this name; empty if it has none.

    Raises:
        BadAnswerError: It is no object.
    """
    value = found.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadAnswerError(f"`{key}` is no object")
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _port(found: Any) -> int:
    number = found.get("number") if isinstance(found, dict) else None
    if not isinstance(number, int) or not 0 < number <= _MAX_PORT:
        raise BadAnswerError("a port of an InferencePool is no number from 1 to 65535")
    return number


def _active(told: Any) -> frozenset[int]:
    words = (each.strip() for each in str(told)[:256].split(","))
    return frozenset(int(each) for each in words if each.isascii() and each.isdigit())


def _label(labels: Mapping[str, Any], key: str | None) -> str | None:
    value = labels.get(key) if key is not None else None
    return value if isinstance(value, str) and value else None


def _address(status: Mapping[str, Any], version: int) -> str | None:
    """Return the pod's address of a family, else its first."""
    listed = [each.get("ip") for each in _list(status.get("podIPs")) if isinstance(each, dict)]
    parsed = []
    for text in (*listed, status.get("podIP")):
        try:
            parsed.append(ipaddress.ip_address(str(text)))
        except ValueError:
            continue
    wanted = next((each for each in parsed if each.version == version), None)
    address = wanted or (parsed[0] if parsed else None)
    return None if address is None else str(address)
