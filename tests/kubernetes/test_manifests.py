"""The Helm chart and its plain manifests against a real API server and the gateways' own schemas.

Unknown fields are errors (strict validation), the schemas' own rules (CEL) are applied, and pods
are admitted by Pod Security at the level `restricted`. No container runs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kubernetes.binaries import module
from kubernetes.chart import CHART, FILES, MANIFESTS, VALUES, helm, manifest, objects, render
from kubernetes.cluster import ApiError
from kubernetes.watched import manifests
from xds_server.fleet.load import load_text

if TYPE_CHECKING:
    from pathlib import Path

    from kubernetes.cluster import Cluster

pytestmark = pytest.mark.timeout(900)
ADMITTED_S = 60.0
NEEDED = {
    ("cert-manager.io", "Certificate"),
    ("gateway.networking.k8s.io", "BackendTLSPolicy"),
    ("gateway.networking.k8s.io", "Gateway"),
    ("gateway.networking.k8s.io", "HTTPRoute"),
    ("gateway.envoyproxy.io", "BackendTrafficPolicy"),
    ("gateway.envoyproxy.io", "ClientTrafficPolicy"),
    ("gateway.envoyproxy.io", "EnvoyExtensionPolicy"),
    ("inference.networking.k8s.io", "InferencePool"),
    ("keda.sh", "ScaledObject"),
    ("monitoring.coreos.com", "PodMonitor"),
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
    ("github.com/cert-manager/cert-manager", "v1.21.2", "deploy/crds/*_certificates.yaml"),
    (
        "github.com/prometheus-operator/prometheus-operator",
        "v0.85.0",
        "example/prometheus-operator-crd/*_podmonitors.yaml",
    ),
    ("github.com/kedacore/keda/v2", "v2.21.0", "config/crd/bases/keda.sh_scaledobjects.yaml"),
)
"""Go modules, their versions, and where their schemas are."""
RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}


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


async def restricted(cluster: Cluster, name: str) -> None:
    """Make a namespace that admits restricted pods only."""
    metadata = {"name": name, "labels": RESTRICTED}
    await cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


@pytest.fixture(scope="module")
async def schemas(cluster: Cluster) -> Cluster:
    """The cluster with all schemas, and the namespaces that the chart knows."""
    found: set[tuple[str, str]] = set()
    for path, version, pattern in SCHEMAS:
        for each in definitions(module(path, version), pattern):
            await cluster.define(each)
            found.add((each["spec"]["group"], each["spec"]["names"]["kind"]))
    assert found == NEEDED
    for name in ("infer", "istio-system", "models", "tidegate-store"):
        await restricted(cluster, name)
    return cluster


@pytest.mark.parametrize("name", sorted(FILES))
async def test_a_manifest_is_taken(schemas: Cluster, name: str) -> None:
    """Each object of it, as a dry run."""
    for each in manifests(name):
        await schemas.apply(each, dryRun="All")


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_manifest_is_what_the_chart_renders(name: str) -> None:
    """One source for both; `make manifests` writes them."""
    assert (MANIFESTS / name).read_text() == manifest(FILES[name])


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_chart_passes_lint(values: Path) -> None:
    """Strictly: a warning fails."""
    said = helm(
        "lint", "--strict", "--kube-version", "v1.36.3", "--values", str(values), str(CHART)
    )
    assert "0 chart(s) failed" in said


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
async def test_a_release_is_taken(schemas: Cluster, values: Path) -> None:
    """All its objects are applied, and the real controllers create all its pods."""
    namespace = f"release-{values.stem}"
    await restricted(schemas, namespace)
    made = objects(render("--values", str(values), namespace=namespace))
    for each in made:
        await schemas.apply(each)
        if each["kind"] == "ConfigMap":  # which the control server takes
            load_text(each["data"]["fleet.yaml"].replace("@PICKER@", "10.96.0.10"), "fleet.yaml")
    wanted = {
        each["metadata"]["name"]: each["spec"].get("replicas", 1)
        for each in made
        if each["kind"] in {"Deployment", "StatefulSet"}
    }
    assert {f"tidegate-{part}" for part in ("control", "picker")} <= set(wanted)
    await admitted(schemas, namespace, sum(wanted.values()))
    await schemas.ask("DELETE", f"/api/v1/namespaces/{namespace}")


async def admitted(cluster: Cluster, namespace: str, count: int) -> list[dict[str, Any]]:
    """Return the pods of a namespace once there are so many."""
    pods: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(ADMITTED_S):
            while len(pods) != count:
                await asyncio.sleep(0.1)
                pods = (await cluster.ask("GET", f"/api/v1/namespaces/{namespace}/pods"))["items"]
    except TimeoutError:
        path = f"/api/v1/namespaces/{namespace}/events"
        said = {each["message"] for each in (await cluster.ask("GET", path))["items"]}
        raise AssertionError(f"{len(pods)} pods of {count}: {said}") from None
    return pods


@pytest.mark.parametrize("change", ["root", "capability", "seccomp"])
async def test_a_pod_with_more_rights_is_refused(schemas: Cluster, change: str) -> None:
    """Otherwise the test above would hold nothing."""
    (control,) = (
        each
        for each in manifests("edge.yaml", "StatefulSet")
        if each["metadata"]["name"] == "tidegate-control"
    )
    spec = control["spec"]["template"]["spec"]
    if change == "root":
        spec["securityContext"]["runAsNonRoot"] = False
    elif change == "capability":
        spec["initContainers"][0]["securityContext"]["capabilities"] = {"add": ["NET_ADMIN"]}
    else:
        spec["securityContext"].pop("seccompProfile")
    spec["volumes"].append({"name": "state", "emptyDir": {}})
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "more"}, "spec": spec}
    with pytest.raises(ApiError, match=r'violates PodSecurity \\?"restricted'):
        await schemas.ask("POST", "/api/v1/namespaces/infer/pods", pod, dryRun="All")


@pytest.mark.parametrize(
    ("name", "kind", "field"),
    [
        ("envoy-gateway.yaml", "EnvoyExtensionPolicy", "extProcs"),
        ("istio.yaml", "EnvoyFilter", "configPatch"),
        ("inference-pool.yaml", "InferencePool", "targetPort"),
        ("edge.yaml", "Deployment", "replica"),
    ],
)
async def test_an_unknown_field_is_refused(
    schemas: Cluster, name: str, kind: str, field: str
) -> None:
    """Otherwise the tests above would hold nothing."""
    (made,) = manifests(name, kind)
    made["spec"][field] = {}
    with pytest.raises(ApiError, match=field):
        await schemas.apply(made, dryRun="All")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("triton.enable=true", "'/triton': additional properties 'enable' not allowed"),
        ("form=sidecar", "'/form': value must be one of"),
        ("autoscaling.hpa=true,autoscaling.keda=true", "switch one off"),
        ("picker.workers=0", "'/picker/workers': minimum"),
    ],
)
def test_wrong_values_are_refused(options: str, said: str) -> None:
    """With the place."""
    with pytest.raises(RuntimeError, match=said):
        render("--set", options)
