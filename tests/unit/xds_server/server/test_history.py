"""The mark of a history, in its store."""

from __future__ import annotations

from contextlib import closing

import pytest

from support.fleets import fleet
from xds_server.fleet.revision import FleetState, Revision
from xds_server.fleet.store import RevisionStore
from xds_server.server.history import KEEP_S, MarkedHistory


@pytest.fixture
def start(tmp_path):
    """Return a function that starts with a folder and stores revisions."""

    def started(
        folder: str = "s", *, accept_loss: bool = False, revisions: int = 1
    ) -> MarkedHistory:
        with closing(RevisionStore(tmp_path / folder)) as store:
            found = MarkedHistory.of(store, lasts=True, accept_loss=accept_loss)
            for number in range(len(store.revisions(9)) + 1, revisions + 1):
                store.append(FleetState(Revision(number, 0, "ann", "", ()), fleet(), {}, None))
        return found

    return started


def test_a_mark_lasts_as_long_as_its_store(start) -> None:
    """Whether or not the server lived until its first revision; another store has another."""
    first = start(revisions=0)
    assert first.mark
    assert start().mark == first.mark
    assert start(revisions=2).mark == first.mark
    assert start("other").mark not in {first.mark, ""}


def test_a_store_that_is_older_than_marks_has_none(tmp_path, start) -> None:
    """Its clients hold versions without a mark."""
    with closing(RevisionStore(tmp_path / "s")) as store:
        store.append(FleetState(Revision(1, 0, "ann", "", ()), fleet(), {}, None))
    assert start().mark == ""


def test_what_is_in_memory_has_no_mark() -> None:
    """Each restart loses it, and it has no drains that were to last."""
    with closing(RevisionStore(None)) as store:
        assert MarkedHistory.of(store, lasts=False, accept_loss=False).mark == ""


def test_an_accepted_loss_lasts(start) -> None:
    """Clients may come at any later time."""
    assert start().mark
    assert start(accept_loss=True).mark == ""
    assert start().mark == ""


def test_the_first_client_of_another_history_is_named() -> None:
    """Each is told the remedy, always in the same words: refusals are counted by their reason."""
    history = MarkedHistory("s/tidegate.db", "-a")
    errors = {str(history.refusal("envoy-1", f"ipv4:10.0.0.1:{port}")) for port in (5, 6)}
    assert len(errors) == 1
    assert "--accept-loss" in errors.pop()
    assert history.reason.startswith("envoy-1 (ipv4:10.0.0.1:5) holds a configuration of another")


def test_a_loss_is_told_while_its_clients_come() -> None:
    """They may have been restarted, or belong elsewhere."""
    now = 0.0
    history = MarkedHistory("s/tidegate.db", "-a", lambda: now)
    assert not history.reason
    for _ in range(3):
        history.refusal("envoy-1", "ipv4:10.0.0.1:5")
        now += 0.9 * KEEP_S
        assert history.reason
    now += KEEP_S
    assert not history.reason
    history.refusal("envoy-2", "ipv4:10.0.0.2:5")
    assert history.reason.startswith("envoy-2")
