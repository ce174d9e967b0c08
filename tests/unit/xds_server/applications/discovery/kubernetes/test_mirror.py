"""What to ask next, and what each answer means."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.endpoint_slices import SPEC, endpoint_slice, pod
from support.tries import tries
from xds_server.applications.discovery.kubernetes import mirror as under_test
from xds_server.applications.discovery.kubernetes.answers import (
    BadAnswerError,
    Event,
    ExpiredError,
    Page,
)
from xds_server.applications.discovery.kubernetes.mirror import (
    LIST_AGAIN_S,
    MAX_EXPIRED,
    MAX_FAILED,
    Mirror,
)
from xds_server.applications.discovery.kubernetes.slices import TooManyError, reduce


def page_of(*items: dict[str, Any], version: int = 1, more: str = "") -> Page:
    """Return a page."""
    return Page(items, str(version), more)


def event_of(kind: Any, found: dict[str, Any]) -> Event:
    """Return an event."""
    return Event(kind, found, found["metadata"]["resourceVersion"])


def listed(*items: dict[str, Any], version: int = 1) -> Mirror:
    """Return a mirror after a whole list."""
    mirror = Mirror(SPEC)
    assert mirror.page(page_of(*items, version=version), 0.0)
    return mirror


def test_a_list_asks_for_the_newest_state() -> None:
    """Without a version the server reads from its store; pages are bounded."""
    assert Mirror(SPEC).parameters() == {
        "labelSelector": "kubernetes.io/service-name=triton",
        "limit": "250",
    }


def test_pages_come_into_force_together() -> None:
    """Half a list would take the other half's replicas away."""
    mirror = listed(endpoint_slice("old", pod("o", "10.1.0.9")))
    mirror.again()
    assert not mirror.page(page_of(endpoint_slice("a"), more="next"), 1.0)
    assert set(mirror.slices) == {"old"}
    assert mirror.parameters()["continue"] == "next"
    assert mirror.page(page_of(endpoint_slice("b"), version=5), 1.0)
    assert set(mirror.slices) == {"a", "b"}


def test_a_watch_goes_on_from_the_list() -> None:
    """And from each event and bookmark after it."""
    mirror = listed(version=5)
    assert mirror.verb == "watch"
    for version, kind in ((5, None), (7, "ADDED"), (9, "BOOKMARK"), (10, "DELETED")):
        if kind is not None:
            mirror.change(event_of(kind, endpoint_slice("a", version=version)))
        assert mirror.parameters()["resourceVersion"] == str(version)
    assert mirror.parameters()["allowWatchBookmarks"] == "true"


def test_a_change_is_one_of_what_is_needed() -> None:
    """The controller touches annotations of slices, too."""
    mirror = listed(endpoint_slice("a", pod("p", "10.1.0.1")))
    found = endpoint_slice("a", pod("p", "10.1.0.1"), version=2)
    found["metadata"]["annotations"] = {"endpoints.kubernetes.io/last-change": "now"}
    assert not mirror.change(event_of("MODIFIED", found))
    assert mirror.change(event_of("MODIFIED", endpoint_slice("a", version=3)))
    assert mirror.change(event_of("DELETED", endpoint_slice("a", version=4)))
    assert not mirror.change(event_of("DELETED", endpoint_slice("a", version=5)))


def test_an_expired_version_keeps_what_is_in_force() -> None:
    """A new list follows; nothing is taken away meanwhile."""
    mirror = listed(endpoint_slice("a", pod("p", "10.1.0.1")))
    mirror.expired()
    assert mirror.verb == "list"
    assert set(mirror.slices) == {"a"}


def test_a_list_that_keeps_expiring_is_asked_for_whole() -> None:
    """A store that is compacted faster than pages are read must not starve it."""
    mirror = Mirror(SPEC)
    for _ in range(MAX_EXPIRED):
        assert "limit" in mirror.parameters()
        mirror.page(page_of(endpoint_slice("a"), more="next"), 0.0)
        mirror.expired()
        assert "continue" not in mirror.parameters()
    assert "limit" not in mirror.parameters()
    mirror.page(page_of(), 0.0)
    mirror.again()
    assert "limit" in mirror.parameters()


def test_watches_that_fail_end_in_a_list() -> None:
    """A version that a server chokes on is not asked for without end."""
    mirror = listed()
    for _ in range(MAX_FAILED - 1):
        mirror.failed()
    assert mirror.verb == "watch"
    mirror.failed()
    assert mirror.verb == "list"


def test_an_event_ends_the_count_of_failures() -> None:
    """Failures count in a row."""
    mirror = listed()
    for _ in range(3 * MAX_FAILED):
        mirror.failed()
        mirror.change(event_of("BOOKMARK", endpoint_slice("", version=3)))
    assert mirror.verb == "watch"


@pytest.mark.parametrize("kind", ["MODIFIED", "BOOKMARK"])
def test_a_version_that_goes_back_is_another_store(kind: str) -> None:
    """After a restore the same numbers mean other states; what is in force stays meanwhile."""
    mirror = listed(endpoint_slice("a"), version=9)
    with pytest.raises(ExpiredError, match="version 8 follows 9"):
        mirror.change(event_of(kind, endpoint_slice("a", version=8)))
    assert set(mirror.slices) == {"a"}


def test_versions_that_are_no_numbers_are_not_compared() -> None:
    """They are opaque; only equal ones are known to be equal."""
    mirror = Mirror(SPEC)
    mirror.page(Page((), "z9", ""), 0.0)
    mirror.change(event_of("BOOKMARK", {"metadata": {"resourceVersion": "a1"}}))
    assert mirror.parameters()["resourceVersion"] == "a1"


def test_an_old_list_is_made_anew() -> None:
    """Whatever was lost without a sign is found then."""
    mirror = listed()
    mirror.aged(LIST_AGAIN_S - 0.1)
    assert mirror.verb == "watch"
    mirror.aged(LIST_AGAIN_S)
    assert mirror.verb == "list"


def test_slices_are_bounded() -> None:
    """At the bound they are kept; above it a list or an event is refused and nothing changes."""
    mirror = Mirror(SPEC, max_slices=1)
    assert mirror.page(page_of(endpoint_slice("a")), 0.0)
    with pytest.raises(TooManyError, match="more than 1 EndpointSlices"):
        mirror.change(event_of("ADDED", endpoint_slice("b", version=2)))
    with pytest.raises(TooManyError, match="narrow it"):
        mirror.page(page_of(endpoint_slice("b"), endpoint_slice("c")), 0.0)
    assert set(mirror.slices) == {"a"}
    assert mirror.verb == "list"


def test_entries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few slices can hold many endpoints."""
    monkeypatch.setattr(under_test, "MAX_ENTRIES", 2)
    two = (pod("p", "10.1.0.1"), pod("q", "10.1.0.2"))
    mirror = listed(endpoint_slice("a", *two))
    mirror.change(event_of("DELETED", endpoint_slice("a", version=2)))
    mirror.change(event_of("ADDED", endpoint_slice("b", *two, version=3)))
    with pytest.raises(TooManyError):
        mirror.change(
            event_of("MODIFIED", endpoint_slice("b", *two, pod("r", "10.1.0.3"), version=4))
        )


def test_an_item_that_is_no_slice_changes_nothing() -> None:
    """The list or the watch begins again."""
    mirror = listed(endpoint_slice("a"))
    broken = {**endpoint_slice("a", version=2), "endpoints": 5}
    with pytest.raises(BadAnswerError):
        mirror.change(event_of("MODIFIED", broken))
    with pytest.raises(BadAnswerError):
        mirror.page(page_of(endpoint_slice("b"), broken), 0.0)
    assert set(mirror.slices) == {"a"}
    assert mirror.verb == "list"


NAMES = st.sampled_from("abcd")


class FollowsMachine(RuleBasedStateMachine):
    """A server with a history that it forgets, and a mirror that asks it."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 1
        self.kept = 1
        """Versions before this one are not kept."""
        self.state: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, Event]] = []
        self.pages: list[tuple[int, list[dict[str, Any]]]] = []
        self.whole_states: list[dict[str, Any]] = [{}]
        self.mirror = Mirror(SPEC)
        self.now = 0.0

    @rule(name=NAMES, address=st.integers(1, 3), delete=st.booleans())
    def change(self, name: str, address: int, delete: bool) -> None:
        """Change, add or delete a slice at the server."""
        self.version += 1
        if delete and name in self.state:
            gone = endpoint_slice(name, version=self.version)
            del self.state[name]
            self.history.append((self.version, event_of("DELETED", gone)))
        else:
            kind = "MODIFIED" if name in self.state else "ADDED"
            made = endpoint_slice(name, pod("p", f"10.1.0.{address}"), version=self.version)
            self.state[name] = made
            self.history.append((self.version, event_of(kind, made)))
        self.whole_states.append(self.expected())

    def expected(self) -> dict[str, Any]:
        """Return what a mirror of this state holds."""
        return {name: reduce(each, SPEC) for name, each in self.state.items()}

    @rule()
    def compact(self) -> None:
        """Forget all earlier versions."""
        self.kept = self.version

    @rule(steps=st.integers(1, 3), cut=st.booleans())
    def ask(self, steps: int, cut: bool) -> None:
        """Answer the mirror's request: a page, or so many events of a watch."""
        asked = self.mirror.parameters()
        if self.mirror.verb == "list":
            self._answer_list(asked)
        elif int(asked["resourceVersion"]) < self.kept:
            self.mirror.expired()
        else:
            since = [e for v, e in self.history if v > int(asked["resourceVersion"])]
            for each in since[:steps]:
                self.mirror.change(each)
            if cut:
                self.mirror.again()

    def _answer_list(self, asked: dict[str, str]) -> None:
        if "continue" in asked:
            at, rest = self.pages[int(asked["continue"])]
            if at < self.kept:
                self.mirror.expired()
                return
        else:
            at, rest = self.version, list(self.state.values())
        size = 1 if "limit" in asked else len(rest)
        more = ""
        if rest[size:]:
            self.pages.append((at, rest[size:]))
            more = str(len(self.pages) - 1)
        self.mirror.page(Page(tuple(rest[:size]), str(at), more), self.now)

    @precondition(lambda self: self.mirror.whole)
    @invariant()
    def holds_a_state_that_was(self) -> None:
        """What is in force was the whole truth at one time."""
        assert dict(self.mirror.slices) in self.whole_states

    def teardown(self) -> None:
        """Without further changes the mirror becomes equal to the server."""
        for _ in range(4 * len(self.state) + len(self.history) + 4):
            self.ask(steps=3, cut=False)
        assert dict(self.mirror.slices) == self.expected()


FollowsMachine.TestCase.settings = settings(max_examples=tries(60), stateful_step_count=30)


class TestFollows(FollowsMachine.TestCase):
    """The mirror of a server that changes, forgets and cuts off."""
