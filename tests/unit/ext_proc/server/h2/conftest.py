"""Fixtures of the transport's tests."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs


@pytest.fixture(autouse=True)
def logged():
    """Collect logs: formatting tracebacks takes long."""
    with capture_logs() as entries:
        yield entries
