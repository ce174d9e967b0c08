"""Fixtures of the tests of several control servers."""

from __future__ import annotations

import pytest

from xds_server.leading import etcd


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine answer late: what is tested here is not the time of a call."""
    monkeypatch.setattr(etcd, "CALL_S", 60.0)
