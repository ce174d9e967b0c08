"""Start options of the control server."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003 - pydantic reads the annotation at run time
from typing import Annotated, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from tidegate_api.addresses import ADMIN_ADDRESS, ADS_ADDRESS, CONTROL_METRICS_ADDRESS
from tidegate_common.flags import Shown
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


class EtcdAddress(NamedTuple):
    """Where the shared store is."""

    members: tuple[str, ...]
    """``host:port`` of members of the cluster."""
    prefix: str
    """Of all keys."""


class KubernetesAddress(NamedTuple):
    """Where the shared store is in Kubernetes."""

    namespace: str
    name: str
    """Of the head's Secret and of the Lease, and the beginning of others'."""


def kubernetes_address(given: str) -> KubernetesAddress | None:
    """Return what ``kubernetes://NAMESPACE/NAME`` names; ``None`` = it is no such store.

    Raises:
        ValueError: A name is none of Kubernetes.
    """
    if not given.startswith(_KUBERNETES):
        return None
    namespace, slash, name = given.removeprefix(_KUBERNETES).partition("/")
    if not slash:
        name = "tidegate"
    if not (_LABEL.fullmatch(namespace) and _LABEL.fullmatch(name)):
        raise ValueError(
            f"'{given:.200}' is no store; write kubernetes://NAMESPACE/NAME in lower-case letters,"
            " digits and '-', at most 63 each"
        )
    return KubernetesAddress(namespace, name)


def etcd_address(given: str) -> EtcdAddress:
    """Return what ``etcd://HOST:PORT,...`` or ``etcd://HOST:PORT,.../PREFIX`` names.

    Raises:
        ValueError: It is no such address.
    """
    members, _, prefix = given.removeprefix(_ETCD).partition("/")
    found = tuple(members.split(","))
    right = all(_MEMBER.fullmatch(each) for each in found) and len(found) <= _MAX_MEMBERS
    if not given.startswith(_ETCD) or not right:
        raise ValueError(
            f"'{given:.200}' is no store; write the addresses of etcd's members, for example "
            "etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379, or kubernetes://NAMESPACE/NAME"
        )
    return EtcdAddress(found, f"/{prefix.strip('/') or 'tidegate'}/")


def _shared(given: str) -> str:
    if kubernetes_address(given) is None:
        etcd_address(given)
    return given


_ETCD: Final = "etcd://"
_KUBERNETES: Final = "kubernetes://"
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MEMBER: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")
_MAX_MEMBERS: Final = 16

Serve = Literal["all", "clusters"]
"""What Envoys are served: all of their configuration, or no listeners, filters and routes."""

ListenAddress = Annotated[str, AfterValidator(_listen_address), Shown("HOST:PORT")]
"""``ip:port``, IPv6 in brackets; port 0 = a free port."""


AdminAddresses = Annotated[str, AfterValidator(_admin_addresses), Shown("ADDRESS")]
"""``local`` (the socket of the user), ``unix:PATH`` or ``ip:port``; several are separated by
commas."""


class ControlSettings(IdentitySettings):
    """Start options; they do not change while the server runs."""

    PORTS: ClassVar = ("ads", "admin", "admin_http", "metrics")

    fleet: Annotated[Path, Shown("FLEET")]
    """Fleet file."""
    ads: ListenAddress = ADS_ADDRESS
    """ADS address for Envoys and pickers."""
    admin: AdminAddresses = ADMIN_ADDRESS
    """Admin addresses of the control server: local (a Unix socket of this user), unix:PATH or
    IP:PORT; several with commas."""
    metrics: ListenAddress = CONTROL_METRICS_ADDRESS
    """Address of Prometheus metrics."""
    serve: Serve = "all"
    """What Envoys get: all of their configuration, or clusters, endpoints and limits only, for
    Envoys with listeners and routes of their own."""
    state: Annotated[Path | None, Shown("DIR")] = None
    """Folder of revisions, and of how far --store was read; default: memory only."""
    accept_loss: bool = False
    """Serve clients of another history, as of a store that is lost, from now on; otherwise they get
    nothing. With --store, go on from an older one than was read."""
    store: (
        Annotated[str, AfterValidator(_shared), Shown("etcd://HOST:PORT,...", "TIDEGATE_STORE")]
        | None
    ) = None
    """Members of the etcd that keeps the revisions of several control servers, of which one leads;
    or kubernetes://NAMESPACE/NAME, for Secrets and a Lease. An empty one begins with those in
    --state, which is not read again."""
    store_ca: Annotated[Path | None, Shown("FILE")] = None
    """Authorities that sign etcd's certificates (PEM); default: etcd without TLS."""
    store_cert: Annotated[Path | None, Shown("FILE")] = None
    """Certificate for etcd (PEM)."""
    store_key: Annotated[Path | None, Shown("FILE")] = None
    """Its key (PEM)."""
    store_kubeconfig: Annotated[Path | None, Shown("FILE")] = None
    """Kubeconfig for a store in Kubernetes; default: the pod's service account."""
    dns: Annotated[tuple[HostPort, ...] | None, Shown("IP:PORT")] = None
    """Name server for replicas by name, repeatable; default: /etc/resolv.conf."""
    admin_http: AdminAddresses = ""
    """Addresses of the admin API over HTTP with JSON; default: none."""
    admin_host: Annotated[tuple[str, ...], Field(max_length=64), Shown("NAME")] | None = None
    """Host name by which HTTP clients call it, besides localhost and IP addresses, repeatable."""
    admin_group: Annotated[str | None, Shown("GROUP")] = None
    """Group whose members may open Unix sockets, as operators; default: the user of the server
    alone."""
    admin_user: (
        Annotated[
            tuple[Annotated[str, AfterValidator(_role_of_user)], ...],
            Field(max_length=256),
            Shown("ROLE=USER"),
        ]
        | None
    ) = None
    """Role (viewer, operator, admin) of a member of that group, repeatable."""
    admin_tokens: Annotated[Path | None, Shown("FILE")] = None
    """File of the hashes of bearer tokens (`tidegate tokens`), read again when it changes."""
    audit: Annotated[Path | None, Shown("DIR")] = None
    """Folder of the record of all admin calls; default: that of --state, or the log."""
    log_format: LogFormat = "console"
    """Log format (on stderr)."""
    log_level: LogLevel = "info"
    """Lowest level to log."""

    @model_validator(mode="after")
    def _users_have_a_group(self) -> Self:
        if self.admin_user and self.admin_group is None:
            raise ValueError("--admin-user needs --admin-group: no one else can open the socket")
        return self

    @model_validator(mode="after")
    def _one_store(self) -> Self:
        if (self.store_cert is None) != (self.store_key is None):
            raise ValueError("--store-cert and --store-key belong together; give both")
        if self.store_cert is not None and self.store_ca is None:
            raise ValueError("--store-cert needs --store-ca")
        if self.store_ca is not None and (self.store is None or self._in_kubernetes):
            raise ValueError("--store-ca needs --store etcd://...")
        if self.store_kubeconfig is not None and self.store is None:
            raise ValueError("--store-kubeconfig needs --store kubernetes://NAMESPACE/NAME")
        return self

    @property
    def _in_kubernetes(self) -> bool:
        return (self.store or "").startswith(_KUBERNETES)

    @property
    def kept_in(self) -> str:
        """Where the revisions are, as messages name it."""
        return self.store or (str(self.state) if self.state is not None else "in memory")
