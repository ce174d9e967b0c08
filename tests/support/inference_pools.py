"""InferencePools and pods for tests, as the API server writes them."""

from __future__ import annotations

from typing import Any


def inference_pool(
    name: str = "llm",
    *ports: int,
    labels: dict[str, str] | None = None,
    protocol: str = "http",
    **metadata: Any,
) -> dict[str, Any]:
    """Return an InferencePool with the defaults of its schema filled in."""
    reference = {"group": "", "kind": "Service", "name": "picker", "port": {"number": 9002}}
    return {
        "metadata": {"name": name, "namespace": "infer", **metadata},
        "spec": {
            "selector": {"matchLabels": labels or {"app": "vllm"}},
            "targetPorts": [{"number": port} for port in ports or (8000,)],
            "appProtocol": protocol,
            "endpointPickerRef": {**reference, "failureMode": "FailClose"},
        },
    }


def objective(name: str, priority: int | None, pool: str = "llm") -> dict[str, Any]:
    """Return an InferenceObjective."""
    given = {} if priority is None else {"priority": priority}
    reference = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pool}
    return {
        "metadata": {"name": name, "namespace": "infer"},
        "spec": {**given, "poolRef": reference},
    }


def pod_object(
    name: str,
    address: str | None,
    *,
    ready: bool = True,
    labels: dict[str, str] | None = None,
    phase: str = "Running",
    **metadata: Any,
) -> dict[str, Any]:
    """Return a pod."""
    addresses = {} if address is None else {"podIP": address, "podIPs": [{"ip": address}]}
    return {
        "metadata": {
            "name": name,
            "namespace": "infer",
            "labels": {"app": "vllm", **(labels or {})},
            **metadata,
        },
        "status": {
            "phase": phase,
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": str(ready)},
            ],
            **addresses,
        },
    }
