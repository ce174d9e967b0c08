"""Refused peers in the log."""

from __future__ import annotations

import structlog

from tidegate_common.tls.denied import AGAIN_S, MAX_KNOWN, DeniedPeers
from tidegate_common.tls.roles import Peer

PEER = Peer(("spiffe://a/b",), ())


def test_the_same_refusal_is_logged_once_per_interval() -> None:
    """A peer that tries again and again does not fill the log."""
    now = 0.0
    refused = DeniedPeers(lambda: now)
    with structlog.testing.capture_logs() as logs:
        for _ in range(1000):
            refused.note("ip", PEER, "no")
        now = AGAIN_S
        refused.note("ip", PEER, "no")
    assert len(logs) == 2
    assert refused.count == 1001


def test_remembered_refusals_are_bounded() -> None:
    """Peers with ever other names make no memory grow, and no log."""
    now = 0.0
    refused = DeniedPeers(lambda: now)
    with structlog.testing.capture_logs() as logs:
        for number in range(MAX_KNOWN * 3):
            refused.note("ip", Peer((f"spiffe://a/{number}",), ()), "no")
        assert len(logs) == MAX_KNOWN
        now = AGAIN_S
        refused.note("ip", PEER, "no")
    assert len(logs) == MAX_KNOWN + 1
    assert len(refused._known) == 1
