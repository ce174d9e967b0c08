"""The manifests of ``deploy/kubernetes`` against a real API server and the gateways' own schemas.

Unknown fields are errors (strict validation), and the schemas' own rules (CEL) are applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kubernetes.binaries import module
from kubernetes.cluster import ApiError
from kubernetes.watched import MANIFESTS, manifests

if TYPE_CHECKING:
    from pathlib import Path

    from kubernetes.cluster import Cluster

pytestmark = pytest.mark.timeout(900)
FILES = sorted(path.name for path in MANIFESTS.glob("*.yaml"))
NEEDED = {
    ("gateway.networking.k8s.io", "BackendTLSPolicy"),
    ("gateway.networking.k8s.io", "Gateway"),
    ("gateway.networking.k8s.io", "HTTPRoute"),
    ("gateway.envoyproxy.io", "BackendTrafficPolicy"),
    ("gateway.envoyproxy.io", "ClientTrafficPolicy"),
    ("gateway.envoyproxy.io", "EnvoyExtensionPolicy"),
    ("inference.networking.k8s.io", "InferencePool"),
    ("networking.istio.io", "DestinationRule"),
    ("networking.istio.io", "EnvoyFilter"),
    ("networking.istio.io", "Gateway"),
    ("networking.istio.io", "VirtualService"),
}
SCHEMAS = (
    ("sigs.k8s.io/gateway-api", "v1.6.3", "config/crd/standard/*.yaml"),
    ("sigs.k8s.io/gateway-api-inference-extension", "v1.5.0", "config/crd/bases/*.yaml"),
    (
        "github.com/envoyproxy/gateway",
        "v1.9.1",
        "charts/gateway-helm/charts/crds/crds/generated/*.yaml",
    ),
    ("istio.io/api", "v1.31.1", "kubernetes/customresourcedefinitions.gen.yaml"),
)
"""Go modules, their versions, and where their schemas are."""


def definitions(folder: Path, pattern: str) -> list[dict[str, Any]]:
    """Return the definitions that are needed out of a module's files."""
    return [
        each
        for path in sorted(folder.glob(pattern))
        for each in yaml.safe_load_all(path.read_text())
        if each
        and each["kind"] == "CustomResourceDefinition"
        and (each["spec"]["group"], each["spec"]["names"]["kind"]) in NEEDED
    ]


@pytest.fixture(scope="module")
async def schemas(cluster: Cluster) -> Cluster:
    """The cluster with all schemas, and the namespaces of the examples."""
    found: set[tuple[str, str]] = set()
    for path, version, pattern in SCHEMAS:
        for each in definitions(module(path, version), pattern):
            await cluster.define(each)
            found.add((each["spec"]["group"], each["spec"]["names"]["kind"]))
    assert found == NEEDED
    for name in ("infer", "istio-system"):
        await cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return cluster


@pytest.mark.parametrize("name", FILES)
async def test_a_manifest_is_taken(schemas: Cluster, name: str) -> None:
    """Each object of it, as a dry run."""
    for each in manifests(name):
        await schemas.apply(each, dryRun="All")


@pytest.mark.parametrize(
    ("name", "kind", "field"),
    [
        ("envoy-gateway.yaml", "EnvoyExtensionPolicy", "extProcs"),
        ("istio.yaml", "EnvoyFilter", "configPatch"),
        ("inference-pool.yaml", "InferencePool", "targetPort"),
        ("control-server.yaml", "Deployment", "replica"),
    ],
)
async def test_an_unknown_field_is_refused(
    schemas: Cluster, name: str, kind: str, field: str
) -> None:
    """Otherwise the test above would hold nothing."""
    (made,) = manifests(name, kind)
    made["spec"][field] = {}
    with pytest.raises(ApiError, match=field):
        await schemas.apply(made, dryRun="All")
