"""What several control servers share: its interface, and the one that ``--store`` names."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Protocol

import grpc

from tidegate_common.tls.files import Identity, TlsFiles
from xds_server.applications.discovery.kubernetes.access import AccessError, AccessFiles
from xds_server.fleet.model.kubernetes import KubernetesApi
from xds_server.fleet.store import StoreError
from xds_server.fleet.stored.shared import Keys
from xds_server.leading.etcd import Etcd
from xds_server.leading.keeper import LeaseCalls
from xds_server.leading.kubernetes import Kubernetes
from xds_server.settings import etcd_address, kubernetes_address

if TYPE_CHECKING:
    from xds_server.leading.keeper import Granted
    from xds_server.settings import ControlSettings


class SharedStore(Keys, LeaseCalls, Protocol):
    """Values and a lease; calls block and raise ``SharedFault``."""

    @property
    def lease_s(self) -> int:
        """Seconds of the lease: a leader that was killed is replaced after at most so many."""

    def leader(self) -> bytes | None:
        """Return the value of the server that leads; ``None`` = the lease may be claimed."""

    def grant(self, ttl_s: int) -> Granted:
        """Return a new lease, with which no server leads yet."""

    def claim(self, value: bytes, lease: Granted) -> bool:
        """Make this server the one that leads; return False if there is another."""

    def close(self) -> None:
        """Close the connections."""


def opened(settings: ControlSettings) -> SharedStore:
    """Return the store of these options; nothing is asked yet.

    Raises:
        StoreError, TlsError: A file cannot be used.
    """
    store = settings.store or ""
    found = kubernetes_address(store)
    if found is not None:
        given = settings.store_kubeconfig
        api = KubernetesApi(kubeconfig=None if given is None else str(given.absolute()))
        files = AccessFiles(api, elsewhere="--store-kubeconfig FILE")
        try:
            files.read()
        except AccessError as error:
            raise StoreError(f"--store: {error}") from None
        return Kubernetes(found.namespace, found.name, files)
    address = etcd_address(store)
    return Etcd(address.members, address.prefix, _credentials(settings))


def _credentials(settings: ControlSettings) -> grpc.ChannelCredentials | None:
    """Return how etcd is reached; ``None`` = without TLS.

    Raises:
        StoreError, TlsError: A file cannot be used.
    """
    ca, certificate, key = settings.store_ca, settings.store_cert, settings.store_key
    if ca is None:
        return None
    if certificate is not None and key is not None:
        held = Identity(TlsFiles(certificate, key, ca)).material
        return grpc.ssl_channel_credentials(held.ca, held.key, held.certificate)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(ca)
        return grpc.ssl_channel_credentials(ca.read_bytes())
    except ssl.SSLError:
        raise StoreError(f"--store-ca: {ca} contains no certificates (PEM)") from None
    except OSError as error:
        raise StoreError(f"--store-ca: cannot read {ca}: {error.strerror}") from None
