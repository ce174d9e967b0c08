"""Tests that start, kill or stop whole processes, renew their certificates or change a listener."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Take the fixtures that these folders share."""
    config.pluginmanager.import_plugin("support.lab")  # once, whoever asks first


@pytest.fixture(scope="session", autouse=True)
def _forked(forked_services: None) -> None:
    """Start services without their imports."""
