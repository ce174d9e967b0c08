"""Types of single fields of a fleet: durations, addresses, names, paths.

Errors state what to write instead (``PATTERN_MEANINGS``).
"""

from __future__ import annotations

import functools
import ipaddress
import re
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from tidegate_api.pools import DURATION_UNITS_S

_REMEMBERED: Final = 65_536
"""Addresses of which the parts are remembered: each is needed for several resources."""

_UNITS = "|".join(DURATION_UNITS_S)
_DURATION = re.compile(rf"(\d+(?:\.\d+)?)({_UNITS})")


def _parse_duration(value: Any) -> Any:
    if isinstance(value, str):
        found = _DURATION.fullmatch(value.strip())
        if found is None:
            raise PydanticCustomError(
                "duration",
                "'{value}' is no duration; write for example 500ms, 30s or 2m",
                {"value": value[:64]},
            )
        return float(found[1]) * DURATION_UNITS_S[found[2]]
    return value


def _to_nanoseconds(seconds: float) -> float:
    # A printed duration must parse to the same number, or an unchanged fleet would look changed.
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
        {"type": ["string", "number"], "pattern": rf"^\d+(\.\d+)?({_UNITS})$", "minimum": 0}
    ),
]
"""Seconds; written as ``500ms``, ``30s``, ``2m``, ``1h`` or a bare number of seconds."""


@functools.lru_cache(maxsize=_REMEMBERED)
def split_host_port(address: str) -> tuple[str, int]:
    """Split ``ip:port`` or ``[ipv6]:port``; raise ``ValueError`` if it is neither."""
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:  # noqa: PLR2004 - TCP
        raise ValueError(address)
    parsed = ipaddress.ip_address(bare)
    if (parsed.version == 6) != (bare != host):  # noqa: PLR2004 - IPv6 is bracketed, IPv4 is not
        raise ValueError(address)
    return str(parsed), int(port)


def join_host_port(host: str, port: int) -> str:
    """Return an address in the format that Envoy compares: ``ip:port``, IPv6 in brackets."""
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
"""``ip:port``, IPv6 in brackets, in canonical form."""


_DNS_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DNS_NAME = rf"^({_DNS_LABEL}\.)*{_DNS_LABEL}\.?$"
_NAMED = re.compile(_DNS_NAME)
_NUMERIC = re.compile(r"[0-9.]*")
MAX_DNS_NAME: Final = 253


@functools.lru_cache(maxsize=_REMEMBERED)
def split_name_port(address: str) -> tuple[str, int] | None:
    """Split ``name:port``; ``None`` if it is no such address, for example an ``ip:port``.

    ``localhost`` is none either: DNS does not answer it everywhere.
    """
    name, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:  # noqa: PLR2004 - TCP
        return None
    fits = len(name) <= MAX_DNS_NAME and _NAMED.fullmatch(name) and not _NUMERIC.fullmatch(name)
    return (name, int(port)) if fits and name.lower() != "localhost" else None


def is_named(address: str | None) -> bool:
    """Return whether a replica's address is ``name:port``."""
    return address is not None and split_name_port(address) is not None


def _check_replica_address(address: str) -> str:
    named = split_name_port(address)
    return _check_host_port(address) if named is None else f"{named[0].lower()}:{named[1]}"


ReplicaAddress = Annotated[str, AfterValidator(_check_replica_address)]
"""``ip:port`` in canonical form, or ``name:port`` in lower case."""


def _check_tcp(address: str) -> str:
    try:
        host, port = split_host_port(address.removeprefix("tcp://"))
        known = address.startswith("tcp://") and not ipaddress.ip_address(host).is_unspecified
    except ValueError:
        known = False
    if not known:
        raise PydanticCustomError(
            "tcp_address",
            "'{value}' is no address to connect to; write tcp://ip:port, for example "
            "tcp://10.0.0.5:5557",
            {"value": address[:128]},
        )
    return f"tcp://{join_host_port(host, port)}"


TcpAddress = Annotated[str, AfterValidator(_check_tcp)]
"""``tcp://ip:port``, the address format of ZMQ."""

_NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
_ENDPOINT_ID = r"^[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]{0,126}$"
_HEADER_NAME = r"^[a-z0-9!#$%&'*+.^_`|~-]{1,64}$"
_HEADER_VALUE = r"^[\x20-\x7e]{1,256}$"
_MODEL_NAME = r"^[^/\x00-\x20]{1,128}$"
_MODEL_VERSION = r"^[0-9]{1,18}$"
_COOKIE_NAME = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$"
_COOKIE_VALUE = r"^[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]{1,256}$"
_FILE_PATH = r"^/[^\x00-\x1f\x7f]*[^/\x00-\x1f\x7f]$"
_SERVER_NAME = r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$"
_LOCAL_PATH = r"^/[^\x00]*[^\x00/]$"
_HTTP_PATH = r"^/[^\s?#]*$"
METRIC_NAME = r"^[a-zA-Z_:][a-zA-Z0-9_:]*$"
_METRICS_URL = r"^http://[^\s/]+(/\S*)?$"
_JWKS_URL = r"^https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?(/[^\s#]*)?$"
_PROMETHEUS_URL = r"^https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?(/[^\s?#]*)?$"
_ORIGIN = r"^(\*|https?://(\*\.)?[A-Za-z0-9.-]+(:[0-9]{1,5})?)$"
_HOST_PATTERN = r"^(\*\.)?[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"
_CONTENT_TYPE = r"^[a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+$"

PATTERN_MEANINGS = {
    _NAME: "lower-case letters, digits, '.', '_' and '-', at most 63 characters",
    _ENDPOINT_ID: "letters, digits, '.', '_', ':' and '-', at most 127 characters",
    _HEADER_NAME: "a header name in lower case, at most 64 characters",
    _HEADER_VALUE: "printable ASCII, 1 to 256 characters",
    _MODEL_NAME: "a model name without '/' and white space, at most 128 characters",
    _MODEL_VERSION: 'a version number in quotes, such as "1"',
    _COOKIE_NAME: "a cookie's name, at most 64 characters",
    _COOKIE_VALUE: "a cookie's value without white space, quotes, ',', ';' and '\\', 1 to 256 "
    "characters",
    _FILE_PATH: "an absolute path of a file, as the Envoys see it",
    _LOCAL_PATH: "an absolute path of a file, as the control server sees it",
    _DNS_NAME: "a DNS name, such as triton.example",
    _SERVER_NAME: "a host name, such as triton.example",
    _HTTP_PATH: "a path that starts with '/' and has neither query nor white space",
    METRIC_NAME: "a metric's name, such as my_queue_length",
    _METRICS_URL: "an http URL, such as http://127.0.0.1:8002/metrics",
    _JWKS_URL: "an http or https URL, such as https://sso.example/keys.json",
    _PROMETHEUS_URL: "an http or https URL without a query, such as http://127.0.0.1:9090",
    _ORIGIN: "an origin, such as https://app.example or https://*.app.example, or *",
    _HOST_PATTERN: "a host name in lower case without a port, such as llm.example or *.llm.example",
    _CONTENT_TYPE: "a media type in lower case, such as application/json",
}
"""Description of each pattern, for error messages."""

Name = Annotated[str, Field(pattern=_NAME)]
"""Lower-case letters, digits, ``.``, ``_`` and ``-``; at most 63 characters."""

EndpointId = Annotated[str, Field(pattern=_ENDPOINT_ID)]
HeaderName = Annotated[str, Field(pattern=_HEADER_NAME)]
"""A header name in lower case, as in HTTP/2."""

HeaderValue = Annotated[str, Field(pattern=_HEADER_VALUE)]
CookieName = Annotated[str, Field(pattern=_COOKIE_NAME)]
CookieValue = Annotated[str, Field(pattern=_COOKIE_VALUE)]
FilePath = Annotated[str, Field(pattern=_FILE_PATH, max_length=4096)]
"""An absolute path on the Envoys' machines."""

LocalPath = Annotated[str, Field(pattern=_LOCAL_PATH, max_length=4096)]
"""An absolute path on the control server's machine."""

DnsName = Annotated[
    str, Field(pattern=_DNS_NAME, max_length=MAX_DNS_NAME), AfterValidator(str.lower)
]
Port = Annotated[int, Field(ge=1, le=65_535)]
ServerName = Annotated[str, Field(pattern=_SERVER_NAME)]
Percentage = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
ModelVersion = Annotated[str, Field(pattern=_MODEL_VERSION)]
MetricsUrl = Annotated[str, Field(pattern=_METRICS_URL, max_length=512)]
JwksUrl = Annotated[str, Field(pattern=_JWKS_URL, max_length=1024)]
PrometheusUrl = Annotated[str, Field(pattern=_PROMETHEUS_URL, max_length=512)]
Origin = Annotated[str, Field(pattern=_ORIGIN, max_length=256)]
HostPattern = Annotated[str, Field(pattern=_HOST_PATTERN)]
ContentType = Annotated[str, Field(pattern=_CONTENT_TYPE, max_length=128)]
ModelName = Annotated[str, Field(pattern=_MODEL_NAME)]
HttpPath = Annotated[str, Field(pattern=_HTTP_PATH, max_length=256)]
Label = Annotated[str, Field(max_length=128)]
RESERVED_HEADER_PREFIXES = ("x-tidegate-", "x-gateway-", "x-envoy-")
"""Prefixes that Envoy strips from client requests; no setting may depend on such headers."""


class Strict(BaseModel):
    """Base of all models: immutable, rejects unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class UpstreamTls(Strict):
    """TLS to replicas, pickers or gateways. Who speaks it reads the files, again on a change."""

    ca: FilePath | None = None
    """Certificates that the other side's must be signed by; unchecked if omitted."""
    certificate: FilePath | None = None
    """Own certificate (PEM), where the other side asks for one."""
    key: FilePath | None = None
    """Its private key."""
    server_name: ServerName | None = None
    """Name to ask for, and, with `ca`, the name that its certificate must have."""
