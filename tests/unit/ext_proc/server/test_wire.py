"""Envoy's messages to events."""

from __future__ import annotations

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from ext_proc.exchange import Body, BodySending, Head, Response, ResponsePart, Trailers
from ext_proc.exchange.known import MAX_SUBSET
from ext_proc.server.wire import WireError, event_of, parse_request, read_headers
from support.streams import MODE, Messages
from tidegate_api.names import HEADERS_ATTRIBUTE


def event(messages):
    return event_of(parse_request(messages.bytes()[0]))


def headers(*items):
    message = pb.HttpHeaders()
    for item in items:
        message.headers.headers.add(**item)
    return read_headers(message.headers.headers)


def test_a_head():
    """Method, path, headers, attributes and the announced mode are read."""
    made = event(
        Messages(mode=MODE.BUFFERED, gated=False).head("/p?q=1", "PUT", {"X-A": "1"}, end=True)
    )
    assert made == Head(
        "PUT",
        "/p?q=1",
        {"x-a": "1"},
        end_of_stream=True,
        cluster="llm/stable/http",
        route="llm/http",
        request_body=BodySending.BUFFERED,
        client="192.0.2.1",
        gated=False,
        protocol="HTTP/1.1",
    )


def test_the_length_of_long_headers_is_read():
    """Envoy sends it only where it is above a bound."""
    message = Messages().head().made[0]
    fields = message.attributes["envoy.filters.http.ext_proc"].fields
    fields[HEADERS_ATTRIBUTE].number_value = 8000
    assert event_of(message).header_bytes == 8000


@pytest.mark.parametrize("source", [None, "192.0.2.1:40000"])
@pytest.mark.parametrize("protocol", [None, "HTTP/2"])
def test_what_is_told_beside_the_usual_is_read_with_and_without_it(source, protocol):
    """An older control server does not ask for the source, nor for the protocol."""
    message = Messages(source=source, protocol=protocol).head().made[0]
    fields = message.attributes["envoy.filters.http.ext_proc"].fields
    fields[HEADERS_ATTRIBUTE].number_value = 8000
    made = event_of(message)
    assert (made.header_bytes, made.client) == (8000, None if source is None else "192.0.2.1")


def test_a_verified_certificate_names_the_client():
    """Its URI goes before its subject, and both before the address."""
    message = Messages().head().made[0]
    fields = message.attributes["envoy.filters.http.ext_proc"].fields
    fields["connection.subject_peer_certificate"].string_value = "CN=batch"
    assert event_of(message).client == "CN=batch"
    fields["connection.uri_san_peer_certificate"].string_value = "spiffe://test/batch"
    assert event_of(message).client == "spiffe://test/batch"


def test_a_head_without_attributes_and_config():
    """Values that are not sent are unknown, and without an announced mode there is no body."""
    made = event(Messages(cluster=None, route=None, mode=None, source=None).head())
    assert (made.cluster, made.route, made.request_body) == (None, None, BodySending.NONE)
    assert made.client is None


@pytest.mark.parametrize(
    ("mode", "sending"),
    [
        (MODE.NONE, BodySending.NONE),
        (MODE.BUFFERED, BodySending.BUFFERED),
        (MODE.BUFFERED_PARTIAL, BodySending.PARTIAL),
        (MODE.STREAMED, BodySending.STREAMED),
        (MODE.FULL_DUPLEX_STREAMED, BodySending.DUPLEX),
        (MODE.GRPC, BodySending.STREAMED),
        (99, BodySending.STREAMED),
    ],
)
def test_modes(mode, sending):
    """Each announced mode is mapped; an unknown one of a later Envoy counts as streamed."""
    assert event(Messages(mode=mode).head()).request_body is sending


@pytest.mark.parametrize(
    ("item", "value"),
    [
        ({"key": "x", "raw_value": b"raw", "value": "text"}, "raw"),
        ({"key": "X-Mixed", "raw_value": b"raw"}, "raw"),
        ({"key": "x", "value": "text"}, "text"),
        ({"key": "x"}, ""),
        ({"key": "x", "raw_value": b"\xff"}, "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_header_reading(item, value):
    """V76: the raw value wins, names are lower-cased, the text value is the fallback."""
    assert headers(item) == {item["key"].lower(): value}


def test_repeated_headers_keep_all_values_in_order():
    """V20: all values of each are kept; cookies have their own separator."""
    assert headers(
        {"key": "x-forwarded-for", "raw_value": b"a"},
        {"key": "cookie", "raw_value": b"c=1"},
        {"key": "x-forwarded-for", "raw_value": b"b"},
        {"key": "cookie", "raw_value": b"d=2"},
    ) == {"x-forwarded-for": "a,b", "cookie": "c=1; d=2"}


@pytest.mark.parametrize(
    ("hint", "entries"),
    [
        (None, None),
        ({"unrelated": "x"}, None),
        (["10.0.0.3:8080"], {"10.0.0.3:8080"}),
        ("10.0.0.2:8080,10.0.0.3:8080", {"10.0.0.2:8080", "10.0.0.3:8080"}),
        ([], set()),
        ("  10.0.0.2:8080 ,  ,  10.0.0.3:8080  ", {"10.0.0.2:8080", "10.0.0.3:8080"}),
        (["10.0.0.2:8080, 10.0.0.3:8080"], {"10.0.0.2:8080", "10.0.0.3:8080"}),
        (["10.0.0.2", 7, True], {"10.0.0.2"}),
        (7, set()),
    ],
)
def test_subset_hints(hint, entries):
    """V17-V26: absent is no limit, empty is no endpoint, ragged texts and lists are read."""
    found = event(Messages().head(subset=hint)).subset
    assert found == entries
    assert event(Messages().body(b"x", subset=hint)).subset == entries


def test_a_subset_is_bounded():
    """More entries than the bound are not kept."""
    hint = ",".join(f"e{number}" for number in range(MAX_SUBSET + 1))
    assert len(event(Messages().head(subset=hint)).subset) == MAX_SUBSET


def test_other_messages():
    """Bodies, trailers and the parts of a response."""
    assert event(Messages().body(b"x", end=False)) == Body(b"x", end_of_stream=False)
    assert event(Messages().trailers()) == Trailers()
    assert event(Messages().response()) == Response(ResponsePart.HEADERS)
    assert event(Messages().response("body", b"y")) == Response(ResponsePart.BODY, b"y")
    assert event(Messages().response("trailers")) == Response(ResponsePart.TRAILERS)


@pytest.mark.parametrize(
    ("space", "served"),
    [
        (None, None),
        ({}, None),
        ({"x-gateway-destination-endpoint": "10.0.0.1:80"}, None),
        ({"x-gateway-destination-endpoint-served": 7}, None),
        ({"x-gateway-destination-endpoint-served": "10.0.0.2:3000"}, "10.0.0.2:3000"),
    ],
)
@pytest.mark.parametrize("part", ["headers", "trailers"])
def test_the_served_replica(part, space, served):
    """V28, V29: a response's headers and trailers name the replica that served, if sent."""
    made = Messages().response(part, served=space)
    assert event(made) == Response(ResponsePart[part.upper()], served=served)


def test_a_message_without_content():
    """A request without a known part is an error, not a guess."""
    with pytest.raises(WireError, match="request: none"):
        event_of(pb.ProcessingRequest())


@pytest.mark.parametrize(
    ("space", "key", "value", "says"),
    [
        ("tidegate", "destinations", "one", True),
        ("tidegate", "destinations", "list", False),
        ("tidegate", "other", "one", False),
        ("envoy.lb", "destinations", "one", False),
        ("tidegate", "destinations", 7, False),
    ],
)
def test_a_proxy_that_reads_one_address(space, key, value, says):
    """It says so in metadata, which clients cannot write."""
    message = Messages(cluster=None, route=None).head().made[0]
    message.metadata_context.filter_metadata[space].update({key: value})
    assert event_of(message).one_destination is says


def first_body(**attributes):
    message = pb.ProcessingRequest()
    message.request_body.body = b"{}"
    message.request_body.end_of_stream = True
    fields = message.attributes["envoy.filters.http.ext_proc"].fields
    for name, value in attributes.items():
        fields[name].string_value = value
    return message


def test_a_body_before_the_headers():
    """Attributes take their place; other attributes are no headers."""
    message = first_body(
        **{
            "request.path": "/v1/completions?x=1",
            "request.url_path": "/v1/completions",
            "request.method": "PUT",
            "request.headers['x-session-id']": "s",
            'request.headers["Content-Type"]': "application/json",
            "request.headers": "odd",
            "request.host": "h",
        }
    )
    message.protocol_config.request_body_mode = MODE.BUFFERED
    made = event_of(message)
    assert made.chunk == b"{}"
    assert made.head == Head(
        "PUT",
        "/v1/completions?x=1",
        {"x-session-id": "s", "content-type": "application/json"},
        end_of_stream=False,
        request_body=BodySending.BUFFERED,
    )


def test_a_body_whose_replica_is_chosen_comes_too_late():
    """V117: the served key is there; so it is in any mode that sends the headers on."""
    message = first_body()
    message.protocol_config.request_body_mode = MODE.BUFFERED
    served = {"x-gateway-destination-endpoint-served": "10.0.0.1:80"}
    message.metadata_context.filter_metadata["envoy.lb"].update(served)
    assert event_of(message).head.request_body is BodySending.STREAMED


def test_a_later_body_has_no_head():
    """Envoy sends attributes and modes with its first message only."""
    assert event(Messages().body(b"{}")).head is None


@pytest.mark.parametrize("part", ["headers", "trailers"])
def test_who_served_as_an_attribute(part):
    """Where the cluster writes no metadata; the metadata wins."""
    message = Messages().response(part).made[0]
    fields = message.attributes["envoy.filters.http.ext_proc"].fields
    fields["upstream.address"].string_value = "10.0.0.7:80"
    assert event_of(message).served == "10.0.0.7:80"
    served = {"x-gateway-destination-endpoint-served": "10.0.0.1:80"}
    message.metadata_context.filter_metadata["envoy.lb"].update(served)
    assert event_of(message).served == "10.0.0.1:80"
