"""First parts of the tests' bodies are short, which Envoy's are not."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _short_first_parts(monkeypatch):
    monkeypatch.setattr("ext_proc.exchange.known.CUT_BYTES", 0)
