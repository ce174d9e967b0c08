"""Tests over running stacks with a real Envoy, which each test leaves as it found it."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Take the fixtures that these folders share."""
    config.pluginmanager.import_plugin("support.lab")  # once, whoever asks first


@pytest.fixture(scope="session", autouse=True)
def _forked(forked_services: None) -> None:
    """Start services without their imports."""


@pytest.fixture(autouse=True)
def _clean(_left_as_found: None) -> None:
    """Hold that each test leaves the shared stack as it found it."""
