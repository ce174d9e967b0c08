"""Secrets: certificates and keys by file name (SDS).

A secret names files that each Envoy reads itself, and reads again whenever a file is moved into
their folder, which is how Kubernetes and certbot replace them. Keys are thus never sent over the
network, and a renewed certificate changes no listener and no cluster.

Source: ``envoy/extensions/transport_sockets/tls/v3/{secret,common,tls}.proto``.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from envoy_data_plane.envoy.config.core.v3 import DataSource, TransportSocket, WatchedDirectory
from envoy_data_plane.envoy.extensions.transport_sockets.quic.v3 import QuicDownstreamTransport
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CertificateValidationContext,
    CommonTlsContext,
    CommonTlsContextCombinedCertificateValidationContext,
    DownstreamTlsContext,
    SdsSecretConfig,
    Secret,
    SubjectAltNameMatcher,
    SubjectAltNameMatcherSanType,
    TlsCertificate,
    UpstreamTlsContext,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.google.protobuf import Any as PackedAny

from xds_server.resources.sources import ads_source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate_api.names import Protocol
    from xds_server.fleet.model.fields import UpstreamTls
    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.model.listener import ListenerTls

_SOCKET = "envoy.transport_sockets.tls"
_QUIC = "envoy.transport_sockets.quic"
_PICKERS = "pickers"
_GATEWAYS = "gateways"


def secrets(fleet: Fleet, also: Fleet | None = None) -> dict[str, bytes]:
    """Return every serialized ``Secret`` by name.

    Args:
        fleet: The fleet whose files are in force.
        also: A fleet whose secrets are in use too; for common names ``fleet`` takes precedence.
    """
    found = dict(_secrets(also)) if also is not None else {}
    found.update(_secrets(fleet))
    return {name: bytes(secret) for name, secret in found.items()}


def downstream(tls: ListenerTls, of: str = "") -> TransportSocket:
    """Return the transport socket of a listener that accepts only TLS.

    Args:
        tls: Its settings.
        of: Name of a further listener.
    """
    common = CommonTlsContext(
        tls_certificate_sds_secret_configs=[_by_name(_listener(of))],
        alpn_protocols=["h2", "http/1.1"],
    )
    if tls.client_ca is not None:
        common.validation_context_sds_secret_config = _by_name(_client_ca(of))
    context = DownstreamTlsContext(
        common_tls_context=common,
        require_client_certificate=tls.client_ca is not None,
    )
    return TransportSocket(name=_SOCKET, typed_config=PackedAny.pack(context))


def quic() -> TransportSocket:
    """Return the transport socket of the listener for HTTP/3."""
    common = CommonTlsContext(
        tls_certificate_sds_secret_configs=[_by_name(_listener(""))], alpn_protocols=["h3"]
    )
    context = QuicDownstreamTransport(
        downstream_tls_context=DownstreamTlsContext(common_tls_context=common)
    )
    return TransportSocket(name=_QUIC, typed_config=PackedAny.pack(context))


def upstream(pool: str, tls: UpstreamTls, protocol: Protocol) -> TransportSocket:
    """Return the transport socket of a cluster that uses TLS to its replicas."""
    return _socket(f"pool/{pool}", tls, protocol)


def to_pickers(tls: UpstreamTls) -> TransportSocket:
    """Return the transport socket of a cluster that uses TLS to pickers."""
    return _socket(_PICKERS, tls, "grpc")


def to_gateways(tls: UpstreamTls, protocol: Protocol) -> TransportSocket:
    """Return the transport socket of a cluster that uses TLS to gateways."""
    return _socket(_GATEWAYS, tls, protocol)


def _socket(of: str, tls: UpstreamTls, protocol: Protocol) -> TransportSocket:
    common = CommonTlsContext(alpn_protocols=["h2"] if protocol == "grpc" else ["http/1.1"])
    if tls.certificate is not None:
        common.tls_certificate_sds_secret_configs = [_by_name(_client(of))]
    if tls.ca is not None:
        named = CertificateValidationContext()
        if tls.server_name is not None:
            named.match_typed_subject_alt_names = [
                SubjectAltNameMatcher(
                    san_type=SubjectAltNameMatcherSanType.DNS,
                    matcher=StringMatcher(exact=tls.server_name),
                )
            ]
        common.combined_validation_context = CommonTlsContextCombinedCertificateValidationContext(
            default_validation_context=named,
            validation_context_sds_secret_config=_by_name(_ca(of)),
        )
    context = UpstreamTlsContext(common_tls_context=common, sni=tls.server_name or "")
    return TransportSocket(name=_SOCKET, typed_config=PackedAny.pack(context))


def _secrets(fleet: Fleet) -> Iterator[tuple[str, Secret]]:
    listener = fleet.listener
    named = (("", listener.tls), *((each.name, each.tls) for each in listener.further))
    for of, tls in named:
        if tls is not None:
            yield _listener(of), _certificate(_listener(of), tls.certificate, tls.key)
            if tls.client_ca is not None:
                yield _client_ca(of), _trusted(_client_ca(of), tls.client_ca)
    upstreams = ((f"pool/{pool.name}", pool.upstream_tls) for pool in fleet.pools)
    gateways = None if fleet.gateway is None else fleet.gateway.tls
    for of, to in (*upstreams, (_PICKERS, fleet.pickers.tls), (_GATEWAYS, gateways)):
        if to is None:
            continue
        if to.certificate is not None and to.key is not None:
            yield _client(of), _certificate(_client(of), to.certificate, to.key)
        if to.ca is not None:
            yield _ca(of), _trusted(_ca(of), to.ca)


def _listener(of: str) -> str:
    return f"listener/{of}/certificate" if of else "listener/certificate"


def _client_ca(of: str) -> str:
    return f"listener/{of}/client-ca" if of else "listener/client-ca"


def _client(of: str) -> str:
    return f"{of}/certificate"


def _ca(of: str) -> str:
    return f"{of}/ca"


def _by_name(name: str) -> SdsSecretConfig:
    return SdsSecretConfig(name=name, sds_config=ads_source())


def _certificate(name: str, chain: str, key: str) -> Secret:
    return Secret(
        name=name,
        tls_certificate=TlsCertificate(
            certificate_chain=DataSource(filename=chain),
            private_key=DataSource(filename=key),
            watched_directory=_folder(chain),
        ),
    )


def _trusted(name: str, ca: str) -> Secret:
    return Secret(
        name=name,
        validation_context=CertificateValidationContext(
            trusted_ca=DataSource(filename=ca), watched_directory=_folder(ca)
        ),
    )


def _folder(path: str) -> WatchedDirectory:
    return WatchedDirectory(path=posixpath.dirname(path))
