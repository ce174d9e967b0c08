"""Certificates and keys by file name."""

from __future__ import annotations

from envoy.config.cluster.v3 import cluster_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2, tls_pb2

from support.envoy_messages import listener_of
from support.fleets import fleet, pool
from tidegate_api.names import CLUSTER_TYPE
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.view import LOG_SLOTS
from xds_server.resources.secrets import secrets
from xds_server.snapshots.build import upstream_resources

TO_REPLICAS = {"ca": "/r/ca.crt", "certificate": "/e/tls.crt", "key": "/e/tls.key"}
TO_CLIENTS = {"certificate": "/l/tls.crt", "key": "/l/tls.key", "client_ca": "/c/ca.crt"}


def secure(**more: str) -> Fleet:
    """Return a fleet with TLS on both sides."""
    return fleet(pool(upstream_tls={**TO_REPLICAS, **more}), listener={"tls": TO_CLIENTS})


def parsed(of: Fleet, also: Fleet | None = None):
    """Return the secrets by name."""
    return {name: secret_pb2.Secret.FromString(data) for name, data in secrets(of, also).items()}


def test_secrets_contain_file_names_only() -> None:
    """Keys are never sent; each Envoy watches the folder."""
    found = parsed(secure())
    assert sorted(found) == [
        "listener/certificate",
        "listener/client-ca",
        "pool/llm/ca",
        "pool/llm/certificate",
    ]
    own = found["pool/llm/certificate"].tls_certificate
    assert (own.certificate_chain.filename, own.private_key.filename) == (
        "/e/tls.crt",
        "/e/tls.key",
    )
    assert own.watched_directory.path == "/e"
    assert found["listener/client-ca"].validation_context.trusted_ca.filename == "/c/ca.crt"


def test_without_tls_there_are_no_secrets() -> None:
    """Unused secrets are not sent, and all clusters are plain."""
    assert secrets(fleet()) == {}
    clusters = map(
        cluster_pb2.Cluster.FromString, upstream_resources(fleet())[CLUSTER_TYPE].values()
    )
    assert not any(each.HasField("transport_socket") for each in clusters)


def test_both_fleets_of_a_change_have_their_secrets() -> None:
    """Secrets of retiring clusters stay; for common names the fleet in force takes precedence."""
    other = fleet(pool(upstream_tls={"ca": "/other/ca.crt"}))
    found = parsed(other, also=secure())
    assert found["pool/llm/ca"].validation_context.trusted_ca.filename == "/other/ca.crt"
    assert "listener/certificate" in found


def test_a_renamed_file_touches_no_cluster() -> None:
    """Only the secret changes."""
    other = secure(ca="/elsewhere/ca.crt")
    assert upstream_resources(secure()) == upstream_resources(other)
    assert secrets(secure()) != secrets(other)


def test_a_listener_asks_for_certificates_only_where_it_can_check_them() -> None:
    """Mutual TLS is on with `client_ca`."""
    for tls, required in ((TO_CLIENTS, True), ({**TO_CLIENTS, "client_ca": None}, False)):
        message, _ = listener_of(fleet(listener={"tls": tls}))
        context = tls_pb2.DownstreamTlsContext()
        message.filter_chains[0].transport_socket.typed_config.Unpack(context)
        assert context.require_client_certificate.value == required
        assert list(context.common_tls_context.alpn_protocols) == ["h2", "http/1.1"]


def test_a_cluster_checks_the_name_that_it_asks_for() -> None:
    """The server name is sent, and the certificate must carry it."""
    data = upstream_resources(secure(server_name="triton.internal"))[CLUSTER_TYPE]
    message = cluster_pb2.Cluster.FromString(data["llm/stable/grpc"])
    context = tls_pb2.UpstreamTlsContext()
    message.transport_socket.typed_config.Unpack(context)
    combined = context.common_tls_context.combined_validation_context
    assert context.sni == "triton.internal"
    (name,) = combined.default_validation_context.match_typed_subject_alt_names
    assert name.matcher.exact == "triton.internal"
    assert list(context.common_tls_context.alpn_protocols) == ["h2"]


TO_PICKERS = {"ca": "/p/ca.crt", "certificate": "/e/tls.crt", "key": "/e/tls.key"}


def test_pickers_have_secrets_of_their_own() -> None:
    """One of Envoy's certificate and one of the authorities, for all pickers."""
    found = parsed(fleet(pickers={"tls": TO_PICKERS}))
    assert sorted(found) == ["pickers/ca", "pickers/certificate"]
    assert found["pickers/ca"].validation_context.trusted_ca.filename == "/p/ca.crt"


def test_all_clusters_of_pickers_are_tls_with_their_name() -> None:
    """Exchanges, health checks and log entries: each log sink's cluster is one of a picker's."""
    secured = fleet(pickers={"tls": {**TO_PICKERS, "server_name": "picker.tidegate"}})
    clusters = upstream_resources(secured)[CLUSTER_TYPE]
    names = [name for name in clusters if not name.startswith("llm/")]
    assert len(names) == 1 + LOG_SLOTS
    for name in names:
        cluster = cluster_pb2.Cluster.FromString(clusters[name])
        context = tls_pb2.UpstreamTlsContext()
        assert cluster.transport_socket.typed_config.Unpack(context)
        assert context.sni == "picker.tidegate"
        common = context.common_tls_context
        assert common.tls_certificate_sds_secret_configs[0].name == "pickers/certificate"
        validation = common.combined_validation_context
        (expected,) = validation.default_validation_context.match_typed_subject_alt_names
        assert expected.matcher.exact == "picker.tidegate"
