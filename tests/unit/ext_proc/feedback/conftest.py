"""Fixtures of the tests of feedback."""

from __future__ import annotations

import pytest

from support.log_entries import Traffic


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()
