"""Where clients connect: the listener's settings."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tidegate_api.names import POLICY_HEADER, POOL_HEADER
from xds_server.fleet.model.edge import (
    MAX_PROVIDERS,
    ClientConnections,
    Compression,
    Cors,
    HttpFilters,
    JwtProvider,
    RateLimit,
    TypedJson,
)
from xds_server.fleet.model.fields import (
    Duration,
    FilePath,
    HeaderName,
    HostPattern,
    HostPort,
    Name,
    Percentage,
    ReplicaAddress,
    Strict,
)


class ListenerTls(Strict):
    """TLS to clients. The files are read by each Envoy, and again when they change."""

    certificate: FilePath
    """Certificate chain (PEM)."""
    key: FilePath
    """Its private key."""
    client_ca: FilePath | None = None
    """If given, clients must show a certificate signed by one of these."""


class VirtualHost(Strict):
    """The pools behind some host names."""

    names: Annotated[tuple[HostPattern, ...], Field(min_length=1, max_length=256)]
    """Host names, such as `llm.example`, or `*.llm.example` for all below."""
    pools: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Pools that requests to these names reach; for them all others do not exist (404)."""


class FurtherListener(Strict):
    """Another address; what it has no field for is as in `listener`."""

    name: Name
    """Name of your own."""
    address: HostPort
    """Where Envoy listens too."""
    tls: ListenerTls | None = None
    """Accept TLS only."""
    proxy_protocol: bool = False
    """Connections begin with a PROXY header; all others are closed."""
    pools: tuple[Name, ...] | None = None
    """Pools that requests reach here; all if omitted."""
    hosts: Annotated[tuple[VirtualHost, ...], Field(max_length=256)] = ()
    """Pools by host name; other names reach `pools`."""
    operators: bool = False
    """Calls that change replicas (loads, unloads, trace and log settings) go to
    `gateway.operators`; elsewhere they are refused. Only on loopback, or with `tls.client_ca`."""


class AccessLogSpec(Strict):
    """Envoy's access log: a JSON object per request, in at least one place."""

    stdout: bool = False
    """Write to Envoy's standard output, a line per request."""
    file: FilePath | None = None
    """Write to this file of each Envoy's machine, a line per request. Envoy opens it anew on
    SIGUSR1."""
    otlp: ReplicaAddress | None = None
    """Send to this OpenTelemetry collector: OTLP over gRPC, without TLS."""
    percent: Percentage = 100.0
    """Share of requests that is logged, drawn at random; 0 = none. A change drains no
    connections."""

    @model_validator(mode="after")
    def _has_a_sink(self) -> Self:
        if not self.stdout and self.file is None and self.otlp is None:
            raise PydanticCustomError(
                "no_sink", "this access log goes nowhere; set `stdout`, `file` or `otlp`", {}
            )
        return self


class TracingSpec(Strict):
    """Envoy's spans of requests, with W3C trace context."""

    otlp: ReplicaAddress
    """OpenTelemetry collector: OTLP over gRPC, without TLS."""
    percent: Percentage = 100.0
    """Share of requests that is traced where the client did not decide; 0 = only what clients
    trace. A change drains no connections."""
    service: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[!-~]+$")] = (
        "tidegate-envoy"
    )
    """Name of the service in the traces."""


class ListenerSpec(Strict):
    """Where clients connect."""

    address: HostPort = "127.0.0.1:10000"
    """Where Envoy listens: HTTP/1.1, HTTP/2 and gRPC on one port."""
    debug_headers: bool = False
    """Answer with `x-tidegate-served-by`, the replica's address."""
    buffer_bytes: Annotated[int, Field(ge=16_384, le=16 * 2**20)] = 65_536
    """What Envoy buffers of one connection, each way. Also bounds what `peek` collects."""
    headers_timeout: Duration = 10.0
    """How long a client may take to send a request's headers; 0 = no limit. A body that stalls is
    ended by the pool's `timeouts.idle`."""
    upload_timeout: Duration = 300.0
    """How long a client may take to send a whole request over HTTP/1, unless the answer begins
    before; 0 = no limit. Over HTTP/2, where gRPC streams stay open, only `timeouts.idle` counts."""
    client_headers: Annotated[tuple[HeaderName, ...], Field(max_length=256)] | None = None
    """Headers that choose a pool, model, policy or variant and that clients may send:
    `tidegate-pool`, `tidegate-model`, `tidegate-policy` and those of variants' `match`. The others
    are stripped. If omitted: `tidegate-model` and all of the variants' `match`."""
    tls: ListenerTls | None = None
    """Accept TLS only."""
    http3: bool = False
    """Take HTTP/3 too, over UDP on the same port; needs `tls`."""
    pools: tuple[Name, ...] | None = None
    """Pools that requests reach here; all if omitted."""
    hosts: Annotated[tuple[VirtualHost, ...], Field(max_length=256)] = ()
    """Pools by host name; other names reach `pools`."""
    further: Annotated[tuple[FurtherListener, ...], Field(max_length=64)] = ()
    """Further addresses, with pools of their own if they name some."""
    proxy_protocol: bool = False
    """Connections begin with a PROXY header (version 1 or 2), by which a load balancer says who the
    client is; all others are closed. Only where clients cannot connect themselves."""
    connections: ClientConnections = ClientConnections()
    """Bounds and signs of life of connections."""
    jwt: Annotated[tuple[JwtProvider, ...], Field(max_length=MAX_PROVIDERS)] = ()
    """Providers of tokens; a pool asks for tokens with its own `jwt`."""
    cors: Cors | None = None
    """Let web pages of other origins call."""
    compression: Compression | None = None
    """Compress answers."""
    rate_limit: RateLimit | None = None
    """Most requests to all pools together, before a picker is asked."""
    client_rate_limit: RateLimit | None = None
    """Most requests of one client address (of IPv6 its /64), before a picker is asked."""
    access_log: AccessLogSpec | None = None
    """Log requests."""
    tracing: TracingSpec | None = None
    """Trace requests."""
    http_filters: HttpFilters = HttpFilters()
    """Further HTTP filters of Envoy."""
    patch: Annotated[tuple[TypedJson, ...], Field(max_length=2)] = ()
    """Messages that are merged into ours: Envoy's `Listener` or `HttpConnectionManager`."""

    def takes(self, header: str) -> bool:
        """Return whether clients may send ``header``, one of those that choose."""
        if self.client_headers is None:
            return header not in (POOL_HEADER, POLICY_HEADER)
        return header in self.client_headers
