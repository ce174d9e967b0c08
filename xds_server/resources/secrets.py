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
    from xds_server.fleet.model.fleet import Fleet, ListenerTls, UpstreamTls

_SOCKET = "envoy.transport_sockets.tls"
_LISTENER = "listener/certificate"
_CLIENT_CA = "listener/client-ca"


def secrets(fleet: Fleet, also: Fleet | None = None) -> dict[str, bytes]:
    """Return every serialized ``Secret`` by name.

    Args:
        fleet: The fleet whose files are in force.
        also: A fleet whose secrets are in use too; for common names ``fleet`` takes precedence.
    """
    found = dict(_secrets(also)) if also is not None else {}
    found.update(_secrets(fleet))
    return {name: bytes(secret) for name, secret in found.items()}


def downstream(tls: ListenerTls) -> TransportSocket:
    """Return the transport socket of a listener that accepts only TLS."""
    common = CommonTlsContext(
        tls_certificate_sds_secret_configs=[_by_name(_LISTENER)], alpn_protocols=["h2", "http/1.1"]
    )
    if tls.client_ca is not None:
        common.validation_context_sds_secret_config = _by_name(_CLIENT_CA)
    context = DownstreamTlsContext(
        common_tls_context=common,
        require_client_certificate=tls.client_ca is not None,
    )
    return TransportSocket(name=_SOCKET, typed_config=PackedAny.pack(context))


def upstream(pool: str, tls: UpstreamTls, protocol: Protocol) -> TransportSocket:
    """Return the transport socket of a cluster that uses TLS to its replicas."""
    common = CommonTlsContext(alpn_protocols=["h2"] if protocol == "grpc" else ["http/1.1"])
    if tls.certificate is not None:
        common.tls_certificate_sds_secret_configs = [_by_name(_client(pool))]
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
            validation_context_sds_secret_config=_by_name(_ca(pool)),
        )
    context = UpstreamTlsContext(common_tls_context=common, sni=tls.server_name or "")
    return TransportSocket(name=_SOCKET, typed_config=PackedAny.pack(context))


def _secrets(fleet: Fleet) -> Iterator[tuple[str, Secret]]:
    tls = fleet.listener.tls
    if tls is not None:
        yield _LISTENER, _certificate(_LISTENER, tls.certificate, tls.key)
        if tls.client_ca is not None:
            yield _CLIENT_CA, _trusted(_CLIENT_CA, tls.client_ca)
    for pool in fleet.pools:
        to = pool.upstream_tls
        if to is None:
            continue
        if to.certificate is not None and to.key is not None:
            yield _client(pool.name), _certificate(_client(pool.name), to.certificate, to.key)
        if to.ca is not None:
            yield _ca(pool.name), _trusted(_ca(pool.name), to.ca)


def _client(pool: str) -> str:
    return f"pool/{pool}/certificate"


def _ca(pool: str) -> str:
    return f"pool/{pool}/ca"


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
