"""Endpoints of a pool from Kubernetes: which EndpointSlices, what of them, and which API server."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from tidegate_api.names import Protocol  # noqa: TC001 - pydantic reads the annotation at run time
from xds_server.fleet.model.fields import FilePath, Strict

MAX_SELECTOR_LABELS = 16
"""Most labels of one selector."""
SERVICE_LABEL = "kubernetes.io/service-name"
"""Label of an EndpointSlice that names its Service."""

_LABEL_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_SUBDOMAIN = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
_LABEL_KEY = rf"^({_SUBDOMAIN}/)?{_LABEL_NAME}$"
_LABEL_VALUE = rf"^({_LABEL_NAME})?$"
_DNS_LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
_SUBDOMAIN_NAME = rf"^{_SUBDOMAIN}$"
_PORT_NAME = r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$"

KUBERNETES_MEANINGS = {
    _LABEL_KEY: "a label's key, such as app or tidegate.dev/variant",
    _LABEL_VALUE: "a label's value, at most 63 letters, digits, '.', '_' and '-'",
    _DNS_LABEL: "a name of Kubernetes: lower-case letters, digits and '-', at most 63 characters",
    _SUBDOMAIN_NAME: "a name of Kubernetes: lower-case letters, digits, '-' and '.'",
    _PORT_NAME: "the name of a Service's port; empty for a single port without a name",
}
"""Description of each pattern, for error messages."""

DnsLabel = Annotated[str, Field(pattern=_DNS_LABEL)]
ObjectName = Annotated[str, Field(pattern=_SUBDOMAIN_NAME, max_length=253)]
LabelKey = Annotated[str, Field(pattern=_LABEL_KEY, max_length=317)]
LabelValue = Annotated[str, Field(pattern=_LABEL_VALUE)]
PortName = Annotated[str, Field(pattern=_PORT_NAME)]


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port, _ = parts.hostname or "", parts.port, parts.path
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    plain = parts.scheme == "http" and _loopback(host)  # `kubectl proxy`
    extra = parts.username or parts.password or parts.query or parts.fragment
    if not host or port == 0 or extra or not (parts.scheme == "https" or plain):
        raise PydanticCustomError(
            "api_server_url",
            "'{value}' is no API server's URL; write https://HOST:PORT; http is for this "
            "machine's own addresses alone (`kubectl proxy`)",
            {"value": url[:128]},
        )
    return url.rstrip("/")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


ApiUrl = Annotated[str, Field(max_length=512), AfterValidator(_check_url)]
"""URL of an API server, without a slash at its end."""


class KubernetesPorts(Strict):
    """Names of the Service's ports; null = the pool's replicas have none."""

    http: PortName | None = "http"
    """Port of Triton's or the engine's HTTP."""
    grpc: PortName | None = "grpc"
    """Port of Triton's gRPC."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.http is None and self.grpc is None:
            raise PydanticCustomError(
                "no_port", "name a port of the Service: `http`, `grpc` or both", {}
            )
        return self


class KubernetesLabels(Strict):
    """Labels of the Service, which its EndpointSlices carry too, that say more of its replicas."""

    variant: LabelKey | None = None
    """Its value is the replicas' variant: one Service per variant."""
    zone: LabelKey | None = None
    """Its value is the zone of replicas whose nodes have none."""
    device: LabelKey | None = None
    """Its value is the replicas' `device`."""


class KubernetesApi(Strict):
    """The API server and who asks it; by default the pod's own cluster and service account.

    All files are read again when they change.
    """

    kubeconfig: FilePath | None = None
    """A kubeconfig with a token, a token file or a client certificate; it needs no other field than
    `context`."""
    context: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Context of the kubeconfig; its current one if omitted."""
    url: ApiUrl | None = None
    """The API server, instead of a kubeconfig."""
    token_file: FilePath | None = None
    """With `url`: the file of the bearer token. Rotated tokens are noticed."""
    ca_file: FilePath | None = None
    """With `url`: certificates (PEM) that the server's must be signed by; the system's if
    omitted."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        by_url = self.token_file is not None or self.ca_file is not None
        if self.kubeconfig is not None and (self.url is not None or by_url):
            raise PydanticCustomError(
                "two_ways", "give either `kubeconfig` or `url`, `token_file` and `ca_file`", {}
            )
        if self.context is not None and self.kubeconfig is None:
            raise PydanticCustomError("no_kubeconfig", "`context` needs `kubeconfig`", {})
        if by_url and self.url is None:
            raise PydanticCustomError("no_url", "`token_file` and `ca_file` need `url`", {})
        return self


class KubernetesSpec(Strict):
    """EndpointSlices of a namespace, by the labels of their Services."""

    namespace: DnsLabel
    """Namespace of the Services."""
    service: DnsLabel | None = None
    """One Service, by its name."""
    selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=MAX_SELECTOR_LABELS)] = Field(
        default={}
    )
    """All Services that have these labels; with `service` also this one only if it has them."""
    ports: KubernetesPorts | None = None
    """Which of the Service's ports are which; each replica must have them. If omitted, those of the
    names `http` and `grpc` that it has."""
    labels: KubernetesLabels = KubernetesLabels()
    """Which of the Service's labels say what."""
    family: Literal["ipv4", "ipv6"] = "ipv4"
    """The address that is used of a pod that has both."""
    api: KubernetesApi = KubernetesApi()
    """The API server."""

    @model_validator(mode="after")
    def _selects(self) -> Self:
        if self.service is None and not self.selector:
            raise PydanticCustomError(
                "no_selector", "say which Services: `service`, `selector` or both", {}
            )
        if self.service is not None and SERVICE_LABEL in self.selector:
            raise PydanticCustomError(
                "two_services", "`selector` names the Service too; leave `service` out", {}
            )
        return self

    @property
    def port_names(self) -> KubernetesPorts:
        """Return the names of the ports that count."""
        return self.ports or KubernetesPorts()

    @property
    def label_selector(self) -> str:
        """Return the selector as the API server reads it."""
        labels = dict(self.selector)
        if self.service is not None:
            labels[SERVICE_LABEL] = self.service
        return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


class PodLabels(Strict):
    """Labels of the pods that say more of them."""

    variant: LabelKey | None = None
    """Its value is the replica's variant."""
    zone: LabelKey | None = "topology.kubernetes.io/zone"
    """Its value is the replica's zone; Kubernetes 1.35 and later copies this one from the node."""
    device: LabelKey | None = None
    """Its value is the replica's `device`."""


class InferencePoolSpec(Strict):
    """An InferencePool, `inference.networking.k8s.io/v1`: its selector and ports are followed."""

    namespace: DnsLabel
    """Namespace of the InferencePool and of its pods."""
    name: ObjectName
    """Its name."""
    protocol: Protocol = "http"
    """What its ports speak: `http`, or `grpc` where its `appProtocol` is `kubernetes.io/h2c`."""
    objectives: bool = False
    """Follow the InferenceObjectives of the namespace that name it, too: requests of one with a
    negative priority are in the queue's lower band."""
    labels: PodLabels = PodLabels()
    """Which of the pods' labels say what."""
    family: Literal["ipv4", "ipv6"] = "ipv4"
    """The address that is used of a pod that has both."""
    api: KubernetesApi = KubernetesApi()
    """The API server."""
