"""Trackers look at the names that differ; what they send is what a look at all names gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE, ROUTE_TYPE
from xds_server.protocol.messages import DeltaRequest, ResourceResponse, SotwRequest
from xds_server.protocol.snapshot import Snapshot, changed_names
from xds_server.protocol.stream import DeltaStream, SotwStream

TYPES = (CLUSTER_TYPE, ENDPOINT_TYPE, ROUTE_TYPE)
NAMES = ("a", "b", "c", "*")
contents = st.dictionaries(st.sampled_from("abc"), st.sampled_from([b"1", b"2"]))
snapshots = st.fixed_dictionaries(dict.fromkeys(TYPES, contents))
names = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("snapshot"), snapshots),
        st.tuples(st.just("subscribe"), st.sampled_from(TYPES), names, names),
        st.tuples(st.just("answer"), st.integers(0, 2), st.booleans()),
    ),
    max_size=25,
)


class Client:
    """One stream; optionally it forgets before each step what its client is known to hold."""

    def __init__(self, stream, *, forgets: bool) -> None:
        self.stream, self.forgets = stream, forgets
        self.delta = isinstance(stream, DeltaStream)
        self.open: list[ResourceResponse] = []

    def take(self, step) -> list[ResourceResponse]:
        """Make one step; return what is sent."""
        if self.forgets:
            for tracker in self.stream._ordered:
                tracker._level = None
        sent: list[ResourceResponse] = []
        if step[0] == "snapshot":
            sent = self.stream.on_snapshot(step[1], 0.0)
        elif step[0] == "subscribe":
            sent = self.request(step[1], step[2], step[3], "", None)
        elif self.open:
            answered = self.open.pop(step[1] % len(self.open))
            error = "no" if step[2] else None
            sent = self.request(answered.type_url, [], [], answered.nonce, error)
        self.open += sent
        return sent

    def request(self, url, more, fewer, nonce, error) -> list[ResourceResponse]:
        """Send one request."""
        request = (
            DeltaRequest(url, tuple(more), tuple(fewer), {}, nonce, error)
            if self.delta
            else SotwRequest(url, tuple(more), "", nonce, error)
        )
        return self.stream.on_request(request, 0.0).responses


@pytest.mark.parametrize("variant", [DeltaStream, SotwStream])
@settings(max_examples=300, deadline=None)
@given(walk=steps)
def test_looking_at_differences_sends_what_looking_at_everything_sends(variant, walk) -> None:
    """Whatever was subscribed, refused, removed or sent again before."""
    quick, slow = Client(variant("s"), forgets=False), Client(variant("s"), forgets=True)
    before = None
    for step in walk:
        if step[0] == "snapshot":
            before = Snapshot.of(step[1], previous=before)
            step = ("snapshot", before)  # noqa: PLW2901 - the same step, with what a server has
        assert quick.take(step) == slow.take(step)
        assert quick.stream.standing() == slow.stream.standing()


def test_two_sets_are_compared_once_for_all_clients() -> None:
    """A thousand clients go from the same set to the same set."""
    one = Snapshot.of({CLUSTER_TYPE: {"a": b"1", "b": b"1", "c": b"1"}})
    two = Snapshot.of({CLUSTER_TYPE: {"a": b"1", "b": b"2", "d": b"1"}})
    sets = one.type_set(CLUSTER_TYPE), two.type_set(CLUSTER_TYPE)
    assert changed_names(*sets) == {"b", "c", "d"}
    assert changed_names(*sets) is changed_names(*sets)


def test_compared_sets_are_bounded() -> None:
    """Old sets are not kept for ever."""
    last = Snapshot.of({CLUSTER_TYPE: {"a": b"0"}})
    for number in range(50):
        new = Snapshot.of({CLUSTER_TYPE: {"a": str(number).encode() * 2}})
        changed_names(last.type_set(CLUSTER_TYPE), new.type_set(CLUSTER_TYPE))
        last = new
    info = changed_names.cache_info()
    assert info.currsize <= info.maxsize == 16
