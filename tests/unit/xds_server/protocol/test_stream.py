"""One ADS stream in both variants, by the items of the protocol checklist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    EXTENSION_TYPE,
    LISTENER_TYPE,
    POOL_TYPE,
    ROUTE_TYPE,
    RUNTIME_TYPE,
    WEIGHT_LAYERS,
)
from xds_server.protocol.messages import (
    MAX_ERROR_CHARS,
    MAX_TYPES,
    DeltaRequest,
    ProtocolError,
    ResourceResponse,
    SotwRequest,
    short_type,
)
from xds_server.protocol.snapshot import Snapshot
from xds_server.protocol.stream import DeltaStream, SotwStream
from xds_server.protocol.subscription import MAX_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

URLS = {
    "CDS": CLUSTER_TYPE,
    "EDS": ENDPOINT_TYPE,
    "LDS": LISTENER_TYPE,
    "RDS": ROUTE_TYPE,
    "RTDS": RUNTIME_TYPE,
    "ECDS": EXTENSION_TYPE,
    "POOL": POOL_TYPE,
}


def snap(**types: Mapping[str, str]) -> Snapshot:
    """Build a snapshot: short type -> name -> content."""
    return Snapshot.of(
        {URLS[t]: {n: v.encode() for n, v in messages.items()} for t, messages in types.items()}
    )


def shown(responses: list[ResourceResponse]) -> list[tuple[str, list[str]]]:
    """Show what was sent: types and names, removals with a minus."""
    return [
        (short_type(r.type_url), [x.name for x in r.resources] + [f"-{n}" for n in r.removed])
        for r in responses
    ]


class Sotw:
    """A client of the state-of-the-world variant, driven by the test."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.stream = SotwStream("s")
        self.last: dict[str, ResourceResponse] = {}
        self.names: dict[str, tuple[str, ...]] = {}
        if snapshot is not None:
            self.push(snapshot)

    def push(self, snapshot: Snapshot, now: float = 0.0) -> list[tuple[str, list[str]]]:
        return self._keep(self.stream.on_snapshot(snapshot, now))

    def ask(self, kind: str, *names: str, version: str = "") -> list[tuple[str, list[str]]]:
        self.names[kind] = names
        last = self.last.get(kind)
        nonce = last.nonce if last else ""
        return self._send(SotwRequest(URLS[kind], names, version, nonce))

    def ack(self, kind: str, now: float = 0.0) -> list[tuple[str, list[str]]]:
        last = self.last[kind]
        request = SotwRequest(URLS[kind], self.names[kind], last.version, last.nonce)
        return self._send(request, now)

    def nack(self, kind: str, text: str = "bad", now: float = 0.0) -> list[tuple[str, list[str]]]:
        last = self.last[kind]
        request = SotwRequest(URLS[kind], self.names[kind], "", last.nonce, text)
        return self._send(request, now)

    def _send(self, request: SotwRequest, now: float = 0.0) -> list[tuple[str, list[str]]]:
        return self._keep(self.stream.on_request(request, now).responses)

    def _keep(self, responses: list[ResourceResponse]) -> list[tuple[str, list[str]]]:
        self.last.update({short_type(r.type_url): r for r in responses})
        return shown(responses)


class Delta(Sotw):
    """The same for the delta variant."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        super().__init__()
        self.stream = DeltaStream("d")  # type: ignore[assignment] # a sibling with the same calls
        if snapshot is not None:
            self.push(snapshot)

    def ask(
        self,
        kind: str,
        *names: str,
        drop: tuple[str, ...] = (),
        held: Mapping[str, str] | None = None,
        nonce: str = "",
    ) -> list[tuple[str, list[str]]]:
        return self._send(DeltaRequest(URLS[kind], names, drop, held or {}, nonce))

    def ack(self, kind: str, now: float = 0.0) -> list[tuple[str, list[str]]]:
        return self._send(DeltaRequest(URLS[kind], nonce=self.last[kind].nonce), now)

    def nack(self, kind: str, text: str = "bad", now: float = 0.0) -> list[tuple[str, list[str]]]:
        return self._send(DeltaRequest(URLS[kind], nonce=self.last[kind].nonce, error=text), now)


BOTH = pytest.mark.parametrize("client_type", [Sotw, Delta])
BASE = {"CDS": {"c1": "1"}, "EDS": {"c1": "1"}, "LDS": {"l": "1"}, "RDS": {"r": "1"}}


def settled(client: Sotw) -> Sotw:
    """Subscribe like Envoy and acknowledge everything."""
    for kind, names in {"CDS": (), "EDS": ("c1",), "LDS": (), "RDS": ("r",)}.items():
        client.ask(kind, *names)
    for kind in ("CDS", "EDS", "LDS", "RDS"):
        assert client.ack(kind) == []
    assert client.stream.standing().state == "SYNCED"
    return client


def state(client: Sotw, kind: str, now: float = 0.0) -> str:
    """Return the state of one type."""
    return {v.short: v.state for v in client.stream.views(now)}[kind]


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
def test_an_identical_snapshot_sends_nothing(client_type: type[Sotw]) -> None:
    """X18: no change, no message."""
    client = settled(client_type(snap(**BASE)))
    assert client.push(snap(**BASE)) == []


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
def test_a_refused_filter_is_not_sent_again(client_type: type[Sotw]) -> None:
    """X23: the refusal is shown, and the next settings are sent."""
    client = settled(client_type(snap(**BASE, ECDS={"f": "1"})))
    client.ask("ECDS", "f")
    client.ack("ECDS")
    client.push(snap(**BASE, ECDS={"f": "bad"}))
    assert client.nack("ECDS") == []
    assert client.stream.standing().state == "NACKED"
    assert client.push(snap(**BASE, ECDS={"f": "good"})) == [("ECDS", ["f"])]


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
    """X28, X44: absence from a full set, or a removal, means that a resource is gone."""
    client = client_type(snap(POOL={"a": "1", "b": "1"}))
    client.ask("POOL")
    client.ack("POOL")
    expected = ["b"] if client_type is Sotw else ["-a"]
    assert client.push(snap(POOL={"b": "1"})) == [("POOL", expected)]
    assert client.ack("POOL") == []
    assert client.push(snap(POOL={"b": "1"})) == []


@BOTH
def test_a_set_that_becomes_empty_is_sent(client_type: type[Sotw]) -> None:
    """X28: the last deletion is sent like any other."""
    client = client_type(snap(POOL={"a": "1"}))
    client.ask("POOL")
    client.ack("POOL")
    expected = [] if client_type is Sotw else ["-a"]
    assert client.push(snap(POOL={})) == [("POOL", expected)]
    client.ack("POOL")
    assert {v.short: v.resources for v in client.stream.views(0)} == {"POOL": 0}


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


# --- state of the world ---------------------------------------------------------------------------


def test_sotw_answers_changed_names_at_an_unchanged_version() -> None:
    """X16: new names are answered, order of names does not matter."""
    client = Sotw(snap(EDS={"a": "1", "b": "1"}))
    client.ask("EDS", "a")
    client.ack("EDS")
    assert client.ask("EDS", "b", "a") == [("EDS", ["b"])]
    client.ack("EDS")
    assert client.ask("EDS", "a", "b") == []


def test_sotw_resubscribing_is_answered() -> None:
    """X17, X54: a resource unsubscribed and subscribed again is sent again, at the same version."""
    client = Sotw(snap(EDS={"a": "1", "b": "1"}))
    client.ask("EDS", "a", "b")
    client.ack("EDS")
    assert client.ask("EDS", "a") == []
    assert client.ask("EDS", "a", "b") == [("EDS", ["b"])]


@BOTH
def test_what_is_dropped_in_flight_does_not_become_held(client_type: type[Sotw]) -> None:
    """X17, X40: Envoy discards resources that it no longer watches, then requests them again."""
    client = client_type(snap(EDS={"a": "1"}))
    client.ask("EDS", "a")
    if client_type is Sotw:
        client.ask("EDS")
        # Envoy acknowledged nothing meanwhile; its next request carries the newest nonce.
        assert client.ask("EDS", "a") == [("EDS", ["a"])]
    else:
        client.ask("EDS", drop=("a",))  # type: ignore[call-arg] # delta only
        client.ask("EDS", "a")
        assert client.ack("EDS") == [("EDS", ["a"])]
    assert client.ack("EDS") == []


def test_sotw_whole_sets_and_parts() -> None:
    """X28, X29: CDS carries all resources, EDS only the changed ones."""
    base = {"CDS": {"a": "1", "b": "1"}, "EDS": {"a": "1", "b": "1"}}
    client = Sotw(snap(**base))
    client.ask("EDS", "a", "b")
    client.ack("EDS")
    client.ask("CDS")
    client.ack("CDS")
    client.ack("EDS")
    assert client.push(snap(CDS={"a": "2", "b": "1"}, EDS=base["EDS"])) == [
        ("CDS", ["a", "b"]),
        ("EDS", ["a"]),
    ]
    client.ack("CDS")
    client.ack("EDS")
    assert client.push(snap(CDS={"a": "2", "b": "1"}, EDS={"a": "1", "b": "2"})) == [("EDS", ["b"])]


def test_sotw_is_silent_about_missing_names() -> None:
    """X31: nothing is sent until it exists; a deletion is not sent; a recreation is."""
    client = Sotw(snap(EDS={}))
    assert client.ask("EDS", "a") == []
    assert state(client, "EDS") == "NOT_SENT"
    assert client.push(snap(EDS={"a": "1"})) == [("EDS", ["a"])]
    client.ack("EDS")
    assert client.push(snap(EDS={})) == []
    assert client.push(snap(EDS={"a": "1"})) == [("EDS", ["a"])]


def test_sotw_on_demand_clusters_are_silent_until_they_exist() -> None:
    """X31, X60: a named CDS subscription to nothing gets no empty set."""
    client = Sotw(snap(CDS={"other": "1"}))
    assert client.ask("CDS", "c1") == []
    assert client.push(snap(CDS={"other": "1", "c1": "1"})) == [("CDS", ["c1"])]


def test_sotw_reconnect_is_answered_without_route_jumps() -> None:
    """X5, X19, X51: an old version is no ACK; routes from an earlier stream wait for clusters."""
    client = Sotw(snap(**BASE))
    version = snap(**BASE).version(CLUSTER_TYPE)
    assert client.ask("CDS", version=version) == [("CDS", ["c1"])]
    assert client.ask("EDS", "c1", version="old") == [("EDS", ["c1"])]
    assert client.ask("RDS", "r", version="old") == []
    client.ack("EDS")
    assert client.ack("CDS") == [("RDS", ["r"])]


def test_sotw_names_of_a_stale_request_still_count() -> None:
    """X15, X16: the latest names are answered with the next ACK at the latest."""
    client = Sotw(snap(EDS={"a": "1", "b": "1"}))
    client.ask("EDS", "a")
    client.stream.on_request(SotwRequest(ENDPOINT_TYPE, ("a", "b")), 0.0)
    assert client.ask("EDS", "a", "b") == [("EDS", ["b"])]


# --- delta ----------------------------------------------------------------------------------------


def test_delta_sends_only_what_changed() -> None:
    """X36, X37: the resource's own version decides."""
    client = Delta(snap(CDS={"a": "1", "b": "1"}))
    assert client.ask("CDS") == [("CDS", ["a", "b"])]
    client.ack("CDS")
    assert client.push(snap(CDS={"a": "1", "b": "2"})) == [("CDS", ["b"])]


def test_delta_takes_names_from_a_request_with_a_stale_nonce() -> None:
    """X38: subscriptions are applied even if the nonce is invalid."""
    client = Delta(snap(EDS={"a": "1"}))
    assert client.ask("EDS", "a", nonce="void") == [("EDS", ["a"])]


def test_delta_spontaneous_requests_need_no_nonce() -> None:
    """X39: Envoy subscribes to the assignments of new clusters in this way."""
    client = settled(Delta(snap(**BASE)))
    client.push(snap(**{**BASE, "CDS": {"c1": "1", "c2": "1"}, "EDS": {"c1": "1", "c2": "1"}}))
    assert client.ask("EDS", "c2") == [("EDS", ["c2"])]


def test_delta_subscribing_a_known_name_is_answered() -> None:
    """X40: a client that subscribes again does not hold the resource."""
    client = Delta(snap(EDS={"a": "1"}))
    client.ask("EDS", "a")
    client.ack("EDS")
    assert client.ask("EDS", "a") == [("EDS", ["a"])]


def test_delta_dropping_a_name_under_a_wildcard_is_answered() -> None:
    """X42: with the resource, or with its absence."""
    client = Delta(snap(CDS={"a": "1"}))
    client.ask("CDS", "*", "a", "gone")
    client.ack("CDS")
    assert client.ask("CDS", drop=("a", "gone")) == [("CDS", ["a", "-gone"])]
    assert client.ack("CDS") == []


def test_delta_reports_a_missing_name_once() -> None:
    """X43: removed_resources once; it stays subscribed and is sent when it is created."""
    client = Delta(snap(EDS={}))
    assert client.ask("EDS", "a") == [("EDS", ["-a"])]
    assert client.ack("EDS") == []
    assert client.push(snap(EDS={}, CDS={})) == []
    assert client.push(snap(EDS={"a": "1"})) == [("EDS", ["a"])]
    client.ack("EDS")
    assert client.push(snap(EDS={})) == [("EDS", ["-a"])]


def test_delta_deletions_go_to_clients_that_had_it() -> None:
    """X44: another client gets no message."""
    client = Delta(snap(EDS={"a": "1", "b": "1"}))
    client.ask("EDS", "a")
    client.ack("EDS")
    assert client.push(snap(EDS={"a": "1"})) == []


def test_delta_reconnect_with_current_versions_gets_nothing() -> None:
    """X45: initial_resource_versions are trusted, also when a wildcard begins."""
    snapshot = snap(CDS={"a": "1"})
    client = Delta(snapshot)
    held = {"a": snapshot.resources(CLUSTER_TYPE)["a"].version}
    assert client.ask("CDS", held=held) == []
    assert state(client, "CDS") == "SYNCED"


def test_delta_reconnect_gets_differences_and_removals() -> None:
    """X45: also for names removed in the meantime; names not subscribed are ignored."""
    snapshot = snap(CDS={"a": "1", "b": "2"}, EDS={"a": "1"})
    client = Delta(snapshot)
    held = {"a": snapshot.resources(CLUSTER_TYPE)["a"].version, "b": "old", "c": "old"}
    assert client.ask("CDS", held=held) == [("CDS", ["b", "-c"])]
    assert client.ask("EDS", "a", held={"x": "old"}) == [("EDS", ["a"])]


def test_delta_reconnect_repushes_assignments_of_changed_clusters() -> None:
    """X45, X53: the assignment of a changed cluster is sent despite a current initial version."""
    snapshot = snap(CDS={"a": "2"}, EDS={"a": "1"})
    client = Delta(snapshot)
    client.ask("CDS", held={"a": "old"})
    held = {"a": snapshot.resources(ENDPOINT_TYPE)["a"].version}
    assert client.ask("EDS", "a", held=held) == [("EDS", ["a"])]


def test_delta_initial_versions_are_bounded() -> None:
    """The number of names that the server keeps for a client is bounded."""
    client = Delta(snap(**BASE))
    with pytest.raises(ProtocolError, match="initial resource versions"):
        client.ask("CDS", held={str(n): "v" for n in range(MAX_NAMES + 1)})


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
