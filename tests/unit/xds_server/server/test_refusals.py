"""The list of refused peers."""

from __future__ import annotations

from structlog.testing import capture_logs

from xds_server.server import refusals as module
from xds_server.server.refusals import RefusedPeers


class Clock:
    """Seconds that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_peer_that_tries_again_is_one_entry() -> None:
    """Each attempt comes from another port; it is logged once."""
    clock = Clock()
    found = RefusedPeers(clock)
    with capture_logs() as logs:
        for port in range(5):
            found.note(f"ipv4:10.0.0.1:{port}", "", "use ADS")
    clock.now += 7
    (entry,) = found.newest()
    assert (entry.peer, entry.node, entry.reason) == ("ipv4:10.0.0.1:4", "", "use ADS")
    assert (entry.count, entry.last_s) == (5, 7)
    assert [line["event"] for line in logs] == ["xds_refused"]


def test_peers_and_reasons_are_told_apart() -> None:
    """By node id where there is one; the newest comes first."""
    found = RefusedPeers(Clock())
    found.note("ipv4:10.0.0.1:1", "gw-1", "a")
    found.note("ipv4:10.0.0.1:2", "gw-2", "a")
    found.note("ipv4:10.0.0.1:3", "gw-1", "b")
    found.note("ipv4:10.0.0.2:4", "gw-2", "a")
    assert [(e.node, e.reason, e.count) for e in found.newest()] == [
        ("gw-2", "a", 2),
        ("gw-1", "b", 1),
        ("gw-1", "a", 1),
    ]


def test_the_list_is_bounded() -> None:
    """The one refused longest ago is dropped, and texts are cut."""
    found = RefusedPeers(Clock())
    for number in range(module.MAX_REFUSALS + 10):
        found.note("p" * 9999, f"{number}" + "n" * 9999, "r" * 9999)
    entries = found.newest()
    assert len(entries) == module.MAX_REFUSALS
    assert entries[-1].node.startswith("10n")
    assert {len(e.reason) for e in entries} == {module.MAX_REASON_CHARS}
    assert {len(e.peer) for e in entries} == {len(e.node) for e in entries} == {256}


def test_the_log_is_bounded() -> None:
    """A flood of new names writes few lines a minute; the next minute writes again."""
    clock = Clock()
    found = RefusedPeers(clock)
    with capture_logs() as logs:
        for number in range(1000):
            found.note("p", f"{number}", "r")
        assert len(logs) == module.MAX_LOGGED
        clock.now += module.LOG_WINDOW_S + 1
        found.note("p", "another", "r")
        assert len(logs) == module.MAX_LOGGED + 1


def test_an_old_entry_leaves_the_list() -> None:
    """A peer that was mended is not shown for ever; one that comes back is logged again."""
    clock = Clock()
    found = RefusedPeers(clock)
    with capture_logs() as logs:
        found.note("p", "n", "r")
        clock.now += module.KEEP_S + 1
        assert found.newest() == ()
        found.note("p", "n", "r")
    assert found.newest()[0].count == 1
    assert len(logs) == 2
