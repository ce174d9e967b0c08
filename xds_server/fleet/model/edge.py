"""Settings of the edge: tokens, browsers, compression, limits of rate and of connections.

Nothing here is on unless a fleet asks for it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from xds_server.fleet.model.fields import (
    ContentType,
    Duration,
    FilePath,
    HeaderName,
    JwksUrl,
    Label,
    Name,
    Origin,
    Strict,
)

MAX_PROVIDERS = 32
MAX_FILTERS = 32
MAX_KEYS_TEXT = 65_536

TypedJson = Annotated[dict[str, Any], Field(min_length=1)]
"""A message of Envoy's API as JSON; `@type` names it."""


class JwtProvider(Strict):
    """Who signs tokens, and with which keys. Give one of `jwks_file`, `jwks_url` and `jwks`."""

    name: Name
    """Name of your own, by which pools ask for its tokens."""
    issuer: Annotated[str, Field(min_length=1, max_length=1024)]
    """The `iss` of its tokens."""
    audiences: Annotated[tuple[Label, ...], Field(max_length=64)] = ()
    """A token's `aud` must contain one of these; if omitted, any."""
    jwks_file: FilePath | None = None
    """File with the keys (JWKS), which each Envoy reads when it is sent these settings."""
    jwks_url: JwksUrl | None = None
    """Where each Envoy fetches the keys."""
    jwks: Annotated[str, Field(min_length=1, max_length=MAX_KEYS_TEXT)] | None = None
    """The keys themselves, as JSON text."""
    jwks_ca: FilePath = "/etc/ssl/certs/ca-certificates.crt"
    """Certificates that the server of an `https` URL is checked against, as the Envoys see them."""
    jwks_refresh: Annotated[Duration, Field(ge=1)] = 600.0
    """How often the keys of `jwks_url` are fetched again."""
    header: HeaderName = "authorization"
    """Header with the token: in `authorization` after `Bearer`, in any other by itself."""
    forward: bool = False
    """Let replicas see the token."""
    require_expiration: bool = True
    """Refuse tokens that never expire."""
    leeway: Duration = 60.0
    """Allowed difference between clocks; at least a second."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(each is not None for each in (self.jwks_file, self.jwks_url, self.jwks)) != 1:
            raise PydanticCustomError(
                "jwks", "give exactly one of `jwks_file`, `jwks_url` and `jwks`", {}
            )
        return self


class PoolJwt(Strict):
    """The token that a request to the pool must carry."""

    any_of: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_PROVIDERS)]
    """Names of providers in `listener.jwt`, one of which signed it."""
    audiences: Annotated[tuple[Label, ...], Field(max_length=64)] = ()
    """What its `aud` must contain one of; if omitted, what the provider asks for."""


class Cors(Strict):
    """Which web pages may call."""

    origins: Annotated[tuple[Origin, ...], Field(min_length=1, max_length=256)]
    """Such as `https://app.example` or `https://*.app.example`; `*` = all."""
    methods: tuple[Literal["GET", "HEAD", "POST"], ...] = ("GET", "POST")
    """Methods that they may use."""
    headers: Annotated[tuple[HeaderName, ...], Field(max_length=64)] = (
        "authorization",
        "content-type",
    )
    """Request headers that they may send."""
    expose: Annotated[tuple[HeaderName, ...], Field(max_length=64)] = ()
    """Response headers that they may read."""
    credentials: bool = False
    """Let them send cookies."""
    max_age: Duration = 600.0
    """How long a browser may keep the answer to a preflight request."""

    @model_validator(mode="after")
    def _not_everybody(self) -> Self:
        if self.credentials and "*" in self.origins:
            raise PydanticCustomError(
                "cors_credentials",
                "with `credentials` any page could act as its visitor; name the `origins`",
                {},
            )
        return self


class Compression(Strict):
    """Which answers are compressed, for clients that accept it; never event streams or gRPC."""

    algorithms: Annotated[
        tuple[Literal["gzip", "brotli", "zstd"], ...], Field(min_length=1, max_length=3)
    ] = ("gzip",)
    """What is offered; where a client has no preference, the first."""
    content_types: Annotated[tuple[ContentType, ...], Field(min_length=1, max_length=64)] = (
        "application/json",
    )
    """Media types of answers that are compressed."""
    min_bytes: Annotated[int, Field(ge=30, le=2**31)] = 1024
    """Shorter answers are left as they are, where the length is known."""

    @model_validator(mode="after")
    def _no_streams(self) -> Self:
        for each in self.content_types:
            if each == "text/event-stream" or each.startswith("application/grpc"):
                raise PydanticCustomError(
                    "compressed_stream",
                    "a compressor would hold back parts of '{type}'; remove it",
                    {"type": each},
                )
        return self


class RateLimit(Strict):
    """A token bucket of each Envoy; requests above it are refused with 429."""

    requests: Annotated[int, Field(ge=1, le=2**31)]
    """Requests allowed in each `per`."""
    per: Annotated[Duration, Field(ge=0.05)] = 1.0
    """Time after which as many are allowed again."""
    burst: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """Most requests at once; as many as `requests` if omitted."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.burst is not None and self.burst < self.requests:
            raise PydanticCustomError(
                "burst", "`burst` below `requests` would be the limit; lower `requests`", {}
            )
        return self


class HttpFilter(Strict):
    """One of Envoy's HTTP filters."""

    name: Name
    """Name of your own; pools refer to it with their `http_filters`."""
    config: TypedJson
    """Its message as JSON; `@type` names it, e.g.
    `type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC`."""


class HttpFilters(Strict):
    """Envoy's HTTP filters beside ours."""

    before: Annotated[tuple[HttpFilter, ...], Field(max_length=MAX_FILTERS)] = ()
    """They see every request, before a picker is asked and thus before its pool is known."""
    after: Annotated[tuple[HttpFilter, ...], Field(max_length=MAX_FILTERS)] = ()
    """They see requests on the route on which they leave, behind the check of tokens."""


class ClientConnections(Strict):
    """Bounds and signs of life of clients' connections."""

    max_duration: Duration = 0.0
    """A connection of this age takes no further requests, and is closed when its last answer is
    complete; 0 = any age."""
    max_requests: Annotated[int, Field(ge=0, le=2**31)] = 0
    """The same after so many requests; 0 = any number."""
    idle: Duration = 0.0
    """A connection without requests for so long is closed; 0 = an hour, Envoy's own bound."""
    tcp_keepalive: Annotated[Duration, Field(le=32_767)] = 0.0
    """TCP probes a connection that was silent for so long, five times, 10 s apart; 0 = off."""
    h2_keepalive: Duration = 0.0
    """How often Envoy pings HTTP/2 connections, to close those that do not answer; 0 = never."""
    h2_keepalive_timeout: Annotated[Duration, Field(ge=0.001)] = 20.0
    """How long the answer to a ping may take."""


class ReplicaConnections(Strict):
    """Bounds and signs of life of connections to replicas; TCP keepalive is always on."""

    max_duration: Duration = 0.0
    """A connection of this age takes no further requests; 0 = any age."""
    max_requests: Annotated[int, Field(ge=0, le=2**31)] = 0
    """The same after so many requests; 0 = any number."""
    h2_keepalive: Duration = 0.0
    """How often Envoy pings gRPC connections; 0 = never. Triton closes connections that ping more
    often than its `--grpc-http2-min-recv-ping-interval-without-data`."""
    h2_keepalive_timeout: Annotated[Duration, Field(ge=0.001)] = 20.0
    """How long the answer may take before the connection is closed."""
