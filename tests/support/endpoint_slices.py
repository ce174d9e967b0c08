"""EndpointSlices for tests, as the API server writes them."""

from __future__ import annotations

from typing import Any

from xds_server.fleet.model.kubernetes import KubernetesSpec

SPEC = KubernetesSpec.model_validate(
    {
        "namespace": "infer",
        "service": "triton",
        "labels": {"variant": "tidegate.dev/variant", "device": "tidegate.dev/device"},
    }
)
PORTS = {"http": 8000, "grpc": 8001}


def pod(
    name: str | None,
    address: str,
    *,
    uid: str = "",
    zone: str | None = None,
    **conditions: bool | None,
) -> dict[str, Any]:
    """Return an endpoint of a slice; without a name it is no pod's."""
    said = {"ready": True, "serving": True, "terminating": False, **conditions}
    made: dict[str, Any] = {
        "addresses": [address],
        "conditions": {key: value for key, value in said.items() if value is not None},
    }
    if name is not None:
        made["targetRef"] = {"kind": "Pod", "name": name, "uid": uid or f"uid-of-{name}"}
    if zone is not None:
        made["zone"] = zone
    return made


def endpoint_slice(
    name: str,
    *endpoints: dict[str, Any],
    version: int = 1,
    family: str = "IPv4",
    ports: dict[str, int] | None = None,
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return an EndpointSlice."""
    return {
        "metadata": {
            "name": name,
            "namespace": "infer",
            "resourceVersion": str(version),
            "labels": {"kubernetes.io/service-name": "triton", **(labels or {})},
        },
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [
            {"name": key, "port": port, "protocol": "TCP"}
            for key, port in (PORTS if ports is None else ports).items()
        ],
    }


def slice_list(*items: dict[str, Any], version: int = 1, more: str = "") -> dict[str, Any]:
    """Return a page of a list."""
    metadata = {"resourceVersion": str(version)}
    if more:
        metadata["continue"] = more
    return {
        "kind": "EndpointSliceList",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": metadata,
        "items": list(items),
    }
