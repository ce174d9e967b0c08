"""Bounds of the history, and uses of pieces."""

from __future__ import annotations

from xds_server.fleet.stored.written import History


def test_the_oldest_revisions_go_beyond_the_number() -> None:
    """At the bound all stay."""
    history = History(2, 1000)
    history.add(1, 10)
    history.add(2, 10)
    assert history.beyond() == []
    history.add(3, 10)
    assert history.beyond() == [1]


def test_the_oldest_revisions_go_beyond_the_bytes() -> None:
    """But the newest stays even if it alone is too large."""
    history = History(100, 20)
    history.add(1, 10)
    history.add(2, 10)
    assert history.beyond() == []
    history.add(3, 1)
    assert history.beyond() == [1]
    history.add(4, 100)
    assert history.beyond() == [2, 3]


def test_a_piece_is_fresh_once_and_unused_once() -> None:
    """Between the first use and the end of the last one."""
    history = History(1, 1)
    assert history.use(["a", "b"]) == ["a", "b"]
    assert history.use(["a"]) == []
    assert history.release(["a", "b"]) == ["b"]
    assert history.release(["a"]) == ["a"]
    assert history.use(["a"]) == ["a"]
