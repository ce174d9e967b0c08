"""Settings of replicas that are found: where, and how they come and go."""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tidegate_api.names import Protocol  # noqa: TC001 - pydantic reads the annotation at run time
from xds_server.fleet.model.fields import DnsName, Duration, Label, LocalPath, Name, Port, Strict
from xds_server.fleet.model.kubernetes import (  # noqa: TC001 - as above
    InferencePoolSpec,
    KubernetesSpec,
)


class Kind(NamedTuple):
    """Which protocols a replica speaks."""

    http: bool
    grpc: bool


ANY_KIND: Final = frozenset(
    {Kind(http=True, grpc=True), Kind(http=True, grpc=False), Kind(http=False, grpc=True)}
)


class Serves(NamedTuple):
    """A variant, and which protocols a replica of it speaks."""

    variant: str
    kind: Kind


class DnsSource(Strict):
    """Replicas by a DNS name."""

    name: DnsName
    """Name with A and AAAA records or, with `srv`, with SRV records."""
    http: Port | None = None
    """Port of HTTP on each address."""
    grpc: Port | None = None
    """Port of gRPC on each address."""
    srv: Literal["http", "grpc"] | None = None
    """`name` has SRV records, whose port is the one of this protocol."""
    min_interval: Annotated[Duration, Field(ge=0.1)] = 5.0
    """Least time between two looks, whatever the records' TTL."""
    max_interval: Annotated[Duration, Field(ge=0.1)] = 300.0
    """Longest time between two looks, whatever the records' TTL."""

    @model_validator(mode="after")
    def _has_ports(self) -> Self:
        if self.srv is not None and getattr(self, self.srv) is not None:
            raise PydanticCustomError(
                "dns_port",
                "SRV records give the port of `{srv}`; remove `{srv}` or `srv`",
                {"srv": self.srv},
            )
        if self.http is None and self.grpc is None and self.srv is None:
            raise PydanticCustomError(
                "dns_port", "no port; write `http: 8000`, `grpc: 8001` or both, or `srv: http`", {}
            )
        if self.min_interval > self.max_interval:
            raise PydanticCustomError(
                "dns_interval", "`min_interval` is longer than `max_interval`; correct one", {}
            )
        return self


class EndpointsFrom(Strict):
    """One source of replicas: one of `file`, `dns`, `kubernetes` and `inference_pool`."""

    file: LocalPath | None = None
    """A file on the control server's machine that lists replicas, watched for changes."""
    protocols: Annotated[tuple[Protocol, ...], Field(min_length=1, max_length=2)] | None = None
    """With `file`: what each replica of the file must speak; the others are refused. If omitted,
    each speaks what it has an address for."""
    dns: DnsSource | None = None
    """A DNS name."""
    kubernetes: KubernetesSpec | None = None
    """EndpointSlices of Kubernetes."""
    inference_pool: InferencePoolSpec | None = None
    """The pods of an InferencePool of Kubernetes."""
    variant: Name | None = None
    """Variant of replicas of which the source tells none; the pool's first if omitted."""
    zone: Label = ""
    """Zone of replicas of which the source tells none."""
    device: Label = ""
    """Device of replicas of which the source tells none."""
    capacity: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0
    """Relative strength of each replica."""
    metrics_port: Port | None = None
    """Port of the replicas' Prometheus page, at `/metrics`. Replicas of an `inference_pool` that
    speaks HTTP have it at their own port if this is omitted."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            raise PydanticCustomError(
                "one_source",
                "each entry has exactly one of {known}",
                {"known": ", ".join(f"`{name}`" for name in SOURCES)},
            )
        return self

    @property
    def kinds(self) -> frozenset[Kind]:
        """The sets of protocols that its replicas may speak; one where the source says which."""
        if self.dns is not None:
            dns = self.dns
            told = (getattr(dns, each) is not None or dns.srv == each for each in _PROTOCOLS)
        elif self.kubernetes is not None:
            ports = self.kubernetes.ports
            if ports is None:
                return ANY_KIND
            told = (getattr(ports, each) is not None for each in _PROTOCOLS)
        elif self.inference_pool is not None:
            told = (each == self.inference_pool.protocol for each in _PROTOCOLS)
        elif self.protocols is None:
            return ANY_KIND
        else:
            told = (each in self.protocols for each in _PROTOCOLS)
        return frozenset({Kind(*told)})

    @property
    def tells_variants(self) -> bool:
        """Whether its replicas may be of any variant."""
        if self.kubernetes is not None:
            return self.kubernetes.labels.variant is not None
        if self.inference_pool is not None:
            return self.inference_pool.labels.variant is not None
        return self.dns is None

    @property
    def key(self) -> str:
        """Name of the source, for people; different for each source of a pool."""
        if self.dns is not None:
            ports = (
                ("srv" if self.dns.srv == each else getattr(self.dns, each) or "")
                for each in _PROTOCOLS
            )
            return f"dns {self.dns.name}:{'/'.join(map(str, ports))}"
        if self.kubernetes is not None:
            spec = self.kubernetes
            ports = (each or "" for each in (spec.port_names.http, spec.port_names.grpc))
            return f"kubernetes {spec.namespace} {spec.label_selector}:{'/'.join(ports)}"
        if self.inference_pool is not None:
            pool = self.inference_pool
            return f"inference_pool {pool.namespace}/{pool.name}:{pool.protocol}"
        return f"file {self.file}"

    @property
    def reaches(self) -> frozenset[str]:
        """Names for what it finds, one per port: sources that share one find the same replicas."""
        source, _, ports = self.key.rpartition(":")
        if self.file is not None or self.inference_pool is not None or not source:
            return frozenset({self.key})
        return frozenset(f"{source}:{port}" for port in ports.split("/") if port)


class MembershipSpec(Strict):
    """How replicas that are found come and go."""

    admit: Literal["ready", "found"] = "ready"
    """Whether a replica joins once its model is ready, as the control server finds over HTTP, or
    as soon as it is found."""
    hold: Annotated[Duration, Field(gt=0)] = 600.0
    """More than half of the pool's replicas that vanish at once stay for so long, unless
    `tidegate confirm` lets them go. The last of a variant stay until then in any case."""
    drain: Annotated[Duration, Field(gt=0)] = 300.0
    """A vanished replica may finish its requests for so long."""
    damping: Duration = 60.0
    """Longest time for which a replica that comes and goes must stay before it joins again."""


_PROTOCOLS: Final = ("http", "grpc")
SOURCES: Final = ("file", "dns", "kubernetes", "inference_pool")
"""Fields of ``EndpointsFrom`` of which exactly one is given."""
