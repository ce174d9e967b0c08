"""One ADS stream in both variants, by the items of the protocol checklist."""

from __future__ import annotations

import pytest

from support.ads_clients import BASE, BOTH, Sotw, held, settled, snap, state
from tidegate_api.names import LISTENER_TYPE
from xds_server.protocol.messages import MAX_TYPES, DeltaRequest, ProtocolError, SotwRequest

# --- both variants --------------------------------------------------------------------------------


@BOTH
def test_an_empty_type_is_rejected(client_type: type[Sotw]) -> None:
    """X2: on ADS every request names its type."""
    client = client_type(snap(**BASE))
    request = SotwRequest("") if client_type is Sotw else DeltaRequest("")
    with pytest.raises(ProtocolError, match="type_url is empty"):
        client.stream.on_request(request, 0.0)


@BOTH
def test_an_unknown_type_is_never_answered(client_type: type[Sotw]) -> None:
    """X3: the stream stays open, and the other types are served."""
    client = client_type(snap(**BASE))
    assert client.ask("RTDS", "ops") == []
    assert state(client, "RTDS") == "NOT_SENT"
    assert client.ask("CDS") == [("CDS", ["c1"])]


@BOTH
def test_a_type_served_later_is_sent_then(client_type: type[Sotw]) -> None:
    """X3, X31: the subscription is remembered."""
    client = client_type(snap(CDS={}))
    client.ask("RTDS", "ops")
    assert client.push(snap(CDS={}, RTDS={"ops": "1"})) == [("RTDS", ["ops"])]


@BOTH
def test_the_number_of_types_is_bounded(client_type: type[Sotw]) -> None:
    """A stream may request a bounded number of types."""
    client = client_type(snap(**BASE))
    make = SotwRequest if client_type is Sotw else DeltaRequest
    for number in range(MAX_TYPES):
        client.stream.on_request(make(f"type/{number}"), 0.0)
    with pytest.raises(ProtocolError, match="types on one stream"):
        client.stream.on_request(make("type/more"), 0.0)
    client.ask("EDS", "c1")


@BOTH
def test_nothing_is_sent_before_there_is_a_snapshot(client_type: type[Sotw]) -> None:
    """X9: the first request gets no answer; an accidental empty CDS would delete everything."""
    client = client_type()
    assert client.ask("CDS") == []
    assert client.stream.standing().state == "SYNCED"
    assert client.push(snap(**BASE)) == [("CDS", ["c1"])]


@BOTH
def test_types_are_independent(client_type: type[Sotw]) -> None:
    """X4: a NACK of one type does not affect the others."""
    client = settled(client_type(snap(**BASE)))
    client.push(snap(**{**BASE, "EDS": {"c1": "2"}}))
    client.nack("EDS")
    assert client.push(snap(**{**BASE, "EDS": {"c1": "2"}, "LDS": {"l": "2"}})) == [("LDS", ["l"])]


@BOTH
def test_nonces_are_unique_and_carry_the_stream(client_type: type[Sotw]) -> None:
    """X5: no nonce is empty or repeated, and another stream's nonce is ignored."""
    client = client_type(snap(**BASE))
    client.ask("CDS")
    first = client.last["CDS"].nonce
    client.ack("CDS")
    client.push(snap(**{**BASE, "CDS": {"c1": "2"}}))
    assert first.startswith(("s-", "d-"))
    assert client.last["CDS"].nonce not in {"", first}


@BOTH
def test_a_stale_nonce_answers_nothing(client_type: type[Sotw]) -> None:
    """X14: the request is neither ACK nor NACK of the newest message."""
    client = settled(client_type(snap(**BASE)))
    old = client.last["LDS"].nonce
    client.push(snap(**{**BASE, "LDS": {"l": "2"}}))
    make = SotwRequest if client_type is Sotw else DeltaRequest
    reaction = client.stream.on_request(make(LISTENER_TYPE, nonce=old, error="late"), 0.0)
    assert (reaction.responses, reaction.verdict) == ([], None)
    assert state(client, "LDS") == "STALE"


@BOTH
def test_a_verdict_contains_the_waiting_time(client_type: type[Sotw]) -> None:
    """X10: ACK latency is measured from sending to answer."""
    client = client_type(snap(**BASE))
    client.ask("LDS")
    make = SotwRequest if client_type is Sotw else DeltaRequest
    request = make(LISTENER_TYPE, nonce=client.last["LDS"].nonce)
    verdict = client.stream.on_request(request, 1.5).verdict
    assert verdict is not None
    assert (verdict.accepted, verdict.waited_s) == (True, 1.5)


@BOTH
def test_nothing_is_sent_without_a_subscription(client_type: type[Sotw]) -> None:
    """X25, X60: a named subscription gets its names only."""
    client = client_type(snap(CDS={"c1": "1", "c2": "1"}))
    assert client.ask("CDS", "c2") == [("CDS", ["c2"])]
    client.ack("CDS")
    assert client.push(snap(CDS={"c1": "2", "c2": "1"})) == []


@BOTH
def test_a_wildcard_on_an_empty_set_is_answered_once(client_type: type[Sotw]) -> None:
    """X47, X49: one empty response finishes Envoy's initialization, and no other follows."""
    client = client_type(snap(LDS={}))
    assert client.ask("LDS") == [("LDS", [])]
    assert client.ack("LDS") == []
    assert state(client, "LDS") == "SYNCED"
    assert client.push(snap(LDS={}, CDS={})) == []


@BOTH
def test_a_wildcard_follows_deletions(client_type: type[Sotw]) -> None:
    """X18, X28, X44: absence from a full set, or a removal, says that one is gone; once."""
    client = client_type(snap(POOL={"a": "1", "b": "1"}))
    client.ask("POOL")
    client.ack("POOL")
    expected = ["b"] if client_type is Sotw else ["-a"]
    assert client.push(snap(POOL={"b": "1"})) == [("POOL", expected)]
    assert client.ack("POOL") == []
    assert client.push(snap(POOL={"b": "1"})) == []
    assert client.push(snap(POOL={})) == [("POOL", [] if client_type is Sotw else ["-b"])]
    client.ack("POOL")
    assert {v.short: v.resources for v in client.stream.views(0)} == {"POOL": 0}


@BOTH
def test_dropping_everything_owes_nothing(client_type: type[Sotw]) -> None:
    """X25: a client without subscriptions to a type is SYNCED, even with a message in flight."""
    client = client_type(snap(**BASE))
    client.ask("EDS", "c1")
    if client_type is Sotw:
        client.ask("EDS")
    else:
        client.ask("EDS", drop=("c1",))  # type: ignore[call-arg] # delta only
    assert client.stream.standing().state == "SYNCED"
    assert client.push(snap(**{**BASE, "EDS": {"c1": "2"}})) == []


@BOTH
def test_status_counts_time_and_resources(client_type: type[Sotw]) -> None:
    """X61: versions sent and acknowledged, time pending and resources are shown."""
    client = client_type(snap(CDS={"c1": "1", "c2": "1"}))
    client.ask("CDS")
    view = client.stream.views(4.0)[0]
    assert (view.state, view.pending_s, view.version_acked, view.resources) == ("STALE", 4.0, "", 0)
    client.ack("CDS", 4.0)
    view = client.stream.views(9.0)[0]
    assert (view.state, view.pending_s, view.resources) == ("SYNCED", 0.0, 2)
    assert view.version_acked == view.version_sent != ""


# --- status of resources --------------------------------------------------------------------------


@BOTH
def test_resources_are_shown_with_what_the_client_has(client_type: type[Sotw]) -> None:
    """Before the answer a resource is stale, after it in step; a refused one has no version."""
    client = client_type(snap(**BASE))
    client.ask("CDS")
    assert held(client, "CDS") == {"c1": ("STALE", False)}
    client.ack("CDS")
    assert held(client, "CDS") == {"c1": ("SYNCED", True)}
    client.push(snap(**{**BASE, "CDS": {"c1": "2"}}))
    assert held(client, "CDS") == {"c1": ("STALE", True)}
    client.nack("CDS")
    assert held(client, "CDS") == {"c1": ("NACKED", False)}


@BOTH
def test_resources_that_are_not_subscribed_are_not_shown(client_type: type[Sotw]) -> None:
    """The client is never sent them."""
    client = client_type(snap(EDS={"a": "1", "b": "1"}))
    client.ask("EDS", "b")
    assert held(client, "EDS") == {"b": ("STALE", False)}
