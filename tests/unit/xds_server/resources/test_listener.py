"""The listener: what it strips, how it reads paths, and its bounds."""

from __future__ import annotations

from typing import Any

from envoy_data_plane.envoy.config.core.v3 import Http2ProtocolOptions

from support.envoy_messages import listener_of
from support.fleets import fleet


def of(**settings: Any):
    """Return the HTTP connection manager of a listener with these settings."""
    return listener_of(fleet(listener=settings))[1][-1]


def chains(**settings: Any):
    """Return the filter chains of a listener with these settings, by protocol, and its filters."""
    message, managers = listener_of(fleet(listener=settings))
    matches = (chain.filter_chain_match for chain in message.filter_chains)
    made = {"".join(one.application_protocols): m for one, m in zip(matches, managers, strict=True)}
    return made, [each.name.rpartition(".")[2] for each in message.listener_filters]


def test_uploads_over_http_1_are_bounded() -> None:
    """Not over HTTP/2: a gRPC stream may wait long for its first answer while it is sent."""
    made, inspectors = chains(upload_timeout="7s")
    assert inspectors == ["http_inspector"]
    assert {name: one.request_timeout.seconds for name, one in made.items()} == {"": 7, "h2c": 0}
    made["h2c"].request_timeout.FromSeconds(7)
    made["h2c"].ClearField("early_header_mutation_extensions")
    made[""].ClearField("early_header_mutation_extensions")
    assert made["h2c"] == made[""]


def test_with_tls_the_protocol_is_read_from_the_handshake() -> None:
    """What is in the connection is encrypted."""
    made, inspectors = chains(tls={"certificate": "/a.crt", "key": "/a.key"})
    assert inspectors == ["tls_inspector"]
    assert set(made) == {"", "h2"}


def test_without_a_bound_of_uploads_there_is_one_chain() -> None:
    """Nothing has to be inspected."""
    made, inspectors = chains(upload_timeout=0)
    assert (set(made), inspectors) == ({""}, [])


def test_paths_are_normalised_before_routes_match() -> None:
    """Otherwise `..` and escaped slashes lead round the list of paths."""
    manager = of()
    assert manager.normalize_path.value
    assert manager.merge_slashes
    assert manager.path_with_escaped_slashes_action == manager.UNESCAPE_AND_FORWARD


def test_clients_are_bounded() -> None:
    """Headers, streams, resets and unread answers of one connection."""
    manager = of()
    assert manager.max_request_headers_kb.value == 32
    assert manager.common_http_protocol_options.max_headers_count.value == 100
    h2 = manager.http2_protocol_options
    assert h2.max_concurrent_streams.value == 1024
    assert (h2.max_outbound_frames.value, h2.max_outbound_control_frames.value) == (10_000, 1000)
    # Fields that xds-protos does not know.
    known = Http2ProtocolOptions.parse(h2.SerializeToString())
    assert (known.stream_reset_burst, known.stream_reset_rate) == (2000, 200)


def test_http_1_0_is_accepted() -> None:
    """Older proxies use it, and without a `host` header."""
    manager = of()
    assert manager.http_protocol_options.accept_http_10
    assert manager.http_protocol_options.default_host_for_http_10
