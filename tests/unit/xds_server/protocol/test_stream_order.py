"""The order of types on one ADS stream, and what waits for an answer."""

from __future__ import annotations

import pytest

from support.ads_clients import BASE, BOTH, URLS, Sotw, settled, snap, state
from tidegate_api.names import ENDPOINT_TYPE, ROUTE_TYPE, WEIGHT_LAYERS
from xds_server.protocol.snapshot import Snapshot

# --- both variants --------------------------------------------------------------------------------


@BOTH
def test_quick_edits_coalesce(client_type: type[Sotw]) -> None:
    """X57, X63: one message in flight per type; the last state wins."""
    client = settled(client_type(snap(**BASE)))
    assert client.push(snap(**{**BASE, "LDS": {"l": "2"}})) == [("LDS", ["l"])]
    for number in range(3, 9):
        assert client.push(snap(**{**BASE, "LDS": {"l": str(number)}})) == []
    assert client.ack("LDS") == [("LDS", ["l"])]
    assert client.last["LDS"].resources[0].any.endswith(b"8")
    assert client.ack("LDS") == []


@BOTH
def test_an_edit_undone_in_flight_is_corrected(client_type: type[Sotw]) -> None:
    """X46: the comparison uses what the client holds now, not what it held before."""
    client = settled(client_type(snap(**BASE)))
    client.push(snap(**{**BASE, "LDS": {"l": "2"}}))
    assert client.push(snap(**BASE)) == []
    assert client.ack("LDS") == [("LDS", ["l"])]


@BOTH
def test_one_burst_goes_clusters_first(client_type: type[Sotw]) -> None:
    """X50: limits, then CDS, EDS, LDS, RDS."""
    client = client_type()
    for kind, names in {
        "RTDS": ("ops",),
        "RDS": ("r",),
        "LDS": (),
        "EDS": ("c1",),
        "CDS": (),
    }.items():
        client.ask(kind, *names)
    sent = client.push(snap(**BASE, RTDS={"ops": "1"}))
    assert [kind for kind, _ in sent] == ["RTDS", "CDS", "EDS", "LDS", "RDS"]


@BOTH
def test_assignments_follow_a_changed_cluster(client_type: type[Sotw]) -> None:
    """X53: right behind CDS, in the same burst, with unchanged content."""
    base = {**BASE, "CDS": {"c1": "1", "c2": "1"}, "EDS": {"c1": "1", "c2": "1"}}
    client = client_type(snap(**base))
    client.ask("CDS")
    client.ask("EDS", "c1", "c2")
    client.ack("CDS")
    client.ack("EDS")
    sent = client.push(snap(**{**base, "CDS": {"c1": "2", "c2": "1"}}))
    assert [kind for kind, _ in sent] == ["CDS", "EDS"]
    assert sent[1] == ("EDS", ["c1"])
    assert client.ack("EDS") == []
    assert client.ack("CDS") == []


@BOTH
def test_assignments_in_flight_do_not_lose_the_repush(client_type: type[Sotw]) -> None:
    """X53: if EDS is in flight, the assignment is sent again after its ACK."""
    client = settled(client_type(snap(**BASE)))
    client.push(snap(**{**BASE, "EDS": {"c1": "2"}}))
    changed = snap(**{**BASE, "EDS": {"c1": "2"}, "CDS": {"c1": "2"}})
    assert client.push(changed) == [("CDS", ["c1"])]
    assert client.ack("EDS") == [("EDS", ["c1"])]


@BOTH
def test_a_debt_for_a_removed_cluster_is_forgotten(client_type: type[Sotw]) -> None:
    """The number of assignments due is bounded by the snapshot, even if EDS is never requested."""
    client = client_type(snap(**BASE))
    client.ask("CDS")
    for number in range(20):
        client.ack("CDS")
        name = f"c{number}"
        client.push(snap(CDS={name: "1"}, EDS={name: "1"}))
    tracker = client.stream._trackers[ENDPOINT_TYPE]
    assert tracker._forced == {"c19"}


@BOTH
def test_routes_wait_for_clusters(client_type: type[Sotw]) -> None:
    """X51: routes that may name a new cluster are sent after the ACK of CDS."""
    client = settled(client_type(snap(**BASE)))
    new = snap(**{**BASE, "CDS": {"c1": "1", "c2": "1"}, "RDS": {"r": "2"}})
    assert [kind for kind, _ in client.push(new)] == ["CDS"]
    assert client.stream.standing().state == "PENDING"
    assert state(client, "RDS") == "STALE"
    assert client.ack("CDS") == [("RDS", ["r"])]


@BOTH
def test_filters_are_sent_before_routes_and_after_clusters(client_type: type[Sotw]) -> None:
    """X50, X51: the settings of a filter may name a new cluster."""
    client = settled(client_type(snap(**BASE, ECDS={"f": "1", "g": "1"})))
    client.ask("ECDS", "f", "g")
    client.ack("ECDS")
    changed = {**BASE, "CDS": {"c1": "1", "c2": "1"}, "RDS": {"r": "2"}}
    assert [kind for kind, _ in client.push(snap(**changed, ECDS={"f": "2", "g": "1"}))] == ["CDS"]
    assert client.ack("CDS") == [("ECDS", ["f"]), ("RDS", ["r"])]


@BOTH
def test_routes_do_not_follow_rejected_clusters(client_type: type[Sotw]) -> None:
    """X56: after a NACK of CDS listeners and routes are not updated; endpoints are."""
    client = settled(client_type(snap(**BASE)))
    base = {**BASE, "CDS": {"c1": "1", "c2": "bad"}, "RDS": {"r": "2"}}
    client.push(snap(**base))
    assert client.nack("CDS") == []
    assert client.stream.standing().state == "NACKED"
    assert client.push(snap(**{**base, "EDS": {"c1": "2"}})) == [("EDS", ["c1"])]
    client.ack("EDS")
    fixed = {**base, "CDS": {"c1": "1", "c2": "good"}}
    assert "CDS" in dict(client.push(snap(**fixed)))
    assert client.ack("CDS") == [("RDS", ["r"])]


@BOTH
def test_first_answers_are_not_held_back(client_type: type[Sotw]) -> None:
    """X55: a new listener's routes are answered while clusters are warming."""
    client = client_type(snap(**BASE))
    client.ask("CDS")
    assert client.ask("LDS") == [("LDS", ["l"])]
    assert client.ask("RDS", "r") == [("RDS", ["r"])]


# --- Layers of weights ----------------------------------------------------------------------------


def weighted(routes: str = "1") -> Snapshot:
    """Return a snapshot whose plain form has other routes."""
    layers = dict.fromkeys(WEIGHT_LAYERS, "w")
    contents = {**BASE, "RTDS": layers, "RDS": {"r": routes}}
    return Snapshot.of(
        {
            URLS[kind]: {name: text.encode() for name, text in messages.items()}
            for kind, messages in contents.items()
        },
        plain=lambda snapshot: {
            ROUTE_TYPE: dict.fromkeys(snapshot.resources(ROUTE_TYPE), b"plain")
        },
    )


def routes_of(client: Sotw) -> str:
    """Return which form of the routes the client was sent last."""
    return "plain" if client.last["RDS"].resources[0].any.endswith(b"plain") else "lean"


@BOTH
@pytest.mark.parametrize(
    ("layers", "expected"),
    [((), "plain"), (WEIGHT_LAYERS[:-1], "plain"), (WEIGHT_LAYERS, "lean")],
    ids=["none", "all but one", "all"],
)
def test_routes_contain_the_weights_unless_all_layers_are_subscribed(
    client_type: type[Sotw], layers: tuple[str, ...], expected: str
) -> None:
    """An Envoy with an older bootstrap would draw by neutral weights."""
    client = client_type(weighted())
    if client.ask("RTDS", "tidegate", *layers):
        client.ack("RTDS")
    settled(client)
    assert routes_of(client) == expected


@BOTH
def test_an_envoy_without_the_layers_is_current_with_plain_routes(client_type: type[Sotw]) -> None:
    """A change of what only others read sends it nothing."""
    client = settled(client_type(weighted()))
    assert client.push(weighted("2")) == []
    assert client.stream.standing().state == "SYNCED"


@BOTH
def test_layers_that_are_subscribed_later_change_the_routes_once(client_type: type[Sotw]) -> None:
    """A client may name its layers one by one; the last one changes its form."""
    client = settled(client_type(weighted()))
    assert routes_of(client) == "plain"
    client.ask("RTDS", *WEIGHT_LAYERS[:5])
    client.ack("RTDS")
    assert ("RDS", ["r"]) in client.ask("RTDS", *WEIGHT_LAYERS)
    assert routes_of(client) == "lean"
