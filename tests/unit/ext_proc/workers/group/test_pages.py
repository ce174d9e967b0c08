"""Which member of a group reads a page."""

from __future__ import annotations

import pytest

from ext_proc.routing.state.candidates import FRESH_S
from ext_proc.telemetry.news import ReadingsUpdate, Restarted, ScrapeFailed
from ext_proc.workers.group import pages
from ext_proc.workers.group.pages import PageReaders

EVERY_S = 0.25
R1, R2 = ("r1", "page"), ("r2", "page")
ROUNDS = int(2 * FRESH_S / EVERY_S)


class Members:
    """Members a, b, c that read two pages in virtual time, by what they hear of each other."""

    def __init__(self) -> None:
        self.now = 0.0
        self.left: dict[str, frozenset] = {}
        self.members: dict[str, PageReaders] = {}
        self.deaf: set[tuple[str, str]] = set()
        """(sender, reader): links that are cut."""
        self.unreachable: set[tuple[str, str]] = set()
        """(member, endpoint)."""
        for name in "abc":
            self.start(name)

    def start(self, name: str) -> None:
        """Start or restart a member."""
        self.left[name] = frozenset()
        self.members[name] = PageReaders(name, lambda left: self.left.update({name: left}))

    def end(self, name: str) -> None:
        """End a member; the others lose their connections."""
        del self.members[name], self.left[name]
        for each in self.members.values():
            each.lost(name)

    def cut(self, sender: str, reader: str) -> None:
        """Cut a link one way; the reader loses its connection."""
        self.deaf.add((sender, reader))
        self.members[reader].lost(sender)

    def read(self, rounds: int = ROUNDS) -> dict[str, set[str]]:
        """Read for a while; return which members read each page in the last round."""
        for _ in range(rounds):
            self.now += EVERY_S
            for each in self.members.values():
                each.leave(self.now)
            readers: dict[str, set[str]] = {"r1": set(), "r2": set()}
            for name in self.members:
                for page in {R1, R2} - self.left[name]:
                    self.send(name, page[0])
                    if (name, page[0]) not in self.unreachable:
                        readers[page[0]].add(name)
        return readers

    def send(self, name: str, endpoint: str) -> None:
        """Tell all others what a member has read, or that it could not."""
        failed = (name, endpoint) in self.unreachable
        read = ReadingsUpdate(endpoint, "page", (), self.now)
        for other, each in self.members.items():
            if other != name and (name, other) not in self.deaf:
                each.heard(name, ScrapeFailed(endpoint, 1) if failed else read, self.now)


@pytest.fixture
def members() -> Members:
    """Return three members that hear and reach all."""
    return Members()


def test_one_member_reads_all_pages(members):
    """It is the one with the lowest id."""
    assert members.read() == {"r1": {"a"}, "r2": {"a"}}


def test_the_next_one_reads_when_the_first_ends_and_stops_when_it_is_back(members):
    """No page is without a reader in any round."""
    members.read()
    members.end("a")
    assert members.read(1) == {"r1": {"b", "c"}, "r2": {"b", "c"}}
    assert members.read() == {"r1": {"b"}, "r2": {"b"}}
    members.start("a")
    assert all(members.read(1)["r1"] for _ in range(ROUNDS))
    assert members.read() == {"r1": {"a"}, "r2": {"a"}}


def test_what_one_cannot_read_the_next_one_reads(members):
    """The other pages stay with the first one, which gets the page back once it can read it."""
    members.read()
    members.unreachable = {("a", "r1")}
    assert members.read() == {"r1": {"b"}, "r2": {"a"}}
    members.unreachable = {("a", "r1"), ("b", "r1")}
    assert members.read() == {"r1": {"c"}, "r2": {"a"}}
    members.unreachable = set()
    assert members.read() == {"r1": {"a"}, "r2": {"a"}}


def test_who_does_not_hear_the_reader_reads_too(members):
    """A link that works one way only costs a second reader, whichever way that is."""
    members.read()
    members.cut("a", "b")
    assert members.read() == {"r1": {"a", "b"}, "r2": {"a", "b"}}
    members.deaf = {("b", "a"), ("c", "a")}
    assert members.read() == {"r1": {"a"}, "r2": {"a"}}


def test_a_member_that_falls_silent_is_relied_on_no_longer(members):
    """Its connection may last."""
    members.read()
    members.deaf = {("a", "b"), ("a", "c")}
    assert members.read() == {"r1": {"a", "b"}, "r2": {"a", "b"}}


def taken(member: str, news, now: float = 10.0) -> tuple[bool, set]:
    """Return whether member m, which leaves r1 to b, takes news, and what it leaves after that."""
    left: list[frozenset] = [frozenset()]
    own = PageReaders("m", left.append)
    assert own.heard("b", ReadingsUpdate("r1", "page", (), 9.0), 9.0)
    took = own.heard(member, news, now)
    own.leave(now)
    return took, set(left[-1])


@pytest.mark.parametrize(
    ("member", "news", "expected"),
    [
        ("b", ReadingsUpdate("r2", "page", (), 10.0), (True, {R1, R2})),
        ("b", ReadingsUpdate("r1", "gpu", (), 10.0), (True, {R1, ("r1", "gpu")})),
        ("z", ReadingsUpdate("r2", "page", (), 10.0), (False, {R1})),
        ("c", ReadingsUpdate("r1", "page", (), 10.0), (False, {R1})),
        ("b", ReadingsUpdate("r2", "page", (), 9.9 - FRESH_S), (False, {R1})),
        ("z", ReadingsUpdate("r1", "push", (), 0.0), (True, {R1})),
        ("b", ReadingsUpdate("r1", "orca", (), 10.0), (False, {R1})),
        ("b", Restarted("r1"), (True, {R1})),
        ("c", Restarted("r1"), (False, {R1})),
        ("b", Restarted("r2"), (False, {R1})),
        ("b", ScrapeFailed("r1", 1), (False, set())),
        ("c", ScrapeFailed("r1", 2), (False, {R1})),
    ],
)
def test_what_is_taken_and_left(member, news, expected):
    """Only the reader's word counts, and what replicas push."""
    assert taken(member, news) == expected


def test_a_member_before_the_reader_takes_its_place():
    """Its restarts count from then on."""
    own = PageReaders("m", lambda _: None)
    for member in ("b", "a"):
        assert own.heard(member, ReadingsUpdate("r1", "page", (), 9.0), 9.0)
    assert own.heard("a", Restarted("r1"), 9.0)
    assert not own.heard("b", Restarted("r1"), 9.0)


def test_what_is_left_is_bounded(monkeypatch):
    """Further pages are read here."""
    monkeypatch.setattr(pages, "MAX_PAGES", 2)
    own = PageReaders("m", lambda _: None)
    names = ("r1", "r2", "r3", "r1")
    took = [own.heard("a", ReadingsUpdate(each, "page", (), 9.0), 9.0) for each in names]
    assert took == [True, True, False, True]
