"""The fleet: everything an operator may declare, as one immutable value.

The same model reads the fleet file, answers the admin API and is published as JSON Schema
(``tidegate validate --schema``). Field errors come from the types here; what needs more than
one field is checked in ``xds_server.fleet.rules``.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
MAX_WEIGHT_SUM = 2**32 - 1
"""Envoy's bound on the sum of a route's cluster weights."""


def _parse_duration(value: Any) -> Any:
    if isinstance(value, str):
        found = _DURATION.fullmatch(value.strip())
        if found is None:
            raise PydanticCustomError(
                "duration",
                "'{value}' is no duration; write for example 500ms, 30s or 2m",
                {"value": value[:64]},
            )
        return float(found[1]) * _UNIT_S[found[2]]
    return value


def _to_nanoseconds(seconds: float) -> float:
    # What is printed must read back as the same number, or an unchanged fleet would look changed.
    return round(seconds, 9)


def _print_duration(seconds: float) -> str:
    if seconds.is_integer():
        return f"{int(seconds)}s"
    return f"{seconds * 1000:.6f}".rstrip("0").rstrip(".") + "ms"


Duration = Annotated[
    float,
    BeforeValidator(_parse_duration),
    Field(ge=0, le=86_400, allow_inf_nan=False),
    AfterValidator(_to_nanoseconds),
    PlainSerializer(_print_duration, return_type=str),
    WithJsonSchema(
        {"type": ["string", "number"], "pattern": r"^\d+(\.\d+)?(ms|s|m|h)$", "minimum": 0}
    ),
]
"""Seconds; written as ``500ms``, ``30s``, ``2m``, ``1h`` or a bare number of seconds."""


def split_host_port(address: str) -> tuple[str, int]:
    """Split ``ip:port`` or ``[ipv6]:port``; raise ``ValueError`` where it is neither."""
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:  # noqa: PLR2004 - TCP
        raise ValueError(address)
    parsed = ipaddress.ip_address(bare)
    if (parsed.version == 6) != (bare != host):  # noqa: PLR2004 - IPv6 is bracketed, IPv4 is not
        raise ValueError(address)
    return str(parsed), int(port)


def join_host_port(host: str, port: int) -> str:
    """Write an address as Envoy compares it: ``ip:port``, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_host_port(address: str) -> str:
    try:
        return join_host_port(*split_host_port(address))
    except ValueError:
        raise PydanticCustomError(
            "host_port",
            "'{value}' is no address; write ip:port, for example 127.0.0.1:8001 or [::1]:8001",
            {"value": address[:128]},
        ) from None


HostPort = Annotated[str, AfterValidator(_check_host_port)]
"""``ip:port``, IPv6 in brackets, in its canonical spelling."""

_NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
_ENDPOINT_ID = r"^[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]{0,126}$"
_HEADER_NAME = r"^[a-z0-9!#$%&'*+.^_`|~-]{1,64}$"
_HEADER_VALUE = r"^[\x20-\x7e]{1,256}$"
_MODEL_NAME = r"^[^/\x00-\x20]{1,128}$"
_MODEL_VERSION = r"^[0-9]{1,18}$"
_HTTP_PATH = r"^/[^\s?#]*$"
_METRICS_URL = r"^http://[^\s/]+(/\S*)?$"

PATTERN_MEANINGS = {
    _NAME: "lower-case letters, digits, '.', '_' and '-', at most 63 characters",
    _ENDPOINT_ID: "letters, digits, '.', '_', ':' and '-', at most 127 characters",
    _HEADER_NAME: "a header name in lower case, at most 64 characters",
    _HEADER_VALUE: "printable ASCII, 1 to 256 characters",
    _MODEL_NAME: "a model name without '/' and white space, at most 128 characters",
    _MODEL_VERSION: 'a version number in quotes, such as "1"',
    _HTTP_PATH: "a path that starts with '/' and has neither query nor white space",
    _METRICS_URL: "an http URL, such as http://127.0.0.1:8002/metrics",
}
"""What each pattern asks for, in words for error messages."""

Name = Annotated[str, Field(pattern=_NAME)]
"""Lower-case letters, digits, ``.``, ``_`` and ``-``; at most 63 characters."""

EndpointId = Annotated[str, Field(pattern=_ENDPOINT_ID)]
HeaderName = Annotated[str, Field(pattern=_HEADER_NAME)]
"""A header name in lower case, as HTTP/2 writes it."""

HeaderValue = Annotated[str, Field(pattern=_HEADER_VALUE)]
ModelName = Annotated[str, Field(pattern=_MODEL_NAME)]
HttpPath = Annotated[str, Field(pattern=_HTTP_PATH, max_length=256)]
Label = Annotated[str, Field(max_length=128)]
RESERVED_HEADER_PREFIXES = ("x-tidegate-", "x-gateway-", "x-envoy-")
"""Envoy strips these from client requests, so nothing may depend on them."""


class Strict(BaseModel):
    """Immutable, and refuses fields it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Match(Strict):
    """Which requests belong to the pool."""

    models: tuple[ModelName, ...] = ()
    """Models it serves; in a path (`/v2/models/NAME`) or in the body."""
    paths: tuple[HttpPath, ...] = ()
    """Further exact paths whose body names the model, e.g. `/v1/chat/completions`."""


class VariantMatch(Strict):
    """What pins a request to a variant."""

    headers: dict[HeaderName, HeaderValue] = {}
    """All of these request headers must have exactly these values."""

    @model_validator(mode="after")
    def _reserved(self) -> Self:
        for name in self.headers:
            if name.startswith(RESERVED_HEADER_PREFIXES):
                raise PydanticCustomError(
                    "reserved_header",
                    "header '{name}' is reserved and stripped from client requests; "
                    "choose another name",
                    {"name": name},
                )
        return self


class Variant(Strict):
    """A named share of the pool: replicas that serve one version of the model."""

    name: Name
    weight: Annotated[int, Field(ge=0, le=MAX_WEIGHT_SUM)] = 1
    """Relative share of the requests that nothing pins; 0 = none."""
    model_version: Annotated[str, Field(pattern=_MODEL_VERSION)] | None = None
    """The model version that these replicas serve. Requests are never rewritten."""
    match: VariantMatch = VariantMatch()


class Endpoint(Strict):
    """One replica."""

    id: EndpointId = ""
    """Name of the replica, the same in each pool it serves; if omitted, its gRPC or else HTTP
    address."""
    http: HostPort | None = None
    """Address of its HTTP port."""
    grpc: HostPort | None = None
    """Address of its gRPC port."""
    metrics: Annotated[str, Field(pattern=_METRICS_URL, max_length=512)] | None = None
    """URL of its Prometheus page."""
    variant: Name | None = None
    """Its variant; the pool's first if omitted."""
    capacity: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0
    """Relative strength; 2.0 takes twice the load of 1.0."""
    zone: Label = ""
    """Where it stands; a label for people and metrics."""
    labels: Annotated[dict[Label, Label], Field(max_length=64)] = {}
    """Free key-value pairs, carried to the pickers."""
    draining: bool = False
    """Takes no new work."""

    @model_validator(mode="before")
    @classmethod
    def _default_id(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("id"):
            return {**data, "id": data.get("grpc") or data.get("http") or ""}
        return data

    @model_validator(mode="after")
    def _has_address(self) -> Self:
        if self.http is None and self.grpc is None:
            raise PydanticCustomError("no_address", "an endpoint needs `grpc`, `http` or both", {})
        return self


BodyMode = Literal["none", "peek", "full"]


class Routing(Strict):
    """How the picker chooses."""

    policy: Literal["prefix-affinity", "least-in-flight", "round-robin"] = "prefix-affinity"
    body: BodyMode = "peek"
    """How much of a request's body the picker reads: nothing, a bounded first part, or all."""
    fallbacks: Annotated[int, Field(ge=0, le=8)] = 2
    """Further endpoints behind the pick, which Envoy's retries walk."""
    session_header: HeaderName = "x-session-id"
    """Requests of one session draw the same variant."""
    block_chars: Annotated[int, Field(ge=16, le=65_536)] = 256
    """Characters of prompt in one prefix block."""
    index_blocks: Annotated[int, Field(ge=16, le=10_000_000)] = 100_000
    """Bound of the prefix index, blocks per endpoint."""
    index_ttl: Duration = 600.0
    """A prefix unused for so long is forgotten."""
    sequence_idle: Duration = 60.0
    """A sequence keeps its replica for so long after its last request; at least Triton's
    `max_sequence_idle_microseconds`."""
    load_factor: Annotated[float, Field(ge=1, le=100)] = 1.5
    """The cached replica is chosen while its load is at most this factor above the mean."""
    peek_bytes: Annotated[int, Field(ge=4096, le=16 * 2**20)] = 65_536
    """In body mode `peek`: about how much of a body the picker reads, and the largest body that
    Envoy can send again to another replica."""
    max_body: Annotated[int, Field(ge=1024, le=256 * 2**20)] = 4 * 2**20
    """Bytes; in body mode `full` a larger request is refused with 413."""


class SlowStart(Strict):
    """The ramp of a new replica (Envoy's formula, applied by Envoy and picker alike)."""

    window: Duration = 30.0
    """0 switches it off."""
    aggression: Annotated[float, Field(gt=0, le=100)] = 1.0
    min_weight_percent: Annotated[float, Field(ge=0, le=100)] = 10.0


class CircuitBreaker(Strict):
    """Bounds that Envoy keeps per variant, and the picker per endpoint."""

    max_connections: Annotated[int, Field(ge=1, le=2**31)] = 1024
    max_pending: Annotated[int, Field(ge=1, le=2**31)] = 512
    max_requests: Annotated[int, Field(ge=1, le=2**31)] = 1024
    per_endpoint_in_flight: Annotated[int, Field(ge=0, le=2**31)] = 0
    """Most requests in flight on one replica, kept by the picker; 0 = no limit."""
    retry_budget_percent: Annotated[float, Field(ge=0, le=100)] = 50.0
    """Share of a variant's active requests that may be retries. A replica that dies takes its
    whole share of them with it: half, where two replicas serve."""
    min_retries: Annotated[int, Field(ge=0, le=2**31)] = 32
    """So many retries may be active however small that share is."""


class Outlier(Strict):
    """Envoy's passive ejection."""

    consecutive_failures: Annotated[int, Field(ge=1, le=1000)] = 3
    """Failures in a row (5xx, resets, refused connections) that eject a replica."""
    interval: Annotated[Duration, Field(gt=0)] = 5.0
    base_ejection: Annotated[Duration, Field(gt=0)] = 10.0
    """Length of the first ejection; each further one is longer by this."""
    max_ejection_percent: Annotated[int, Field(ge=0, le=100)] = 50


class Health(Strict):
    """Envoy's active health checks."""

    interval: Annotated[Duration, Field(gt=0)] = 5.0
    timeout: Annotated[Duration, Field(gt=0)] = 1.0
    unhealthy_after: Annotated[int, Field(ge=1, le=100)] = 2
    healthy_after: Annotated[int, Field(ge=1, le=100)] = 1
    path: HttpPath | None = None
    """HTTP path to probe; the readiness of the pool's first model if omitted."""


class Timeouts(Strict):
    """Bounds on a request."""

    request: Duration = 0.0
    """From the end of the request to the end of the response; 0 = none, as generations are long."""
    idle: Duration = 300.0
    """A stream without a byte in either direction for so long is ended."""


class Pool(Strict):
    """Replicas that serve the same models, and how they are used."""

    name: Name
    default: bool = False
    """Takes requests whose pool only the body names, whenever no picker answers."""
    match: Match
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)] = (Variant(name="stable"),)
    endpoints: tuple[Endpoint, ...] = ()
    routing: Routing = Routing()
    slow_start: SlowStart = SlowStart()
    circuit_breaker: CircuitBreaker = CircuitBreaker()
    outlier: Outlier = Outlier()
    health: Health = Health()
    timeouts: Timeouts = Timeouts()

    def variant_of(self, endpoint: Endpoint) -> str:
        """Return the name of the variant to which ``endpoint`` belongs."""
        return endpoint.variant or self.variants[0].name


class Listener(Strict):
    """Where clients connect."""

    address: HostPort = "127.0.0.1:10000"
    debug_headers: bool = False
    """Answer with `x-tidegate-served-by`, the replica's address."""


class Pickers(Strict):
    """The pickers that Envoy asks."""

    addresses: tuple[HostPort, ...] = ("127.0.0.1:18001",)
    timeout: Annotated[Duration, Field(gt=0)] = 0.2
    """How long Envoy waits for an answer before it goes on by itself."""
    fail_open: bool = True
    """Without an answer Envoy balances by itself; otherwise the request fails."""


class Fleet(Strict):
    """The whole desired state."""

    listener: Listener = Listener()
    pickers: Pickers = Pickers()
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]
