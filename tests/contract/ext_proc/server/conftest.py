"""Fixtures of the tests of the service."""

from __future__ import annotations

import pytest

from support.peer import Peer


@pytest.fixture(params=["grpc", "nghttp2"])
def transport(request):
    """Run a test over both transports."""
    before, Peer.transport = Peer.transport, request.param
    yield request.param
    Peer.transport = before
