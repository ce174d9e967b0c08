"""What a client of an ADS stream rejected, and how it recovers."""

from __future__ import annotations

from support.ads_clients import BASE, BOTH, Delta, Sotw, settled, snap, state
from tidegate_api.names import LISTENER_TYPE
from xds_server.protocol.messages import MAX_ERROR_CHARS

# --- both variants --------------------------------------------------------------------------------


@BOTH
def test_a_rejected_message_is_parked(client_type: type[Sotw]) -> None:
    """X12: identical content is never sent again, however often it is published."""
    client = settled(client_type(snap(**BASE)))
    bad = snap(**{**BASE, "LDS": {"l": "bad"}})
    client.push(bad)
    assert client.nack("LDS", "no such filter", now=2.0) == []
    assert client.push(snap(**{**BASE, "LDS": {"l": "bad"}}), 3.0) == []
    standing = client.stream.standing()
    assert (standing.state, standing.type_url, standing.message, standing.nacks) == (
        "NACKED",
        LISTENER_TYPE,
        "no such filter",
        1,
    )
    view = next(v for v in client.stream.views(5.0) if v.short == "LDS")
    assert (view.state, view.message, view.pending_s) == ("NACKED", "no such filter", 3.0)
    assert view.version_sent != view.version_acked


@BOTH
def test_the_next_different_content_recovers(client_type: type[Sotw]) -> None:
    """X13: the next content ends a NACK, even if it is the previous content."""
    for content in ("3", "1"):
        client = settled(client_type(snap(**BASE)))
        client.push(snap(**{**BASE, "LDS": {"l": "bad"}}))
        client.nack("LDS")
        assert client.push(snap(**{**BASE, "LDS": {"l": content}})) == [("LDS", ["l"])]
        assert client.ack("LDS") == []
        assert client.stream.standing().state == "SYNCED"


@BOTH
def test_a_nack_may_have_an_empty_message(client_type: type[Sotw]) -> None:
    """X11: presence of the error counts."""
    client = client_type(snap(**BASE))
    client.ask("LDS")
    client.nack("LDS", "")
    assert state(client, "LDS") == "NACKED"


@BOTH
def test_a_clients_words_are_bounded(client_type: type[Sotw]) -> None:
    """Error messages of peers are truncated."""
    client = client_type(snap(**BASE))
    client.ask("LDS")
    client.nack("LDS", "x" * (MAX_ERROR_CHARS + 1))
    assert len(client.stream.standing().message) == MAX_ERROR_CHARS


@BOTH
def test_valid_resources_are_released_from_a_rejected_message(client_type: type[Sotw]) -> None:
    """Reference 1.2: the fixed resource is sent first and alone, then the suspects."""
    client = client_type(snap(EDS={"a": "1", "b": "1"}))
    client.ask("EDS", "a", "b")
    client.ack("EDS")
    client.push(snap(EDS={"a": "bad", "b": "2"}))
    client.nack("EDS")
    assert client.push(snap(EDS={"a": "3", "b": "2"})) == [("EDS", ["a"])]
    assert client.ack("EDS") == [("EDS", ["b"])]
    assert client.ack("EDS") == []
    assert client.stream.standing().state == "SYNCED"


@BOTH
def test_a_bad_part_is_left_parked_alone(client_type: type[Sotw]) -> None:
    """Rule 4 of the tracker: changes of other resources are sent and do not release it."""
    client = client_type(snap(EDS={"a": "1", "b": "1"}))
    client.ask("EDS", "a", "b")
    client.ack("EDS")
    client.push(snap(EDS={"a": "bad", "b": "2"}))
    client.nack("EDS")
    assert client.push(snap(EDS={"a": "bad", "b": "3"})) == [("EDS", ["b"])]
    assert client.ack("EDS") == [("EDS", ["a"])]
    assert client.nack("EDS", "a is bad") == []
    assert client.push(snap(EDS={"a": "bad", "b": "4"})) == [("EDS", ["b"])]
    assert client.ack("EDS") == []
    assert client.stream.standing().message == "a is bad"


@BOTH
def test_a_rejected_name_that_is_dropped_parks_nothing(client_type: type[Sotw]) -> None:
    """X25: a rejected resource that is no longer subscribed does not count as rejected."""
    client = client_type(snap(EDS={"a": "bad", "b": "1"}))
    client.ask("EDS", "a", "b")
    client.nack("EDS")
    sent = (
        client.ask("EDS", "b") if client_type is Sotw else client.ask("EDS", drop=("a",))  # type: ignore[call-arg] # delta only
    )
    assert sent == [("EDS", ["b"])]
    client.ack("EDS")
    assert client.stream.standing().state == "SYNCED"


# --- delta ----------------------------------------------------------------------------------------


def test_delta_a_rejected_addition_is_removed() -> None:
    """X46: the state after a NACK is unknown, so the message's names are removed explicitly."""
    client = settled(Delta(snap(**BASE)))
    client.push(snap(**{**BASE, "CDS": {"c1": "1", "c2": "bad"}}))
    client.nack("CDS")
    assert client.push(snap(**BASE)) == [("CDS", ["-c2"])]
    client.ack("CDS")
    assert client.stream.standing().state == "SYNCED"


def test_delta_a_rejected_removal_is_parked() -> None:
    """X12: a removal is content like any other."""
    client = settled(Delta(snap(**BASE)))
    client.push(snap(**{**BASE, "CDS": {}}))
    client.nack("CDS")
    assert client.push(snap(**{**BASE, "CDS": {}})) == []
    assert state(client, "CDS") == "NACKED"


def test_delta_names_added_to_a_rejected_type_are_answered() -> None:
    """X12, X39: a new cluster's assignment is sent although another one is parked."""
    client = Delta(snap(EDS={"a": "bad", "b": "1"}))
    client.ask("EDS", "a")
    client.nack("EDS")
    assert client.ask("EDS", "b") == [("EDS", ["b"])]
