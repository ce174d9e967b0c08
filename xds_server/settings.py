"""Start options of the control server."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads the annotation at run time
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tidegate_api.addresses import ADMIN_ADDRESS, ADS_ADDRESS, CONTROL_METRICS_ADDRESS
from tidegate_common.logs import LogFormat, LogLevel  # noqa: TC001 - as above
from tidegate_common.tls.roles import READERS
from tidegate_common.tls.settings import IdentitySettings
from tidegate_common.unix import is_unix, path_of
from xds_server.fleet.model.fields import HostPort, join_host_port, split_host_port


def _listen_address(address: str) -> str:
    free = address.endswith(":0")
    try:
        host, port = split_host_port(f"{address[:-1]}1" if free else address)
    except ValueError:
        raise ValueError(
            f"'{address}' is no address; write ip:port, for example 127.0.0.1:18000"
        ) from None
    return join_host_port(host, 0 if free else port)


def _admin_addresses(given: str) -> str:
    for each in given.split(",") if given else ():
        if is_unix(each):
            path_of(each)
        else:
            _listen_address(each)
    return given


def _role_of_user(given: str) -> str:
    role, equals, name = given.partition("=")
    if not equals or role not in READERS or not name:
        raise ValueError(f"'{given:.80}' is no ROLE=USER; roles are viewer, operator and admin")
    return given


Serve = Literal["all", "clusters"]
"""What Envoys are served: all of their configuration, or no listeners, filters and routes."""

ListenAddress = Annotated[str, AfterValidator(_listen_address)]
"""``ip:port``, IPv6 in brackets; port 0 = a free port."""


AdminAddresses = Annotated[str, AfterValidator(_admin_addresses)]
"""``local`` (the socket of the user), ``unix:PATH`` or ``ip:port``; several are separated by
commas."""


class ControlSettings(IdentitySettings):
    """Start options; they do not change while the server runs."""

    PORTS: ClassVar = ("ads", "admin", "admin_http", "metrics")

    fleet: Path
    """The fleet file, which is also watched."""
    ads: ListenAddress = ADS_ADDRESS
    """Address for Envoys and pickers."""
    admin: AdminAddresses = ADMIN_ADDRESS
    """Addresses for operators. On `ip:port` without TLS and without tokens everyone who reaches it
    may do everything."""
    admin_http: AdminAddresses = ""
    """Addresses of the same API over HTTP with JSON; none if empty."""
    admin_host: Annotated[tuple[str, ...], Field(max_length=64)] | None = None
    """Host name by which HTTP clients call it, besides `localhost` and IP addresses, repeatable."""
    admin_group: str | None = None
    """Group whose members may open Unix sockets, as operators; the user of the server alone if
    omitted."""
    admin_user: (
        Annotated[tuple[Annotated[str, AfterValidator(_role_of_user)], ...], Field(max_length=256)]
        | None
    ) = None
    """Role of a member of that group, `ROLE=USER`, repeatable."""
    admin_tokens: Path | None = None
    """File of the hashes of bearer tokens (`tidegate tokens`), read again when it changes."""
    audit: Path | None = None
    """Folder of the record of all admin calls; that of `--state` if omitted, and the log without
    one."""
    metrics: ListenAddress = CONTROL_METRICS_ADDRESS
    """Address of `/metrics` and `/healthz`."""
    serve: Serve = "all"
    """What Envoys are served; `clusters` for Envoys with listeners and routes of their own."""
    state: Path | None = None
    """Folder for revisions; in memory if omitted."""
    dns: tuple[HostPort, ...] | None = None
    """Name servers for replicas by name; those of `/etc/resolv.conf` if omitted."""
    log_format: LogFormat = "console"
    log_level: LogLevel = "info"

    @model_validator(mode="after")
    def _users_have_a_group(self) -> Self:
        if self.admin_user and self.admin_group is None:
            raise ValueError("--admin-user needs --admin-group: no one else can open the socket")
        return self
