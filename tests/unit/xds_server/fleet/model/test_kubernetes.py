"""Settings of endpoints from Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from xds_server.fleet.model.kubernetes import KUBERNETES_MEANINGS, KubernetesSpec

TRITON = {"namespace": "infer", "service": "triton"}


def test_a_namespace_and_a_service_are_enough() -> None:
    """The ports have the names that Triton's Services mostly use; the cluster is our own."""
    spec = KubernetesSpec.model_validate(TRITON)
    assert spec.ports is None, "replicas need not have both"
    assert (spec.port_names.http, spec.port_names.grpc) == ("http", "grpc")
    assert spec.api.kubeconfig is None
    assert spec.api.url is None


def test_a_service_is_a_label_of_its_slices() -> None:
    """All that is asked for is one selector, in an order that does not depend on the file's."""
    spec = KubernetesSpec.model_validate(
        {**TRITON, "selector": {"tier": "gpu", "app.example/part": ""}}
    )
    assert spec.label_selector == ("app.example/part=,kubernetes.io/service-name=triton,tier=gpu")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"namespace": "infer"}, "say which Services"),
        ({**TRITON, "selector": {"kubernetes.io/service-name": "a"}}, "leave `service` out"),
        ({**TRITON, "namespace": "Infer"}, "pattern"),
        ({**TRITON, "namespace": "a/../b"}, "pattern"),
        ({**TRITON, "selector": {"a,b": "c"}}, "pattern"),
        ({**TRITON, "selector": {"a": "b,c=d"}}, "pattern"),
        ({**TRITON, "selector": {f"k{n}": "" for n in range(17)}}, "at most 16"),
        ({**TRITON, "ports": {"http": None, "grpc": None}}, "name a port"),
        ({**TRITON, "api": {"context": "c"}}, "needs `kubeconfig`"),
        ({**TRITON, "api": {"token_file": "/t"}}, "need `url`"),
        ({**TRITON, "api": {"kubeconfig": "/k", "url": "https://a"}}, "either `kubeconfig`"),
        ({**TRITON, "api": {"url": "http://10.0.0.1"}}, "write https"),
        ({**TRITON, "api": {"url": "https://user:pass@a"}}, "write https"),
        ({**TRITON, "api": {"url": "https://a/?b=c"}}, "write https"),
        ({**TRITON, "api": {"url": "https://["}}, "write https"),
        ({**TRITON, "api": {"url": "https://a:99999"}}, "write https"),
        ({**TRITON, "api": {"url": "file:///a"}}, "write https"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, Any], reason: str) -> None:
    """In particular, what would change the request, or send a token in the clear."""
    with pytest.raises(ValidationError, match=reason):
        KubernetesSpec.model_validate(wrong)


@pytest.mark.parametrize("url", ["https://api.example:6443/", "http://127.0.0.1:8001"])
def test_urls_of_api_servers(url: str) -> None:
    """HTTPS anywhere; HTTP on this machine, where `kubectl proxy` listens."""
    spec = KubernetesSpec.model_validate({**TRITON, "api": {"url": url}})
    assert spec.api.url == url.rstrip("/")


def _patterns(found: Any) -> set[str]:
    if isinstance(found, dict):
        own = {found["pattern"]} if isinstance(found.get("pattern"), str) else set()
        return own.union(*map(_patterns, found.values()))
    return set().union(*map(_patterns, found)) if isinstance(found, list) else set()


def test_each_pattern_is_explained() -> None:
    """The error of a fleet file says in words what to write."""
    schema = KubernetesSpec.model_json_schema()
    unknown = _patterns(schema) - set(KUBERNETES_MEANINGS)
    assert unknown == {r"^/[^\x00-\x1f\x7f]*[^/\x00-\x1f\x7f]$"}  # a file's, which fields explains
